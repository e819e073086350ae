package modeltest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// From one state to another: by diff, by snapshot, in any order.
var changeChecks = []check{
	{"random-walk", randomWalk},
	{"between-scenarios", betweenScenarios},
	{"replace-computes-deletes", replaceComputesDeletes},
	{"one-service-leaves-the-others", oneServiceLeavesTheOthers},
	{"every-field-of-a-service", everyField},
	{"handover-in-one-diff", handoverInOneDiff},
}

// Applying what changed must give the same answers as programming the result from nothing.
func randomWalk(t *testing.T, h *harness) {
	chance := h.seeded(t)
	g := &generator{chance: chance, balances: h.features.Balances, hashPort: h.features.HashPort, floor: h.features.AffinityFloor}
	walks, steps, probes := 1, 14, 6
	r := h.rig(t, StageNode())
	if r.pretended() {
		walks, steps, probes = 12, 60, 40
	}
	for range walks {
		r := h.rig(t, StageNode())
		state := g.state()
		r.sync(t, state)
		for step := range steps {
			next := g.mutate(state)
			if chance.IntN(8) == 0 {
				r.sync(t, next)
			} else {
				r.to(t, state, next)
			}
			state = next
			r.predicted(t, g.flows(probes)...)
			if step%5 == 0 {
				require.NoError(t, r.p.Check(r.ctx), "step %d", step)
			}
		}
		r.restart(t)
		r.sync(t, state)
		r.predicted(t, g.flows(2*probes)...)
		require.NoError(t, r.p.Check(r.ctx))
		r.cleanup(t)
		r.predicted(t, g.flows(2)...)
	}
}

// Each scenario is reached by Apply from the one before it in the list: in a world of real packets, a few by chance.
func betweenScenarios(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	from := stateOf(StageNode())
	r.sync(t, from)
	all := Scenarios()
	if !r.pretended() {
		h.seeded(t).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:12]
	}
	for _, sc := range slices.Concat(all, all[:3]) {
		if unable(h, sc.State) {
			continue
		}
		r.to(t, from, sc.State)
		from = sc.State
		for i, e := range sc.Packets {
			if _, differs := h.differs(e.Unless); differs || i >= r.pick(3, len(sc.Packets)) || e.Proto == model.SCTP && !r.pretended() {
				continue
			}
			_, skipped := h.target.Skip["scenarios/"+sc.Name+"/"+e.Name]
			if skipped {
				continue
			}
			r.prepare(t, model.State{Node: r.node}, e.Packet)
			require.NoError(t, r.try(e), "%s, coming from another state: %s", sc.Name, e.Name)
		}
	}
	require.NoError(t, r.p.Check(r.ctx))
}

// unable reports whether the backend cannot do one of a state's services.
func unable(h *harness, s model.State) bool {
	for _, svc := range s.Services {
		if h.features.Check(svc) != nil {
			return true
		}
	}
	return false
}

// A snapshot that no longer names a service deletes it, and one that names fewer endpoints takes them away.
func replaceComputesDeletes(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	tracker := model.NewTracker(StageNode())
	tracker.Replace(stateOf(StageNode(), web(epA, epB), api(epC)))
	r.sync(t, tracker.State())
	tracker.Replace(stateOf(StageNode(), web(epB)))
	r.apply(t, tracker.Diff())
	r.meets(t, pod.to("172.20.0.10:80").reaches("10.128.0.12:8080"), outside.to("192.0.2.11:80").untouched().unless(DiffExternalOtherPorts))
	r.predicted(t, append(toWeb(), toAPI()...)...)
	tracker.Replace(stateOf(StageNode()))
	r.apply(t, tracker.Diff())
	r.meets(t, outside.to("198.51.100.10:30010").untouched())
	r.predicted(t, append(toWeb(), toAPI()...)...)
	// What was deleted does not come back with something else.
	tracker.SetService("default/api:http", stateOf(StageNode(), api()).Services["default/api:http"])
	r.apply(t, tracker.Diff())
	r.predicted(t, append(toWeb(), toAPI()...)...)
}

