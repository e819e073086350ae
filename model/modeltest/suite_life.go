package modeltest

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// Restart, connections that go on, cleaning up, and neighbours.
var lifeChecks = []check{
	{"restart-with-the-same", restartWithTheSame},
	{"restart-with-less", restartWithLess},
	{"restart-under-load", restartUnderLoad},
	{"churn-under-load", churnUnderLoad},
	{"open-connections", openConnections},
	{"cleanup", cleanup},
	{"cleanup-without-sync", cleanupWithoutSync},
	{"second-instance", secondInstance},
	{"neighbours", neighbours},
}

func restartWithTheSame(t *testing.T, h *harness) {
	s := stateOf(StageNode(), web(epA, epC), api(epB), service("default/lbr:http", model.Service{Frontends: at(external("192.0.2.12:80", "203.0.113.0/25"))}, epA))
	flows := append(append(toWeb(), toAPI()...), outside.to("192.0.2.12:80"), otherOutside.to("192.0.2.12:80"))
	r := h.rig(t, s.Node)
	r.sync(t, s)
	before := r.snapshot(t)
	for range 3 {
		r.restart(t)
		r.meets(t, pod.to("172.20.0.10:80").reaches("10.128.0.11:8080", "10.128.1.21:8080")) // a new Programmer changes nothing before Sync
		require.Equal(t, before, r.snapshot(t), "New writes nothing")
		r.sync(t, s)
		require.Equal(t, before, r.snapshot(t), "the same state again leaves the same")
		require.NoError(t, r.p.Check(r.ctx))
	}
	r.predicted(t, flows...)
	next := stateOf(StageNode(), web(epB), api(epB))
	r.to(t, s, next)
	r.predicted(t, flows...)
}

func restartWithLess(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	r.sync(t, stateOf(StageNode(), web(epA, epB, epC), api(epB),
		service("default/aff:http", model.Service{Affinity: max(time.Minute, h.features.AffinityFloor), Frontends: at(internal("172.20.0.12:80"))}, epA, epB),
		service("default/rr:http", model.Service{Balance: h.features.Balances[0], Frontends: at(internal("[fd20:96::12]:80"), external("[2001:db8:c::12]:80", "2001:db8:e::/64"))}, here("[fd10:128:0:a::11]:8080"))))
	r.restart(t)
	r.sync(t, stateOf(StageNode(), web(epB)))
	r.predicted(t, append(toWeb(), toAPI()...)...)
	r.predicted(t, pod.to("172.20.0.12:80"), pod.to("[fd20:96::12]:80"), outside.to("[2001:db8:c::12]:80"))
	require.NoError(t, r.p.Check(r.ctx))
	if h.target.Snapshot == nil {
		return
	}
	fresh := h.rig(t, StageNode())
	fresh.sync(t, stateOf(StageNode(), web(epB)))
	require.Equal(t, fresh.snapshot(t), r.snapshot(t), "what is left is what a first Sync would have written")
}

// load sends without pause until it is stopped, and requires that each connection reaches one of the endpoints.
func (r *rig) load(t *testing.T, f flow, allowed ...model.Endpoint) (stop func()) {
	t.Helper()
	r.prepare(t, model.State{Node: r.node, Endpoints: model.EndpointMap{"load": allowed}}, f.p)
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan error, 1)
	var sent atomic.Int64
	go func() {
		for ctx.Err() == nil {
			outcomes, err := r.w.Send(r.ctx, f.p, 4)
			if err != nil {
				done <- err
				return
			}
			for _, o := range outcomes {
				if !isAny(o, allowed) {
					done <- fmt.Errorf("after %d connections: %s", sent.Load(), describe(o))
					return
				}
				sent.Add(1)
			}
		}
		done <- nil
	}()
	return func() {
		t.Helper()
		for sent.Load() < 20 && len(done) == 0 && r.ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel()
		require.NoError(t, <-done, "a connection was lost")
	}
}

func isAny(o Outcome, allowed []model.Endpoint) bool {
	for _, e := range allowed {
		if o.Verdict == Translated && o.Endpoint == e.Addr {
			return true
		}
	}
	return false
}

// A restart never empties: while new Programmers sync, every connection finds its service.
func restartUnderLoad(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	s := stateOf(StageNode(), web(epA, epB), api(epC))
	r.sync(t, s)
	stop := r.load(t, pod.to("172.20.0.10:80"), epA, epB)
	for range r.pick(5, 50) {
		r.restart(t)
		r.sync(t, s)
	}
	stop()
}

// While endpoints come and go, every connection finds one that is there.
func churnUnderLoad(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	lists := [][]model.Endpoint{{epA, epB, epC}, {epA, epB}, {epB}, {epB, epC}, {epA, epB, draining(epC)}, {draining(epA), epB}}
	from := stateOf(StageNode(), web(lists[0]...))
	r.sync(t, from)
	stop := r.load(t, pod.to("172.20.0.10:80"), epA, epB, epC)
	for i := range r.pick(40, 400) {
		to := stateOf(StageNode(), web(lists[(i+1)%len(lists)]...), api(lists[i%len(lists)]...))
		r.to(t, from, to)
		from = to
	}
	stop()
	r.predicted(t, toWeb()...)
}

