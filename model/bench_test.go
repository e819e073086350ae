package model_test

import (
	"fmt"
	"testing"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/stretchr/testify/require"
)

// bigTracker holds 10,000 services with 10 endpoints each, of which everything was handed out.
func bigTracker() *model.Tracker {
	s := modeltest.Big(10_000, 10)
	tr := model.NewTracker(s.Node)
	tr.Replace(s)
	tr.Diff()
	return tr
}

// flips returns the endpoints of one of the big services, and the same with one more.
func flips() (model.ServiceName, [2][]model.Endpoint) {
	eps := modeltest.Big(5_001, 10).Endpoints[modeltest.BigName(5_000)]
	return modeltest.BigName(5_000), [2][]model.Endpoint{append(eps[:10:10], modeltest.BigEndpoint(200_000)), eps}
}

// One endpoint among 100,000 costs what one service costs: counted in allocations, since clocks lie on busy machines.
func TestOneEndpointAmongMany(t *testing.T) {
	tr := bigTracker()
	r := model.NewResolver(model.FeatureSet{Balances: []model.Balance{model.Random}})
	d, err := r.ResolveState(tr.State(), nil)
	require.NoError(t, err)
	r.Commit(d)
	name, lists := flips()
	i := 0
	var diff model.Diff
	tracked := testing.AllocsPerRun(200, func() {
		tr.SetEndpoints(name, lists[i%2])
		i++
		diff = tr.Diff()
	})
	require.Len(t, diff.Changes, 1)
	require.Equal(t, name, diff.Changes[0].Name)
	require.Nil(t, diff.Node)
	require.LessOrEqual(t, tracked, 8.0, "allocations of SetEndpoints and Diff")

	resolved := testing.AllocsPerRun(200, func() {
		i++
		delta, err := r.Resolve(model.Diff{Changes: []model.Change{{Name: name, After: &model.Entry{Service: diff.Changes[0].After.Service, Endpoints: lists[i%2]}}}}, nil)
		if err != nil || len(delta.Changes) != 1 {
			t.Error("one service should change")
		}
		r.Commit(delta)
	})
	require.LessOrEqual(t, resolved, 30.0, "allocations of Resolve and Commit")
	require.Equal(t, 10_000, r.Len())
}

func BenchmarkTrackerOneEndpoint(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			s := modeltest.Big(n, 10)
			tr := model.NewTracker(s.Node)
			tr.Replace(s)
			tr.Diff()
			name := modeltest.BigName(n / 2)
			lists := [2][]model.Endpoint{append(s.Endpoints[name][:10:10], modeltest.BigEndpoint(n*10)), s.Endpoints[name]}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				tr.SetEndpoints(name, lists[i%2])
				i++
				if d := tr.Diff(); len(d.Changes) != 1 {
					b.Fatalf("%d changes", len(d.Changes))
				}
			}
		})
	}
}

func BenchmarkResolveOneEndpoint(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			s := modeltest.Big(n, 10)
			r := model.NewResolver(model.FeatureSet{Balances: []model.Balance{model.Random}})
			d, err := r.ResolveState(s, nil)
			require.NoError(b, err)
			r.Commit(d)
			name := modeltest.BigName(n / 2)
			lists := [2][]model.Endpoint{append(s.Endpoints[name][:10:10], modeltest.BigEndpoint(n*10)), s.Endpoints[name]}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				d, err := r.Resolve(model.Diff{Changes: []model.Change{{Name: name, After: &model.Entry{Service: s.Services[name], Endpoints: lists[i%2]}}}}, nil)
				if err != nil || len(d.Changes) != 1 {
					b.Fatal(len(d.Changes), err)
				}
				r.Commit(d)
				i++
			}
		})
	}
}

func BenchmarkResolveState(b *testing.B) {
	s := modeltest.Big(10_000, 10)
	b.ReportAllocs()
	for b.Loop() {
		r := model.NewResolver(model.FeatureSet{Balances: []model.Balance{model.Random}})
		d, err := r.ResolveState(s, nil)
		if err != nil || len(d.Changes) != 10_000 {
			b.Fatal(err)
		}
		r.Commit(d)
	}
}

func BenchmarkTrackerReplace(b *testing.B) {
	s := modeltest.Big(10_000, 10)
	tr := model.NewTracker(s.Node)
	b.ReportAllocs()
	for b.Loop() {
		tr.Replace(s)
		tr.Diff()
	}
}

func BenchmarkSelect(b *testing.B) {
	eps := modeltest.Big(1, 100).Endpoints[modeltest.BigName(0)]
	node := modeltest.StageNode()
	b.ReportAllocs()
	for b.Loop() {
		if s := model.Select(eps, node, model.IPv4); len(s.Cluster) != 100 {
			b.Fatal(len(s.Cluster))
		}
	}
}