// Nothing that happens to one service touches another, though they share addresses and endpoints.
func oneServiceLeavesTheOthers(t *testing.T, h *harness) {
	still := service("default/still:http", model.Service{Frontends: at(internal("172.20.0.15:80"), external("192.0.2.12:80"), nodePort(30015))}, epA)
	flows := []flow{pod.to("172.20.0.15:80"), outside.to("192.0.2.12:80"), outside.to("198.51.100.10:30015"), podAt("10.128.0.11").to("172.20.0.15:80")}
	other := func(s model.Service, eps ...model.Endpoint) part {
		s.Frontends = append(s.Frontends, at(internal("172.20.0.15:81"), external("192.0.2.12:81", "10.0.0.0/8"), nodePort(30016))...)
		return service("default/other:http", s, eps...)
	}
	states := []model.State{
		stateOf(StageNode(), still),
		stateOf(StageNode(), still, other(model.Service{}, epA)),
		stateOf(StageNode(), still, other(model.Service{ExternalTraffic: model.Local}, epA, epB)),
		stateOf(StageNode(), still, other(model.Service{InternalTraffic: model.Local}, epC)),
		stateOf(StageNode(), still, other(model.Service{}, draining(epA), epB)),
		stateOf(StageNode(), still, other(model.Service{})),
		stateOf(StageNode(), still, other(model.Service{Protocol: model.UDP}, epA)),
		stateOf(StageNode(), still),
	}
	r := h.rig(t, StageNode())
	r.sync(t, states[0])
	r.predicted(t, flows...)
	for i := 1; i < len(states); i++ {
		r.to(t, states[i-1], states[i])
		r.predicted(t, flows...)
	}
	require.NoError(t, r.p.Check(r.ctx))
}

// Each field of a service and of an endpoint takes effect when it changes, and again when it changes back.
func everyField(t *testing.T, h *harness) {
	eps := []model.Endpoint{epA, epB, epC}
	fronts := at(internal("172.20.0.10:80"), external("192.0.2.10:80"), nodePort(30010))
	base := model.Service{Frontends: fronts}
	svc := func(change func(*model.Service)) model.State {
		s := base
		s.Frontends = slices.Clone(base.Frontends)
		change(&s)
		return stateOf(StageNode(), service("default/web:http", s, eps...))
	}
	with := func(change func([]model.Endpoint)) model.State {
		eps := slices.Clone(eps)
		change(eps)
		return stateOf(StageNode(), service("default/web:http", base, eps...))
	}
	for _, c := range []struct {
		name string
		to   model.State
	}{
		{"protocol", svc(func(s *model.Service) { s.Protocol = model.UDP })},
		{"round-robin", svc(func(s *model.Service) { s.Balance = model.RoundRobin })},
		{"source-hash", svc(func(s *model.Service) { s.Balance = model.SourceHash })},
		{"maglev", svc(func(s *model.Service) { s.Balance = model.Maglev })},
		{"affinity", svc(func(s *model.Service) { s.Affinity = time.Hour })},
		{"internal-local", svc(func(s *model.Service) { s.InternalTraffic = model.Local })},
		{"external-local", svc(func(s *model.Service) { s.ExternalTraffic = model.Local })},
		{"frontend-gone", svc(func(s *model.Service) { s.Frontends = s.Frontends[:1] })},
		{"frontend-port", svc(func(s *model.Service) { s.Frontends[0] = internal("172.20.0.10:8000") })},
		{"frontend-address", svc(func(s *model.Service) { s.Frontends[0] = internal("172.20.0.12:80") })},
		{"frontend-kind", svc(func(s *model.Service) { s.Frontends[0] = external("172.20.0.10:80") })},
		{"frontend-order", svc(func(s *model.Service) { slices.Reverse(s.Frontends) })},
		{"frontend-family", svc(func(s *model.Service) { s.Frontends = append(s.Frontends, internal("[fd20:96::10]:80")) })},
		{"ranges", svc(func(s *model.Service) { s.Frontends[1] = external("192.0.2.10:80", "203.0.113.0/25") })},
		{"node-port-number", svc(func(s *model.Service) { s.Frontends[2] = nodePort(30011) })},
		{"endpoint-gone", with(func(e []model.Endpoint) { e[0] = e[1] })},
		{"endpoint-port", with(func(e []model.Endpoint) { e[0] = here("10.128.0.11:9090") })},
		{"endpoint-draining", with(func(e []model.Endpoint) { e[0] = draining(e[0]) })},
		{"endpoint-not-ready", with(func(e []model.Endpoint) { e[2] = notReady(e[2]) })},
		{"endpoints-all-draining", with(func(e []model.Endpoint) { e[0], e[1], e[2] = draining(e[0]), draining(e[1]), draining(e[2]) })},
		{"endpoint-weight", with(func(e []model.Endpoint) { e[2] = weighing(3, e[2]) })},
		{"endpoint-locality", with(func(e []model.Endpoint) { e[1].Local = false })},
		{"endpoint-zones", with(func(e []model.Endpoint) {
			e[0], e[1], e[2] = forZones(e[0], "zone-1"), forZones(e[1], "zone-2"), forZones(e[2], "zone-1")
		})},
	} {
		t.Run(c.name, func(t *testing.T) {
			if unable(h, c.to) {
				t.Skipf("%s cannot do it", h.target.Name)
			}
			r := h.rig(t, StageNode())
			from := stateOf(StageNode(), service("default/web:http", base, eps...))
			flows := append(toWeb(), pod.over(model.UDP, "172.20.0.10:80"), pod.to("172.20.0.10:8000"), pod.to("172.20.0.12:80"),
				otherOutside.to("192.0.2.10:80"), outside.to("198.51.100.10:30011"), outside.to("[fd20:96::10]:80"))
			r.sync(t, from)
			r.to(t, from, c.to)
			r.predicted(t, flows...)
			r.to(t, c.to, from)
			r.predicted(t, flows...)
			require.NoError(t, r.p.Check(r.ctx))
		})
	}
}

