package conntrack

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// A staleCase is one change and what it means for a table.
type staleCase struct {
	name string
	cfg  Config
	// before is what was programmed; nil for nothing that this process knows of: a restart.
	before *model.State
	after  model.State
	// stay and leave are flows before the change. Each gets a client port of its own.
	stay, leave []entry
	// diffOnly leaves out the Sync, which compares everything.
	diffOnly bool
}

// tcp and sctp are entries of other protocols.
func tcp(e entry) entry  { e.proto = model.TCP.Number(); return e }
func sctp(e entry) entry { e.proto = model.SCTP.Number(); return e }

// flowOf is an entry from pod to an address and port, answered from another.
func flowOf(to, from netip.AddrPort) entry {
	client := pod
	if to.Addr().Is6() {
		client = pod6
	}
	return entry{client: at(client, 0), to: to, from: from}
}

func inZone(zone uint16, e entry) entry { e.zone = zone; return e }

// with returns a state with a service changed by f.
func with(s model.State, f func(s *model.State)) model.State {
	services, eps := model.ServiceMap{}, model.EndpointMap{}
	for name, svc := range s.Services {
		services[name] = svc
	}
	for name, list := range s.Endpoints {
		eps[name] = slices.Clone(list)
	}
	s.Services, s.Endpoints = services, eps
	f(&s)
	return s
}

