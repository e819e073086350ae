package iptables

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// What Docker, firewalld, kube-proxy and ufw have in the same tables stays as it is, byte for byte and counter for counter,
// through all that we do, and so do chains whose names are almost ours.
func TestForeignRulesStay(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		for _, name := range []string{"docker", "firewalld", "kube-proxy", "ufw"} {
			t.Run(name, func(t *testing.T) {
				ns := newNS(t)
				require.NoError(t, restore(ns.FD(), model.IPv4, v, foreign(t, name)))
				require.NoError(t, restore(ns.FD(), model.IPv6, v, foreignSix(t, name)))
				theirs := saved(t, ns.FD(), v)
				require.NotEmpty(t, theirs)
				n := names{"HEADGATE"}
				withoutOurs := func() string {
					var left []string
					for line := range strings.Lines(saved(t, ns.FD(), v)) {
						chain, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(line), ":"), "-A "), " ")
						if !n.owns(chain) && !n.owns(target(strings.TrimSpace(line))) {
							left = append(left, line)
						}
					}
					return bare.ReplaceAllString(strings.Join(left, ""), "")
				}
				p := open(t, Config{NetNS: ns.FD(), Variant: v, DropInvalid: true, RejectOtherPorts: true})
				for _, sc := range []string{"external-local", "node-port-everywhere", "internal-endpoints-here-and-there", "external-local"} {
					_, err := p.Sync(within(t), scenario(t, sc).State)
					require.NoError(t, err)
					require.Equal(t, theirs, withoutOurs(), "after a Sync")
					require.NoError(t, p.Check(within(t)))
				}
				_, err := p.Apply(within(t), model.DiffStates(scenario(t, "external-local").State, scenario(t, "node-port-everywhere").State))
				require.NoError(t, err)
				require.Equal(t, theirs, withoutOurs(), "after an Apply")
				require.NoError(t, p.Cleanup(within(t)))
				require.Equal(t, theirs, saved(t, ns.FD(), v), "after Cleanup")
			})
		}
	})
}

// Somebody adds rules of their own to the tables with nft, which iptables cannot show. It refuses to list them then, ours and
// all; everything works on, and is told.
func TestForeignRulesThatCannotBeShown(t *testing.T) {
	w := modeltest.NewLab(t, modeltest.StageNode())
	sc := scenario(t, "external-local")
	nft := func(args ...string) {
		t.Helper()
		_, err := command(w.NetNS(), "", "nft", args...)
		require.NoError(t, err)
	}
	meets := func() {
		t.Helper()
		w.(modeltest.Preparer).Prepare(t, sc.State, nil)
		for _, e := range sc.Packets[:3] {
			w.(modeltest.Preparer).Prepare(t, sc.State, []modeltest.Packet{e.Packet})
			outcomes, err := w.Send(within(t), e.Packet, 2)
			require.NoError(t, err)
			require.Equal(t, e.Want.Verdict, outcomes[0].Verdict, e.Name)
		}
	}
	p := open(t, Config{NetNS: w.NetNS(), Variant: NFT, RejectOtherPorts: true})
	_, err := p.Sync(within(t), sc.State)
	require.NoError(t, err)
	nft("add", "rule", "ip", "nat", "PREROUTING", "ct", "zone", "77", "counter")
	nft("add", "rule", "ip", "filter", "FORWARD", "ct", "zone", "77", "counter")
	l, err := p.sides[model.IPv4].list(within(t), nat)
	require.NoError(t, err)
	require.False(t, l.readable, "iptables-save shows the table all the same: there is nothing to test")
	require.NoError(t, p.Check(within(t)), "others' rules are no drift")
	meets()
	_, err = p.Apply(within(t), model.DiffStates(sc.State, model.State{Node: sc.State.Node}))
	require.NoError(t, err)
	_, err = p.Apply(within(t), model.DiffStates(model.State{Node: sc.State.Node}, sc.State))
	require.NoError(t, err)
	meets()

	// After a restart the chains and jumps are found without listing the tables.
	again := open(t, Config{NetNS: w.NetNS(), RejectOtherPorts: true})
	require.Equal(t, NFT, again.Variant())
	res, err := again.Sync(within(t), sc.State)
	require.NoError(t, err)
	require.Contains(t, warningsOf(res), "cannot be listed")
	meets()
	jumps, err := command(w.NetNS(), "", "nft", "list", "chain", "ip", "nat", "PREROUTING")
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(jumps, "jump HEADGATE-SERVICES"), "%s", jumps)
	require.NoError(t, again.Check(within(t)))
	nft("flush", "chain", "ip", "filter", "OUTPUT")
	require.ErrorIs(t, again.Check(within(t)), model.ErrDrift)

	require.NoError(t, again.Cleanup(within(t)))
	left, err := command(w.NetNS(), "", "nft", "list", "ruleset")
	require.NoError(t, err)
	require.NotContains(t, left, "HEADGATE")
	require.Contains(t, left, "ct zone 77")
}