// A frontend that goes from one service to another in one diff is never nobody's and is refused to neither.
func handoverInOneDiff(t *testing.T, h *harness) {
	claim := func(name model.ServiceName, last string, ep model.Endpoint) part {
		return service(name, model.Service{Frontends: at(internal("172.20.0."+last+":80"), external("192.0.2."+last+":80"))}, ep)
	}
	states := []model.State{
		stateOf(StageNode(), claim("a", "10", epA), claim("b", "11", epB)),
		stateOf(StageNode(), claim("a", "11", epA), claim("b", "10", epB)),
		stateOf(StageNode(), claim("c", "10", epC), claim("a", "11", epA)),
		stateOf(StageNode(), claim("b", "11", epB)),
	}
	r := h.rig(t, StageNode())
	r.sync(t, states[0])
	for i := 1; i <= 2*len(states); i++ {
		from, to := states[(i-1)%len(states)], states[i%len(states)]
		res := r.to(t, from, to)
		require.Empty(t, res.Rejected, "step %d", i)
		r.predicted(t, pod.to("172.20.0.10:80"), pod.to("172.20.0.11:80"), outside.to("192.0.2.10:80"), outside.to("192.0.2.11:80"))
	}
	require.NoError(t, r.p.Check(r.ctx))
}

// A generator makes states by chance out of few addresses, so that services collide and endpoints are shared.
type generator struct {
	chance   *rand.Rand
	balances []model.Balance
	hashPort bool
	floor    time.Duration
}

// The addresses from which a generator draws.
var (
	drawnFrontends = at(
		internal("172.20.0.10:80"), internal("172.20.0.10:81"), internal("172.20.0.11:80"), internal("[fd20:96::10]:80"),
		external("192.0.2.10:80"), external("192.0.2.11:80"), external("192.0.2.77:80"), external("198.51.100.10:30010"), external("[2001:db8:c::10]:80"),
		nodePort(30010), nodePort(30011))
	drawnEndpoints = []model.Endpoint{
		here("10.128.0.11:8080"), here("10.128.0.12:8080"), here("10.128.0.11:8081"), there("10.128.1.21:8080"), there("10.128.2.31:8080"),
		here("[fd10:128:0:a::11]:8080"), there("[fd10:128:0:b::21]:8080")}
	drawnRanges = prefixes("203.0.113.0/24", "203.0.113.0/25", "203.0.113.128/25", "203.0.113.5/32", "10.128.0.0/14", "198.51.100.0/24",
		"240.0.0.0/4", "0.0.0.0/0", "2001:db8:e::/64", "::/0", "ff00::/8")
)

func (g *generator) one(in int) bool { return g.chance.IntN(in) == 0 }

// some returns every element with a chance of one in n, in any order.
func some[T any](g *generator, n int, all []T) []T {
	var out []T
	for _, i := range g.chance.Perm(len(all)) {
		if g.one(n) {
			out = append(out, all[i])
		}
	}
	return out
}

func (g *generator) name() model.ServiceName {
	return model.ServiceName(fmt.Sprintf("svc-%d", g.chance.IntN(7)))
}

