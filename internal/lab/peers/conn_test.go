package peers

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func nft(t *testing.T, w *World, script string) {
	t.Helper()
	c := w.NetNS().Command(context.Background(), "nft", "-f", "-")
	c.Stdin = strings.NewReader(script)
	out, err := c.CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestConnectionsOutliveTheirRule(t *testing.T) {
	w := start(t, rules)
	var conns []*Conn
	for who, asker := range askers {
		for _, proto := range []Protocol{TCP, UDP} {
			for _, to := range []string{"172.20.0.1:80", "172.20.0.2:80", "[fd20::2]:80"} {
				source := asker.v4
				if ap(to).Addr().Is6() {
					source = asker.v6
				}
				if who == "vip" {
					continue // no socket of the node has that address
				}
				c, err := w.Dial(t.Context(), Query{Link: asker.link, Source: netip.AddrPortFrom(addr(source), 0), Proto: proto, To: ap(to)})
				require.NoError(t, err, "%s %s %s", who, proto, to)
				require.NoError(t, c.Exchange(t.Context()))
				conns = append(conns, c)
			}
		}
	}
	// New connections go elsewhere, open ones stay where they are.
	nft(t, w, `flush chain inet t services
		add rule inet t services ip daddr { 172.20.0.1, 172.20.0.2 } meta l4proto { tcp, udp } th dport 80 dnat ip to 10.128.0.99:9
		add rule inet t services ip6 daddr { fd20::1, fd20::2 } meta l4proto { tcp, udp } th dport 80 dnat ip6 to [fd10:128:0:a::99]:9`)
	for range 3 {
		for _, c := range conns {
			require.NoError(t, c.Exchange(t.Context()), "%+v", c.q)
		}
	}
	f, err := w.Ask(t.Context(), Query{Link: PodLink, Source: ap("10.128.0.100:0"), Proto: TCP, To: ap("172.20.0.1:80")})
	require.NoError(t, err)
	require.Equal(t, "10.128.0.99:9", f.At.String())
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
}

func TestDeadConnectionsAreNoticed(t *testing.T) {
	w := start(t, rules)
	for who, link := range map[string]string{"10.128.0.100:0": PodLink, "198.51.100.10:0": ""} {
		for _, proto := range []Protocol{TCP, UDP} {
			c, err := w.Dial(t.Context(), Query{Link: link, Source: ap(who), Proto: proto, To: ap("172.20.0.1:80")})
			require.NoError(t, err)
			require.NoError(t, c.Exchange(t.Context()))
			nft(t, w, `add table inet cut
				add chain inet cut f { type filter hook forward priority 10; ip saddr 10.128.0.11 drop; }
				add chain inet cut i { type filter hook input priority 10; ip saddr 10.128.0.11 drop; }`)
			require.ErrorContains(t, c.Exchange(t.Context()), "[veth-pod]", "%s %s: answers are cut off", who, proto)
			nft(t, w, `delete table inet cut`)
			require.NoError(t, c.Close())
		}
	}
}

func TestDialSaysWhatCameInstead(t *testing.T) {
	w := start(t, rules)
	_, err := w.Dial(t.Context(), Query{Link: PodLink, Source: ap("10.128.0.100:0"), Proto: TCP, To: ap("172.20.0.9:80")})
	require.ErrorContains(t, err, "dropped")
	_, err = w.Dial(t.Context(), Query{Link: PodLink, Source: ap("10.128.0.100:0"), Proto: UDP, To: ap("172.20.0.8:80")})
	require.ErrorContains(t, err, "refused")
	_, err = w.Dial(t.Context(), Query{Source: ap("198.51.100.10:0"), Proto: TCP, To: ap("172.20.0.7:80")})
	require.ErrorContains(t, err, "refused")
	_, err = w.Dial(t.Context(), Query{Link: PodLink, Source: ap("10.128.0.100:0"), Proto: SCTP, To: ap("172.20.0.1:80")})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
