package iptables

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

const someRules = "*filter\n:SOMEBODY - [0:0]\n-A SOMEBODY -j RETURN\n-A INPUT -j SOMEBODY\nCOMMIT\n"

// Which variant is taken, by what is already there.
func TestVariantIsDetected(t *testing.T) {
	put := func(t *testing.T, netns int, v Variant) { require.NoError(t, restore(netns, model.IPv4, v, someRules)) }
	ours := func(t *testing.T, netns int, v Variant) {
		p := open(t, Config{NetNS: netns, Variant: v})
		_, err := p.Sync(within(t), model.State{})
		require.NoError(t, err)
	}
	for _, c := range []struct {
		name  string
		there func(t *testing.T, netns int)
		want  Variant
		warns bool
	}{
		{"nothing", func(*testing.T, int) {}, NFT, false}, // Debian's default
		{"legacy rules", func(t *testing.T, ns int) { put(t, ns, Legacy) }, Legacy, false},
		{"nft rules", func(t *testing.T, ns int) { put(t, ns, NFT) }, NFT, false},
		{"both", func(t *testing.T, ns int) { put(t, ns, NFT); put(t, ns, Legacy) }, NFT, true},
		{"ours in legacy", func(t *testing.T, ns int) { ours(t, ns, Legacy) }, Legacy, false},
		{"ours in legacy, others in nft", func(t *testing.T, ns int) { ours(t, ns, Legacy); put(t, ns, NFT) }, Legacy, true},
		{"ours in nft, others in legacy", func(t *testing.T, ns int) { ours(t, ns, NFT); put(t, ns, Legacy) }, NFT, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := newNS(t)
			c.there(t, ns.FD())
			before := saved(t, ns.FD(), NFT) + saved(t, ns.FD(), Legacy)
			p := open(t, Config{NetNS: ns.FD()})
			require.Equal(t, c.want, p.Variant())
			require.Equal(t, before, saved(t, ns.FD(), NFT)+saved(t, ns.FD(), Legacy), "New writes nothing")
			report, err := p.Probe(within(t))
			require.NoError(t, err)
			require.NoError(t, report.Err())
			res, err := p.Sync(within(t), model.State{})
			require.NoError(t, err)
			if c.warns {
				require.Contains(t, warningsOf(res), "holds rules too")
				require.Contains(t, findings(report.Warnings), "iptables-"+c.want.other().String())
			} else {
				require.NotContains(t, warningsOf(res), "holds rules too")
				require.NotContains(t, findings(report.Warnings), "iptables-"+c.want.other().String())
			}
		})
	}
}

func warningsOf(res model.Result) string {
	all := ""
	for _, w := range res.Warnings {
		all += w + "\n"
	}
	return all
}

func findings(fs []model.Finding) map[string]model.Finding {
	out := map[string]model.Finding{}
	for _, f := range fs {
		out[f.What] = f
	}
	return out
}

// The namespace keeps clean of tables that nobody asked for: the legacy programs make one by looking at it.
func TestNoTableIsMadeByLooking(t *testing.T) {
	ns := newNS(t)
	p := open(t, Config{NetNS: ns.FD(), Variant: NFT})
	_, err := p.Probe(within(t))
	require.NoError(t, err)
	_, err = p.Sync(within(t), model.State{})
	require.NoError(t, err)
	require.NoError(t, p.Cleanup(within(t)))
	for _, f := range model.Families {
		made, err := (&tools{family: f, variant: Legacy, ns: p.ns}).legacyTables()
		require.NoError(t, err)
		require.Empty(t, made)
	}
}

// A host may have one variant only, under names that do not tell which.
func TestPlainPrograms(t *testing.T) {
	for _, v := range variants {
		t.Run(v.String(), func(t *testing.T) {
			dir := t.TempDir()
			multi, err := exec.LookPath(map[Variant]string{Legacy: "xtables-legacy-multi", NFT: "xtables-nft-multi"}[v])
			require.NoError(t, err)
			for _, f := range model.Families {
				for _, name := range programNames(f, Auto) {
					require.NoError(t, os.Symlink(multi, filepath.Join(dir, name)))
				}
			}
			for _, choice := range []Variant{Auto, v} {
				p := open(t, Config{NetNS: newNS(t).FD(), Dir: dir, Variant: choice})
				require.Equal(t, v, p.Variant())
				_, err = p.Sync(within(t), model.State{})
				require.NoError(t, err)
				require.NoError(t, p.Check(within(t)))
				require.NoError(t, p.Cleanup(within(t)))
			}
			_, err = New(within(t), Config{Dir: dir, Variant: v.other()})
			require.ErrorIs(t, err, model.ErrNotSupported)
			require.ErrorContains(t, err, v.String())
		})
	}
	_, err := New(within(t), Config{Dir: t.TempDir()})
	require.ErrorIs(t, err, model.ErrNotSupported)
}

// When the host moves to the other variant, the new rules serve before those in the old one are removed; what others have in
// either stays.
func TestRulesMoveBetweenVariants(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		ns := newNS(t)
		require.NoError(t, restore(ns.FD(), model.IPv4, v, foreign(t, "docker")))
		theirs := saved(t, ns.FD(), v)
		sc := scenario(t, "external-local")
		old := open(t, Config{NetNS: ns.FD(), Variant: v})
		_, err := old.Sync(within(t), sc.State)
		require.NoError(t, err)
		p := open(t, Config{NetNS: ns.FD(), Variant: v.other()})
		res, err := p.Sync(within(t), sc.State)
		require.NoError(t, err)
		require.Contains(t, warningsOf(res), "they are removed")
		require.Equal(t, theirs, saved(t, ns.FD(), v))
		require.NoError(t, p.Check(within(t)))
		require.ErrorIs(t, old.Check(within(t)), model.ErrDrift)
		res, err = p.Sync(within(t), sc.State)
		require.NoError(t, err)
		require.Zero(t, res.Written())
		require.NotContains(t, warningsOf(res), "they are removed")
	})
}

// Cleanup finds what is ours in either variant.
func TestCleanupOfBothVariants(t *testing.T) {
	ns := newNS(t)
	sc := scenario(t, "external-local")
	for _, v := range variants {
		// The second one would remove what the first one wrote, had it looked before.
		ps := open(t, Config{NetNS: ns.FD(), Variant: v})
		ps.leftover = nil
		_, err := ps.Sync(within(t), sc.State)
		require.NoError(t, err)
	}
	p := open(t, Config{NetNS: ns.FD()})
	require.NoError(t, p.Cleanup(within(t)))
	require.Empty(t, saved(t, ns.FD(), NFT)+saved(t, ns.FD(), Legacy))
}

func scenario(tb testing.TB, name string) modeltest.Scenario {
	tb.Helper()
	for _, sc := range modeltest.Scenarios() {
		if sc.Name == name {
			return sc
		}
	}
	tb.Fatalf("no scenario %q", name)
	return modeltest.Scenario{}
}
