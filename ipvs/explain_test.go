package ipvs

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

var _ model.Explainer = (*Programmer)(nil)

// What is explained is what packets meet in every scenario, and the way is written as nft lists it.
func TestExplain(t *testing.T) {
	for _, cfg := range []Config{{}, {NoShortCut: true}} {
		s := newStand(t, cfg)
		ctx := context.Background()
		asked := 0
		for _, sc := range modeltest.Scenarios() {
			if cfg.NoShortCut && !strings.Contains(sc.Name, "local") {
				continue
			}
			s.k.ifaddrs = map[netip.Addr]bool{}
			for _, a := range sc.State.Node.Addrs {
				s.k.ifaddrs[a] = true
			}
			_, err := s.Sync(ctx, sc.State)
			require.NoError(t, err)
			listed := listRules(t, s)
			for _, x := range sc.Packets {
				q := model.Query{Protocol: x.Proto, To: x.To, From: x.From, Interface: map[modeltest.SourceKind]string{
					modeltest.FromPod: "veth-a", modeltest.FromRemotePod: "uplink1", modeltest.FromOutside: "uplink1"}[x.Kind]}
				e, err := s.Explain(ctx, q)
				require.NoError(t, err)
				requireListed(t, s, listed, e)
				differs := slices.ContainsFunc(x.Unless, s.features.Differs)
				if x.ICMP || differs || cfg.NoShortCut {
					continue
				}
				asked++
				requireSame(t, x, e)
			}
		}
		require.True(t, cfg.NoShortCut || asked > 300, "%d packets were asked about", asked)
	}
}

// requireSame sees that an explanation says what is expected.
func requireSame(t *testing.T, x modeltest.Expectation, e model.Explanation) {
	t.Helper()
	fates := map[modeltest.Verdict]model.Fate{modeltest.Translated: model.FateBalanced, modeltest.Refused: model.FateRefused,
		modeltest.Dropped: model.FateDropped, modeltest.Untouched: model.FateUntouched}
	require.Equal(t, fates[x.Want.Verdict], e.Fate, "%s", e)
	var endpoints []netip.AddrPort
	for _, at := range e.Endpoints {
		addr := at.Endpoint.Addr
		endpoints = append(endpoints, addr)
		hidden := x.Want.Masqueraded != slices.Contains(x.Want.Mixed, addr)
		require.Equal(t, hidden || addr.Addr() == x.From, at.Masqueraded, "%s\n%s", addr, e)
	}
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	require.Equal(t, x.Want.Endpoints, endpoints, "%s", e)
}

// requireListed sees that each step of the way is there, as the stock tools tell.
func requireListed(t *testing.T, s *stand, listed string, e model.Explanation) {
	t.Helper()
	require.NotEmpty(t, e.Path, "%s", e)
	for _, h := range e.Path {
		if rest, ok := strings.CutPrefix(h.Where, "ipvsadm "); ok {
			f := strings.Fields(rest)
			at := netip.MustParseAddrPort(f[1])
			v := s.k.virtual[virtualKey{proto: e.Query.Protocol, at: at}]
			require.NotNil(t, v, "%s", e)
			require.Equal(t, v.spec.scheduler, f[2])
			continue
		}
		f := strings.Fields(h.Where)
		require.Equal(t, s.cfg.Table, f[1])
		_, table, found := strings.Cut(listed, "table "+f[0]+" "+f[1]+" {")
		require.True(t, found)
		table, _, _ = strings.Cut(table, "\n}")
		_, object, found := strings.Cut(table, "\t"+f[2]+" "+f[3]+" {")
		require.True(t, found, "%s\n%s", h.Where, e)
		object, _, _ = strings.Cut(object, "\n\t}")
		require.Contains(t, object, h.Rule, "%s\n%s", h.Where, e)
	}
	if e.Fate == model.FateBalanced {
		for _, at := range e.Endpoints {
			require.True(t, slices.ContainsFunc(e.Path, func(h model.Hop) bool {
				return strings.Contains(h.Rule, at.Endpoint.Addr.Addr().String())
			}), "%s", e)
		}
	}
}

func TestExplainWithoutSync(t *testing.T) {
	s := newStand(t, Config{})
	_, err := s.Explain(t.Context(), model.Query{To: web.at})
	require.ErrorIs(t, err, model.ErrNotSynced)
	_, err = s.Sync(t.Context(), drainState(model.TCP, epA))
	require.NoError(t, err)
	_, err = s.Explain(t.Context(), model.Query{})
	require.ErrorIs(t, err, model.ErrInvalid)
	require.NoError(t, s.Close())
	_, err = s.Explain(t.Context(), model.Query{To: web.at})
	require.ErrorIs(t, err, model.ErrClosed)
}
