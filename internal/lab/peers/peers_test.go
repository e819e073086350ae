package peers

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
)

func addr(s string) netip.Addr   { return netip.MustParseAddr(s) }
func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func start(t testing.TB, rules string) *World {
	t.Helper()
	lab.NeedRoot(t)
	w, err := New(Config{
		Addrs: []netip.Addr{addr("198.51.100.10"), addr("198.51.101.10"), addr("2001:db8:a::10")},
		Pods:  []netip.Prefix{netip.MustParsePrefix("10.128.0.0/24"), netip.MustParsePrefix("fd10:128:0:a::/64")},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	if rules != "" {
		c := w.NetNS().Command(context.Background(), "nft", "-f", "-")
		c.Stdin = strings.NewReader(rules)
		out, err := c.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	return w
}

// rules balance by hand, in both families: every fate that a question can meet has its address.
const rules = `
table inet t {
	chain prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain output { type nat hook output priority -100; jump services; }
	chain services {
		ip daddr 172.20.0.1 meta l4proto { tcp, udp, sctp } th dport 80 dnat ip to 10.128.0.11:8080
		ip daddr 172.20.0.2 meta l4proto { tcp, udp, sctp } th dport 80 dnat ip to 10.128.1.21:8080
		ip daddr 172.20.0.3 meta l4proto { tcp, udp, sctp } th dport 80 dnat ip to 198.51.100.10:8080
		ip daddr 172.20.0.4 meta l4proto { tcp, udp, sctp } th dport 80 ct label set 1 dnat ip to 10.128.0.11:8080
		ip daddr 172.20.0.1 meta l4proto icmp dnat ip to 10.128.0.11
		ip6 daddr fd20::1 meta l4proto { tcp, udp, sctp } th dport 80 dnat ip6 to [fd10:128:0:a::11]:8080
		ip6 daddr fd20::2 meta l4proto { tcp, udp, sctp } th dport 80 dnat ip6 to [fd10:128:0:b::21]:8080
		ip6 daddr fd20::3 meta l4proto { tcp, udp, sctp } th dport 80 dnat ip6 to [2001:db8:a::10]:8080
		ip6 daddr fd20::4 meta l4proto { tcp, udp, sctp } th dport 80 ct label set 1 dnat ip6 to [fd10:128:0:a::11]:8080
		ip6 daddr fd20::1 meta l4proto ipv6-icmp dnat ip6 to fd10:128:0:a::11
	}
	chain postrouting {
		type nat hook postrouting priority srcnat;
		ct label 1 masquerade fully-random
		ip saddr . ip daddr { 10.128.0.11 . 10.128.0.11 } ct status dnat masquerade
		ip6 saddr . ip6 daddr { fd10:128:0:a::11 . fd10:128:0:a::11 } ct status dnat masquerade
	}
	chain input { type filter hook input priority 0; jump verdicts; }
	chain forward { type filter hook forward priority 0; jump verdicts; }
	chain filter-output { type filter hook output priority 0; jump verdicts; }
	chain verdicts {
		ip daddr 172.20.0.8 reject
		ip daddr 172.20.0.9 drop
		ip daddr 172.20.0.7 meta l4proto tcp reject with tcp reset
		ip6 daddr fd20::8 reject
		ip6 daddr fd20::9 drop
		ip6 daddr fd20::7 meta l4proto tcp reject with tcp reset
		th dport 666 meta l4proto { tcp, udp, sctp } ip daddr 198.51.100.10 drop
		th dport 667 meta l4proto { tcp, udp, sctp } ip daddr 198.51.100.10 reject
		th dport 666 meta l4proto { tcp, udp, sctp } ip6 daddr 2001:db8:a::10 drop
		th dport 667 meta l4proto { tcp, udp, sctp } ip6 daddr 2001:db8:a::10 reject
	}
}
`

// askers are who asks: by which link, and an address of each family.
var askers = map[string]struct{ link, v4, v6 string }{
	"pod":     {PodLink, "10.128.0.100", "fd10:128:0:a::100"},
	"hairpin": {PodLink, "10.128.0.11", "fd10:128:0:a::11"},
	"remote":  {Uplink, "10.128.1.22", "fd10:128:0:b::22"},
	"outside": {Uplink, "203.0.113.5", "2001:db8:e::5"},
	"node":    {"", "198.51.100.10", "2001:db8:a::10"},
	"vip":     {"", "172.20.0.4", "fd20::4"},
}

func TestFates(t *testing.T) {
	w := start(t, rules)
	never := func(string) bool { return false }
	always := func(who string) bool { return true }
	for _, c := range []struct {
		name    string
		to      [2]string
		verdict Verdict
		at      [2]string
		masq    func(who string) bool
		protos  string
	}{
		{"to a pod", [2]string{"172.20.0.1:80", "[fd20::1]:80"}, Arrived, [2]string{"10.128.0.11:8080", "[fd10:128:0:a::11]:8080"},
			func(who string) bool { return who == "hairpin" }, "tcp udp sctp"},
		{"to a far host", [2]string{"172.20.0.2:80", "[fd20::2]:80"}, Arrived, [2]string{"10.128.1.21:8080", "[fd10:128:0:b::21]:8080"}, never, "tcp udp sctp"},
		{"to the node", [2]string{"172.20.0.3:80", "[fd20::3]:80"}, Arrived, [2]string{"198.51.100.10:8080", "[2001:db8:a::10]:8080"}, never, "tcp udp sctp"},
		{"masqueraded", [2]string{"172.20.0.4:80", "[fd20::4]:80"}, Arrived, [2]string{"10.128.0.11:8080", "[fd10:128:0:a::11]:8080"}, always, "tcp udp sctp"},
		{"ping", [2]string{"172.20.0.1:0", "[fd20::1]:0"}, Arrived, [2]string{"10.128.0.11:0", "[fd10:128:0:a::11]:0"},
			func(who string) bool { return who == "hairpin" }, "icmp"},
		{"another port", [2]string{"172.20.0.1:81", "[fd20::1]:81"}, Arrived, [2]string{"172.20.0.1:81", "[fd20::1]:81"}, never, "tcp udp sctp"},
		{"the node itself", [2]string{"198.51.101.10:81", "[2001:db8:a::10]:81"}, Arrived, [2]string{"198.51.101.10:81", "[2001:db8:a::10]:81"}, never, "tcp udp sctp"},
		{"rejected", [2]string{"172.20.0.8:80", "[fd20::8]:80"}, Refused, [2]string{}, nil, "tcp udp sctp icmp"},
		{"reset", [2]string{"172.20.0.7:80", "[fd20::7]:80"}, Refused, [2]string{}, nil, "tcp"},
		{"dropped", [2]string{"172.20.0.9:80", "[fd20::9]:80"}, Dropped, [2]string{}, nil, "tcp udp sctp icmp"},
		{"dropped at the node", [2]string{"198.51.100.10:666", "[2001:db8:a::10]:666"}, Dropped, [2]string{}, nil, "tcp udp sctp"},
		{"rejected at the node", [2]string{"198.51.100.10:667", "[2001:db8:a::10]:667"}, Refused, [2]string{}, nil, "tcp udp sctp"},
	} {
		for who, asker := range askers {
			for i, source := range [...]string{asker.v4, asker.v6} {
				for proto := range strings.FieldsSeq(c.protos) {
					t.Run(strings.Join([]string{c.name, who, []string{"IPv4", "IPv6"}[i], proto}, "/"), func(t *testing.T) {
						f, err := w.Ask(t.Context(), Query{Link: asker.link, Source: netip.AddrPortFrom(addr(source), 0), Proto: Protocol(proto), To: ap(c.to[i])})
						require.NoError(t, err)
						require.Equal(t, c.verdict, f.Verdict, f.Trace.String())
						if c.verdict == Refused {
							require.Equal(t, c.name == "reset", f.Reset, f.Trace.String())
						}
						if c.verdict != Arrived {
							return
						}
						require.Equal(t, c.at[i], f.At.String(), f.Trace.String())
						require.True(t, f.Answered, f.Trace.String())
						seen := f.Peer.Addr()
						if c.masq(who) {
							require.Contains(t, []netip.Addr{addr("198.51.100.10"), addr("2001:db8:a::10")}, seen, f.Trace.String())
						} else {
							require.Equal(t, addr(source), seen, f.Trace.String())
						}
					})
				}
			}
		}
	}
}

func BenchmarkNew(b *testing.B) {
	lab.NeedRoot(b)
	for b.Loop() {
		w, err := New(Config{Addrs: []netip.Addr{addr("198.51.100.10"), addr("2001:db8:a::10")}})
		require.NoError(b, err)
		w.Close()
	}
}

func BenchmarkAsk(b *testing.B) {
	w := start(b, rules)
	for who, asker := range askers {
		for name, to := range map[string]string{"arrived": "172.20.0.1:80", "dropped": "172.20.0.9:80"} {
			b.Run(who+"/"+name, func(b *testing.B) {
				for b.Loop() {
					_, err := w.Ask(b.Context(), Query{Link: asker.link, Source: netip.AddrPortFrom(addr(asker.v4), 0), Proto: TCP, To: ap(to)})
					require.NoError(b, err)
				}
			})
		}
	}
}
