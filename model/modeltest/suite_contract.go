package modeltest

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// The contract of a Programmer: order of calls, contexts, what it copies, who may call.
var contractChecks = []check{
	{"not-synced", notSynced},
	{"sync-twice", syncTwice},
	{"empty-diff", emptyDiff},
	{"same-again", sameAgain},
	{"unknown-service-deleted", unknownServiceDeleted},
	{"before-is-not-trusted", beforeIsNotTrusted},
	{"inputs-are-copied", inputsAreCopied},
	{"cancelled-before", cancelledBefore},
	{"cancelled-in-flight", cancelledInFlight},
	{"deadline", deadlinePassed},
	{"node-that-makes-no-sense", badNode},
	{"closed", closed},
	{"probe", probe},
	{"concurrent-use", concurrentUse},
}

// web is a service that many checks use, with one frontend of each kind.
func web(eps ...model.Endpoint) part {
	return service("default/web:http", model.Service{Frontends: at(internal("172.20.0.10:80"), external("192.0.2.10:80"), nodePort(30010))}, eps...)
}

// api is another one.
func api(eps ...model.Endpoint) part {
	return service("default/api:http", model.Service{Frontends: at(internal("172.20.0.11:80"), external("192.0.2.11:80"))}, eps...)
}

var (
	epA = here("10.128.0.11:8080")
	epB = here("10.128.0.12:8080")
	epC = there("10.128.1.21:8080")
)

// toWeb is traffic for every frontend of web, toAPI for api.
func toWeb() []flow {
	return []flow{pod.to("172.20.0.10:80"), outside.to("192.0.2.10:80"), outside.to("198.51.100.10:30010"), theNode.to("172.20.0.10:80")}
}

func toAPI() []flow {
	return []flow{pod.to("172.20.0.11:80"), outside.to("192.0.2.11:80")}
}

func notSynced(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	_, err := r.p.Apply(r.ctx, model.DiffStates(stateOf(StageNode()), stateOf(StageNode(), web(epA))))
	require.ErrorIs(t, err, model.ErrNotSynced, "Apply before Sync")
	_, err = r.p.Apply(r.ctx, model.Diff{})
	require.ErrorIs(t, err, model.ErrNotSynced, "an empty Apply before Sync")
	require.ErrorIs(t, r.p.Check(r.ctx), model.ErrNotSynced, "Check before Sync")
	r.meets(t, outside.to("198.51.100.10:30010").untouched(), pod.to("172.20.0.10:80").untouched())
	r.sync(t, stateOf(StageNode(), web(epA)))
	r.predicted(t, toWeb()...)
	require.NoError(t, r.p.Cleanup(r.ctx))
	_, err = r.p.Apply(r.ctx, model.Diff{})
	require.ErrorIs(t, err, model.ErrNotSynced, "Apply after Cleanup")
	require.ErrorIs(t, r.p.Check(r.ctx), model.ErrNotSynced, "Check after Cleanup")
}

func syncTwice(t *testing.T, h *harness) {
	s := stateOf(StageNode(), web(epA, epC), api(epB),
		service("bad", model.Service{Frontends: at(model.Frontend{})}))
	r := h.rig(t, s.Node)
	first := r.sync(t, s)
	require.Positive(t, first.Written(), "the first Sync writes")
	require.Positive(t, first.Transactions)
	before := r.snapshot(t)
	second := r.sync(t, s)
	require.Equal(t, names(first.Rejected), names(second.Rejected))
	require.Equal(t, before, r.snapshot(t), "a second Sync leaves the same")
	require.NoError(t, r.p.Check(r.ctx))
	r.predicted(t, append(toWeb(), toAPI()...)...)
	r.sync(t, stateOf(StageNode(), api(epB)))
	require.NoError(t, r.p.Check(r.ctx))
	r.predicted(t, append(toWeb(), toAPI()...)...)
}

// snapshot returns the target's snapshot, empty if it has none.
func (r *rig) snapshot(t *testing.T) string {
	t.Helper()
	if r.h.target.Snapshot == nil {
		return ""
	}
	return r.h.target.Snapshot(t, r.w)
}

func emptyDiff(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	r.sync(t, stateOf(StageNode(), web(epA, epC)))
	before := r.snapshot(t)
	res := r.apply(t, model.Diff{})
	require.Zero(t, res.Written())
	require.Zero(t, res.Transactions)
	require.Zero(t, res.Bytes)
	require.Equal(t, before, r.snapshot(t))
}

func sameAgain(t *testing.T, h *harness) {
	s := stateOf(StageNode(), web(epA, epC))
	r := h.rig(t, s.Node)
	r.sync(t, s)
	node := StageNode()
	d := model.Diff{Node: &node, Changes: []model.Change{{Name: "default/web:http",
		After: &model.Entry{Service: s.Services["default/web:http"], Endpoints: []model.Endpoint{epC, epA, epA}}}}}
	res := r.apply(t, d)
	require.Zero(t, res.Written(), "what is there already is not written: %v", res)
	r.predicted(t, toWeb()...)
}

