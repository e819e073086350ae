package model_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// ep writes an endpoint short: a number, then flags: l local, d draining, n not ready, 6 IPv6.
func ep(n int, flags string, hints ...string) model.Endpoint {
	e := model.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), 80)}
	for _, f := range flags {
		switch f {
		case 'l':
			e.Local = true
		case 'd':
			e.State = model.Draining
		case 'n':
			e.State = model.NotReady
		case '6':
			e.Addr = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("fd00::%d", n)), 80)
		}
	}
	for _, h := range hints {
		if h[0] == '@' {
			e.Nodes = append(e.Nodes, h[1:])
		} else {
			e.Zones = append(e.Zones, h)
		}
	}
	return e
}

// last returns the numbers of endpoints.
func last(eps []model.Endpoint) []int {
	var out []int
	for _, e := range eps {
		a := e.Addr.Addr().AsSlice()
		out = append(out, int(a[len(a)-1]))
	}
	return out
}

func TestSelect(t *testing.T) {
	node := model.Node{Name: "me", Zone: "z1"}
	for _, c := range []struct {
		name           string
		node           model.Node
		eps            []model.Endpoint
		cluster, local []int
	}{
		{"none", node, nil, nil, nil},
		{"all ready", node, []model.Endpoint{ep(1, "l"), ep(2, "")}, []int{1, 2}, []int{1}},
		{"draining beside ready", node, []model.Endpoint{ep(1, "ld"), ep(2, "")}, []int{2}, []int{1}},
		{"draining alone", node, []model.Endpoint{ep(1, "ld"), ep(2, "d"), ep(3, "n")}, []int{1, 2}, []int{1}},
		{"not ready alone", node, []model.Endpoint{ep(1, "ln"), ep(2, "n")}, nil, nil},
		{"local ready and draining", node, []model.Endpoint{ep(1, "ld"), ep(2, "l"), ep(3, "l")}, []int{2, 3}, []int{2, 3}},
		{"other family", node, []model.Endpoint{ep(1, "l6"), ep(2, "l"), ep(3, "6")}, []int{2}, []int{2}},
		{"zone", node, []model.Endpoint{ep(1, "", "z1"), ep(2, "", "z2"), ep(3, "", "z2", "z1")}, []int{1, 3}, nil},
		{"zone of another", node, []model.Endpoint{ep(1, "", "z2"), ep(2, "", "z3")}, []int{1, 2}, nil},
		{"zone missing", node, []model.Endpoint{ep(1, "", "z1"), ep(2, "")}, []int{1, 2}, nil},
		{"zone missing in one that is not ready", node, []model.Endpoint{ep(1, "", "z1"), ep(2, "n"), ep(3, "d"), ep(4, "", "z2")}, []int{1}, nil},
		{"zone missing in another family", node, []model.Endpoint{ep(1, "", "z1"), ep(2, "6"), ep(3, "", "z2")}, []int{1}, nil},
		{"zone unknown", model.Node{Name: "me"}, []model.Endpoint{ep(1, "", "z1"), ep(2, "", "z2")}, []int{1, 2}, nil},
		{"empty zone hint and unknown zone", model.Node{}, []model.Endpoint{{Addr: ap("10.0.0.1:80"), Zones: []string{""}}, ep(2, "", "z2")}, []int{1, 2}, nil},
		{"node", node, []model.Endpoint{ep(1, "", "@me", "z2"), ep(2, "", "@you", "z1")}, []int{1}, nil},
		{"node missing falls to zone", node, []model.Endpoint{ep(1, "", "@me", "z2"), ep(2, "", "z1")}, []int{2}, nil},
		{"node of another falls to zone", node, []model.Endpoint{ep(1, "", "@you", "z1"), ep(2, "", "@them", "z2")}, []int{1}, nil},
		{"draining ignores hints", node, []model.Endpoint{ep(1, "d", "z1", "@me"), ep(2, "d", "z2", "@you")}, []int{1, 2}, nil},
		{"local ignores hints", node, []model.Endpoint{ep(1, "l", "z2"), ep(2, "l", "z1"), ep(3, "", "z1")}, []int{2, 3}, []int{1, 2}},
		{"order kept", node, []model.Endpoint{ep(3, ""), ep(1, "d"), ep(2, "")}, []int{3, 2}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			given := slices.Clone(c.eps)
			s := model.Select(c.eps, c.node, model.IPv4)
			require.Equal(t, c.cluster, last(s.Cluster))
			require.Equal(t, c.local, last(s.Local))
			require.Equal(t, given, c.eps, "Select changes nothing")
			six := slices.Clone(c.eps)
			for i := range six { // the same picture in the other family
				a := six[i].Addr.Addr()
				if a.Is4() {
					six[i].Addr = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("fd00::%d", a.As4()[3])), 80)
				} else {
					six[i].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, a.AsSlice()[15]}), 80)
				}
			}
			s = model.Select(six, c.node, model.IPv6)
			require.Equal(t, c.cluster, last(s.Cluster))
			require.Equal(t, c.local, last(s.Local))
		})
	}
}

