package nftables_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/headgate/headgate/nftables"
)

// BenchmarkSync measures a full Sync of 10,000 services with ten endpoints each onto a kernel that holds them.
func BenchmarkSync(b *testing.B) {
	lab.NeedRoot(b)
	ns := lab.StartNetNS(b, "bench")
	p, err := nftables.New(context.Background(), nftables.Config{NetNS: ns.FD(), Trace: func(batch []byte) { b.SetBytes(int64(len(batch))) }})
	require.NoError(b, err)
	defer p.Close()
	state := modeltest.Big(10000, 10)
	b.ReportAllocs()
	for b.Loop() {
		_, err := p.Sync(context.Background(), state)
		require.NoError(b, err)
	}
}
