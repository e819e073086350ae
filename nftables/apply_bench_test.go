package nftables_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/headgate/headgate/nftables"
)

// BenchmarkApply measures one endpoint that comes and goes among 10,000 services, from Tracker through Diff to the kernel.
func BenchmarkApply(b *testing.B) {
	lab.NeedRoot(b)
	ns := lab.StartNetNS(b, "bench")
	ctx := context.Background()
	p, err := nftables.New(ctx, nftables.Config{NetNS: ns.FD()})
	require.NoError(b, err)
	defer p.Close()
	tracker := model.NewTracker(model.Node{})
	tracker.Replace(modeltest.Big(10000, 10))
	state := tracker.State()
	_, err = p.Sync(ctx, state)
	require.NoError(b, err)
	name := modeltest.BigName(77)
	few := state.Endpoints[name]
	more := append(few[:len(few):len(few)], modeltest.BigEndpoint(1))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		tracker.SetEndpoints(name, [][]model.Endpoint{more, few}[i%2])
		if _, err := p.Apply(ctx, tracker.Diff()); err != nil {
			b.Fatal(err)
		}
	}
}
