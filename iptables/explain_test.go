package iptables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

var _ model.Explainer = (*Programmer)(nil)

// For states and packets by chance, what is explained is what the rules do, and what other backends would answer.
func TestExplainAgrees(t *testing.T) {
	chance := uint64(time.Now().UnixNano())
	if *seed != 0 {
		chance = *seed
	}
	t.Logf("to repeat, run with -seed %d", chance)
	r := field{rand.New(rand.NewPCG(chance, 0))}
	fates := map[model.Fate]int{}
	for range 60 {
		state := r.state()
		resolver, forms := resolved(t, state)
		for _, f := range model.Families {
			e := testEnv(f, state.Node)
			now, rs := rulesetOf(e, forms)
			m := newMachine(t, f, state.Node.Addrs...)
			m.load(e, rs)
			p := &Programmer{resolver: resolver, sides: []*side{{tools: &tools{family: f, iptables: "iptables"}, now: now}}}
			for range 30 {
				_, pkt := r.packet(f)
				q := model.Query{Protocol: pkt.proto, To: netip.AddrPortFrom(pkt.dst, pkt.dport), From: pkt.src, Interface: pkt.in}
				own := func(a netip.Addr) bool { return slices.Contains(state.Node.Addrs, a) }
				x := p.explain(q, own)
				fates[x.Fate]++
				require.Equal(t, resolver.Explain(q, own).Fate, x.Fate, "%s", x)
				got := requireDone(t, m, pkt, x)
				if svc := state.Services[x.Service]; x.Fate == model.FateBalanced && svc.Balance == model.Random && svc.Affinity == 0 {
					require.Len(t, got, len(x.Endpoints), "%s", x)
				}
				for _, h := range x.Path {
					of := strings.Fields(h.Where)
					require.True(t, listedRule(m, of[2], of[3], h.Rule), "%s", x)
				}
			}
		}
	}
	for _, f := range []model.Fate{model.FateUntouched, model.FateRefused, model.FateDropped, model.FateBalanced} {
		require.Positive(t, fates[f], "no packet was %s", f)
	}
}

// requireDone sees that the rules do what an explanation says, and returns to whom they may send the packet.
func requireDone(t *testing.T, m *machine, pkt packet, x model.Explanation) (got map[netip.AddrPort]bool) {
	t.Helper()
	verdicts := map[model.Fate]string{model.FateUntouched: "none", model.FateRefused: "reject", model.FateDropped: "drop", model.FateBalanced: "dnat"}
	got = map[netip.AddrPort]bool{}
	for done := range m.send(pkt) {
		require.Equal(t, verdicts[x.Fate], done.verdict, "%s", x)
		if done.verdict != "dnat" {
			continue
		}
		got[done.to] = true
		i := slices.IndexFunc(x.Endpoints, func(e model.Target) bool { return e.Endpoint.Addr == done.to })
		require.GreaterOrEqual(t, i, 0, "%s is not among the endpoints: %s", done.to, x)
		if own := m.local; !slices.Contains(own, pkt.src) && !slices.Contains(own, done.to.Addr()) {
			require.Equal(t, done.masq, x.Endpoints[i].Masqueraded, "%s: %s", done.to, x)
		}
		require.True(t, slices.ContainsFunc(x.Path, func(h model.Hop) bool { return strings.HasSuffix(h.Rule, targetEndpoint(done.to)) }), "no rule leads to %s: %s", done.to, x)
	}
	return got
}

// listedRule reports whether a table has a rule in a chain, or a jump to one of ours.
func listedRule(m *machine, tableName, chain, text string) bool {
	for _, t := range tables {
		if t.String() != tableName {
			continue
		}
		jump := func(j jump) bool { return j.table == t && j.from == chain && j.text == text }
		return slices.ContainsFunc(m.jumps, jump) || slices.ContainsFunc(m.tables[t][chain], func(r rule) bool { return r.text == text })
	}
	return false
}

// The way is written as the stock tool lists it, with the kernel's own addresses, and follows the programmed state.
func TestExplainInTheKernel(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		ns := newNS(t)
		_, err := command(ns.FD(), "", "ip", "addr", "add", "198.51.100.99/32", "dev", "lo")
		require.NoError(t, err)
		p := open(t, Config{NetNS: ns.FD(), Variant: v})
		q := model.Query{To: netip.MustParseAddrPort("172.20.0.60:80"), From: netip.MustParseAddr("203.0.113.5"), Interface: "eth0"}
		_, err = p.Explain(within(t), q)
		require.ErrorIs(t, err, model.ErrNotSynced)
		sc := scenario(t, "external-local")
		_, err = p.Sync(within(t), sc.State)
		require.NoError(t, err)
		_, err = p.Explain(within(t), model.Query{})
		require.ErrorIs(t, err, model.ErrInvalid)
		x, err := p.Explain(within(t), q)
		require.NoError(t, err)
		require.Equal(t, model.FateBalanced, x.Fate, "%s", x)
		require.NotEmpty(t, x.Path)
		for _, h := range x.Path {
			words := strings.Fields(h.Where)
			require.Len(t, words, 4)
			listed, err := command(ns.FD(), "", words[0], words[1], words[2], "-S", words[3])
			require.NoError(t, err)
			require.Contains(t, listed, fmt.Sprintf("-A %s %s\n", words[3], h.Rule), "%s", x)
		}
		require.Contains(t, x.Path[0].Where, "PREROUTING")
		require.Contains(t, x.Path[len(x.Path)-1].Rule, "MASQUERADE", "the client is outside")

		q.To = netip.MustParseAddrPort("172.20.0.60:4444") // the difference "other-ports"
		x, err = p.Explain(within(t), q)
		require.NoError(t, err)
		require.Contains(t, []model.Fate{model.FateUntouched, model.FateRefused}, x.Fate)
		q.To = netip.MustParseAddrPort("198.51.100.99:30060") // an address that the Node does not name
		x, err = p.Explain(within(t), q)
		require.NoError(t, err)
		require.Equal(t, model.ServiceName("default/el:http"), x.Service, "%s", x)
		_, err = p.Apply(within(t), model.DiffStates(sc.State, model.State{Node: sc.State.Node}))
		require.NoError(t, err)
		x, err = p.Explain(within(t), q)
		require.NoError(t, err)
		require.Equal(t, model.FateUntouched, x.Fate, "%s", x)
	})
}

// Among ten thousand services the way is as short as the packet's.
func TestExplainAmongMany(t *testing.T) {
	state := modeltest.Big(10_000, 3)
	resolver, forms := resolved(t, state)
	now, _ := rulesetOf(testEnv(model.IPv4, state.Node), forms)
	p := &Programmer{resolver: resolver, sides: []*side{{tools: &tools{family: model.IPv4, iptables: "iptables"}, now: now}}}
	to := state.Services[modeltest.BigName(9_999)].Frontends[0].Addr
	x := p.explain(model.Query{To: to, From: netip.MustParseAddr("203.0.113.5"), Interface: "eth0"}, func(netip.Addr) bool { return false })
	require.Equal(t, model.FateBalanced, x.Fate)
	require.Len(t, x.Endpoints, 3)
	require.Less(t, len(x.Path), 30, "%s", x)
	t.Logf("%s", x)
}
