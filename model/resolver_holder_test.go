package model_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

// A service may have the empty name, and holds its frontends like any other.
func TestEmptyNameHoldsItsFrontends(t *testing.T) {
	svc := model.Service{Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.10:80")}}}
	key := model.FrontendKey{Addr: svc.Frontends[0].Addr}
	r := resolved(t, model.State{Services: model.ServiceMap{"z": {}}})
	apply := func(name model.ServiceName, s *model.Service) *model.Delta {
		c := model.Change{Name: name}
		if s != nil {
			c.After = &model.Entry{Service: *s}
		}
		d, err := r.Resolve(model.Diff{Changes: []model.Change{c}}, nil)
		require.NoError(t, err)
		r.Commit(d)
		return d
	}
	require.Empty(t, apply("z", &svc).Rejected)
	require.Len(t, apply("", &svc).Rejected, 1)
	require.Equal(t, []model.ServiceName{""}, apply("z", nil).Promoted)
	holder, held := r.Holder(key)
	require.True(t, held)
	require.Empty(t, holder)
	d := apply("a", &svc)
	require.Len(t, d.Rejected, 1)
	require.ErrorContains(t, d.Rejected[0], `taken by ""`)
	require.Empty(t, r.Form("a").Frontends)
	require.Len(t, r.Form("").Frontends, 1)
	require.Equal(t, []model.ServiceName{"a"}, apply("", nil).Promoted)
	apply("a", nil)
	_, held = r.Holder(key)
	require.False(t, held)
}
