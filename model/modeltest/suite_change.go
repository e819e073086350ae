package modeltest

import (
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