// A rule of somebody else's that leads to a chain of ours keeps it from being deleted. It is emptied, the error names it, and
// everything else is removed.
func TestForeignRuleIntoOurs(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		ns := newNS(t)
		p := open(t, Config{NetNS: ns.FD(), Variant: v})
		_, err := p.Sync(within(t), scenario(t, "external-local").State)
		require.NoError(t, err)
		require.NoError(t, restore(ns.FD(), model.IPv4, v, "*nat\n:THEIRS - [0:0]\n-A THEIRS -j HEADGATE-EXTERNAL\nCOMMIT\n"))
		require.NoError(t, p.Check(within(t)))
		err = p.Cleanup(within(t))
		require.ErrorIs(t, err, model.ErrBusy)
		require.ErrorContains(t, err, "HEADGATE-EXTERNAL")
		require.Equal(t, 2, strings.Count(saved(t, ns.FD(), v), "HEADGATE"), "the chain, and the rule that leads to it")
		require.NoError(t, restore(ns.FD(), model.IPv4, v, "*nat\n-F THEIRS\n-X THEIRS\nCOMMIT\n"))
		require.NoError(t, p.Cleanup(within(t)))
		require.Empty(t, saved(t, ns.FD(), v))
	})
}

// Docker sets the policy of FORWARD to drop. Balanced connections pass all the same, and nothing else does.
func TestForwardPolicyDrop(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		sc := scenario(t, "external-cluster")
		w := modeltest.NewLab(t, sc.State.Node)
		w.(modeltest.Preparer).Prepare(t, sc.State, nil)
		p := open(t, Config{NetNS: w.NetNS(), Variant: v})
		_, err := p.Sync(within(t), sc.State)
		require.NoError(t, err)
		for _, f := range model.Families {
			_, err := command(w.NetNS(), "", program(f, v, ""), "-P", "FORWARD", "DROP")
			require.NoError(t, err)
		}
		require.NoError(t, p.Check(within(t)))
		for _, e := range sc.Packets {
			if e.Want.Verdict != modeltest.Translated {
				continue
			}
			w.(modeltest.Preparer).Prepare(t, sc.State, []modeltest.Packet{e.Packet})
			outcomes, err := w.Send(within(t), e.Packet, 1)
			require.NoError(t, err)
			require.Equal(t, e.Want.Verdict, outcomes[0].Verdict, e.Name)
		}
		direct := sc.Packets[0].Packet
		direct.To = sc.State.Endpoints[firstKey(sc.State.Endpoints)][0].Addr
		outcomes, err := w.Send(within(t), direct, 1)
		require.NoError(t, err)
		require.Equal(t, modeltest.Dropped, outcomes[0].Verdict, "what is not balanced is none of our business")

		// A rule in the chain that stops everything is before ours, and is told of.
		require.NoError(t, restore(w.NetNS(), model.IPv4, v, "*filter\n-I FORWARD 1 -m comment --comment \"last word\" -j REJECT\nCOMMIT\n"))
		report, err := p.Probe(within(t))
		require.NoError(t, err)
		found := false
		for _, f := range report.Warnings {
			found = found || strings.Contains(f.What, "FORWARD") && strings.Contains(f.Err.Error(), "last word") && strings.Contains(f.Remedy, "-I FORWARD")
		}
		require.True(t, found, "%v", report.Warnings)
		res, err := p.Sync(within(t), sc.State)
		require.NoError(t, err)
		require.Contains(t, warningsOf(res), "last word")
	})
}

func firstKey(m model.EndpointMap) model.ServiceName { return sortedKeys(m)[0] }
