package modeltest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// A rig is a Programmer in a world, and a mirror of what it should have programmed.
type rig struct {
	h    *harness
	ctx  context.Context
	w    World
	p    model.Programmer
	node model.Node // whose addresses the world's node has; changed by apply and sync
	// mirror resolves what the Programmer is told, as every backend does.
	mirror *model.Resolver
}

// sync syncs, and requires that nothing fails and that just those services are rejected that should be.
func (r *rig) sync(t *testing.T, s model.State) model.Result {
	t.Helper()
	r.prepare(t, s)
	res, err := r.p.Sync(r.ctx, s)
	require.NoError(t, err, "Sync")
	d, err := r.mirror.ResolveState(s, nil)
	require.NoError(t, err)
	r.follow(t, d, res)
	return res
}

// apply applies a diff, and requires as sync does.
func (r *rig) apply(t *testing.T, d model.Diff) model.Result {
	t.Helper()
	s := model.State{Node: r.node, Endpoints: model.EndpointMap{}}
	if d.Node != nil {
		s.Node = *d.Node
	}
	for _, c := range d.Changes {
		if c.After != nil {
			s.Endpoints[c.Name] = c.After.Endpoints
		}
	}
	r.prepare(t, s)
	res, err := r.p.Apply(r.ctx, d)
	require.NoError(t, err, "Apply")
	delta, err := r.mirror.Resolve(d, nil)
	require.NoError(t, err)
	r.follow(t, delta, res)
	return res
}

// to applies what leads from one state to another.
func (r *rig) to(t *testing.T, from, to model.State) model.Result {
	t.Helper()
	return r.apply(t, model.DiffStates(from, to))
}

func (r *rig) follow(t *testing.T, d *model.Delta, res model.Result) {
	t.Helper()
	r.mirror.Commit(d)
	r.node = d.Node
	require.Equal(t, names(d.Rejected), names(res.Rejected), "rejected services\nexpected: %v\ngot: %v", d.Rejected, res.Rejected)
	require.True(t, slices.Equal(d.Promoted, res.Promoted), "promoted services: expected %q, got %q", d.Promoted, res.Promoted)
	for _, e := range res.Rejected {
		require.NotEmpty(t, e.Backend, "%v", e)
		require.NotEmpty(t, e.Op, "%v", e)
		require.Error(t, e.Err)
	}
}

// pretend makes the mirror hold a state that the Programmer was told otherwise.
func (r *rig) pretend(t *testing.T, s model.State) {
	t.Helper()
	d, err := r.mirror.ResolveState(s, nil)
	require.NoError(t, err)
	r.mirror.Commit(d)
	r.node = d.Node
}

func names(es []*model.ServiceError) []model.ServiceName {
	var out []model.ServiceName
	for _, e := range es {
		out = append(out, e.Service)
	}
	return out
}

func (r *rig) prepare(t *testing.T, s model.State, packets ...Packet) {
	t.Helper()
	if w, ok := r.w.(Preparer); ok {
		w.Prepare(t, s, packets)
	}
}

// restart closes the Programmer, and makes a new one that knows nothing.
func (r *rig) restart(t *testing.T) {
	t.Helper()
	require.NoError(t, r.p.Close())
	r.p = r.h.target.New(t, r.w)
	r.mirror = model.NewResolver(r.h.features)
}

// cleanup removes everything ours.
func (r *rig) cleanup(t *testing.T) {
	t.Helper()
	require.NoError(t, r.p.Cleanup(r.ctx))
	r.mirror.Reset()
	r.node.ServiceRanges = nil
}

// meets requires that packets meet what is expected of them.
func (r *rig) meets(t *testing.T, es ...Expectation) {
	t.Helper()
	r.prepare(t, model.State{Node: r.node}, packets(es)...)
	for _, e := range es {
		if _, ok := r.h.differs(e.Unless); ok {
			continue
		}
		require.NoError(t, r.try(e), "%s", e.Name)
	}
}

// predicted requires that packets meet what the programmed services say.
func (r *rig) predicted(t *testing.T, flows ...flow) {
	t.Helper()
	forms := r.mirror.Forms()
	for _, f := range flows {
		want := Predict(r.node, forms, f.p)
		if r.differsOn(f.p, want, forms) {
			continue
		}
		r.prepare(t, model.State{Node: r.node}, f.p)
		if err := r.try(Expectation{Packet: f.p, Want: want}); err != nil {
			o := oracle{node: r.node, services: forms, p: f.p, family: model.FamilyOf(f.p.To.Addr())}
			svc, front, _ := o.frontend()
			t.Fatalf("%s: %v\nfrontend: %v of service: %+v\nnode: %+v", f.p.Name, err, front, svc, r.node)
		}
	}
}

