package conntrack

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/mdlayher/netlink"
	"github.com/stretchr/testify/require"
	timo "github.com/ti-mo/conntrack"
)

// The addresses of the network that the tests with real flows run in.
var (
	node    = addr("198.51.100.10")
	node2   = addr("198.51.100.11")
	node6   = addr("2001:db8:1::10")
	podA    = addr("10.128.0.11")
	podB    = addr("10.128.0.12")
	podA6   = addr("2001:db8:80::11")
	podB6   = addr("2001:db8:80::12")
	pod     = addr("10.128.0.100") // a client
	pod6    = addr("2001:db8:80::100")
	outside = addr("203.0.113.5") // another
	vip     = addr("172.20.9.1")
	vip2    = addr("172.20.9.2")
	vip6    = addr("2001:db8:20::1")
	ext     = addr("192.0.2.10")
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// ctx returns a context that ends with the test, or when it has taken absurdly long.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// newCleaner returns a Cleaner for a namespace that is closed with the test.
func newCleaner(t testing.TB, ns *lab.NetNS, cfg Config) *Cleaner {
	t.Helper()
	cfg.NetNS = ns.FD()
	if cfg.SecondLook == 0 {
		cfg.SecondLook = time.Millisecond
	}
	c, err := New(testContext(t), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// settle cleans until nothing is owed and returns how many flows went.
func settle(t testing.TB, c *Cleaner) int {
	t.Helper()
	res, err := c.Settle(testContext(t))
	require.NoError(t, err)
	return res.Deleted
}

// synced tells a Cleaner that a state was programmed, without programming anything.
func synced(c *Cleaner, s model.State) {
	c.Syncing(s)
	c.Programmed(model.Result{}, nil)
}

// applied is synced for a diff.
func applied(c *Cleaner, d model.Diff) {
	c.Applying(d)
	c.Programmed(model.Result{}, nil)
}

// endpoints returns Ready endpoints.
func endpoints(addrs ...netip.AddrPort) []model.Endpoint {
	eps := make([]model.Endpoint, len(addrs))
	for i, a := range addrs {
		eps[i].Addr = a
	}
	return eps
}

// service returns a UDP service with internal frontends.
func service(frontends ...netip.AddrPort) model.Service {
	s := model.Service{Protocol: model.UDP}
	for _, f := range frontends {
		s.Frontends = append(s.Frontends, model.Frontend{Addr: f})
	}
	return s
}

// nodePort returns a frontend on every node-port address.
func nodePort(port uint16) model.Frontend {
	return model.Frontend{Kind: model.NodePort, Addr: netip.AddrPortFrom(netip.Addr{}, port)}
}

// state returns a state of one service.
func state(name model.ServiceName, s model.Service, eps ...model.Endpoint) model.State {
	return model.State{Node: model.Node{Addrs: []netip.Addr{node, node6}}, Services: model.ServiceMap{name: s}, Endpoints: model.EndpointMap{name: eps}}
}

// An entry is one flow as another library reads it: an independent view of the table.
type entry struct {
	proto          uint8
	client, to     netip.AddrPort
	from           netip.AddrPort
	zone           uint16
	id             uint32
	packetsSent    uint64
	timeoutSeconds uint32
}

func (e entry) String() string { return fmt.Sprintf("%s %s", e.client, e.to) }

// table reads the whole table of a namespace.
func table(t testing.TB, ns *lab.NetNS) []entry {
	t.Helper()
	c, err := timo.Dial(&netlink.Config{NetNS: ns.FD()})
	require.NoError(t, err)
	defer c.Close()
	flows, err := c.Dump(nil)
	require.NoError(t, err)
	entries := make([]entry, len(flows))
	for i, f := range flows {
		o, r := f.TupleOrig, f.TupleReply
		entries[i] = entry{
			proto: o.Proto.Protocol, client: at(o.IP.SourceAddress, o.Proto.SourcePort), to: at(o.IP.DestinationAddress, o.Proto.DestinationPort),
			from: at(r.IP.SourceAddress, r.Proto.SourcePort), zone: f.Zone, id: f.ID, packetsSent: f.CountersOrig.Packets, timeoutSeconds: f.Timeout,
		}
	}
	return entries
}

// put makes an entry in the table. Its source is masqueraded nowhere.
func put(t testing.TB, ns *lab.NetNS, entries ...entry) {
	t.Helper()
	c, err := timo.Dial(&netlink.Config{NetNS: ns.FD()})
	require.NoError(t, err)
	defer c.Close()
	for _, e := range entries {
		if e.proto == 0 {
			e.proto = model.UDP.Number()
		}
		if e.client.Port() == 0 {
			e.client = netip.AddrPortFrom(e.client.Addr(), 40000)
		}
		f := timo.Flow{Timeout: 600, Zone: e.zone}
		f.TupleOrig = timo.Tuple{IP: timo.IPTuple{SourceAddress: e.client.Addr(), DestinationAddress: e.to.Addr()},
			Proto: timo.ProtoTuple{Protocol: e.proto, SourcePort: e.client.Port(), DestinationPort: e.to.Port()}}
		f.TupleReply = timo.Tuple{IP: timo.IPTuple{SourceAddress: e.from.Addr(), DestinationAddress: e.client.Addr()},
			Proto: timo.ProtoTuple{Protocol: e.proto, SourcePort: e.from.Port(), DestinationPort: e.client.Port()}}
		if e.proto == model.TCP.Number() {
			f.ProtoInfo.TCP = &timo.ProtoInfoTCP{State: 3}
		}
		if e.proto == model.SCTP.Number() {
			f.ProtoInfo.SCTP = &timo.ProtoInfoSCTP{State: 4, VTagOriginal: 1, VTagReply: 2}
		}
		require.NoError(t, c.Create(f), "%+v", e)
	}
}

// clients returns the client ports of the flows in a table, sorted: tests tell flows apart by them.
func clients(t testing.TB, ns *lab.NetNS) []uint16 {
	t.Helper()
	var ports []uint16
	for _, e := range table(t, ns) {
		ports = append(ports, e.client.Port())
	}
	slices.Sort(ports)
	return ports
}

// A stage is a node with clients and servers around it, a Cleaner, and the stock nft as the programmer.
type stage struct {
	t       testing.TB
	ctx     context.Context
	topo    *lab.Topology
	cleaner *Cleaner
	tracker *model.Tracker
	flows   map[string]*lab.Flow
	extra   string // rules of others, in our table's syntax
}

func newStage(t testing.TB, cfg Config) *stage {
	t.Helper()
	topo := lab.Start(t, lab.Spec{
		Node: []netip.Addr{node, node2, node6},
		Hosts: []lab.Host{
			{Name: "a", Addrs: []netip.Addr{podA, podA6}},
			{Name: "b", Addrs: []netip.Addr{podB, podB6}},
			{Name: "pod", Addrs: []netip.Addr{pod, pod6}},
			{Name: "outside", Place: lab.Far, Addrs: []netip.Addr{outside}},
		},
	})
	for _, at := range []netip.AddrPort{at(podA, 5353), at(podA, 5354), at(podB, 5353), at(podA6, 5353), at(podB6, 5353)} {
		lab.Serve(t, topo, lab.UDP, at)
	}
	s := &stage{t: t, ctx: testContext(t), topo: topo, cleaner: newCleaner(t, topo.Node, cfg),
		tracker: model.NewTracker(model.Node{Addrs: []netip.Addr{node, node2, node6}}), flows: map[string]*lab.Flow{}}
	// Without rules that ask for it the kernel tracks nothing.
	s.nft("table inet track { chain pre { type filter hook prerouting priority 0; ct state new accept; }; chain out { type filter hook output priority 0; ct state new accept; }; }")
	return s
}

func (s *stage) nft(rules string) {
	s.t.Helper()
	cmd := s.topo.Node.Command(s.ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	out, err := cmd.CombinedOutput()
	require.NoError(s.t, err, "%s\n%s", out, rules)
}

// sync programs all that the tracker holds, as after a start.
func (s *stage) sync() {
	s.t.Helper()
	want := s.tracker.State()
	s.cleaner.Syncing(want)
	s.program(want)
	s.cleaner.Programmed(model.Result{}, nil)
}

// apply programs what changed in the tracker.
func (s *stage) apply() {
	s.t.Helper()
	s.cleaner.Applying(s.tracker.Diff())
	s.program(s.tracker.State())
	s.cleaner.Programmed(model.Result{}, nil)
}

// program loads the rules of a state.
func (s *stage) program(st model.State) {
	s.t.Helper()
	var pre, node strings.Builder
	for name, svc := range st.Services {
		for _, f := range svc.Frontends {
			for _, family := range model.Families {
				if f.Kind != model.NodePort && f.Family() != family {
					continue
				}
				rule := natRule(svc, f, family, st.Endpoints[name])
				if f.Kind == model.NodePort {
					node.WriteString(rule)
				} else {
					pre.WriteString(rule)
				}
			}
		}
	}
	body := pre.String() + node.String() // an address and port of its own comes first
	s.nft("table inet balance {}; delete table inet balance; table inet balance {\n" + s.extra +
		"chain pre { type nat hook prerouting priority -100;\n" + body + "}\n" +
		"chain out { type nat hook output priority -100;\n" + body + "}\n}\n")
}

// natRule translates new flows to a frontend.
func natRule(svc model.Service, f model.Frontend, family model.Family, eps []model.Endpoint) string {
	ip, match := "ip", ""
	if family == model.IPv6 {
		ip = "ip6"
	}
	match = ip + " daddr " + f.Addr.Addr().String()
	if f.Kind == model.NodePort {
		match = "meta nfproto " + map[string]string{"ip": "ipv4", "ip6": "ipv6"}[ip] + " fib daddr type local"
	}
	var targets []string
	for _, e := range eps {
		if e.State == model.Ready && model.FamilyOf(e.Addr.Addr()) == family {
			targets = append(targets, fmt.Sprintf("%d : %s . %d", len(targets), e.Addr.Addr(), e.Addr.Port()))
		}
	}
	if len(targets) == 0 {
		return ""
	}
	return fmt.Sprintf("%s %s dport %d dnat %s to numgen random mod %d map { %s }\n",
		match, svc.Protocol, f.Addr.Port(), ip, len(targets), strings.Join(targets, ", "))
}

// talk opens a UDP flow under a name, with a source port of its own, and returns who answered.
func (s *stage) talk(name string, from netip.Addr, to netip.AddrPort) string {
	s.t.Helper()
	return s.talkOver(lab.UDP, name, from, to)
}

func (s *stage) talkOver(p lab.Protocol, name string, from netip.Addr, to netip.AddrPort) string {
	s.t.Helper()
	f, err := s.topo.Open(s.ctx, lab.Query{Proto: p, Source: at(from, uint16(40000+len(s.flows))), To: to})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { f.Close() })
	s.flows[name] = f
	return f.First().Name
}

// again sends over a flow once more and returns who answered.
func (s *stage) again(name string) string {
	s.t.Helper()
	a, err := s.flows[name].Ping(s.ctx, 0)
	require.NoError(s.t, err)
	return a.Name
}

// names returns the names of the flows that are in the table, sorted.
func (s *stage) names() []string {
	s.t.Helper()
	var names []string
	for _, e := range table(s.t, s.topo.Node) {
		for name, f := range s.flows {
			if f.First().Source == e.client {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}
