package model

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func prefixesOf(ss ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range ss {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func frontend(kind FrontendKind, at string, ranges ...string) Frontend {
	return Frontend{Kind: kind, Addr: netip.MustParseAddrPort(at), SourceRanges: prefixesOf(ranges...)}
}

func nodePortAt(port uint16, ranges ...string) Frontend {
	return Frontend{Kind: NodePort, Addr: netip.AddrPortFrom(netip.Addr{}, port), SourceRanges: prefixesOf(ranges...)}
}

func TestNormalise(t *testing.T) {
	for _, c := range []struct {
		name        string
		given, want []Frontend
	}{
		{"nothing", nil, []Frontend{}},
		{"as it is", []Frontend{frontend(Internal, "172.20.0.1:80")}, []Frontend{frontend(Internal, "172.20.0.1:80")}},
		{"order is kept", []Frontend{frontend(Internal, "172.20.0.2:80"), frontend(Internal, "172.20.0.1:80")},
			[]Frontend{frontend(Internal, "172.20.0.2:80"), frontend(Internal, "172.20.0.1:80")}},
		{"IPv4 written as IPv6", []Frontend{frontend(External, "[::ffff:192.0.2.1]:80", "::ffff:10.0.0.0/104")},
			[]Frontend{frontend(External, "192.0.2.1:80", "10.0.0.0/8")}},
		{"node port of both families", []Frontend{nodePortAt(30000)},
			[]Frontend{frontend(NodePort, "0.0.0.0:30000"), frontend(NodePort, "[::]:30000")}},
		{"node port of one family", []Frontend{frontend(NodePort, "0.0.0.0:30000")}, []Frontend{frontend(NodePort, "0.0.0.0:30000")}},
		{"node port with ranges of one family", []Frontend{nodePortAt(30000, "10.0.0.0/8")},
			[]Frontend{frontend(NodePort, "0.0.0.0:30000", "10.0.0.0/8"), frontend(NodePort, "[::]:30000", "::/128")}},
		{"node port once and in one family", []Frontend{nodePortAt(30000), frontend(NodePort, "[::]:30000")},
			[]Frontend{frontend(NodePort, "0.0.0.0:30000"), frontend(NodePort, "[::]:30000")}},
		{"twice the same", []Frontend{frontend(External, "192.0.2.1:80", "10.0.0.0/9", "10.128.0.0/9"), frontend(External, "192.0.2.1:80", "10.0.0.1/8")},
			[]Frontend{frontend(External, "192.0.2.1:80", "10.0.0.0/8")}},
		{"ranges of the other family", []Frontend{frontend(External, "192.0.2.1:80", "fd00::/8"), frontend(External, "[2001:db8::1]:80", "10.0.0.0/8")},
			[]Frontend{frontend(External, "192.0.2.1:80", "0.0.0.0/32"), frontend(External, "[2001:db8::1]:80", "::/128")}},
		{"ranges of both families", []Frontend{frontend(External, "192.0.2.1:80", "fd00::/8", "10.0.0.0/8")}, []Frontend{frontend(External, "192.0.2.1:80", "10.0.0.0/8")}},
		{"everybody", []Frontend{frontend(External, "192.0.2.1:80", "10.0.0.0/8", "0.0.0.0/0")}, []Frontend{frontend(External, "192.0.2.1:80")}},
		{"everybody in two halves", []Frontend{frontend(External, "192.0.2.1:80", "128.0.0.0/1", "0.0.0.0/1")}, []Frontend{frontend(External, "192.0.2.1:80")}},
		{"everybody of the other family", []Frontend{frontend(External, "192.0.2.1:80", "::/0")}, []Frontend{frontend(External, "192.0.2.1:80", "0.0.0.0/32")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			given := Service{Frontends: c.given, Affinity: time.Second}
			before := given.clone()
			got, err := normalise(given)
			require.NoError(t, err)
			require.True(t, before.Equal(given), "the input was changed")
			require.True(t, slices.EqualFunc(c.want, got.Frontends, Frontend.Equal), "want %v, got %v", c.want, got.Frontends)
			again, err := normalise(got)
			require.NoError(t, err)
			require.True(t, again.Equal(got), "what is normal stays: %v", again.Frontends)
		})
	}
}

func TestNormaliseRefuses(t *testing.T) {
	internal := []Frontend{frontend(Internal, "172.20.0.1:80")}
	ranged := func(p netip.Prefix) []Frontend {
		return []Frontend{{Kind: External, Addr: netip.MustParseAddrPort("192.0.2.1:80"), SourceRanges: []netip.Prefix{p}}}
	}
	for name, s := range map[string]Service{
		"protocol":                  {Protocol: SCTP + 1, Frontends: internal},
		"balance":                   {Balance: Maglev + 1, Frontends: internal},
		"internal policy":           {InternalTraffic: Local + 1, Frontends: internal},
		"external policy":           {ExternalTraffic: 255, Frontends: internal},
		"affinity below zero":       {Affinity: -1, Frontends: internal},
		"affinity below a second":   {Affinity: time.Second - 1, Frontends: internal},
		"affinity beyond a year":    {Affinity: MaxAffinity + 1, Frontends: internal},
		"no address":                {Frontends: []Frontend{{Addr: netip.AddrPortFrom(netip.Addr{}, 80)}}},
		"nothing at all":            {Frontends: []Frontend{{}}},
		"port 0":                    {Frontends: []Frontend{frontend(Internal, "172.20.0.1:0")}},
		"kind":                      {Frontends: []Frontend{frontend(NodePort+1, "172.20.0.1:80")}},
		"unspecified":               {Frontends: []Frontend{frontend(External, "0.0.0.0:80")}},
		"unspecified IPv6":          {Frontends: []Frontend{frontend(External, "[::]:80")}},
		"unspecified, mapped":       {Frontends: []Frontend{frontend(External, "[::ffff:0.0.0.0]:80")}},
		"loopback":                  {Frontends: []Frontend{frontend(Internal, "127.1.2.3:80")}},
		"loopback, mapped":          {Frontends: []Frontend{frontend(Internal, "[::ffff:127.0.0.1]:80")}},
		"loopback IPv6":             {Frontends: []Frontend{frontend(Internal, "[::1]:80")}},
		"multicast":                 {Frontends: []Frontend{frontend(Internal, "239.0.0.1:80")}},
		"multicast IPv6":            {Frontends: []Frontend{frontend(Internal, "[ff05::1]:80")}},
		"broadcast":                 {Frontends: []Frontend{frontend(Internal, "255.255.255.255:80")}},
		"zone":                      {Frontends: []Frontend{frontend(Internal, "[fe80::1%eth0]:80")}},
		"node port with address":    {Frontends: []Frontend{frontend(NodePort, "192.0.2.1:30000")}},
		"node port with zone":       {Frontends: []Frontend{frontend(NodePort, "[::%eth0]:30000")}},
		"node port 0":               {Frontends: []Frontend{nodePortAt(0)}},
		"range without address":     {Frontends: ranged(netip.Prefix{})},
		"range too long":            {Frontends: ranged(netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), 33))},
		"range below zero":          {Frontends: ranged(netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), -1))},
		"range half mapped":         {Frontends: ranged(netip.PrefixFrom(netip.MustParseAddr("::ffff:10.0.0.0"), 95))},
		"twice, of two kinds":       {Frontends: []Frontend{frontend(Internal, "172.20.0.1:80"), frontend(External, "172.20.0.1:80")}},
		"twice, with other ranges":  {Frontends: []Frontend{frontend(External, "192.0.2.1:80"), frontend(External, "192.0.2.1:80", "10.0.0.0/8")}},
		"node port with two ranges": {Frontends: []Frontend{nodePortAt(30000), frontend(NodePort, "[::]:30000", "fd00::/8")}},
		"the last of several":       {Frontends: []Frontend{internal[0], frontend(Internal, "172.20.0.1:0")}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := normalise(s)
			require.ErrorIs(t, err, ErrInvalid)
			require.Greater(t, len(err.Error()), len(ErrInvalid.Error())+3, "the error says what is wrong")
		})
	}
	for _, ok := range []Service{{}, {Affinity: time.Second}, {Affinity: MaxAffinity}, {HashPort: true}} {
		_, err := normalise(ok)
		require.NoError(t, err)
	}
}