func staleCases() []staleCase {
	everywhere := service(at(vip, 53))
	everywhere.Frontends = append(everywhere.Frontends, model.Frontend{Kind: model.External, Addr: at(ext, 530)}, nodePort(30053))
	a, b := at(podA, 5353), at(podB, 5353)
	both := state("dns", everywhere, endpoints(a, b)...)
	onlyB := with(both, func(s *model.State) { s.Endpoints["dns"] = endpoints(b) })
	none := with(both, func(s *model.State) { s.Endpoints["dns"] = nil })
	gone := with(both, func(s *model.State) { delete(s.Services, "dns") })
	two := with(both, func(s *model.State) {
		s.Services["dns2"] = service(at(vip2, 53))
		s.Endpoints["dns2"] = endpoints(a)
	})
	inState := func(st model.EndpointState) model.State {
		return with(both, func(s *model.State) { s.Endpoints["dns"][0].State = st })
	}
	dual := model.State{Node: model.Node{Addrs: []netip.Addr{node, node6}},
		Services:  model.ServiceMap{"dns": service(at(vip, 53), at(vip6, 53))},
		Endpoints: model.EndpointMap{"dns": endpoints(a, b, at(podA6, 5353), at(podB6, 5353))}}
	portOf := func(holder model.ServiceName) model.State { // of two services, a and b, over the endpoint of their name
		s := state("a", service(), endpoints(a)...)
		s.Services["b"], s.Endpoints["b"] = service(), endpoints(b)
		svc := service()
		svc.Frontends = append(svc.Frontends, nodePort(30053))
		s.Services[holder] = svc
		return s
	}
	all := func(from netip.AddrPort) []entry {
		return []entry{flowOf(at(vip, 53), from), flowOf(at(ext, 530), from), flowOf(at(node, 30053), from)}
	}
	strangers := []entry{
		flowOf(at(vip, 54), a),                             // another port of the address
		flowOf(at(vip2, 53), a),                            // another address with the port
		flowOf(at(outside, 30053), at(outside, 30053)),     // somebody else's node port
		flowOf(at(outside, 30053), a),                      // and one that somebody translates
		flowOf(a, a),                                       // straight to the endpoint
		tcp(flowOf(at(vip, 53), a)),                        // another protocol
		sctp(flowOf(at(vip, 53), a)),                       // another
		flowOf(at(node2, 30053), at(node2, 30053)),         // node2 is no address of this node
		flowOf(at(node, 30054), a),                         // another node port
		{client: at(vip, 0), to: at(outside, 53), from: a}, // the VIP as a client
	}
	return []staleCase{
		{name: "endpoint removed", before: &both, after: onlyB, leave: all(a), stay: append(all(b), strangers...)},
		{name: "endpoint not ready", before: &both, after: inState(model.NotReady), leave: all(a), stay: all(b)},
		{name: "endpoint draining", before: &both, after: inState(model.Draining), stay: append(all(a), all(b)...)},
		{name: "no endpoints left", before: &both, after: none, leave: append(all(a), all(b)...),
			stay: append([]entry{flowOf(at(vip, 53), at(vip, 53))}, strangers...)},
		{name: "service deleted", before: &both, after: gone, leave: append(all(a), all(b)...),
			stay: append([]entry{flowOf(at(vip, 53), at(vip, 53)), flowOf(at(node, 30053), at(node, 30053))}, strangers...)},
		{name: "first endpoint", before: &none, after: both,
			leave: []entry{flowOf(at(vip, 53), at(vip, 53)), flowOf(at(ext, 530), at(ext, 530)), flowOf(at(node, 30053), at(node, 30053))},
			stay:  append(all(a), strangers...)},
		{name: "service added", before: &gone, after: both,
			leave: append(all(at(podA, 9999)), flowOf(at(vip, 53), at(vip, 53)), flowOf(at(ext, 530), at(ext, 530)), flowOf(at(node, 30053), at(node, 30053))),
			stay:  append(all(a), strangers...)},
		{name: "target port changed", before: &both, after: with(both, func(s *model.State) { s.Endpoints["dns"] = endpoints(at(podA, 5354), at(podB, 5354)) }),
			leave: append(all(a), all(b)...), stay: append(all(at(podA, 5354)), strangers...)},
		{name: "endpoint added", before: &onlyB, after: both, stay: append(all(a), all(b)...)},
		{name: "weight, affinity, policy, balance, topology", before: &both, after: with(both, func(s *model.State) {
			s.Endpoints["dns"][0].Weight, s.Endpoints["dns"][1].Zones = 7, []string{"elsewhere"}
			svc := s.Services["dns"]
			svc.Affinity, svc.ExternalTraffic, svc.InternalTraffic, svc.Balance = 60e9, model.Local, model.Local, model.Maglev
			s.Services["dns"] = svc
		}), stay: append(append(all(a), all(b)...), strangers...)},
		{name: "one backend behind two addresses", before: &two, after: with(two, func(s *model.State) { s.Endpoints["dns"] = endpoints(b) }),
			leave: all(a), stay: []entry{flowOf(at(vip2, 53), a), flowOf(at(vip, 53), b)}},
		{name: "frontend removed", before: &both, after: with(both, func(s *model.State) { s.Services["dns"] = service(at(vip, 53)) }),
			leave: all(a)[1:], stay: []entry{flowOf(at(vip, 53), a), flowOf(at(outside, 30053), a)}},
		{name: "frontend handed over", before: &two, after: with(two, func(s *model.State) {
			delete(s.Services, "dns2")
			svc := service(at(vip, 53), at(vip2, 53))
			s.Services["dns"], s.Endpoints["dns"] = svc, endpoints(b)
		}), leave: []entry{flowOf(at(vip2, 53), a), flowOf(at(ext, 530), b)}, stay: []entry{flowOf(at(vip2, 53), b), flowOf(at(vip, 53), b)}},
		{name: "frontend before node port", before: &both, after: with(both, func(s *model.State) {
			s.Services["own"] = service(at(node, 30053))
			s.Endpoints["own"] = endpoints(at(podB, 5354))
			s.Endpoints["dns"] = endpoints(a)
		}), leave: []entry{flowOf(at(node, 30053), a), flowOf(at(node, 30053), b)}, stay: []entry{flowOf(at(node, 30053), at(podB, 5354)), flowOf(at(vip, 53), a)}},
		{name: "one family", before: &dual, after: with(dual, func(s *model.State) { s.Endpoints["dns"] = endpoints(a, b, at(podB6, 5353)) }),
			leave: []entry{flowOf(at(vip6, 53), at(podA6, 5353))},
			stay:  []entry{flowOf(at(vip6, 53), at(podB6, 5353)), flowOf(at(vip, 53), a), flowOf(at(vip, 53), b)}},
		{name: "IPv6 service deleted", before: &dual, after: with(dual, func(s *model.State) { delete(s.Services, "dns") }),
			leave: []entry{flowOf(at(vip6, 53), at(podA6, 5353)), flowOf(at(vip, 53), a)}, stay: []entry{flowOf(at(vip6, 53), at(vip6, 53))}},
		{name: "mismatches elsewhere are none of this change", before: &two, after: with(two, func(s *model.State) { s.Endpoints["dns"] = endpoints(b) }),
			leave: all(a), stay: []entry{flowOf(at(vip2, 53), b), flowOf(at(vip2, 53), at(vip2, 53))}, diffOnly: true},
		{name: "node port handed over", before: ptr(portOf("b")), after: portOf("a"),
			leave: []entry{flowOf(at(node, 30053), b)}, stay: []entry{flowOf(at(node, 30053), a), flowOf(at(node2, 30053), b)}},
		{name: "node port handed over the other way", before: ptr(portOf("a")), after: portOf("b"),
			leave: []entry{flowOf(at(node, 30053), a)}, stay: []entry{flowOf(at(node, 30053), b), flowOf(at(node2, 30053), a)}},
		{name: "nothing changed", before: &both, after: both, stay: append(all(at(podA, 9999)), strangers...), diffOnly: true},

		{name: "restart, unchanged", after: both, stay: append(append(all(a), all(b)...), strangers...)},
		{name: "restart, mismatches", after: onlyB, leave: append(all(a), append(all(at(podB, 9)), flowOf(at(vip, 53), at(vip, 53)))...),
			stay: append(all(b), strangers...)},
		{name: "restart, nothing to balance", after: gone, stay: append(all(a), strangers...)},
		{name: "restart, orphans of service ranges", cfg: Config{Orphans: true},
			after: with(gone, func(s *model.State) { s.Node.ServiceRanges = []netip.Prefix{netip.MustParsePrefix("172.20.0.0/16")} }),
			leave: []entry{flowOf(at(vip, 53), a), flowOf(at(vip, 54), a), flowOf(at(vip2, 53), a)},
			stay:  []entry{flowOf(at(vip, 53), at(vip, 53)), flowOf(at(ext, 530), a), flowOf(at(outside, 30053), a), tcp(flowOf(at(vip, 53), a))}},

		{name: "node address lost", before: &both, after: with(both, func(s *model.State) { s.Node.Addrs = []netip.Addr{node2, node6} }),
			leave: []entry{flowOf(at(node, 30053), a), flowOf(at(node2, 30053), at(node2, 30053))},
			stay:  []entry{flowOf(at(node, 30053), at(node, 30053)), flowOf(at(node2, 30053), a), flowOf(at(node, 30054), a), flowOf(at(vip, 53), a)}},
		{name: "node ports limited to other addresses", before: &both,
			after: with(both, func(s *model.State) {
				s.Node.NodePorts.Prefixes = []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")}
			}),
			leave: []entry{flowOf(at(node, 30053), a)}, stay: []entry{flowOf(at(vip, 53), a), flowOf(at(node, 30053), at(node, 30053))}},
		{name: "loopback node ports off", before: ptr(with(both, func(s *model.State) { s.Node.NodePorts.Loopback = true })), after: both,
			leave: []entry{flowOf(at(addr("127.0.0.1"), 30053), a)},
			stay:  []entry{flowOf(at(addr("127.0.0.1"), 30054), a), flowOf(at(node, 30053), a), flowOf(at(addr("127.0.0.1"), 30053), at(addr("127.0.0.1"), 30053))}},
		{name: "loopback node port", before: ptr(with(both, func(s *model.State) { s.Node.NodePorts.Loopback = true })),
			after: with(onlyB, func(s *model.State) { s.Node.NodePorts.Loopback = true }),
			leave: []entry{flowOf(at(addr("127.0.0.1"), 30053), a), flowOf(at(addr("127.0.0.9"), 30053), a)},
			stay:  []entry{flowOf(at(addr("127.0.0.1"), 30053), b)}},

		{name: "zones, all by default", before: &both, after: onlyB,
			leave: []entry{inZone(7, flowOf(at(vip, 53), a)), flowOf(at(vip, 53), a)}, stay: []entry{inZone(7, flowOf(at(vip, 53), b))}},
		{name: "zones, untranslated only in zone 0", before: &none, after: both,
			leave: []entry{flowOf(at(vip, 53), at(vip, 53))}, stay: []entry{inZone(7, flowOf(at(vip, 53), at(vip, 53)))}},
		{name: "zones, some", cfg: Config{Zones: []uint16{7}}, before: &both, after: onlyB,
			leave: []entry{inZone(7, flowOf(at(vip, 53), a))}, stay: []entry{flowOf(at(vip, 53), a), inZone(8, flowOf(at(vip, 53), a))}},

		{name: "SCTP and TCP by default", before: ptr(asProtocol(both, model.SCTP)), after: asProtocol(onlyB, model.SCTP),
			stay: []entry{sctp(flowOf(at(vip, 53), a)), flowOf(at(vip, 53), a), tcp(flowOf(at(vip, 53), a))}},
		{name: "SCTP on request", cfg: Config{Protocols: []model.Protocol{model.SCTP}}, before: ptr(asProtocol(both, model.SCTP)), after: asProtocol(onlyB, model.SCTP),
			leave: []entry{sctp(flowOf(at(vip, 53), a)), sctp(flowOf(at(node, 30053), a))},
			stay:  []entry{sctp(flowOf(at(vip, 53), b)), flowOf(at(vip, 53), a), tcp(flowOf(at(vip, 53), a))}},
		{name: "TCP on request", cfg: Config{Protocols: []model.Protocol{model.TCP, model.UDP}}, before: ptr(asProtocol(both, model.TCP)), after: asProtocol(onlyB, model.TCP),
			leave: []entry{tcp(flowOf(at(vip, 53), a))}, stay: []entry{tcp(flowOf(at(vip, 53), b)), flowOf(at(vip, 53), a)}},
		{name: "protocol changed", before: &both, after: asProtocol(both, model.TCP),
			leave: all(a), stay: []entry{tcp(flowOf(at(vip, 53), a)), flowOf(at(vip, 53), at(vip, 53))}},
	}
}

