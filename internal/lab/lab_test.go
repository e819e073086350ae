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
			{Name: "remote", Place: lab.Far, Addrs: addrs("10.128.1.21 fd10:128:0:b::21")},
			{Name: "remote-client", Place: lab.Far, Addrs: addrs("10.128.1.100 fd10:128:0:b::100")},
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
			for _, from := range addrs("10.128.0.100 fd10:128:0:a::100 10.128.0.11 fd10:128:0:a::11 10.128.1.100 fd10:128:0:b::100" +
				" 203.0.113.5 2001:db8:e::5 198.51.101.10 2001:db8:a::10") {
				q := query(from.String(), p, to)
				if from.Is6() != q.To.Addr().Is6() {
					continue
				}
				a, err := topo.Owner(from).Ask(context.Background(), q)
				require.NoError(t, err)
				require.Equal(t, lab.Answered, a.Verdict, "%s: %s", q, a)
				require.Equal(t, to, a.Name, q)
				require.Equal(t, a.Source, a.Peer, q)
				require.Equal(t, from, a.Peer.Addr(), q)
			}
		}
	}
}

// rules balance by hand, in both families: every verdict that a probe can meet has its address.
const rules = `
table ip t {
	chain prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain output { type nat hook output priority -100; jump services; }
	chain services {
		ip daddr 172.20.0.1 meta l4proto { tcp, udp, sctp } th dport 80 dnat to 10.128.0.11:8080
		ip daddr 172.20.0.2 meta l4proto { tcp, udp, sctp } th dport 80 dnat to 10.128.1.21:8080
		ip daddr 172.20.0.3 meta l4proto { tcp, udp, sctp } th dport 80 dnat to 198.51.100.10:8080
		ip daddr 172.20.0.4 meta l4proto { tcp, udp, sctp } th dport 80 ct label set 1 dnat to 10.128.0.11:8080
		ip daddr 172.20.0.5 meta l4proto { tcp, udp, sctp } th dport 80 dnat to numgen random mod 2 map { 0 : 10.128.0.11, 1 : 10.128.0.12 }:8080
		ip daddr 127.0.0.1 tcp dport 30080 ct label set 1 dnat to 10.128.0.11:8080
	}
	chain postrouting {
		type nat hook postrouting priority srcnat;
		ct label 1 masquerade fully-random
		ip saddr . ip daddr { 10.128.0.11 . 10.128.0.11 } ct status dnat masquerade
	}
	chain forward { type filter hook forward priority 0; jump verdicts; }
	chain filter-output { type filter hook output priority 0; jump verdicts; }
	chain verdicts {
		ip daddr 172.20.0.8 reject
		ip daddr 172.20.0.9 drop
		ip daddr 172.20.0.7 meta l4proto tcp reject with tcp reset
	}
}
table ip6 t {
	chain prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain output { type nat hook output priority -100; jump services; }
	chain services {
		ip6 daddr fd20::1 meta l4proto { tcp, udp, sctp } th dport 80 dnat to [fd10:128:0:a::11]:8080
		ip6 daddr fd20::2 meta l4proto { tcp, udp, sctp } th dport 80 dnat to [fd10:128:0:b::21]:8080
		ip6 daddr fd20::3 meta l4proto { tcp, udp, sctp } th dport 80 dnat to [2001:db8:a::10]:8080
		ip6 daddr fd20::4 meta l4proto { tcp, udp, sctp } th dport 80 ct label set 1 dnat to [fd10:128:0:a::11]:8080
	}
	chain postrouting {
		type nat hook postrouting priority srcnat;
		ct label 1 masquerade fully-random
		ip6 saddr . ip6 daddr { fd10:128:0:a::11 . fd10:128:0:a::11 } ct status dnat masquerade
	}
	chain forward { type filter hook forward priority 0; jump verdicts; }
	chain filter-output { type filter hook output priority 0; jump verdicts; }
	chain verdicts {
		ip6 daddr fd20::8 reject
		ip6 daddr fd20::9 drop
		ip6 daddr fd20::7 meta l4proto tcp reject with tcp reset
	}
}
`

// from says who asks; each has an address in both families.
var from = map[string][2]string{
	"client":  {"10.128.0.100", "fd10:128:0:a::100"},
	"a":       {"10.128.0.11", "fd10:128:0:a::11"},
	"remote":  {"10.128.1.100", "fd10:128:0:b::100"},
	"outside": {"203.0.113.5", "2001:db8:e::5"},
	"node":    {"198.51.100.10", "2001:db8:a::10"},
}

func TestVerdicts(t *testing.T) {
	topo := network(t)
	load(t, topo, rules)
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP, lab.SCTP} {
		for _, at := range []string{
			"10.128.0.11:8080", "10.128.0.12:8080", "10.128.1.21:8080", "198.51.100.10:8080",
			"[fd10:128:0:a::11]:8080", "[fd10:128:0:b::21]:8080", "[2001:db8:a::10]:8080",
		} {
			lab.Serve(t, topo, p, netip.MustParseAddrPort(at))
		}
	}
	for _, c := range []struct {
		name     string
		to       [2]string
		verdict  lab.Verdict
		endpoint [2]string
		masq     func(from string) bool
	}{
		{"translated to a pod", [2]string{"172.20.0.1:80", "[fd20::1]:80"}, lab.Answered, [2]string{"10.128.0.11:8080", "[fd10:128:0:a::11]:8080"},
			func(from string) bool { return from == "a" }}, // hairpin
		{"translated to a far host", [2]string{"172.20.0.2:80", "[fd20::2]:80"}, lab.Answered, [2]string{"10.128.1.21:8080", "[fd10:128:0:b::21]:8080"}, nil},
		{"translated to the node itself", [2]string{"172.20.0.3:80", "[fd20::3]:80"}, lab.Answered, [2]string{"198.51.100.10:8080", "[2001:db8:a::10]:8080"}, nil},
		{"masqueraded", [2]string{"172.20.0.4:80", "[fd20::4]:80"}, lab.Answered, [2]string{"10.128.0.11:8080", "[fd10:128:0:a::11]:8080"},
			func(from string) bool { return from != "node" }},
		{"another port", [2]string{"172.20.0.1:81", "[fd20::1]:81"}, lab.Passed, [2]string{"172.20.0.1:81", "[fd20::1]:81"}, nil},
		{"rejected", [2]string{"172.20.0.8:80", "[fd20::8]:80"}, lab.Refused, [2]string{}, nil},
		{"dropped", [2]string{"172.20.0.9:80", "[fd20::9]:80"}, lab.Dropped, [2]string{}, nil},
	} {
		for name, source := range from {
			for family := range 2 {
				for _, p := range []lab.Protocol{lab.TCP, lab.UDP, lab.SCTP} {
					t.Run(strings.Join([]string{c.name, name, []string{"IPv4", "IPv6"}[family], string(p)}, "/"), func(t *testing.T) {
						t.Parallel()
						a, err := topo.Ask(t.Context(), query(source[family], p, c.to[family]))
						require.NoError(t, err)
						require.Equal(t, c.verdict, a.Verdict, "%s", a)
						require.Equal(t, c.endpoint[family], a.Name)
						if c.verdict == lab.Answered {
							masq := c.masq != nil && c.masq(name)
							require.Equal(t, masq, a.Masqueraded(), "%s", a)
							if masq {
								require.Equal(t, topo.Node, topo.Owner(a.Peer.Addr()), "%s", a)
							}
						}
					})
				}
			}
		}
	}
}
