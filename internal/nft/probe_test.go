package nft

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/internal/netns"
	"github.com/headgate/headgate/model"
)

// What the kernel lacks is named, and asking writes nothing.
func TestProbeNamesWhatIsMissing(t *testing.T) {
	lab.NeedRoot(t)
	ctx := context.Background()
	ns, err := netns.Open(lab.StartNetNS(t, "probe").FD())
	require.NoError(t, err)
	defer ns.Close()
	table := NewTable(Config{Name: "headgate", NetNS: ns, Sets: BaseSets(), Timeout: time.Minute})
	defer table.Close()
	lacking := feature{name: "expression nonsense", write: func(b *batch, fam model.Family) {
		c := Chain{Name: "probe"}
		b.write(sectionChains, func(w *Wire) { w.writeChain(b.table, fam, c) })
		b.write(sectionRules, func(w *Wire) { w.writeRule(b.table, fam, c.Name, Rule{expr("nonsense", func(*Wire) {})}) })
	}}
	var no *refusal
	require.ErrorAs(t, table.try(ctx, lacking), &no)
	rules := func(fam model.Family) *Rules {
		return &Rules{Sets: BaseSets(), Family: fam, Settings: Settings{BalancedLabel: 126, MasqueradeLabel: 127, HashSeed: 1}}
	}
	for _, f := range needed(rules) {
		require.NoError(t, table.try(ctx, f), f.name)
	}
	before, err := table.socket.readGeneration()
	require.NoError(t, err)
	missing, err := table.Probe(ctx, rules)
	require.NoError(t, err)
	require.Empty(t, missing)
	after, err := table.socket.readGeneration()
	require.NoError(t, err)
	require.Equal(t, before, after, "probing has written")
}
