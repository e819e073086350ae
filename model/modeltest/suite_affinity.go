package modeltest

import (
	"net/netip"
	"testing"
	"time"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// Affinity: who stays where, for how long, and what sets a client free.
var affinityChecks = []check{
	{"all-frontends", affinityAllFrontends},
	{"clients-are-told-apart", affinityClients},
	{"services-are-told-apart", affinityServices},
	{"endpoint-gone", affinityEndpointGone},
	{"endpoint-unusable", affinityEndpointUnusable},
	{"switched-off", affinityOff},
	{"timeout-changed", affinityTimeoutChanged},
	{"expires", affinityExpires},
	{"slides", affinitySlides},
	{"survives-other-changes", affinitySurvives},
	{"survives-restart", affinitySurvivesRestart},
	{"local-policy", affinityLocalPolicy},
}

// sticky is a service with affinity.
func sticky(timeout time.Duration, eps ...model.Endpoint) part {
	return service("default/aff:http", model.Service{Affinity: timeout,
		Frontends: at(internal("172.20.0.110:80"), internal("172.20.0.110:81"), external("192.0.2.10:80"), nodePort(30110))}, eps...)
}

// long is a timeout that does not pass while a check runs.
func (h *harness) long() time.Duration { return max(time.Hour, h.features.AffinityFloor) }

// stays sends several connections, which must all reach one endpoint, and returns it.
func (r *rig) stays(t *testing.T, f flow) netip.AddrPort {
	t.Helper()
	got := r.sends(t, f, 5)
	require.Len(t, count(got), 1, "connections of one client went to several endpoints: %v", got)
	return got[0]
}

// freedBy requires that change sets the client free: that it is chosen for anew. By chance the choice is the same
// one time in two, so it is tried again and again.
func (r *rig) freedBy(t *testing.T, f flow, change func(round int)) {
	t.Helper()
	at := r.stays(t, f)
	for round := range 40 {
		change(round)
		if now := r.stays(t, f); now != at {
			return
		}
	}
	t.Fatalf("the client is still with %s after 40 changes that should have set it free", at)
}

func affinityAllFrontends(t *testing.T, h *harness) {
	h.same(t, DiffAffinityPerFrontend)
	r := h.rig(t, StageNode())
	r.sync(t, stateOf(StageNode(), sticky(h.long(), epA, epB, epC)))
	for _, c := range []client{pod, outside, theNode} {
		first := r.stays(t, c.to("172.20.0.110:80"))
		for _, to := range []string{"172.20.0.110:81", "192.0.2.10:80", "198.51.100.10:30110"} {
			require.Equal(t, first, r.stays(t, c.to(to)), "%s to %s", c.name, to)
		}
	}
}

func affinityClients(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	r.sync(t, stateOf(StageNode(), sticky(h.long(), epA, epB, epC)))
	at := map[string]netip.AddrPort{}
	clients := []client{pod, outside, otherOutside, remotePod}
	for _, c := range clients {
		at[c.name] = r.stays(t, c.to("172.20.0.110:80"))
	}
	for _, c := range clients {
		require.Equal(t, at[c.name], r.stays(t, c.to("172.20.0.110:80")), c.name)
	}
	// Not everybody is on one endpoint for ever: with a new service each time somebody differs.
	for range 40 {
		if len(count([]netip.AddrPort{at["pod"], at["outside"], at["other outside"], at["remote pod"]})) > 1 {
			return
		}
		r.sync(t, stateOf(StageNode()))
		r.sync(t, stateOf(StageNode(), sticky(h.long(), epA, epB, epC)))
		for _, c := range clients {
			at[c.name] = r.stays(t, c.to("172.20.0.110:80"))
		}
	}
	t.Fatal("all clients are always on one endpoint")
}

func affinityServices(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	other := func(timeout time.Duration) part {
		return service("default/other:http", model.Service{Affinity: timeout, Frontends: at(internal("172.20.0.111:80"))}, epA, epB, epC)
	}
	from := stateOf(StageNode(), sticky(h.long(), epA, epB, epC), other(h.long()))
	r.sync(t, from)
	first := r.stays(t, pod.to("172.20.0.110:80"))
	r.freedBy(t, pod.to("172.20.0.111:80"), func(round int) {
		to := stateOf(StageNode(), sticky(h.long(), epA, epB, epC), other(h.long()+time.Duration(1+round)*time.Second))
		r.to(t, from, to)
		from = to
		require.Equal(t, first, r.stays(t, pod.to("172.20.0.110:80")), "another service's client was set free")
	})
}

// Its endpoint gone, a client is elsewhere at once; and when the endpoint returns, no old entry brings it back.
func affinityEndpointGone(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	all := []model.Endpoint{epA, epB, epC}
	from := stateOf(StageNode(), sticky(h.long(), all...))
	r.sync(t, from)
	for range 5 {
		was := r.stays(t, pod.to("172.20.0.110:80"))
		var left []model.Endpoint
		for _, e := range all {
			if e.Addr != was {
				left = append(left, e)
			}
		}
		to := stateOf(StageNode(), sticky(h.long(), left...))
		r.to(t, from, to)
		now := r.stays(t, pod.to("172.20.0.110:80"))
		require.NotEqual(t, was, now)
		back := stateOf(StageNode(), sticky(h.long(), all...))
		r.to(t, to, back)
		require.Equal(t, now, r.stays(t, pod.to("172.20.0.110:80")), "the old entry came back with its endpoint")
		from = back
	}
}

// Draining or not ready, an endpoint keeps nobody; with none usable clients are refused, not dropped.
func affinityEndpointUnusable(t *testing.T, h *harness) {
	for name, unusable := range map[string]func(model.Endpoint) model.Endpoint{"draining": draining, "not-ready": notReady} {
		t.Run(name, func(t *testing.T) {
			r := h.rig(t, StageNode())
			from := stateOf(StageNode(), sticky(h.long(), epA, epB))
			r.sync(t, from)
			was := r.stays(t, outside.to("192.0.2.10:80"))
			a, b := epA, epB
			if was == a.Addr {
				a, b = b, a
			}
			to := stateOf(StageNode(), sticky(h.long(), a, unusable(b)))
			r.to(t, from, to)
			require.Equal(t, a.Addr, r.stays(t, outside.to("192.0.2.10:80")))
			none := stateOf(StageNode(), sticky(h.long(), notReady(a), notReady(b)))
			r.to(t, to, none)
			r.meets(t, outside.to("192.0.2.10:80").refused(), pod.to("172.20.0.110:80").refused())
			r.to(t, none, from)
			require.Equal(t, r.stays(t, outside.to("192.0.2.10:80")), r.stays(t, outside.to("192.0.2.10:80")))
		})
	}
}

func affinityOff(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	on, off := stateOf(StageNode(), sticky(h.long(), epA, epB)), stateOf(StageNode(), sticky(0, epA, epB))
	r.sync(t, on)
	r.stays(t, pod.to("172.20.0.110:80"))
	r.to(t, on, off)
	r.meets(t, pod.to("172.20.0.110:80").reaches("10.128.0.11:8080", "10.128.0.12:8080"))
	r.freedBy(t, remotePod.to("172.20.0.110:80").once(r, t, off, on), func(int) {
		r.to(t, on, off)
		r.to(t, off, on) // off and on again: no entry may have stayed
	})
}

// once brings the rig from one state to another before the flow is used.
func (f flow) once(r *rig, t *testing.T, from, to model.State) flow {
	t.Helper()
	r.to(t, from, to)
	return f
}

func affinityTimeoutChanged(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	from := stateOf(StageNode(), sticky(h.long(), epA, epB))
	r.sync(t, from)
	r.freedBy(t, pod.to("172.20.0.110:80"), func(round int) {
		to := stateOf(StageNode(), sticky(h.long()+time.Duration(round+1)*time.Minute, epA, epB))
		r.to(t, from, to)
		from = to
	})
}

// shortest returns the shortest timeout that can be waited for here, or skips.
func shortest(t *testing.T, h *harness, r *rig) time.Duration {
	t.Helper()
	h.same(t, DiffAffinityTimeout)
	d := max(2*time.Second, h.features.AffinityFloor)
	if d > 10*time.Second && !r.pretended() {
		t.Skipf("%s can do no affinity shorter than %v, which is too long to wait for", h.target.Name, d)
	}
	return d
}

func affinityExpires(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	timeout := shortest(t, h, r)
	r.sync(t, stateOf(StageNode(), sticky(timeout, epA, epB, epC)))
	at := r.stays(t, pod.to("172.20.0.110:80"))
	for range 20 {
		r.sleep(timeout + time.Second)
		if r.stays(t, pod.to("172.20.0.110:80")) != at {
			return
		}
	}
	t.Fatalf("the client is still with %s long after its time", at)
}

// The time is counted from the last new connection. Other machines' load may hold a client up, so where packets are
// real only a failure that repeats counts.
func affinitySlides(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	timeout := 2 * shortest(t, h, r)
	r.sync(t, stateOf(StageNode(), sticky(timeout, epA, epB, epC)))
	for attempt := range r.pick(3, 1) {
		at, moved := r.stays(t, pod.to("172.20.0.110:80")), false
		for range 4 {
			r.sleep(timeout / 2)
			moved = moved || r.stays(t, pod.to("172.20.0.110:80")) != at
		}
		if !moved {
			return
		}
		t.Logf("attempt %d: moved", attempt)
	}
	t.Fatal("the client was set free though it kept coming")
}

func affinitySurvives(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	eps := []model.Endpoint{epA, epB, epC}
	from := stateOf(StageNode(), sticky(h.long(), eps...))
	r.sync(t, from)
	clients := []flow{pod.to("172.20.0.110:80"), outside.to("192.0.2.10:80"), remotePod.to("172.20.0.110:80"), theNode.to("172.20.0.110:80")}
	at := make([]netip.AddrPort, len(clients))
	for i, f := range clients {
		at[i] = r.stays(t, f)
	}
	more := append([]model.Endpoint{there("10.128.2.31:8080")}, eps...)
	for name, to := range map[string]model.State{
		"another service":       stateOf(StageNode(), sticky(h.long(), eps...), web(epA, epB)),
		"another endpoint":      stateOf(StageNode(), sticky(h.long(), more...)),
		"a changed node":        stateOf(nodeWith(func(n *model.Node) { n.MasqueradeAll = true }), sticky(h.long(), eps...)),
		"another service again": stateOf(StageNode(), sticky(h.long(), eps...), api(epC)),
	} {
		r.to(t, from, to)
		for i, f := range clients {
			require.Equal(t, at[i], r.stays(t, f), "%s after %s", f.p.Name, name)
		}
		r.to(t, to, from)
		r.sync(t, from)
		for i, f := range clients {
			require.Equal(t, at[i], r.stays(t, f), "%s after a full sync", f.p.Name)
		}
	}
}

func affinitySurvivesRestart(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	s := stateOf(StageNode(), sticky(h.long(), epA, epB, epC))
	r.sync(t, s)
	at := r.stays(t, pod.to("172.20.0.110:80"))
	outsideAt := r.stays(t, outside.to("192.0.2.10:80"))
	for range 8 {
		r.restart(t)
		r.sync(t, s)
		require.Equal(t, at, r.stays(t, pod.to("172.20.0.110:80")))
		require.Equal(t, outsideAt, r.stays(t, outside.to("192.0.2.10:80")))
	}
}

// With policy Local a client stays with an endpoint here, whatever else it is told.
func affinityLocalPolicy(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	svc := func(eps ...model.Endpoint) model.State {
		return stateOf(StageNode(), service("default/aff:http", model.Service{Affinity: h.long(), ExternalTraffic: model.Local,
			Frontends: at(internal("172.20.0.110:80"), external("192.0.2.10:80"))}, eps...))
	}
	from := svc(epA, epB, epC)
	r.sync(t, from)
	was := r.stays(t, outside.to("192.0.2.10:80"))
	require.Contains(t, []netip.AddrPort{epA.Addr, epB.Addr}, was)
	a, b := epA, epB
	if was == b.Addr {
		a, b = b, a
	}
	away := b
	away.Local = false
	moved := a
	moved.Local = false
	to := svc(moved, b, epC) // its endpoint is no longer here
	r.to(t, from, to)
	require.Equal(t, b.Addr, r.stays(t, outside.to("192.0.2.10:80")))
	none := svc(moved, away, epC)
	r.to(t, to, none)
	r.meets(t, outside.to("192.0.2.10:80").dropped())
}