func ptr[T any](v T) *T { return &v }

func asProtocol(s model.State, p model.Protocol) model.State {
	return with(s, func(s *model.State) {
		for name, svc := range s.Services {
			svc.Protocol = p
			s.Services[name] = svc
		}
	})
}

// TestStale puts flows in a real table, tells the Cleaner of the change, and reads with another library what is left:
// with the kernel's filter and without, for the change as a Diff and as a whole state.
func TestStale(t *testing.T) {
	for _, tc := range staleCases() {
		ways := []string{"filtered", "whole", "synced"}
		if tc.diffOnly {
			ways = ways[:2]
		}
		for _, way := range ways {
			t.Run(tc.name+"/"+way, func(t *testing.T) {
				ns := lab.StartNetNS(t, "node")
				cfg := tc.cfg
				cfg.NoKernelFilter = way == "whole"
				runStaleCase(t, ns, newCleaner(t, ns, cfg), tc, way == "synced")
			})
		}
	}
}

func runStaleCase(t *testing.T, ns *lab.NetNS, c *Cleaner, tc staleCase, whole bool) {
	if tc.before != nil {
		synced(c, *tc.before)
		require.Zero(t, settle(t, c), "an empty table")
	}
	var want []uint16
	for i, e := range append(slices.Clone(tc.stay), tc.leave...) {
		e.client = netip.AddrPortFrom(e.client.Addr(), uint16(41000+i))
		put(t, ns, e)
		if i < len(tc.stay) {
			want = append(want, e.client.Port())
		}
	}
	if tc.before == nil || whole {
		synced(c, tc.after)
	} else {
		applied(c, model.DiffStates(*tc.before, tc.after))
	}
	require.Equal(t, len(tc.leave), settle(t, c), "flows deleted")
	require.Equal(t, want, clients(t, ns))
	stats := c.Stats()
	require.Equal(t, Stats{Stale: len(tc.leave), Deleted: len(tc.leave)}, Stats{Stale: stats.Stale, Deleted: stats.Deleted, Gone: stats.Gone, Failed: stats.Failed})
}
