package modeltest

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// Contexts that end: before, during and after a call.

func cancelledBefore(t *testing.T, h *harness) {
	a, b := stateOf(StageNode(), web(epA)), stateOf(StageNode(), web(epB), api(epC))
	r := h.rig(t, a.Node)
	gone, cancel := context.WithCancel(r.ctx)
	cancel()
	_, err := r.p.Sync(gone, a)
	require.ErrorIs(t, err, context.Canceled, "Sync")
	r.sync(t, a)
	_, err = r.p.Apply(gone, model.DiffStates(a, b))
	require.ErrorIs(t, err, context.Canceled, "Apply")
	_, err = r.p.Apply(r.ctx, model.DiffStates(a, b))
	require.ErrorIs(t, err, model.ErrNotSynced, "Apply after an error")
	r.prepare(t, b)
	r.sync(t, b)
	r.predicted(t, append(toWeb(), toAPI()...)...)
	require.NoError(t, r.p.Check(r.ctx))
}

// A countdown is a context that is cancelled when it has been asked often enough: so a call is cut off at every
// point at which it looks, and not at one that chance picks.
type countdown struct {
	context.Context
	left   atomic.Int64
	cancel context.CancelFunc
}

func newCountdown(parent context.Context, n int) *countdown {
	ctx, cancel := context.WithCancel(parent)
	c := &countdown{Context: ctx, cancel: cancel}
	c.left.Store(int64(n))
	return c
}

func (c *countdown) tick() {
	if c.left.Add(-1) < 0 {
		c.cancel()
	}
}

func (c *countdown) Err() error { c.tick(); return c.Context.Err() }

func (c *countdown) Done() <-chan struct{} { c.tick(); return c.Context.Done() }

func cancelledInFlight(t *testing.T, h *harness) {
	states := []model.State{
		stateOf(StageNode(), web(epA)),
		stateOf(nodeWith(func(n *model.Node) { n.MasqueradeAll = true }), web(epB, epC), api(epC)),
	}
	for _, call := range []string{"Apply", "Sync"} {
		t.Run(call, func(t *testing.T) {
			r := h.rig(t, StageNode())
			r.sync(t, states[0])
			finished := 0
			for n := 0; n < 150 && finished < 3; n++ {
				from, to := states[n%2], states[(n+1)%2]
				ctx := newCountdown(r.ctx, n)
				defer ctx.cancel()
				var err error
				r.prepare(t, to)
				if call == "Apply" {
					_, err = r.p.Apply(ctx, model.DiffStates(from, to))
				} else {
					_, err = r.p.Sync(ctx, to)
				}
				if err == nil {
					finished++
				} else {
					require.ErrorIs(t, err, context.Canceled, "cancelled at look %d", n)
					_, err = r.p.Apply(r.ctx, model.Diff{})
					require.ErrorIs(t, err, model.ErrNotSynced, "Apply after %s was cancelled at look %d", call, n)
				}
				_, err = r.p.Sync(r.ctx, to)
				require.NoError(t, err, "Sync after %s was cancelled at look %d", call, n)
				require.NoError(t, r.p.Check(r.ctx))
				r.pretend(t, to)
				if n < 4 || r.pretended() {
					r.predicted(t, append(toWeb(), toAPI()...)...)
				}
			}
			require.Positive(t, finished, "%s never finished, though it was cancelled late", call)
			r.predicted(t, append(toWeb(), toAPI()...)...)
		})
	}
}

func deadlinePassed(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	r.sync(t, stateOf(StageNode(), web(epA)))
	late, cancel := context.WithTimeout(r.ctx, 0)
	defer cancel()
	_, err := r.p.Sync(late, stateOf(StageNode(), web(epB)))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	r.sync(t, stateOf(StageNode(), web(epB)))
	r.predicted(t, toWeb()...)
}
