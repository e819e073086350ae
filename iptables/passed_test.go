package iptables

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/internal/passed"
	"github.com/headgate/headgate/model"
)

// maxPassed is how many rules the first packet of a connection may pass, in all tables together.
const maxPassed = 70

// The first packets to the last of 10,000 addresses, of 10,000 node ports and of 1,000 ports on one address are counted,
// masquerading included: those of somebody outside, and of an endpoint that reaches itself.
func TestRulesPassed(t *testing.T) {
	lab.NeedRoot(t)
	eachVariant(t, func(t *testing.T, v Variant) {
		ways, err := passed.Measure(within(t), 10_000, program(model.IPv4, v, "-save"), func(ctx context.Context, node *lab.NetNS, s model.State) error {
			_, err := open(t, Config{NetNS: node.FD(), Variant: v, RejectOtherPorts: true}).Sync(ctx, s)
			return err
		})
		require.NoError(t, err)
		require.Len(t, ways, 6)
		for _, w := range ways {
			t.Logf("%s: %d rules", w.Name, w.Rules)
			require.Greater(t, w.Rules, 10, "%s: nothing was counted", w.Name)
			require.LessOrEqual(t, w.Rules, maxPassed, w.Name)
		}
	})
}

// In IPv6 addresses are four times as long, but a tree skips what they have in common.
func TestRulesPassedIPv6(t *testing.T) {
	c := passed.NewCrowd(model.IPv6, 10_000)
	_, forms := resolved(t, c.State)
	e := testEnv(model.IPv6, c.State.Node)
	_, rs := rulesetOf(e, forms)
	m := newMachine(t, model.IPv6, c.State.Node.Addrs...)
	m.load(e, rs)
	for _, to := range []netip.AddrPort{c.Addr, c.NodePort, c.Port} {
		for _, from := range []netip.Addr{c.Server.Addr(), netip.MustParseAddr("2001:db8:e::5")} {
			m.passed = 0
			fates := m.send(packet{src: from, dst: to.Addr(), dport: to.Port(), in: "veth-pod"})
			require.Equal(t, map[fate]float64{{verdict: "dnat", to: c.Server, masq: true}: 1}, fates)
			t.Logf("%s to %s: %d rules", from, to, m.passed)
			require.LessOrEqual(t, m.passed, maxPassed)
		}
	}
}
