package modeltest

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

// RunSelection compares the endpoints that [model.Select] chooses with those of every vector, in both families. It
// needs no kernel.
func RunSelection(t *testing.T) {
	for _, v := range Vectors() {
		t.Run(v.ID, func(t *testing.T) {
			for _, v := range v.bothFamilies() {
				for _, step := range v.Steps {
					for _, sel := range step.selections {
						sel.check(t, v.Family, step.State)
					}
				}
			}
		})
	}
}

// bothFamilies returns the vector and, of one that is in IPv4, its mirror image.
func (v Vector) bothFamilies() []Vector {
	if v.Family == model.IPv6 {
		return []Vector{v}
	}
	return []Vector{v, v.mirrored()}
}

// check selects. A list that no frontend needs is none of the vectors' business.
func (sel vectorSelection) check(t *testing.T, family model.Family, s model.State) {
	t.Helper()
	svc, ok := s.Services[sel.service]
	require.True(t, ok, "no service %q", string(sel.service))
	got := model.Select(s.Endpoints[sel.service], s.Node, family)
	reached := slices.ContainsFunc(svc.Frontends, func(f model.Frontend) bool {
		return f.Kind != model.Internal && f.Family() == family
	})
	if svc.InternalTraffic == model.Cluster || reached {
		require.Equal(t, sorted(sel.cluster), addrsOf(got.Cluster), "%s: cluster", sel.service)
		require.Equal(t, sel.usable, len(got.Cluster) > 0, "%s: any usable", sel.service)
	} else {
		require.Empty(t, sel.cluster, "%s: cluster, which nobody needs", sel.service)
	}
	if svc.InternalTraffic == model.Local || svc.ExternalTraffic == model.Local && reached {
		require.Equal(t, sorted(sel.local), addrsOf(got.Local), "%s: local", sel.service)
	} else {
		require.Empty(t, sel.local, "%s: local, which nobody needs", sel.service)
	}
}

func addrsOf(eps []model.Endpoint) []netip.AddrPort {
	out := []netip.AddrPort{}
	for _, e := range eps {
		out = append(out, e.Addr)
	}
	return sorted(out)
}

func sorted(in []netip.AddrPort) []netip.AddrPort {
	out := append([]netip.AddrPort{}, in...)
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}