func unknownServiceDeleted(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	r.sync(t, stateOf(StageNode(), web(epA)))
	res := r.apply(t, model.Diff{Changes: []model.Change{{Name: "never/was:there"}}})
	require.Zero(t, res.Written())
	r.predicted(t, toWeb()...)
}

func beforeIsNotTrusted(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	r.sync(t, stateOf(StageNode(), web(epA, epB)))
	after := stateOf(StageNode(), web(epC))
	wrong := model.Entry{Service: model.Service{Protocol: model.UDP, Frontends: at(internal("172.20.0.99:1"))}, Endpoints: []model.Endpoint{there("10.128.2.31:1")}}
	d := model.Diff{Changes: []model.Change{{Name: "default/web:http", Before: &wrong,
		After: &model.Entry{Service: after.Services["default/web:http"], Endpoints: after.Endpoints["default/web:http"]}}}}
	r.apply(t, d)
	r.predicted(t, toWeb()...)
	require.NoError(t, r.p.Check(r.ctx))
	d.Changes[0].Before = nil
	d.Changes[0].After = nil
	r.apply(t, d)
	r.predicted(t, toWeb()...)
	require.NoError(t, r.p.Check(r.ctx))
}

// What the caller does to maps and slices after a call must not reach the Programmer.
func inputsAreCopied(t *testing.T, h *harness) {
	mine := func() model.State {
		n := nodeWith(func(n *model.Node) { n.NodePorts.Prefixes = prefixes("198.51.100.0/24") })
		return stateOf(n, web(forZones(epA, "zone-1"), forZones(epC, "zone-1")),
			service("default/lbr:http", model.Service{Frontends: at(external("192.0.2.12:80", "203.0.113.0/25"))}, here("10.128.0.13:8080")))
	}
	r := h.rig(t, StageNode())
	given := mine()
	r.prepare(t, given)
	_, err := r.p.Sync(r.ctx, given)
	require.NoError(t, err)
	r.pretend(t, mine())
	scribble(&given)
	flows := append(toWeb(), outside.to("192.0.2.12:80"), otherOutside.to("192.0.2.12:80"), outside.to("198.51.101.10:30010"))
	r.predicted(t, flows...)
	require.NoError(t, r.p.Check(r.ctx))

	// A change of something else makes the Programmer look at what it remembers; so does a changed node.
	next := mine()
	next.Node.Zone = "zone-2"
	api(epB)(&next)
	d := model.DiffStates(mine(), next)
	_, err = r.p.Apply(r.ctx, d)
	require.NoError(t, err)
	kept := mine()
	kept.Node.Zone = "zone-2"
	api(epB)(&kept)
	r.pretend(t, kept)
	scribble(&next)
	for i := range d.Changes {
		if e := d.Changes[i].After; e != nil {
			s := model.State{Services: model.ServiceMap{"x": e.Service}, Endpoints: model.EndpointMap{"x": e.Endpoints}}
			scribble(&s)
		}
	}
	if d.Node != nil {
		s := model.State{Node: *d.Node}
		scribble(&s)
	}
	r.predicted(t, append(flows, toAPI()...)...)
	res := r.apply(t, model.Diff{Changes: []model.Change{{Name: "default/web:http",
		After: &model.Entry{Service: kept.Services["default/web:http"], Endpoints: kept.Endpoints["default/web:http"]}}}})
	require.Zero(t, res.Written(), "the Programmer remembers something else than what it was given: %v", res)
}

// scribble overwrites everything that a state shares with others.
func scribble(s *model.State) {
	for name, svc := range s.Services {
		for i := range svc.Frontends {
			for j := range svc.Frontends[i].SourceRanges {
				svc.Frontends[i].SourceRanges[j] = pfx("8.8.8.8/32")
			}
			svc.Frontends[i] = internal("172.20.9.9:9")
		}
		delete(s.Services, name)
	}
	for name, eps := range s.Endpoints {
		for i := range eps {
			for j := range eps[i].Zones {
				eps[i].Zones[j] = "scribbled"
			}
			eps[i] = notReady(there("10.128.2.31:9"))
		}
		delete(s.Endpoints, name)
	}
	n := &s.Node
	for i := range n.Addrs {
		n.Addrs[i] = addr("198.51.100.99")
	}
	for i := range n.Primary {
		n.Primary[i] = addr("198.51.100.99")
	}
	for i := range n.Detector.Prefixes {
		n.Detector.Prefixes[i] = pfx("203.0.113.0/24")
	}
	for i := range n.NodePorts.Prefixes {
		n.NodePorts.Prefixes[i] = pfx("192.0.2.77/32")
	}
	for i := range n.ServiceRanges {
		n.ServiceRanges[i] = pfx("10.0.0.0/8")
	}
}

