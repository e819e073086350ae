package ipvs

import (
	"time"

	"github.com/headgate/headgate/model"
)

// Names of chains that only this backend's table has.
const (
	byIPVS         = "by-ipvs"
	internalByIPVS = "internal-by-ipvs"
	externalByIPVS = "external-by-ipvs"
	localByIPVS    = "local-by-ipvs"
	loopbackChain  = "loopback-node-ports"
	guardChain     = "guard-virtual"
)

// Names of sets that only this backend's table has.
const (
	virtualServicesSet = "virtual-services"
	vipsSet            = "virtual-ips"
	nodeAddrsSet       = "node-port-ips"
	drainingSet        = "draining"
)

// scheduler returns the kernel's scheduler for a way of balancing, and the flags that it takes. Each is a module of its
// own, ip_vs_rr say. IPVS has none that picks by chance: taking turns spreads as evenly.
func scheduler(s *model.Service, equal bool) (name string, flags uint32) {
	if s.HashPort {
		flags = flagHashPort
	}
	switch s.Balance {
	case model.SourceHash:
		return "sh", flags | flagFallback // or whoever hashes to a server without weight is dropped
	case model.Maglev:
		return "mh", flags | flagFallback
	case model.LeastConn:
		if equal {
			return "lc", 0
		}
		return "wlc", 0
	}
	if equal {
		return "rr", 0
	}
	return "wrr", 0
}

// longestAffinity is what every kernel's timers can hold: the timeout of a virtual service is a 32-bit number of ticks,
// of which there may be a thousand to the second.
const longestAffinity = (1<<32 - 1) / 1000 * time.Second

// ownerShift is where the flags of a virtual service have room for more than the kernel knows: it keeps what it does not
// know, and takes the lowest six bits alone to mean anything.
const ownerShift = 16

// ownerFlags are flags by which our virtual services are known again if the table that lists them is lost.
func ownerFlags(routeProtocol int) uint32 { return (0x6800 + uint32(routeProtocol)) << ownerShift }

// routeMetric is that of our routes: apart from the kernel's own local routes, which have 0 and come first, from those
// of other people, and from those of a Programmer with another number.
func routeMetric(routeProtocol uint8) uint32 { return 0x6800 + uint32(routeProtocol) }
