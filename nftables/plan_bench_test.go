package nftables

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// BenchmarkPlan measures a full Sync up to the bytes, without a kernel.
func BenchmarkPlan(b *testing.B) {
	cfg, err := Config{}.withDefaults()
	require.NoError(b, err)
	state := modeltest.Big(10000, 10)
	b.ReportAllocs()
	for b.Loop() {
		r := model.NewResolver(features)
		delta, err := r.ResolveState(state, nil)
		require.NoError(b, err)
		p := newPlan(cfg, newRecord(delta.Node), delta.Node, time.Now(), false, new(memory))
		planSync(p, [2]structure{}, r.FormsAfter(delta))
		buf, _ := p.batch.bytes(0)
		r.Commit(delta)
		p.commit()
		b.SetBytes(int64(len(buf)))
	}
}