func (g *generator) service() model.Service {
	s := model.Service{Frontends: some(g, 4, drawnFrontends)}
	for i := range s.Frontends {
		if g.one(3) {
			s.Frontends[i].SourceRanges = some(g, 3, drawnRanges)
		}
	}
	if g.one(5) {
		s.Protocol = model.UDP
	}
	if g.one(3) {
		s.Balance = g.balances[g.chance.IntN(len(g.balances))]
		s.HashPort = g.hashPort && g.one(2)
	}
	if g.one(4) {
		s.Affinity = max(time.Minute, g.floor)
	}
	if g.one(3) {
		s.InternalTraffic = model.Local
	}
	if g.one(3) {
		s.ExternalTraffic = model.Local
	}
	if g.one(12) {
		s.Frontends = append(s.Frontends, model.Frontend{}) // no sense: to be rejected
	}
	return s
}

func (g *generator) endpoints() []model.Endpoint {
	if g.one(6) {
		return nil
	}
	eps := some(g, 2, drawnEndpoints)
	hinted := g.one(4)
	for i := range eps {
		if g.one(3) {
			eps[i].State = model.EndpointState(g.chance.IntN(3))
		}
		if g.one(4) {
			eps[i].Weight = uint16(g.chance.IntN(4))
		}
		if hinted {
			eps[i].Zones = some(g, 2, []string{"zone-1", "zone-2"})
		}
	}
	return eps
}

func (g *generator) node() model.Node {
	return nodeWith(func(n *model.Node) {
		n.MasqueradeAll = g.one(4)
		n.KeepClientAddress = !n.MasqueradeAll && g.one(4)
		if g.one(3) {
			n.Zone = "zone-2"
		}
		if g.one(3) {
			n.Detector = model.LocalDetector{}
		} else if g.one(3) {
			n.Detector = model.LocalDetector{Interfaces: []string{"veth-"}}
		}
		n.NodePorts.Primary = g.one(3)
		if g.one(3) {
			n.NodePorts.Prefixes = prefixes("198.51.101.0/24", "2001:db8:b::/64")
		}
		if g.one(3) {
			n.ServiceRanges = nil
		}
		if g.one(4) {
			n.Primary = addrs("198.51.101.10", "2001:db8:b::10")
		}
	})
}

func (g *generator) state() model.State {
	s := stateOf(StageNode())
	for range 4 {
		name := g.name()
		s.Services[name], s.Endpoints[name] = g.service(), g.endpoints()
	}
	return s
}

// mutate returns a state that differs in a few things; the given one stays.
func (g *generator) mutate(s model.State) model.State {
	next := model.State{Node: s.Node, Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	for name, svc := range s.Services {
		next.Services[name] = svc
	}
	for name, eps := range s.Endpoints {
		next.Endpoints[name] = eps
	}
	for range 1 + g.chance.IntN(3) {
		name := g.name()
		switch g.chance.IntN(8) {
		case 0, 1:
			next.Services[name] = g.service()
		case 2:
			delete(next.Services, name)
		case 3:
			next.Node = g.node()
		case 4:
			next.Services[name], next.Endpoints[name] = g.service(), g.endpoints()
		default:
			next.Endpoints[name] = g.endpoints()
		}
	}
	return next
}

// flows returns packets by chance, from everybody to everywhere.
func (g *generator) flows(n int) []flow {
	from := []client{pod, remotePod, theNode, outside, otherOutside, podAt("10.128.0.11")}
	to := []string{"172.20.0.10:80", "172.20.0.10:81", "172.20.0.11:80", "172.20.0.12:80", "192.0.2.10:80", "192.0.2.11:80", "192.0.2.77:80",
		"198.51.100.10:30010", "198.51.100.10:30011", "198.51.101.10:30010", "[fd20:96::10]:80", "[2001:db8:c::10]:80", "[2001:db8:a::10]:30010"}
	out := make([]flow, n)
	for i := range out {
		c, a := from[g.chance.IntN(len(from))], to[g.chance.IntN(len(to))]
		if ap(a).Addr().Is6() && c.name == "pod 10.128.0.11" {
			c = podAt("fd10:128:0:a::11")
		}
		proto := model.TCP
		if g.one(5) {
			proto = model.UDP
		}
		out[i] = c.over(proto, a)
	}
	return out
}
