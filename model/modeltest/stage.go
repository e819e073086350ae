package modeltest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/headgate/headgate/model"
)

// The stage on which the scenarios play is one node and what is around it. A World that has hosts of its own makes
// them from this plan; the addresses in use are those of each scenario's endpoints and packets.
//
//	the node           198.51.100.10 (primary), 198.51.101.10, 192.0.2.77, 2001:db8:a::10 (primary), 2001:db8:b::10
//	pods on it         10.128.0.0/24, fd10:128:0:a::/64      on interfaces named veth-…
//	pods elsewhere     10.128.1.0/24, 10.128.2.0/24, fd10:128:0:b::/64   over the wire
//	another node       198.51.100.20                         over the wire
//	outside            203.0.113.0/24, 2001:db8:e::/64       over the wire
//	internal VIPs      172.20.0.0/16, fd20:96::/112          nowhere
//	external VIPs      192.0.2.0/24 but for .77, 2001:db8:c::/64   nowhere
var (
	podsEverywhere = []netip.Prefix{pfx("10.128.0.0/14"), pfx("fd10:128::/48")}
	serviceRanges  = []netip.Prefix{pfx("172.20.0.0/16"), pfx("fd20:96::/112")}
)

// StageNode returns the node of the scenarios: "node-a" in "zone-1", with every address that it has, pods recognised
// by their addresses, node ports on all addresses, and service ranges.
func StageNode() model.Node {
	return model.Node{
		Name: "node-a", Zone: "zone-1",
		Addrs:         addrs("198.51.100.10", "198.51.101.10", "192.0.2.77", "2001:db8:a::10", "2001:db8:b::10"),
		Primary:       addrs("198.51.100.10", "2001:db8:a::10"),
		Detector:      model.LocalDetector{Prefixes: append([]netip.Prefix(nil), podsEverywhere...)},
		ServiceRanges: append([]netip.Prefix(nil), serviceRanges...),
	}
}

// What a World may do beyond sending packets. The suite skips, by name, what a World cannot do.
type (
	// A Preparer must know what is to come: who shall answer, and who sends. The suite calls Prepare with every state
	// before it is programmed, and with the packets that it will send; it may be called often, and must not take
	// anything away that an earlier call made.
	Preparer interface {
		Prepare(tb testing.TB, s model.State, packets []Packet)
	}

	// A Connector can hold a connection open.
	Connector interface {
		// Open opens one connection, as p says.
		Open(ctx context.Context, p Packet) (Connection, error)
	}

	// A Connection is open between a client and an endpoint. It is closed by Close.
	Connection interface {
		// Endpoint is who accepted it.
		Endpoint() netip.AddrPort
		// Exchange sends something and waits for the answer. An error means that the connection is dead.
		Exchange(ctx context.Context) error
		Close() error
	}

	// A Sleeper has a clock of its own. Other worlds are waited for.
	Sleeper interface {
		Sleep(d time.Duration)
	}

	// An Addresser can give its node addresses and take them away. Outside clients reach them at once.
	Addresser interface {
		AddAddr(a netip.Addr) error
		DelAddr(a netip.Addr) error
	}
)

// The differences that the suite knows: a backend whose FeatureSet names one of them is not asked for what it says.
// Any other difference goes into [Target.Skip].
const (
	// DiffOtherPorts: new connections to other ports and protocols of an internal frontend's address, and ICMP echo
	// requests, are not refused.
	DiffOtherPorts = "other-ports"
	// DiffExternalOtherPorts: other ports of an external frontend's address are refused instead of left alone.
	DiffExternalOtherPorts = "external-other-ports"
	// DiffServiceRanges: unowned addresses in the service ranges are not dropped.
	DiffServiceRanges = "service-ranges"
	// DiffLocalShortCut: internal and node sources of external frontends with policy Local are served by the
	// endpoints on this node alone, like everybody else.
	DiffLocalShortCut = "local-short-cut"
	// DiffLoopback: there are no node ports on loopback addresses.
	DiffLoopback = "loopback-node-ports"
	// DiffLoopedVIP: packets that the node sends itself with a virtual address as their source are not recognised.
	DiffLoopedVIP = "looped-vip"
	// DiffAffinityPerFrontend: affinity is counted per frontend, not per service.
	DiffAffinityPerFrontend = "affinity-per-frontend"
	// DiffAffinityTimeout: affinity may last longer than asked for.
	DiffAffinityTimeout = "affinity-timeout"
	// DiffNodePortAddrs: node ports follow the addresses in [model.Node], not those that the kernel has.
	DiffNodePortAddrs = "node-port-addresses"
	// DiffMasqueradeLocal: what goes to an endpoint at the node's own address is masqueraded like the rest.
	DiffMasqueradeLocal = "masquerade-local"
)

func pfx(s string) netip.Prefix  { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr   { return netip.MustParseAddr(s) }
func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func addrs(ss ...string) []netip.Addr {
	out := make([]netip.Addr, len(ss))
	for i, s := range ss {
		out[i] = addr(s)
	}
	return out
}

func prefixes(ss ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(ss))
	for i, s := range ss {
		out[i] = pfx(s)
	}
	return out
}

// nodeWith returns the node of the scenarios, changed.
func nodeWith(change func(*model.Node)) model.Node {
	n := StageNode()
	change(&n)
	return n
}

// A part is something that makes up a state: a service, as a rule.
type part func(*model.State)

// stateOf makes a state of a node and services.
func stateOf(node model.Node, parts ...part) model.State {
	s := model.State{Node: node, Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	for _, p := range parts {
		p(&s)
	}
	return s
}

// service adds a service with its endpoints.
func service(name model.ServiceName, svc model.Service, eps ...model.Endpoint) part {
	return func(s *model.State) {
		if _, twice := s.Services[name]; twice {
			panic(fmt.Sprintf("modeltest: service %q twice", string(name)))
		}
		s.Services[name] = svc
		if len(eps) > 0 {
			s.Endpoints[name] = eps
		}
	}
}

// at lists frontends.
func at(fs ...model.Frontend) []model.Frontend { return fs }

func internal(a string, ranges ...string) model.Frontend {
	return model.Frontend{Kind: model.Internal, Addr: ap(a), SourceRanges: ranged(ranges)}
}

func external(a string, ranges ...string) model.Frontend {
	return model.Frontend{Kind: model.External, Addr: ap(a), SourceRanges: ranged(ranges)}
}

func nodePort(port uint16, ranges ...string) model.Frontend {
	return model.Frontend{Kind: model.NodePort, Addr: netip.AddrPortFrom(netip.Addr{}, port), SourceRanges: ranged(ranges)}
}

func ranged(ss []string) []netip.Prefix {
	if len(ss) == 0 {
		return nil
	}
	return prefixes(ss...)
}

// here and there return a Ready endpoint on this node and on another one.
func here(a string) model.Endpoint  { return model.Endpoint{Addr: ap(a), Local: true} }
func there(a string) model.Endpoint { return model.Endpoint{Addr: ap(a)} }

func draining(e model.Endpoint) model.Endpoint { e.State = model.Draining; return e }
func notReady(e model.Endpoint) model.Endpoint { e.State = model.NotReady; return e }

func weighing(weight uint16, e model.Endpoint) model.Endpoint { e.Weight = weight; return e }

func forZones(e model.Endpoint, zones ...string) model.Endpoint { e.Zones = zones; return e }
func forNodes(e model.Endpoint, nodes ...string) model.Endpoint { e.Nodes = nodes; return e }