// A node that makes no sense is the caller's mistake as a whole: nothing is written.
func badNode(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	s := stateOf(StageNode(), web(epA))
	r.sync(t, s)
	before := r.snapshot(t)
	for name, bad := range map[string]model.Node{
		"address":   {Addrs: []netip.Addr{{}}},
		"primary":   nodeWith(func(n *model.Node) { n.Primary = append(n.Primary, netip.Addr{}) }),
		"detector":  nodeWith(func(n *model.Node) { n.Detector.Prefixes = append(n.Detector.Prefixes, netip.Prefix{}) }),
		"interface": nodeWith(func(n *model.Node) { n.Detector.Interfaces = []string{"an interface; drop"} }),
		"scope":     nodeWith(func(n *model.Node) { n.NodePorts.Prefixes = []netip.Prefix{{}} }),
		"ranges":    nodeWith(func(n *model.Node) { n.ServiceRanges = append(n.ServiceRanges, netip.PrefixFrom(addr("10.0.0.0"), 33)) }),
	} {
		_, err := r.p.Apply(r.ctx, model.Diff{Node: &bad})
		require.ErrorIs(t, err, model.ErrInvalid, name)
		// What else was in the diff is not programmed, and its giver will not say it again.
		_, err = r.p.Apply(r.ctx, model.Diff{})
		require.ErrorIs(t, err, model.ErrNotSynced, name)
		_, err = r.p.Sync(r.ctx, model.State{Node: bad})
		require.ErrorIs(t, err, model.ErrInvalid, name)
		require.Equal(t, before, r.snapshot(t), name)
		r.sync(t, s)
	}
	r.predicted(t, toWeb()...)
}

func closed(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	s := stateOf(StageNode(), web(epA))
	r.sync(t, s)
	before := r.snapshot(t)
	require.NoError(t, r.p.Close())
	require.NoError(t, r.p.Close(), "Close twice")
	_, err := r.p.Sync(r.ctx, s)
	require.ErrorIs(t, err, model.ErrClosed, "Sync")
	_, err = r.p.Apply(r.ctx, model.Diff{})
	require.ErrorIs(t, err, model.ErrClosed, "Apply")
	require.ErrorIs(t, r.p.Check(r.ctx), model.ErrClosed, "Check")
	require.ErrorIs(t, r.p.Cleanup(r.ctx), model.ErrClosed, "Cleanup")
	_, err = r.p.Probe(r.ctx)
	require.ErrorIs(t, err, model.ErrClosed, "Probe")
	require.Equal(t, h.features, r.p.Features(), "Features needs nothing open")
	require.Equal(t, before, r.snapshot(t), "Close leaves the rules in place")
	r.predicted(t, toWeb()...)
}

func probe(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	before := r.snapshot(t)
	report, err := r.p.Probe(r.ctx)
	require.NoError(t, err)
	require.Equal(t, h.features.Backend, report.Backend)
	require.NoError(t, report.Err(), "this backend cannot work here, so nothing else can be checked")
	for _, f := range report.Warnings {
		require.NotEmpty(t, f.What)
		require.Error(t, f.Err)
	}
	require.Equal(t, before, r.snapshot(t), "Probe writes nothing")
	r.sync(t, stateOf(StageNode(), web(epA)))
	before = r.snapshot(t)
	_, err = r.p.Probe(r.ctx)
	require.NoError(t, err)
	require.Equal(t, before, r.snapshot(t), "Probe writes nothing")
	require.NoError(t, r.p.Check(r.ctx))
}

// Several goroutines drive one Programmer; -race watches.
func concurrentUse(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	base := stateOf(StageNode(), web(epA))
	r.sync(t, base)
	rounds := r.pick(8, 60)
	var wg sync.WaitGroup
	failed := make(chan error, 6*rounds)
	each := func(do func(i int) error) {
		wg.Go(func() {
			for i := range rounds {
				if err := do(i); err != nil {
					failed <- err
				}
			}
		})
	}
	for w := range 3 {
		name := model.ServiceName(fmt.Sprintf("own/%d", w))
		each(func(i int) error {
			c := model.Change{Name: name, After: &model.Entry{
				Service:   model.Service{Frontends: at(internal(fmt.Sprintf("172.20.7.%d:80", w)))},
				Endpoints: []model.Endpoint{epA, epB, epC}[:1+i%3]}}
			if i%5 == 4 {
				c.After = nil
			}
			_, err := r.p.Apply(r.ctx, model.Diff{Changes: []model.Change{c}})
			return err
		})
	}
	each(func(int) error { return r.p.Check(r.ctx) })
	each(func(int) error {
		_, err := r.p.Probe(r.ctx)
		if r.p.Features().Backend == "" {
			err = errors.Join(err, errors.New("Features is empty"))
		}
		return err
	})
	each(func(i int) error {
		if i%8 != 0 {
			return nil
		}
		_, err := r.p.Sync(r.ctx, base)
		return err
	})
	wg.Wait()
	close(failed)
	for err := range failed {
		require.NoError(t, err)
	}
	r.sync(t, stateOf(StageNode(), web(epB), api(epC)))
	require.NoError(t, r.p.Check(r.ctx))
	r.predicted(t, append(toWeb(), toAPI()...)...)
}
