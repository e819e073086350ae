package iptables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// A field makes states and packets by chance, out of so few addresses that everything meets everything.
type field struct{ *rand.Rand }

func (r field) one(in int) bool { return r.IntN(in) == 0 }

func pickFrom[T any](r field, all ...T) T { return all[r.IntN(len(all))] }

func someOf[T any](r field, n int, all ...T) []T {
	var out []T
	for _, i := range r.Perm(len(all)) {
		if r.one(n) {
			out = append(out, all[i])
		}
	}
	return out
}

func (r field) frontend() model.Frontend {
	external := []string{"192.0.2.10:80", "192.0.2.11:80", "198.51.100.10:30010", "172.20.9.9:80", "[2001:db8:c::10]:80"}
	internal := []string{"172.20.0.10:80", "172.20.0.10:81", "172.20.0.11:80", "[fd20:96::10]:80"}
	f := model.Frontend{Kind: model.FrontendKind(r.IntN(3))}
	switch f.Kind {
	case model.Internal:
		f.Addr = netip.MustParseAddrPort(pickFrom(r, internal...))
	case model.External:
		f.Addr = netip.MustParseAddrPort(pickFrom(r, external...))
	default:
		f.Addr = netip.AddrPortFrom(netip.Addr{}, uint16(30010+r.IntN(2)))
	}
	if r.one(3) {
		for _, p := range someOf(r, 3, "203.0.113.0/24", "203.0.113.5/32", "10.128.0.0/14", "198.51.100.0/24", "0.0.0.0/1", "128.0.0.0/1", "2001:db8:e::/64", "::/0") {
			f.SourceRanges = append(f.SourceRanges, netip.MustParsePrefix(p))
		}
	}
	return f
}

func (r field) service() model.Service {
	s := model.Service{
		Balance: pickFrom(r, model.Random, model.Random, model.RoundRobin, model.SourceHash, model.Maglev), HashPort: r.one(4),
		InternalTraffic: model.TrafficPolicy(r.IntN(4) / 3), ExternalTraffic: model.TrafficPolicy(r.IntN(2)),
	}
	if r.one(4) {
		s.Protocol = model.UDP
	}
	if r.one(4) {
		s.Affinity = time.Duration(1+r.IntN(2)) * time.Hour
	}
	for range 1 + r.IntN(4) {
		s.Frontends = append(s.Frontends, r.frontend())
	}
	return s
}

func (r field) endpoints() []model.Endpoint {
	if r.one(6) {
		return nil
	}
	var eps []model.Endpoint
	for _, a := range someOf(r, 2, "10.128.0.11:8080", "10.128.0.12:8080", "10.128.0.11:8081", "10.128.1.21:8080", "198.51.100.10:30010", "[fd10:128:0:a::11]:8080", "[fd10:128:0:b::21]:8080") {
		e := model.Endpoint{Addr: netip.MustParseAddrPort(a), State: model.EndpointState(r.IntN(5) / 3), Weight: uint16(r.IntN(4))}
		e.Local = e.Addr.Addr().As16()[13] != 1 && e.Addr.Port() != 8081 || r.one(5)
		eps = append(eps, e)
	}
	if r.one(8) {
		for i := range 30 {
			eps = append(eps, model.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128, 2, byte(i)}), 8080), Local: i%5 == 0})
		}
	}
	return eps
}

func (r field) node() model.Node {
	n := modeltest.StageNode()
	n.MasqueradeAll, n.KeepClientAddress = r.one(4), r.one(3)
	n.NodePorts.Primary = r.one(3)
	switch r.IntN(4) {
	case 0:
		n.Detector = model.LocalDetector{}
	case 1:
		n.Detector = model.LocalDetector{Interfaces: []string{"veth-"}}
	}
	if r.one(3) {
		n.NodePorts.Prefixes = []netip.Prefix{netip.MustParsePrefix("198.51.101.0/24"), netip.MustParsePrefix("0.0.0.0/1")}
	}
	if r.one(3) {
		n.ServiceRanges = nil
	}
	n.NodePorts.Loopback = r.one(3)
	return n
}

