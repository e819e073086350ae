package modeltest

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// What a change costs follows the change, not what is programmed already: counted, not timed.
var costChecks = []check{
	{"endpoint-comes-and-goes", costOfEndpoint},
	{"service-comes-and-goes", costOfService},
	{"refused-service", costOfRefused},
	{"any-of-many", anyOfMany},
}

// costs syncs n services and returns how many objects each of some changes writes.
func costs(t *testing.T, h *harness, n int, opts []BigOption, change func(*model.Tracker)) []int {
	t.Helper()
	ctx := h.rig(t, Big(0, 0).Node)
	s := Big(n, 5, opts...)
	_, err := ctx.p.Sync(ctx.ctx, s)
	require.NoError(t, err)
	tracker := model.NewTracker(s.Node)
	tracker.Replace(s)
	tracker.Diff()
	var written []int
	for range 2 { // the second time what is made on demand is there
		change(tracker)
		res, err := ctx.p.Apply(ctx.ctx, tracker.Diff())
		require.NoError(t, err)
		require.Positive(t, res.Written())
		written = append(written, res.Added, res.Changed, res.Deleted, res.Transactions)
		tracker.Replace(s)
		res, err = ctx.p.Apply(ctx.ctx, tracker.Diff())
		require.NoError(t, err)
		require.Positive(t, res.Written())
		written = append(written, res.Added, res.Changed, res.Deleted, res.Transactions)
	}
	require.NoError(t, ctx.p.Check(ctx.ctx))
	return written
}

var bigVariants = []struct {
	name string
	opts []BigOption
}{
	{"plain", nil},
	{"affinity", []BigOption{WithAffinity}},
	{"ranges", []BigOption{WithRanges}},
	{"node-ports", []BigOption{WithNodePorts}},
	{"local-policy", []BigOption{WithNodePorts, WithLocalPolicy}},
}

func sameCost(t *testing.T, h *harness, change func(*model.Tracker, []BigOption)) {
	for _, v := range bigVariants {
		t.Run(v.name, func(t *testing.T) {
			few := costs(t, h, 10, v.opts, func(tr *model.Tracker) { change(tr, v.opts) })
			many := costs(t, h, 1000, v.opts, func(tr *model.Tracker) { change(tr, v.opts) })
			require.Equal(t, few, many, "added, changed, deleted, transactions of each change: with 10 services and with 1,000")
		})
	}
}

func costOfEndpoint(t *testing.T, h *harness) {
	sameCost(t, h, func(tr *model.Tracker, _ []BigOption) {
		tr.SetEndpoints(BigName(3), append(slices.Clone(Big(4, 5).Endpoints[BigName(3)]), BigEndpoint(1_000_001)))
	})
}

// A service that comes finds the others as they are. Where the backend keeps a search tree over frontends, it may
// have to be opened a little further; that is not counted against it as long as the bound holds.
func costOfService(t *testing.T, h *harness) {
	for _, v := range bigVariants {
		t.Run(v.name, func(t *testing.T) {
			bound := 0
			for _, n := range []int{10, 1000} {
				written := costs(t, h, n, v.opts, func(tr *model.Tracker) {
					s := Big(n+1, 5, v.opts...)
					tr.SetService(BigName(n), s.Services[BigName(n)])
					tr.SetEndpoints(BigName(n), s.Endpoints[BigName(n)])
				})
				sum := 0
				for _, w := range written {
					sum += w
				}
				if n == 10 {
					bound = 4*sum + 100
				}
				require.LessOrEqual(t, sum, bound, "with %d services: %v", n, written)
			}
		})
	}
}

// A diff of which nothing can be programmed writes nothing.
func costOfRefused(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	r.sync(t, stateOf(StageNode(), web(epA)))
	before := r.snapshot(t)
	res := r.apply(t, model.Diff{Changes: []model.Change{{Name: "bad", After: &model.Entry{Service: model.Service{Protocol: 9}}}}})
	require.Zero(t, res.Written())
	require.Equal(t, before, r.snapshot(t))
}

// Among 1,000 services with frontends of every kind, each is found: the first, the last and those between.
func anyOfMany(t *testing.T, h *harness) {
	const n = 1000
	s := Big(n, 3, WithNodePorts, WithRanges)
	r := h.rig(t, s.Node)
	flows := func(i int) []flow {
		fs := s.Services[BigName(i)].Frontends
		port := netip.AddrPortFrom(s.Node.Primary[0], fs[1].Addr.Port())
		return []flow{pod.to(fs[0].Addr.String()), outside.to(port.String()), outside.to(fs[2].Addr.String()), otherOutside.to(fs[2].Addr.String())}
	}
	r.sync(t, s)
	picked := []int{0, 1, 15, 16, 17, 254, 255, 256, 257, 511, 777, n - 2, n - 1}
	for _, i := range picked {
		r.predicted(t, flows(i)...)
	}
	// Half of them go, in no order that an address tree would like.
	half := Big(n, 3, WithNodePorts, WithRanges)
	for i := range n {
		if i%3 != 1 {
			delete(half.Services, BigName(i))
			delete(half.Endpoints, BigName(i))
		}
	}
	r.to(t, s, half)
	for _, i := range picked {
		r.predicted(t, flows(i)...)
	}
	r.to(t, half, s)
	for _, i := range picked {
		r.predicted(t, flows(i)...)
	}
	require.NoError(t, r.p.Check(r.ctx))
}
