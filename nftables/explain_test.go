package nftables_test

import (
	"context"
	"errors"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/headgate/headgate/nftables"
)

var _ model.Explainer = (*nftables.Programmer)(nil)

var (
	tableOf = regexp.MustCompile(`(?ms)^table (ip6? \S+) \{\n(.*?)^\}$`)
	blockOf = regexp.MustCompile(`(?ms)^\t(chain|set|map) (\S+) \{\n(.*?)^\t\}$`)
)

// hops returns all that could be a hop: what is in each chain, set and map, as nft lists it.
func hops(listed string) map[model.Hop]bool {
	out := map[model.Hop]bool{}
	for _, table := range tableOf.FindAllStringSubmatch(listed, -1) {
		for _, b := range blockOf.FindAllStringSubmatch(table[2], -1) {
			where := table[1] + " " + b[1] + " " + b[2]
			lines := strings.Split(b[3], "\n")
			if list := elementList.FindStringSubmatch(b[3]); list != nil {
				lines = regexp.MustCompile(`,\s+`).Split(list[1], -1)
			}
			for _, line := range lines {
				out[model.Hop{Where: where, Rule: strings.TrimSpace(line)}] = true
			}
		}
	}
	return out
}

// What is explained is what packets meet in every scenario, and each hop of the way is there just as nft lists it.
func TestExplain(t *testing.T) {
	lab.NeedRoot(t)
	for _, sc := range modeltest.Scenarios() {
		t.Run(sc.Name, func(t *testing.T) {
			ns := lab.StartNetNS(t, "explain")
			for _, a := range sc.State.Node.Addrs {
				require.NoError(t, ns.AddAddr("lo", a))
			}
			p, err := nftables.New(context.Background(), nftables.Config{NetNS: ns.FD()})
			require.NoError(t, err)
			defer p.Close()
			res, err := p.Sync(context.Background(), sc.State)
			require.NoError(t, err)
			listed, err := run(ns.FD(), "", "nft", "-s", "list", "ruleset")
			require.NoError(t, err)
			there := hops(listed)
			for _, x := range sc.Packets {
				if x.ICMP || errors.Is(res.Err(), model.ErrNotSupported) {
					continue
				}
				e, err := p.Explain(context.Background(), x.Query())
				require.NoError(t, err)
				require.NoError(t, x.Want.Explained(x.Packet, e), x.Name)
				for _, hop := range e.Path {
					if !strings.HasSuffix(hop.Where, " route") { // which nft knows nothing of
						require.True(t, there[hop], "%s\n\tis not listed: %+v", e, hop)
					}
				}
				last := e.Path[len(e.Path)-1]
				if e.Fate == model.FateBalanced {
					require.Regexp(t, ` map (node-port-)?(endpoints|turns-[0-9]+)$| chain nat-postrouting$`, last.Where, "%s", e)
				}
			}
		})
	}
}

// With AllowOtherPorts no address is a reason to refuse.
func TestExplainAllowOtherPorts(t *testing.T) {
	node := modeltest.StageNode()
	w := modeltest.NewLab(t, node)
	p, err := nftables.New(context.Background(), nftables.Config{NetNS: w.NetNS(), AllowOtherPorts: true})
	require.NoError(t, err)
	defer p.Close()
	state := model.State{Node: node, Services: model.ServiceMap{
		"in":  {Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("172.20.0.10:80")}}},
		"out": {Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("10.99.0.10:80")}}},
	}}
	_, err = p.Sync(context.Background(), state)
	require.NoError(t, err)
	for to, want := range map[string]model.Fate{
		"172.20.0.10:80": model.FateRefused, "172.20.0.10:81": model.FateDropped, "10.99.0.10:80": model.FateRefused, "10.99.0.10:81": model.FateUntouched,
	} {
		packet := modeltest.Packet{Kind: modeltest.FromPod, From: netip.MustParseAddrPort("10.128.0.100:0").Addr(), To: netip.MustParseAddrPort(to)}
		e, err := p.Explain(context.Background(), packet.Query())
		require.NoError(t, err)
		require.Equal(t, want, e.Fate, "%s", e)
		if want == model.FateUntouched {
			continue // nobody is there
		}
		out, err := w.Send(context.Background(), packet, 1)
		require.NoError(t, err)
		require.Equal(t, map[modeltest.Verdict]model.Fate{modeltest.Refused: model.FateRefused, modeltest.Dropped: model.FateDropped}[out[0].Verdict], want, to)
	}
}