// A selected list must not grow into the one that it was taken from.
func TestSelectAliasing(t *testing.T) {
	given := []model.Endpoint{ep(1, "l"), ep(2, "l"), ep(3, "ld")}
	s := model.Select(given, model.Node{}, model.IPv4)
	_ = append(s.Cluster, ep(9, ""))
	_ = append(s.Local, ep(9, ""))
	require.Equal(t, []int{1, 2, 3}, last(given))
}

// Told once more, by chance: what Select must hold for whatever it is given.
func TestSelectProperties(t *testing.T) {
	chance := rand.New(rand.NewPCG(7, 7))
	for range 5000 {
		var given []model.Endpoint
		for i := range chance.IntN(7) {
			flags := []string{"", "l", "d", "ld", "n", "ln", "6", "l6"}[chance.IntN(8)]
			given = append(given, ep(i+1, flags, [][]string{nil, {"z1"}, {"z2"}, {"@me", "z1"}, {"@you"}}[chance.IntN(5)]...))
		}
		s := model.Select(given, model.Node{Name: "me", Zone: "z1"}, model.IPv4)
		ready, draining, localReady, localDraining := 0, 0, 0, 0
		for _, e := range given {
			switch {
			case !e.Addr.Addr().Is4():
			case e.State == model.Ready:
				ready++
				if e.Local {
					localReady++
				}
			case e.State == model.Draining:
				draining++
				if e.Local {
					localDraining++
				}
			}
		}
		for _, e := range slices.Concat(s.Cluster, s.Local) {
			require.True(t, e.Addr.Addr().Is4())
			require.NotEqual(t, model.NotReady, e.State)
		}
		for _, e := range s.Local {
			require.True(t, e.Local)
		}
		require.Equal(t, ready+draining > 0, len(s.Cluster) > 0, "somebody serves if anybody can: %+v", given)
		if ready > 0 {
			require.LessOrEqual(t, len(s.Cluster), ready)
		} else {
			require.Len(t, s.Cluster, draining)
		}
		want := localReady
		if want == 0 {
			want = localDraining
		}
		require.Len(t, s.Local, want)
	}
}

func TestServing(t *testing.T) {
	a, b := []model.Endpoint{ep(1, "")}, []model.Endpoint{ep(2, "l")}
	for _, c := range []struct {
		s       model.Selection
		p       model.TrafficPolicy
		verdict model.Verdict
		eps     []model.Endpoint
	}{
		{model.Selection{}, model.Cluster, model.Rejected, nil},
		{model.Selection{}, model.Local, model.Rejected, nil},
		{model.Selection{Cluster: a}, model.Cluster, model.Balanced, a},
		{model.Selection{Cluster: a}, model.Local, model.Dropped, nil},
		{model.Selection{Cluster: a, Local: b}, model.Local, model.Balanced, b},
		{model.Selection{Cluster: a, Local: b}, model.Cluster, model.Balanced, a},
	} {
		v, eps := c.s.Serving(c.p)
		require.Equal(t, c.verdict, v)
		require.Equal(t, c.eps, eps)
	}
}

