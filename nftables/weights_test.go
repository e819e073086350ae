package nftables_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/nftables"
)

// Weights that do not go into the slots are told of, when they are programmed.
func TestRoundedWeightsAreTold(t *testing.T) {
	lab.NeedRoot(t)
	p, err := nftables.New(context.Background(), nftables.Config{NetNS: lab.StartNetNS(t, "weights").FD()})
	require.NoError(t, err)
	defer p.Close()
	tracker := model.NewTracker(model.Node{})
	set := func(weights ...uint16) model.Diff {
		var eps []model.Endpoint
		for i, w := range weights {
			eps = append(eps, model.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), 80), Weight: w})
		}
		tracker.SetEndpoints("web", eps)
		return tracker.Diff()
	}
	tracker.SetService("web", model.Service{Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.1:80")}}})
	set(900, 100)
	res, err := p.Sync(context.Background(), tracker.State())
	require.NoError(t, err)
	require.Empty(t, res.Warnings)
	res, err = p.Apply(context.Background(), set(65535, 1))
	require.NoError(t, err)
	require.Equal(t, []string{`service "web": IPv4: weights are rounded to shares of 1000`}, res.Warnings)
	res, err = p.Apply(context.Background(), set(65535, 65535))
	require.NoError(t, err)
	require.Empty(t, res.Warnings)
}
