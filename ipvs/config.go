package ipvs

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/headgate/headgate/internal/nft"
	"github.com/headgate/headgate/model"
)

// Config configures New. The zero Config is ready to use where the administrator has set net.ipv4.vs.conntrack.
type Config struct {
	// Table is the nftables table that goes with the virtual services, one in each family, which the Programmer owns;
	// whatever else is found in it is deleted. Empty means "headgate-ipvs".
	Table string
	// RouteProtocol is the protocol number of our routes, by which they are known: nobody else may use it. Programmers
	// with different tables and numbers can work in one namespace, for different frontends. 0 means 104.
	RouteProtocol int
	// NetNS is a descriptor of the network namespace to program; it may be closed after New. 0 means the namespace
	// of the thread that calls New.
	NetNS int
	// BalancedLabel and MasqueradeLabel are the two bits of the connection label that the rules use, 1 to 127; nobody
	// else may use them, other backends of headgate excepted. 0 means 126 and 127.
	BalancedLabel, MasqueradeLabel int
	// Hosts are the addresses of other hosts that this node must be able to reach: other nodes, the servers of an API.
	// A frontend at one of them is refused, since its address would become this node's own.
	Hosts []netip.Prefix
	// NoShortCut serves internal and node sources of external frontends with policy Local like everybody else: by the
	// endpoints on this node alone. [Programmer.Features] then names the difference.
	NoShortCut bool
	// HashSeed is what SourceHash and Maglev hash with on the short cut. 0 means a fixed one.
	HashSeed uint32
	// AffinitySize is how many clients each service with affinity remembers at most on the short cut. 0 means 65536.
	AffinitySize int
	// DrainDeadline is how long at most the connections of an endpoint or frontend that was removed go on; then they are
	// cut. Endpoints that are still listed, Draining say, have no such limit. 0 means 15 minutes, a negative one never.
	DrainDeadline time.Duration
	// SetSysctls lets Sync set the sysctls that the backend needs: net.ipv4.vs.conntrack, expire_nodest_conn and
	// expire_quiescent_template, all per namespace; net.ipv4.conf.all.route_localnet when node ports shall answer on
	// loopback; and with StrictARP arp_ignore and arp_announce. Otherwise they must be set already: New fails without the
	// first, and Probe tells of the others.
	SetSysctls bool
	// StrictARP says that the node shall not answer ARP requests for virtual addresses: somebody else announces them.
	StrictARP bool
	// Timeout bounds each exchange with the kernel, should the context allow more. 0 means a minute.
	Timeout time.Duration
	// VerifyInterval is how often at most Check compares every real server, and every element of the table if somebody
	// else has changed nftables rules; virtual services, routes and the structure of the table are always compared.
	// 0 means five minutes, a negative one never.
	VerifyInterval time.Duration
	// Trace, if not nil, is called with what is sent to the kernel before it is sent: whole messages of a netlink
	// family, such as unix.NETLINK_GENERIC. It must not keep it.
	Trace func(family int, messages []byte)
}

// withDefaults returns the Config with its zero values replaced, or why it makes no sense.
func (c Config) withDefaults() (Config, error) {
	s, err := c.settings().WithDefaults("headgate-ipvs")
	c.Table, c.BalancedLabel, c.MasqueradeLabel = s.Table, s.BalancedLabel, s.MasqueradeLabel
	c.HashSeed, c.AffinitySize = s.HashSeed, s.AffinitySize
	if c.RouteProtocol == 0 {
		c.RouteProtocol = 104
	}
	for field, value := range map[*time.Duration]time.Duration{&c.Timeout: time.Minute, &c.DrainDeadline: 15 * time.Minute, &c.VerifyInterval: 5 * time.Minute} {
		if *field == 0 {
			*field = value
		}
	}
	const firstFree, last = 5, 255 // those below are the kernel's: RTPROT_STATIC is 4
	switch {
	case err != nil:
		return c, fmt.Errorf("ipvs: %w", err)
	case c.RouteProtocol < firstFree || c.RouteProtocol > last:
		return c, fmt.Errorf("ipvs: route protocol %d: %w", c.RouteProtocol, model.ErrInvalid)
	case c.Timeout < 0:
		return c, fmt.Errorf("ipvs: timeout %v: %w", c.Timeout, model.ErrInvalid)
	}
	for _, p := range c.Hosts {
		if !p.IsValid() || p.Addr().Is4In6() {
			return c, fmt.Errorf("ipvs: host %v: %w", p, model.ErrInvalid)
		}
	}
	return c, nil
}

// settings returns what the Config says about the table.
func (c *Config) settings() nft.Settings {
	return nft.Settings{Table: c.Table, BalancedLabel: c.BalancedLabel, MasqueradeLabel: c.MasqueradeLabel, HashSeed: c.HashSeed, AffinitySize: c.AffinitySize}
}
