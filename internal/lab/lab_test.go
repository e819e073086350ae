package lab_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
)

// network is the topology of most tests here.
func network(t *testing.T) *lab.Topology {
	t.Helper()
	return lab.Start(t, lab.Spec{
		Node: addrs("198.51.100.10 198.51.101.10 2001:db8:a::10"),
		Hosts: []lab.Host{
			{Name: "client", Addrs: addrs("10.128.0.100 fd10:128:0:a::100")},
			{Name: "a", Addrs: addrs("10.128.0.11 fd10:128:0:a::11")},
			{Name: "b", Addrs: addrs("10.128.0.12 fd10:128:0:a::12")},
			{Name: "remote", Place: lab.Far, Addrs: addrs("10.128.1.21 10.128.1.22 fd10:128:0:b::21")},
			{Name: "outside", Place: lab.Far, Addrs: addrs("203.0.113.5 2001:db8:e::5")},
		},
	})
}

func addrs(list string) []netip.Addr {
	var as []netip.Addr
	for s := range strings.FieldsSeq(list) {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}

// load loads rules with the stock tool into the node.
func load(t *testing.T, topo *lab.Topology, rules string) {
	t.Helper()
	c := topo.Node.Command(t.Context(), "nft", "-f", "-")
	c.Stdin = strings.NewReader(rules)
	out, err := c.CombinedOutput()
	require.NoError(t, err, string(out))
}

func query(source string, p lab.Protocol, to string) lab.Query {
	q := lab.Query{Proto: p, To: netip.MustParseAddrPort(to)}
	if source != "" {
		q.Source = netip.AddrPortFrom(netip.MustParseAddr(source), 0)
	}
	return q
}

func TestEveryHostReachesEveryServer(t *testing.T) {
	topo := network(t)
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP} {
		for _, to := range []string{
			"10.128.0.11:8080", "[fd10:128:0:a::11]:8080", "10.128.1.21:8080", "[fd10:128:0:b::21]:8080",
			"198.51.100.10:8080", "[2001:db8:a::10]:8080", "203.0.113.5:8080", "[2001:db8:e::5]:8080",
		} {
			lab.Serve(t, topo, p, netip.MustParseAddrPort(to))
			for _, from := range addrs("10.128.0.100 fd10:128:0:a::100 10.128.0.11 fd10:128:0:a::11 10.128.1.22 fd10:128:0:b::21" +
				" 203.0.113.5 2001:db8:e::5 198.51.101.10 2001:db8:a::10") {
				q := query(from.String(), p, to)
				if from.Is6() != q.To.Addr().Is6() {
					continue
				}
				a, err := topo.Owner(from).Ask(context.Background(), q)
				require.NoError(t, err)
				require.Equal(t, lab.Answered, a.Verdict, "%s: %+v", q, a)
				require.Equal(t, to, a.Name, q)
				require.Equal(t, a.Source, a.Peer, q)
				require.Equal(t, from, a.Peer.Addr(), q)
			}
		}
	}
}