func (r field) state() model.State {
	s := model.State{Node: r.node(), Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	for range 1 + r.IntN(5) {
		r.mutate(&s)
	}
	return s
}

// mutate changes one thing.
func (r field) mutate(s *model.State) {
	name := model.ServiceName(fmt.Sprintf("svc-%d", r.IntN(6)))
	switch r.IntN(8) {
	case 0:
		delete(s.Services, name)
	case 1:
		s.Node = r.node()
	case 2, 3, 4:
		s.Endpoints[name] = r.endpoints()
	default:
		s.Services[name] = r.service()
		if r.one(2) {
			s.Endpoints[name] = r.endpoints()
		}
	}
}

func (r field) next(s model.State) model.State {
	next := model.State{Node: s.Node, Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	for k, v := range s.Services {
		next.Services[k] = v
	}
	for k, v := range s.Endpoints {
		next.Endpoints[k] = v
	}
	for range 1 + r.IntN(3) {
		r.mutate(&next)
	}
	return next
}

// packet returns a packet by chance, as the suite and as the machine see it.
func (r field) packet(f model.Family) (modeltest.Packet, packet) {
	type source struct {
		kind  modeltest.SourceKind
		addr  string
		iface string
	}
	sources := []source{
		{modeltest.FromPod, "10.128.0.100", "veth-pod"}, {modeltest.FromPod, "10.128.0.11", "veth-pod"}, {modeltest.FromRemotePod, "10.128.1.100", "uplink"},
		{modeltest.FromNode, "198.51.100.10", ""}, {modeltest.FromOutside, "203.0.113.5", "uplink"}, {modeltest.FromOutside, "203.0.113.200", "uplink"}, {modeltest.FromOutside, "9.9.9.9", "uplink"}}
	to := []string{"172.20.0.10:80", "172.20.0.10:81", "172.20.0.10:82", "172.20.0.11:80", "172.20.0.99:80", "172.20.9.9:80", "172.20.9.9:81", "192.0.2.10:80", "192.0.2.11:80", "192.0.2.11:81",
		"198.51.100.10:30010", "198.51.100.10:30011", "198.51.101.10:30010", "192.0.2.77:30011", "198.51.100.20:30010"}
	if f == model.IPv6 {
		sources = []source{{modeltest.FromPod, "fd10:128:0:a::100", "veth-pod"}, {modeltest.FromPod, "fd10:128:0:a::11", "veth-pod"}, {modeltest.FromNode, "2001:db8:a::10", ""}, {modeltest.FromOutside, "2001:db8:e::5", "uplink"}, {modeltest.FromOutside, "2001:db8:e:1::5", "uplink"}}
		to = []string{"[fd20:96::10]:80", "[fd20:96::10]:81", "[fd20:96::99]:80", "[2001:db8:c::10]:80", "[2001:db8:a::10]:30010", "[2001:db8:b::10]:30011"}
	}
	s := pickFrom(r, sources...)
	p := modeltest.Packet{Kind: s.kind, From: netip.MustParseAddr(s.addr), Iface: s.iface, To: netip.MustParseAddrPort(pickFrom(r, to...)), Proto: model.Protocol(r.IntN(5) / 4)}
	p.Name = fmt.Sprintf("%s %s to %s %s", p.Kind, p.From, p.To, p.Proto)
	return p, packet{src: p.From, dst: p.To.Addr(), dport: p.To.Port(), sport: uint16(1024 + r.IntN(60_000)), proto: p.Proto, in: s.iface}
}

// both is an address and port that an explicit frontend and a node port may have.
var both = netip.MustParseAddrPort("198.51.100.10:30010")

// world is what the properties below need of one family.
type world struct {
	now     programmed
	machine *machine
}

// Three properties of plans, for states by chance: what is applied equals what a sync would write; a packet that comes
// between two transactions of one plan meets what it would have met before or after, where the node stays the same and no
// frontend and node port meet; and it meets what the model says.
func TestPlanProperties(t *testing.T) {
	chance := uint64(time.Now().UnixNano())
	if *seed != 0 {
		chance = *seed
	}
	t.Logf("to repeat, run with -seed %d", chance)
	r := field{rand.New(rand.NewPCG(chance, 0))}
	for range 40 {
		state := r.state()
		resolver, forms := resolved(t, state)
		worlds := map[model.Family]*world{}
		for _, f := range model.Families {
			w := &world{machine: newMachine(t, f, state.Node.Addrs...)}
			e := testEnv(f, state.Node)
			var rs ruleset
			w.now, rs = rulesetOf(e, forms)
			w.machine.load(e, rs)
			worlds[f] = w
		}
		for range 12 {
			next := r.next(state)
			delta, err := resolver.ResolveState(next, nil)
			require.NoError(t, err)
			for _, f := range model.Families {
				r.step(t, worlds[f], resolver, delta, state.Node)
			}
			resolver.Commit(delta)
			state = next
		}
	}
}

// step plans one change in one family, and commits it transaction by transaction, with packets in between.
func (r field) step(t *testing.T, w *world, resolver *model.Resolver, delta *model.Delta, nodeBefore model.Node) {
	t.Helper()
	f := w.machine.family
	e := testEnv(f, delta.Node)
	side := &side{tools: &tools{family: f}, now: w.now}
	work := &work{Programmer: &Programmer{resolver: resolver}, delta: delta}
	after, stages := plan(w.now, e, work.changesFor(side, e))

	before, end := resolver.Forms(), resolver.FormsAfter(delta)
	type sent struct {
		packet modeltest.Packet
		probe  packet
	}
	var packets []sent
	for range 40 {
		p, q := r.packet(f)
		packets = append(packets, sent{p, q})
	}
	for i := range stages {
		if i > 0 && !delta.NodeChanged {
			for _, s := range packets {
				if s.probe.dst == both.Addr() && s.probe.dport == both.Port() {
					continue
				}
				wants := []modeltest.Want{modeltest.Predict(nodeBefore, before, s.packet), modeltest.Predict(delta.Node, end, s.packet)}
				for fate := range w.machine.send(s.probe) {
					require.True(t, slices.ContainsFunc(wants, func(w modeltest.Want) bool {
						return agrees(w, s.packet, fate, delta.Node) == "" || agrees(w, s.packet, fate, nodeBefore) == ""
					}),
						"between transactions %d and %d, %s met %v, which is neither of %v", i, i+1, s.packet.Name, fate, wants)
				}
			}
		}
		w.machine.commit(stages[i])
	}
	for _, s := range packets {
		want := modeltest.Predict(delta.Node, end, s.packet)
		for fate := range w.machine.send(s.probe) {
			require.Empty(t, agrees(want, s.packet, fate, delta.Node), "%s met %v, not %v", s.packet.Name, fate, want)
		}
	}
	_, rs := rulesetOf(e, end)
	whole := newMachine(t, f)
	whole.load(e, rs)
	require.Empty(t, difference(whole.tables, w.machine.tables), "Apply and Sync differ")
	require.ElementsMatch(t, e.jumps(), w.machine.jumps)
	w.now = after
}

// agrees says how a fate differs from what is wanted; empty if it does not.
func agrees(want modeltest.Want, p modeltest.Packet, f fate, node model.Node) string {
	if string(want.Verdict) != f.verdict {
		return "verdict"
	}
	if want.Verdict != modeltest.Translated {
		return ""
	}
	if !slices.Contains(want.Endpoints, f.to) {
		return "endpoint"
	}
	hidden := want.Masqueraded != slices.Contains(want.Mixed, f.to) || p.From == f.to.Addr()
	own := p.Kind == modeltest.FromNode // whose address is the node's in any case
	if f.masq != hidden && !own && !slices.Contains(node.Addrs, f.to.Addr()) {
		return "masquerading"
	}
	return ""
}

// difference names the chains in which two rulesets differ.
func difference(a, b [len(tables)]map[string][]rule) []string {
	var out []string
	for t := range tables {
		for name, rules := range a[t] {
			if other, ok := b[t][name]; !ok || !sameRules(rules, other) {
				out = append(out, fmt.Sprintf("%s %s: %v, %v", table(t), name, rules, other))
			}
		}
		for name := range b[t] {
			if _, ok := a[t][name]; !ok {
				out = append(out, fmt.Sprintf("%s %s is too many", table(t), name))
			}
		}
	}
	return out
}
