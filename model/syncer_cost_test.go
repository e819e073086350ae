package model_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// A blank is a Programmer that does nothing, and so costs nothing.
type blank struct{}

func (blank) Sync(context.Context, model.State) (model.Result, error) { return model.Result{}, nil }
func (blank) Apply(context.Context, model.Diff) (model.Result, error) { return model.Result{}, nil }
func (blank) Check(context.Context) error                             { return nil }
func (blank) Cleanup(context.Context) error                           { return nil }
func (blank) Probe(context.Context) (model.Report, error)             { return model.Report{}, nil }
func (blank) Close() error                                            { return nil }
func (blank) Features() model.FeatureSet                              { return model.FeatureSet{Backend: "blank"} }

// busyWith starts a Syncer that wants so many services, and returns what changes one endpoint and waits for it.
func busyWith(tb testing.TB, services int) (change func()) {
	tb.Helper()
	state := modeltest.Big(services, 10)
	s := model.NewSyncer(blank{}, model.SyncerConfig{MinInterval: -1, CheckPeriod: -1, ResyncPeriod: -1})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	tb.Cleanup(func() {
		stop()
		require.NoError(tb, <-done)
	})
	require.NoError(tb, s.Replace(state))
	require.NoError(tb, s.Wait(ctx))
	name := modeltest.BigName(services / 2)
	lists := [2][]model.Endpoint{state.Endpoints[name], state.Endpoints[name][1:]}
	i := 0
	return func() {
		i++
		s.SetEndpoints(name, lists[i%2])
		if err := s.Wait(ctx); err != nil {
			tb.Error(err)
		}
	}
}

// What a change costs does not depend on how many services there are.
func TestSyncerCostFollowsTheChange(t *testing.T) {
	few, many := testing.AllocsPerRun(50, busyWith(t, 100)), testing.AllocsPerRun(50, busyWith(t, 10_000))
	require.InDelta(t, few, many, 5, "allocations of one change")
	require.Less(t, many, 80.0)
}

func BenchmarkSyncerChange(b *testing.B) {
	for name, services := range map[string]int{"100-services": 100, "10000-services": 10_000} {
		b.Run(name, func(b *testing.B) {
			change := busyWith(b, services)
			b.ReportAllocs()
			for b.Loop() {
				change()
			}
		})
	}
}