func TestNormaliseEndpoints(t *testing.T) {
	at := func(s string) Endpoint { return Endpoint{Addr: netip.MustParseAddrPort(s)} }
	with := func(e Endpoint, change func(*Endpoint)) Endpoint { change(&e); return e }
	one := with(at("10.0.0.1:80"), func(e *Endpoint) { e.Weight = 1 })
	for _, c := range []struct {
		name        string
		given, want []Endpoint
		left        int // endpoints left out
	}{
		{"none", nil, nil, 0},
		{"weight 0 reads as 1", []Endpoint{at("10.0.0.1:80")}, []Endpoint{one}, 0},
		{"weight is kept", []Endpoint{with(one, func(e *Endpoint) { e.Weight = 65535 })}, []Endpoint{with(one, func(e *Endpoint) { e.Weight = 65535 })}, 0},
		{"mapped", []Endpoint{at("[::ffff:10.0.0.1]:80")}, []Endpoint{one}, 0},
		{"sorted by number, not by text", []Endpoint{at("10.0.0.10:80"), at("10.0.0.9:80"), at("[fd00::1]:80"), at("10.0.0.9:9"), at("10.0.0.1:80")},
			[]Endpoint{one, with(one, func(e *Endpoint) { e.Addr = netip.MustParseAddrPort("10.0.0.9:9") }),
				with(one, func(e *Endpoint) { e.Addr = netip.MustParseAddrPort("10.0.0.9:80") }),
				with(one, func(e *Endpoint) { e.Addr = netip.MustParseAddrPort("10.0.0.10:80") }),
				with(one, func(e *Endpoint) { e.Addr = netip.MustParseAddrPort("[fd00::1]:80") })}, 0},
		{"twice: the more able state", []Endpoint{with(one, func(e *Endpoint) { e.State = Draining }), one, with(one, func(e *Endpoint) { e.State = NotReady })}, []Endpoint{one}, 0},
		{"twice: draining before not ready", []Endpoint{with(one, func(e *Endpoint) { e.State = NotReady }), with(one, func(e *Endpoint) { e.State = Draining })},
			[]Endpoint{with(one, func(e *Endpoint) { e.State = Draining })}, 0},
		{"twice: the later of equals", []Endpoint{with(one, func(e *Endpoint) { e.Weight = 7 }), one}, []Endpoint{one}, 0},
		{"left out", []Endpoint{{}, at("10.0.0.2:0"), at("0.0.0.0:80"), at("[::]:80"), at("127.0.0.1:80"), at("[::1]:80"), at("224.0.0.1:80"), at("[ff02::1]:80"),
			at("255.255.255.255:80"), at("[fe80::1%eth0]:80"), with(one, func(e *Endpoint) { e.State = NotReady + 1 }), one}, []Endpoint{one}, 11},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.given)
			got, err := normaliseEndpoints(c.given)
			require.True(t, EqualEndpoints(c.want, got), "want %v, got %v", c.want, got)
			require.True(t, slices.EqualFunc(before, c.given, Endpoint.Equal), "the input was changed")
			if c.left == 0 {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrInvalid)
			require.Equal(t, c.left, strings.Count(err.Error(), "left out"), "%v", err)
		})
	}
	hints := Endpoint{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Zones: []string{"z"}, Nodes: []string{"n"}}
	got, err := normaliseEndpoints([]Endpoint{hints})
	require.NoError(t, err)
	hints.Zones[0], hints.Nodes[0] = "scribbled", "scribbled"
	require.Equal(t, "z", got[0].Zones[0])
	require.Equal(t, "n", got[0].Nodes[0])
}

