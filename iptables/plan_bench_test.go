package iptables

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// BenchmarkPlan plans and writes everything from nothing, and then the change of one endpoint.
func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		s := modeltest.Big(n, 10)
		e := testEnv(model.IPv4, s.Node)
		r, forms := resolved(b, s)
		b.Run(fmt.Sprintf("%d services/all", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, rs := rulesetOf(e, forms)
				newScript([]stage{{edits: edits{table: nat, write: rs[nat]}}, {edits: edits{table: filter, write: rs[filter]}}})
			}
		})
		b.Run(fmt.Sprintf("%d services/one endpoint", n), func(b *testing.B) {
			now, _ := rulesetOf(e, forms)
			more := s
			name := modeltest.BigName(3)
			entry := &model.Entry{Service: more.Services[name], Endpoints: append(more.Endpoints[name][:10:10], modeltest.BigEndpoint(1_000_001))}
			d, err := r.Resolve(model.Diff{Changes: []model.Change{{Name: name, After: entry}}}, nil)
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				_, stages := plan(now, e, d.Changes)
				newScript(stages)
			}
		})
	}
}