// Connections that are open go on: whatever happens to other endpoints, when theirs drains or goes, over a restart.
func openConnections(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	w, ok := r.w.(Connector)
	if !ok {
		t.Skip("the world cannot hold a connection open")
	}
	s := stateOf(StageNode(), web(epA, epB))
	r.sync(t, s)
	var open []Connection
	for _, f := range []flow{pod.to("172.20.0.10:80"), outside.to("192.0.2.10:80"), outside.to("198.51.100.10:30010"), theNode.to("172.20.0.10:80")} {
		r.prepare(t, s, f.p)
		for range 4 {
			c, err := w.Open(r.ctx, f.p)
			require.NoError(t, err, f.p.Name)
			defer c.Close()
			require.Contains(t, []netip.AddrPort{epA.Addr, epB.Addr}, c.Endpoint())
			open = append(open, c)
		}
	}
	alive := func(when string) {
		t.Helper()
		for i, c := range open {
			require.NoError(t, c.Exchange(r.ctx), "connection %d, to %s, %s", i, c.Endpoint(), when)
		}
	}
	alive("at first")
	from := s
	for _, step := range []struct {
		when string
		to   model.State
	}{
		{"with another endpoint", stateOf(StageNode(), web(epA, epB, epC))},
		{"with another service", stateOf(StageNode(), web(epA, epB, epC), api(epA))},
		{"with both draining", stateOf(StageNode(), web(draining(epA), draining(epB), epC), api(epA))},
		{"with one gone", stateOf(StageNode(), web(draining(epA), epC), api(epA))},
		{"with both back", stateOf(StageNode(), web(epA, epB))},
		{"with another policy", stateOf(nodeWith(func(n *model.Node) { n.MasqueradeAll = true }), web(epA, epB))},
	} {
		r.to(t, from, step.to)
		from = step.to
		alive(step.when)
	}
	r.sync(t, from)
	alive("after a full sync")
	r.restart(t)
	r.sync(t, from)
	alive("after a restart")
}

func cleanup(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	before := r.snapshot(t)
	s := stateOf(StageNode(), web(epA, epC), service("default/none:http", model.Service{Frontends: at(internal("172.20.0.13:80"))}),
		service("default/lbr:http", model.Service{Affinity: max(time.Minute, h.features.AffinityFloor), Frontends: at(external("192.0.2.12:80", "203.0.113.0/25"))}, epA),
		service("default/six:http", model.Service{Frontends: at(internal("[fd20:96::10]:80"))}, here("[fd10:128:0:a::11]:8080")))
	r.sync(t, s)
	r.predicted(t, toWeb()...)
	_ = r.sends(t, outside.to("192.0.2.12:80"), 2)
	r.cleanup(t)
	require.Equal(t, before, r.snapshot(t), "Cleanup leaves what was there before")
	r.predicted(t, append(toWeb(), pod.to("172.20.0.13:80"), pod.to("172.20.0.250:80"), outside.to("192.0.2.12:80"))...)
	r.cleanup(t)
	require.Equal(t, before, r.snapshot(t))
	r.sync(t, s)
	require.NoError(t, r.p.Check(r.ctx))
	r.predicted(t, append(toWeb(), pod.to("172.20.0.13:80"), pod.to("172.20.0.250:80"))...)
}

// Cleanup needs no Sync: a Programmer that knows nothing finds everything that another one wrote.
func cleanupWithoutSync(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	before := r.snapshot(t)
	r.cleanup(t)
	require.Equal(t, before, r.snapshot(t), "nothing to clean")
	r.sync(t, stateOf(StageNode(), web(epA, epC), api(epB)))
	r.restart(t)
	r.cleanup(t)
	require.Equal(t, before, r.snapshot(t))
	r.predicted(t, toWeb()...)
}

// Two instances side by side do not touch each other.
func secondInstance(t *testing.T, h *harness) {
	if h.target.Second == nil {
		t.Skip("the target has no hook Second")
	}
	open := nodeWith(func(n *model.Node) { n.ServiceRanges = nil })
	first := h.rig(t, open)
	second := &rig{h: h, ctx: first.ctx, w: first.w, node: open, mirror: model.NewResolver(h.features), p: h.target.Second(t, first.w)}
	t.Cleanup(func() { require.NoError(t, second.p.Close()) })
	works := func(r *rig, flows []flow) {
		t.Helper()
		require.NoError(t, r.p.Check(r.ctx))
		r.predicted(t, flows...)
	}
	a, b := stateOf(open, web(epA)), stateOf(open, api(epB, epC))
	first.sync(t, a)
	second.sync(t, b)
	works(first, toWeb())
	works(second, toAPI())
	first.to(t, a, stateOf(open, web(epB)))
	second.to(t, b, stateOf(open, api(epA)))
	works(first, toWeb())
	works(second, toAPI())
	first.sync(t, a)
	works(second, toAPI())
	first.restart(t)
	first.cleanup(t)
	works(second, toAPI())
	first.predicted(t, outside.to("192.0.2.10:80"), outside.to("198.51.100.10:30010"))
	first.sync(t, a)
	works(first, toWeb())
	second.cleanup(t)
	works(first, toWeb())
}

// What belongs to others stays as it is, byte for byte, whatever we do beside it.
func neighbours(t *testing.T, h *harness) {
	if h.target.Plant == nil || h.target.Snapshot == nil {
		t.Skip("the target has no hooks Plant and Snapshot")
	}
	r := h.rig(t, StageNode())
	bare := r.snapshot(t)
	h.target.Plant(t, r.w)
	theirs := r.snapshot(t)
	require.NotEqual(t, bare, theirs, "the hook Plant planted nothing that Snapshot shows")
	s := stateOf(StageNode(), web(epA, epC), api(epB))
	r.sync(t, s)
	require.NoError(t, r.p.Check(r.ctx), "what others have is no drift")
	r.predicted(t, toWeb()...)
	r.to(t, s, stateOf(StageNode(), web(epB)))
	require.NoError(t, r.p.Check(r.ctx))
	r.restart(t)
	r.sync(t, s)
	r.cleanup(t)
	require.Equal(t, theirs, r.snapshot(t), "what others have is still there, and nothing else")
}