// MergePrefixes against counting addresses one by one, in spaces small enough: the last byte of an address.
func TestMergePrefixesByBruteForce(t *testing.T) {
	chance := rand.New(rand.NewPCG(3, 4))
	for _, base := range []netip.Addr{netip.MustParseAddr("10.0.0.0"), netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("255.255.255.0"),
		netip.MustParseAddr("fd00::"), netip.MustParseAddr("::"), netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00")} {
		at := func(i int) netip.Addr {
			b := base.AsSlice()
			b[len(b)-1] = byte(i)
			a, _ := netip.AddrFromSlice(b)
			return a
		}
		for range 600 {
			var given []netip.Prefix
			for range chance.IntN(9) {
				given = append(given, netip.PrefixFrom(at(chance.IntN(256)), base.BitLen()-chance.IntN(9)))
			}
			before := slices.Clone(given)
			merged := MergePrefixes(given)
			require.Equal(t, before, given, "the input was changed")
			contains := func(ps []netip.Prefix, a netip.Addr) bool {
				return slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Contains(a) })
			}
			covered := [256]bool{}
			for i := range covered {
				covered[i] = contains(given, at(i))
				if covered[i] != contains(merged, at(i)) {
					t.Fatalf("%s: %v became %v", at(i), given, merged)
				}
			}
			require.Len(t, merged, fewest(covered[:]), "%v became %v", given, merged)
			for i, p := range merged {
				require.Equal(t, p.Masked(), p)
				require.True(t, i == 0 || merged[i-1].Addr().Less(p.Addr()) && !merged[i-1].Overlaps(p), "%v", merged)
			}
			chance.Shuffle(len(given), func(i, j int) { given[i], given[j] = given[j], given[i] })
			require.Equal(t, merged, MergePrefixes(given), "the order does not matter")
			require.Equal(t, merged, MergePrefixes(merged))
		}
	}
}

