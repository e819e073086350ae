package iptables

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

// Node ports on loopback need a sysctl. It is set only if the Config says so, after the rules that keep others out, and taken
// back before those go.
func TestLoopbackSysctl(t *testing.T) {
	on := scenario(t, "node-port-loopback").State
	off := on
	off.Node.NodePorts.Loopback = false
	eachVariant(t, func(t *testing.T, v Variant) {
		ns := newNS(t)
		value := func() string {
			s, err := ns.ReadSysctl("net/ipv4/conf/all/route_localnet")
			require.NoError(t, err)
			return s
		}
		polite := open(t, Config{NetNS: ns.FD(), Variant: v})
		res, err := polite.Sync(within(t), on)
		require.NoError(t, err)
		require.Contains(t, warningsOf(res), "route_localnet is not set")
		require.Equal(t, "0", value())
		report, err := polite.Probe(within(t))
		require.NoError(t, err)
		require.Contains(t, findings(report.Warnings), "net.ipv4.conf.all.route_localnet")
		require.NotContains(t, saved(t, ns.FD(), v), "LOOPBACK")

		p := open(t, Config{NetNS: ns.FD(), Variant: v, SetSysctls: true})
		res, err = p.Sync(within(t), on)
		require.NoError(t, err)
		require.Empty(t, res.Warnings)
		require.Equal(t, "1", value())
		require.Contains(t, saved(t, ns.FD(), v), "LOOPBACK")
		_, err = p.Apply(within(t), model.DiffStates(on, off))
		require.NoError(t, err)
		require.Equal(t, "0", value())
		require.NotContains(t, saved(t, ns.FD(), v), "LOOPBACK")
		_, err = p.Apply(within(t), model.DiffStates(off, on))
		require.NoError(t, err)
		require.Equal(t, "1", value())
		require.NoError(t, p.Check(within(t)))
		require.NoError(t, p.Cleanup(within(t)))
		require.Equal(t, "0", value())
	})
}

// With that sysctl another host could reach what listens on the node's loopback addresses alone (CVE-2020-8558).
func TestLoopbackIsKept(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		secret := netip.MustParseAddrPort("127.0.0.1:7777")
		topo, err := lab.Build(lab.Spec{
			Node:  []netip.Addr{netip.MustParseAddr("198.51.100.10")},
			Hosts: []lab.Host{{Name: "outside", Place: lab.Far, Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.5")}}},
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, topo.Close()) })
		var server net.PacketConn
		require.NoError(t, topo.Node.Do(func() (err error) {
			server, err = net.ListenPacket("udp4", secret.String())
			return err
		}))
		defer server.Close()
		outside := topo.Host("outside")
		for _, ns := range []*lab.NetNS{outside, topo.Node} {
			require.NoError(t, ns.Sysctl("net/ipv4/conf/all/route_localnet", "1"))
		}
		// The outside sends what is for loopback to the node.
		for _, args := range []string{"route del local 127.0.0.0/8 dev lo table local", "route del local 127.0.0.1 dev lo table local", "route add 127.0.0.1 via 169.254.1.1 dev eth0 onlink"} {
			_, err := command(outside.FD(), "", "ip", strings.Fields(args)...)
			require.NoError(t, err)
		}
		arrives := func(ns *lab.NetNS, from netip.AddrPort, patience time.Duration) bool {
			t.Helper()
			require.NoError(t, ns.Do(func() error { return shootOnce(from, secret) }))
			require.NoError(t, server.SetReadDeadline(time.Now().Add(patience)))
			_, at, err := server.ReadFrom(make([]byte, 100))
			return err == nil && at.(*net.UDPAddr).AddrPort().Addr() == from.Addr()
		}
		client, itself := netip.MustParseAddrPort("203.0.113.5:5000"), netip.MustParseAddrPort("127.0.0.1:5000")
		require.True(t, arrives(outside, client, 10*time.Second), "without rules it is open")
		p := open(t, Config{NetNS: topo.Node.FD(), Variant: v})
		_, err = p.Sync(within(t), scenario(t, "node-port-loopback").State)
		require.NoError(t, err)
		client = netip.MustParseAddrPort("203.0.113.5:5001")
		require.False(t, arrives(outside, client, 300*time.Millisecond), "the rules keep it closed")
		require.True(t, arrives(topo.Node, itself, 10*time.Second), "the node itself reaches it, and what came before did not arrive late")
	})
}

func TestSubtract(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	away := loopback[model.IPv4]
	for range 200 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(r.IntN(256)), byte(r.IntN(256))}), r.IntN(17)).Masked()
		left := subtract([]netip.Prefix{p}, away)
		for range 200 {
			a := netip.AddrFrom4([4]byte{byte(r.IntN(4)*63 + r.IntN(3)), byte(r.IntN(256)), 0, 1})
			in := slices.ContainsFunc(left, func(q netip.Prefix) bool { return q.Contains(a) })
			require.Equal(t, p.Contains(a) && !away.Contains(a), in, "%s without %s: %s in %v", p, away, a, left)
		}
	}
}