func TestLocalReady(t *testing.T) {
	twoPorts := ep(1, "l")
	twoPorts.Addr = netip.AddrPortFrom(twoPorts.Addr.Addr(), 81)
	require.Zero(t, model.Selection{}.LocalReady())
	require.Equal(t, 2, model.Selection{Local: []model.Endpoint{ep(1, "l"), twoPorts, ep(2, "l")}}.LocalReady(), "addresses count, not ports")
	require.Zero(t, model.Selection{Local: []model.Endpoint{ep(1, "ld")}}.LocalReady(), "what only drains is not healthy")
}

func TestNodePortAddrs(t *testing.T) {
	base := model.Node{
		Addrs:   []netip.Addr{addr("10.0.0.1"), addr("10.0.0.2"), addr("192.0.2.1"), addr("127.0.0.1"), addr("fd00::1"), addr("fd01::1"), addr("::1")},
		Primary: []netip.Addr{addr("10.0.0.1"), addr("fd00::1")},
	}
	for _, c := range []struct {
		name      string
		scope     model.NodePortScope
		four, six []string
	}{
		{"everywhere", model.NodePortScope{}, []string{"10.0.0.1", "10.0.0.2", "192.0.2.1"}, []string{"fd00::1", "fd01::1"}},
		{"loopback is apart", model.NodePortScope{Loopback: true}, []string{"10.0.0.1", "10.0.0.2", "192.0.2.1"}, []string{"fd00::1", "fd01::1"}},
		{"primary", model.NodePortScope{Primary: true}, []string{"10.0.0.1"}, []string{"fd00::1"}},
		{"prefix", model.NodePortScope{Prefixes: []netip.Prefix{pfx("10.0.0.0/8")}}, []string{"10.0.0.1", "10.0.0.2"}, []string{"fd00::1", "fd01::1"}},
		{"prefix with host bits", model.NodePortScope{Prefixes: []netip.Prefix{pfx("10.0.0.77/24")}}, []string{"10.0.0.1", "10.0.0.2"}, []string{"fd00::1", "fd01::1"}},
		{"prefix and primary", model.NodePortScope{Primary: true, Prefixes: []netip.Prefix{pfx("192.0.2.0/24")}}, []string{"10.0.0.1", "192.0.2.1"}, []string{"fd00::1"}},
		{"prefix of all", model.NodePortScope{Primary: true, Prefixes: []netip.Prefix{pfx("::/0"), pfx("10.0.0.2/32")}}, []string{"10.0.0.1", "10.0.0.2"}, []string{"fd00::1", "fd01::1"}},
		{"prefix without an address", model.NodePortScope{Prefixes: []netip.Prefix{pfx("11.0.0.0/8")}}, nil, []string{"fd00::1", "fd01::1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := base
			n.NodePorts = c.scope
			texts := func(as []netip.Addr) (out []string) {
				for _, a := range as {
					out = append(out, a.String())
				}
				return out
			}
			require.Equal(t, c.four, texts(n.NodePortAddrs(model.IPv4)))
			require.Equal(t, c.six, texts(n.NodePortAddrs(model.IPv6)))
		})
	}
	n := base
	n.Primary, n.NodePorts = []netip.Addr{addr("10.0.0.1")}, model.NodePortScope{Primary: true}
	ps, limited := n.NodePortPrefixes(model.IPv6)
	require.True(t, limited, "no primary address of the family: no node ports")
	require.Empty(t, ps)
}

func TestLocalDetector(t *testing.T) {
	d := model.LocalDetector{Prefixes: []netip.Prefix{pfx("10.0.0.0/8")}, Interfaces: []string{"veth"}}
	require.True(t, d.Internal(addr("10.1.2.3"), ""))
	require.True(t, d.Internal(addr("192.0.2.1"), "veth0"))
	require.True(t, d.Internal(addr("192.0.2.1"), "veth"))
	require.False(t, d.Internal(addr("192.0.2.1"), ""))
	require.False(t, d.Internal(addr("192.0.2.1"), "eth0"))
	require.False(t, d.Internal(addr("fd00::1"), "eth0"))
	require.True(t, d.Detects(model.IPv6), "interfaces know no family")
	d.Interfaces = nil
	require.False(t, d.Detects(model.IPv6))
	require.True(t, d.Detects(model.IPv4))
	require.False(t, model.LocalDetector{}.Detects(model.IPv4))
	require.False(t, model.LocalDetector{}.Internal(addr("10.0.0.1"), "veth0"))
}