// fewest is how few aligned blocks cover just the addresses that are covered.
func fewest(covered []bool) int {
	switch {
	case !slices.Contains(covered, true):
		return 0
	case !slices.Contains(covered, false):
		return 1
	}
	half := len(covered) / 2
	return fewest(covered[:half]) + fewest(covered[half:])
}

func TestMergePrefixesOfWholeSpaces(t *testing.T) {
	for _, c := range []struct{ given, want []netip.Prefix }{
		{nil, nil},
		{prefixesOf("0.0.0.0/0", "10.0.0.0/8"), prefixesOf("0.0.0.0/0")},
		{prefixesOf("0.0.0.0/1", "128.0.0.0/2", "192.0.0.0/2"), prefixesOf("0.0.0.0/0")},
		{prefixesOf("8000::/1", "::/1"), prefixesOf("::/0")},
		{prefixesOf("240.0.0.0/4", "255.255.255.255/32"), prefixesOf("240.0.0.0/4")},
		{prefixesOf("10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24"), prefixesOf("10.0.0.0/23", "10.0.2.0/24")},
		{prefixesOf("10.0.1.0/24", "10.0.2.0/24"), prefixesOf("10.0.1.0/24", "10.0.2.0/24")},
		{prefixesOf("10.0.0.9/8"), prefixesOf("10.0.0.0/8")},
	} {
		require.Equal(t, c.want, MergePrefixes(c.given), "%v", c.given)
	}
}

func TestNames(t *testing.T) {
	require.Equal(t, "tcp udp sctp", TCP.String()+" "+UDP.String()+" "+SCTP.String())
	require.Equal(t, [3]uint8{6, 17, 132}, [3]uint8{TCP.Number(), UDP.Number(), SCTP.Number()})
	require.Zero(t, Protocol(3).Number())
	require.Equal(t, "protocol 3", Protocol(3).String())
	require.Equal(t, "balance 200", Balance(200).String())
	require.Equal(t, "maglev", Maglev.String())
	require.Equal(t, "policy 2", TrafficPolicy(2).String())
	require.Equal(t, "node port", NodePort.String())
	require.Equal(t, "not ready", NotReady.String())
	require.Equal(t, "balanced", Balanced.String())
	require.Equal(t, "internal 172.20.0.1:80", frontend(Internal, "172.20.0.1:80").String())
	require.Equal(t, "udp node port 53 (IPv6)", FrontendKey{UDP, netip.MustParseAddrPort("[::]:53")}.String())
	require.Equal(t, "tcp 172.20.0.1:80", FrontendKey{TCP, netip.MustParseAddrPort("172.20.0.1:80")}.String())
	require.Equal(t, IPv6, FamilyOf(netip.MustParseAddr("::ffff:10.0.0.1")))
	for _, f := range Families {
		require.Equal(t, f, FamilyOf(f.Unspecified()))
		require.Equal(t, f.Bits(), f.Unspecified().BitLen())
	}
}
