package modeltest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// Run runs the conformance suite: every scenario as traffic, and the contract of [model.Programmer]. Each subtest has
// a world of its own and stands alone, so that -run picks any.
//
// What is not asked of a target is skipped, and the skip says why: because the backend's FeatureSet names a
// difference or lacks an ability, because the target has no hook for it, or because the world cannot do it.
func Run(t *testing.T, target Target) {
	t.Helper()
	require.NotEmpty(t, target.Name, "a Target has a name")
	require.NotNil(t, target.New, "a Target has New")
	h := &harness{target: target, root: t.Name() + "/"}
	h.learn(t)
	for _, g := range suite() {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.checks {
				t.Run(c.name, func(t *testing.T) {
					h.maySkip(t)
					c.run(t, h)
				})
			}
		})
	}
}

// A check is one subtest of the suite; many have subtests of their own.
type check struct {
	name string
	run  func(t *testing.T, h *harness)
}

// A chapter is checks about one thing.
type chapter struct {
	name   string
	checks []check
}

func suite() []chapter {
	return []chapter{
		{"scenarios", scenarioChecks()},
		{"contract", contractChecks},
		{"change", changeChecks},
		{"fault", faultChecks},
		{"life", lifeChecks},
		{"node", nodeChecks},
		{"balance", balanceChecks},
		{"affinity", affinityChecks},
		{"ranges", rangeChecks},
		{"cost", costChecks},
		{"explain", explainChecks},
	}
}

// patience is how long one subtest may take at most in any call: generous, since machines are shared.
const patience = 2 * time.Minute

// A harness is what all subtests share.
type harness struct {
	target   Target
	root     string // the name of the test that called Run, with a slash
	features model.FeatureSet
}

// learn asks the backend what it can do, and checks what the target says against it.
func (h *harness) learn(t *testing.T) {
	t.Helper()
	r := h.rig(t, StageNode())
	h.features = r.p.Features()
	require.NotEmpty(t, h.features.Backend, "Features().Backend names the backend")
	require.NotEmpty(t, h.features.Balances, "Features().Balances: some way of balancing there must be")
	for name, id := range h.target.Skip {
		require.True(t, h.features.Differs(id), "Target.Skip[%q] = %q: Features().Differences has no such difference", name, id)
	}
	for _, d := range h.features.Differences {
		require.NotEmpty(t, d.Text, "difference %q says nothing", d.ID)
	}
}

// maySkip skips a subtest that the target names in Skip.
func (h *harness) maySkip(t *testing.T) {
	t.Helper()
	name := strings.TrimPrefix(t.Name(), h.root)
	if id, ok := h.target.Skip[name]; ok {
		t.Skipf("%s differs: %s", h.target.Name, h.difference(id))
	}
}

// same skips a subtest if the backend has one of the named differences.
func (h *harness) same(t *testing.T, ids ...string) {
	t.Helper()
	if id, ok := h.differs(ids); ok {
		t.Skipf("%s differs: %s", h.target.Name, h.difference(id))
	}
}

// differs returns the first of the differences that the backend has.
func (h *harness) differs(ids []string) (string, bool) {
	for _, id := range ids {
		if h.features.Differs(id) {
			return id, true
		}
	}
	return "", false
}

func (h *harness) difference(id string) string {
	for _, d := range h.features.Differences {
		if d.ID == id {
			return d.ID + ": " + d.Text
		}
	}
	return id
}

// can skips a subtest if the backend cannot do what a service asks for.
func (h *harness) can(t *testing.T, s model.Service) {
	t.Helper()
	if err := h.features.Check(s); err != nil {
		t.Skipf("%s cannot do it: %v", h.target.Name, err)
	}
}

// world makes a fresh world.
func (h *harness) world(t *testing.T, node model.Node) World {
	t.Helper()
	if h.target.NewWorld == nil {
		return NewLab(t, node)
	}
	return h.target.NewWorld(t, node)
}

// rig makes a fresh world with a Programmer in it.
func (h *harness) rig(t *testing.T, node model.Node) *rig {
	t.Helper()
	return h.rigIn(t, h.world(t, node), node)
}

// rigIn makes a Programmer in a world that is already there.
func (h *harness) rigIn(t *testing.T, w World, node model.Node) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	r := &rig{h: h, ctx: ctx, w: w, node: node, mirror: model.NewResolver(h.features)}
	r.p = h.target.New(t, w)
	require.NotNil(t, r.p, "Target.New returned nothing")
	t.Cleanup(func() { require.NoError(t, r.p.Close()) })
	return r
}
