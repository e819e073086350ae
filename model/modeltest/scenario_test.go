package modeltest_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/stretchr/testify/require"
)

// The expectations were written by hand from the rules of the field; the prediction tells the rules once more.
func TestScenariosArePredicted(t *testing.T) {
	for _, sc := range modeltest.Scenarios() {
		t.Run(sc.Name, func(t *testing.T) {
			for _, e := range sc.Packets {
				got := modeltest.PredictState(sc.State, e.Packet)
				if e.Want.Some || e.Want.One {
					got.One, got.Some = e.Want.One, e.Want.Some
				}
				got.Masqueraded = got.Masqueraded || onlyEndpointIsClient(e)
				require.Equal(t, e.Want.String(), got.String(), "%s", e.Name)
			}
		})
	}
}

// onlyEndpointIsClient reports whether the client can only reach itself, so that it is masqueraded in any case.
func onlyEndpointIsClient(e modeltest.Expectation) bool {
	return e.Want.Masqueraded && !slices.ContainsFunc(e.Want.Endpoints, func(ep netip.AddrPort) bool { return ep.Addr() != e.From })
}

func TestScenariosAreDeterministic(t *testing.T) {
	a, b := modeltest.Scenarios(), modeltest.Scenarios()
	require.Equal(t, a, b)
	for i := range a {
		for name := range a[i].State.Services {
			delete(a[i].State.Services, name)
		}
	}
	require.Equal(t, b, modeltest.Scenarios(), "a caller's changes reach the next caller")
	packets := map[string]bool{}
	for _, sc := range b {
		require.NotEmpty(t, sc.Doc, sc.Name)
		require.NotEmpty(t, sc.Packets, sc.Name)
		for _, e := range sc.Packets {
			key := sc.Name + "/" + e.Name
			require.False(t, packets[key], "%s: twice", key)
			packets[key] = true
		}
	}
}

// Every service of a scenario is what it should be for every backend, except where a scenario is about just that.
func TestScenariosAreValid(t *testing.T) {
	for _, sc := range modeltest.Scenarios() {
		r := model.NewResolver(model.FeatureSet{Backend: "any", HashPort: true,
			Balances: []model.Balance{model.Random, model.RoundRobin, model.LeastConn, model.SourceHash, model.Maglev}})
		var rejected []model.ServiceName
		d, err := r.ResolveState(sc.State, nil)
		require.NoError(t, err)
		for _, e := range d.Rejected {
			rejected = append(rejected, e.Service)
		}
		require.Equal(t, sc.Rejected, rejected, sc.Name)
		for name := range sc.State.Endpoints {
			require.Contains(t, sc.State.Services, name, sc.Name)
		}
	}
}

func TestBigIsBig(t *testing.T) {
	for _, opts := range [][]modeltest.BigOption{nil,
		{modeltest.WithAffinity, modeltest.WithRanges, modeltest.WithNodePorts, modeltest.WithLocalPolicy}} {
		s := modeltest.Big(10_000, 10, opts...)
		require.Equal(t, s, modeltest.Big(10_000, 10, opts...))
		frontends, endpoints := map[netip.AddrPort]bool{}, map[netip.AddrPort]bool{}
		for name, svc := range s.Services {
			for _, f := range svc.Frontends {
				require.False(t, frontends[f.Addr], "%s twice", f)
				frontends[f.Addr] = true
			}
			require.Len(t, s.Endpoints[name], 10)
			for _, e := range s.Endpoints[name] {
				endpoints[e.Addr] = true
				require.True(t, s.Node.Detector.Internal(e.Addr.Addr(), ""))
			}
		}
		require.Len(t, s.Services, 10_000)
		require.Len(t, endpoints, 100_000)
		r := model.NewResolver(model.FeatureSet{Balances: []model.Balance{model.Random}})
		d, err := r.ResolveState(s, nil)
		require.NoError(t, err)
		require.Empty(t, d.Rejected)
	}
	require.NotContains(t, fmt.Sprint(modeltest.Big(3, 3).Endpoints), modeltest.BigEndpoint(9).Addr.String())
}
