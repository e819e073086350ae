package modeltest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

// What a backend says of a packet is what becomes of it. The scenarios ask too, of each of their packets.
var explainChecks = []check{
	{"not-synced", explainsNothingYet},
	{"by-chance", explainsByChance},
	{"after-a-change", explainsAfterAChange},
}

// explainer returns the Programmer as one that explains, or skips the test.
func (r *rig) explainer(t *testing.T) model.Explainer {
	t.Helper()
	e, ok := r.p.(model.Explainer)
	if !ok {
		t.Skipf("%s cannot do it: it explains nothing", r.h.target.Name)
	}
	return e
}

func explainsNothingYet(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	e := r.explainer(t)
	_, err := e.Explain(r.ctx, onlyPod.p.Query())
	require.ErrorIs(t, err, model.ErrNotSynced)
	r.sync(t, stateOf(StageNode(), web(epA)))
	_, err = e.Explain(r.ctx, onlyPod.p.Query())
	require.NoError(t, err)
	r.cleanup(t)
	_, err = e.Explain(r.ctx, onlyPod.p.Query())
	require.ErrorIs(t, err, model.ErrNotSynced)
	require.NoError(t, r.p.Close())
	_, err = e.Explain(r.ctx, onlyPod.p.Query())
	require.ErrorIs(t, err, model.ErrClosed)
}

var onlyPod = pod.to("172.20.0.10:80")

// explainsByChance compares explanations of random packets in random states with what must become of them.
func explainsByChance(t *testing.T, h *harness) {
	g := h.generator(t)
	r := h.rig(t, StageNode())
	r.explainer(t)
	state := g.state()
	r.sync(t, state)
	balanced := 0
	for range r.pick(6, 60) {
		for _, f := range g.flows(40) {
			if r.explained(t, f.p, Predict(r.node, r.mirror.Forms(), f.p)) {
				balanced++
			}
		}
		next := g.mutate(state)
		r.to(t, state, next)
		state = next
	}
	t.Logf("%d packets were balanced", balanced)
}

// explainsAfterAChange sees that what is explained is what is programmed now.
func explainsAfterAChange(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	r.explainer(t)
	states := []model.State{
		stateOf(StageNode(), web(epA, epB)), stateOf(StageNode(), web(epB)), stateOf(StageNode(), web()), stateOf(StageNode()),
		stateOf(nodeWith(func(n *model.Node) { n.MasqueradeAll = true }), web(epA, epC)),
	}
	r.sync(t, states[0])
	for i, s := range states[1:] {
		for _, f := range []flow{onlyPod, outside.to("172.20.0.10:80")} {
			r.explained(t, f.p, Predict(r.node, r.mirror.Forms(), f.p))
		}
		r.to(t, states[i], s)
	}
	require.True(t, r.explained(t, onlyPod.p, Predict(r.node, r.mirror.Forms(), onlyPod.p)))
}

// explained requires that the Programmer, if it explains anything, says of a packet what becomes of it: its fate, who
// claims it, who serves it, and a way through the rules. It reports whether the packet is balanced.
func (r *rig) explained(t *testing.T, p Packet, want Want) bool {
	t.Helper()
	explainer, ok := r.p.(model.Explainer)
	if !ok || p.ICMP || r.differsOn(p, want, r.mirror.Forms()) {
		return false
	}
	e, err := explainer.Explain(r.ctx, p.Query())
	require.NoError(t, err, "%s", p.Name)
	require.Equal(t, r.h.features.Backend, e.Backend)
	require.Equal(t, p.Query(), e.Query)
	require.NoError(t, want.Explained(p, e), "%s", p.Name)
	for _, hop := range e.Path {
		require.NotEmpty(t, hop.Where, "%s", e)
		require.NotEmpty(t, hop.Rule, "%s", e)
	}
	if want.Verdict == Untouched {
		return false
	}
	require.NotEmpty(t, e.Path, "%s", e)
	if want.Verdict == Translated || e.Frontend.Addr.IsValid() {
		require.NoError(t, r.claims(p, e), "%s", p.Name)
	}
	return want.Verdict == Translated
}

// claims returns what is wrong with who is said to claim a packet and to serve it.
func (r *rig) claims(p Packet, e model.Explanation) error {
	form := r.mirror.Form(e.Service)
	if form == nil {
		return fmt.Errorf("no service %q is programmed:\n%s", string(e.Service), e)
	}
	to := e.Frontend.Addr
	switch {
	case form.Service.Protocol != p.Proto, !slices.ContainsFunc(form.Frontends, e.Frontend.Equal),
		to.Port() != p.To.Port(), e.Frontend.Kind != model.NodePort && to != p.To:
		return fmt.Errorf("it is not %s of %q that claims it:\n%s", e.Frontend, string(e.Service), e)
	}
	sel := form.Selections[model.FamilyOf(p.To.Addr())]
	for _, t := range e.Endpoints {
		if !slices.ContainsFunc(slices.Concat(sel.Cluster, sel.Local), func(o model.Endpoint) bool { return o.Addr == t.Endpoint.Addr }) {
			return fmt.Errorf("%s does not serve %q:\n%s", t.Endpoint.Addr, string(e.Service), e)
		}
	}
	return nil
}