// differsOn reports whether one of the backend's differences may make another answer than the predicted one.
// It looks at what a difference is about, so that as little as possible goes unasked.
func (r *rig) differsOn(p Packet, want Want, forms []*model.Resolved) bool {
	o := oracle{node: r.node, services: forms, p: p, family: model.FamilyOf(p.To.Addr())}
	svc, f, claimed := o.frontend()
	has := func(id string, about bool) bool { return about && r.h.features.Differs(id) }
	toNode := slices.ContainsFunc(want.Endpoints, func(e netip.AddrPort) bool { return slices.Contains(r.node.Addrs, e.Addr()) })
	short := claimed && f.Kind != model.Internal && svc.Service.ExternalTraffic == model.Local && (o.internalSource() || o.nodeSource())
	inner := slices.ContainsFunc(forms, func(s *model.Resolved) bool {
		return slices.ContainsFunc(s.Frontends, func(g model.Frontend) bool { return g.Addr.Addr() == p.To.Addr() })
	})
	return has(DiffLocalShortCut, short) || has(DiffOtherPorts, !claimed && want.Verdict == Refused) ||
		has(DiffExternalOtherPorts, !claimed && want.Verdict == Untouched && inner) ||
		has(DiffServiceRanges, !claimed && want.Verdict == Dropped) || has(DiffLoopback, p.To.Addr().IsLoopback()) ||
		has(DiffLoopedVIP, p.Kind == FromVIP) || has(DiffMasqueradeLocal, toNode)
}

// try opens connections until it has seen enough, and says what was not as expected.
// An error that wraps errors.ErrUnsupported means that the world cannot send such a packet.
func (r *rig) try(e Expectation) error {
	seen := map[netip.AddrPort]int{}
	all := len(e.Want.Endpoints)
	n, most := 2, 2
	switch {
	case e.Want.Verdict == Dropped:
		n, most = 1, 1
	case e.Want.Verdict == Translated && e.Want.One:
		n, most = 6, 6
	case e.Want.Verdict == Translated:
		n, most = 3*all, 60*all+40 // a millionth of a chance to miss one, at weights of 1 to 5
	}
	for sent := 0; sent < most; sent += n {
		outcomes, err := r.w.Send(r.ctx, e.Packet, n)
		if err != nil {
			return fmt.Errorf("send: %w", err)
		}
		for _, o := range outcomes {
			if err := r.judge(e, o); err != nil {
				return err
			}
			seen[o.Endpoint]++
		}
		if e.Want.One && len(seen) > 1 {
			return fmt.Errorf("connections of one client went to several endpoints: %v", seen)
		}
		if e.Want.Verdict != Translated || e.Want.Some || len(seen) == all {
			return nil
		}
	}
	if e.Want.One {
		return nil
	}
	return fmt.Errorf("not all of %v answered, but %v", e.Want.Endpoints, seen)
}

// judge says what is wrong with one outcome.
func (r *rig) judge(e Expectation, o Outcome) error {
	switch {
	case o.Verdict != e.Want.Verdict:
		return fmt.Errorf("want %v, got %s", e.Want, describe(o))
	case o.Verdict != Translated:
		return nil
	case !slices.Contains(e.Want.Endpoints, o.Endpoint):
		return fmt.Errorf("want %v, got %s", e.Want, describe(o))
	}
	hidden := e.Want.Masqueraded != slices.Contains(e.Want.Mixed, o.Endpoint) || e.From == o.Endpoint.Addr() || e.From.IsLoopback()
	ofNode := slices.Contains(r.node.Addrs, o.Source)
	switch {
	case slices.Contains(r.node.Addrs, e.From) && !ofNode, hidden && !ofNode:
		return fmt.Errorf("the endpoint should see an address of the node: %s", describe(o))
	case !hidden && !ofNode && o.Source != e.From:
		return fmt.Errorf("the endpoint should see %s: %s", e.From, describe(o))
	case !hidden && ofNode && !slices.Contains(r.node.Addrs, e.From):
		return fmt.Errorf("the endpoint should see the client %s: %s", e.From, describe(o))
	}
	return nil
}

func describe(o Outcome) string {
	if o.Verdict != Translated {
		return string(o.Verdict)
	}
	return fmt.Sprintf("%s %s, which saw %s", o.Verdict, o.Endpoint, o.Source)
}

// sends opens n connections and returns who answered, each of which must be somebody.
func (r *rig) sends(t *testing.T, f flow, n int) []netip.AddrPort {
	t.Helper()
	r.prepare(t, model.State{Node: r.node}, f.p)
	outcomes, err := r.w.Send(r.ctx, f.p, n)
	require.NoError(t, err)
	require.Len(t, outcomes, n)
	out := make([]netip.AddrPort, n)
	for i, o := range outcomes {
		require.Equal(t, Translated, o.Verdict, "%s", f.p.Name)
		out[i] = o.Endpoint
	}
	return out
}

// sleep lets time pass in the world.
func (r *rig) sleep(d time.Duration) {
	if w, ok := r.w.(Sleeper); ok {
		w.Sleep(d)
		return
	}
	time.Sleep(d)
}

// pretended reports whether packets cost nothing in this world, so that more of them may be sent.
func (r *rig) pretended() bool { return r.w.NetNS() < 0 }

// pick returns the real number in a world of real packets, the pretended one in a pretended world.
func (r *rig) pick(real, pretended int) int {
	if r.pretended() {
		return pretended
	}
	return real
}

// seeded returns a source of chance whose seed is printed.
func (h *harness) seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := h.target.Seed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("to repeat, set Target.Seed to %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// unsupported reports whether the world cannot send a packet.
func unsupported(err error) bool { return errors.Is(err, errors.ErrUnsupported) }
