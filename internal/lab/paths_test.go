package lab_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
)

var ap = netip.MustParseAddrPort

// What nobody translated is answered by the server at the very address that was asked, wherever that is.
func TestUntranslatedIsAnsweredWhereServed(t *testing.T) {
	lab.CheckLeaks(t)
	topo := network(t)
	load(t, topo, rules)
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP, lab.SCTP} {
		for _, to := range []string{"172.20.0.1:81", "[fd20::1]:81", "198.51.100.10:30080", "10.128.1.21:8080", "203.0.113.5:443"} {
			s, err := topo.Serve(p, ap(to))
			require.NoError(t, err)
			for _, source := range addrs("10.128.0.100 198.51.100.10 fd10:128:0:a::100 2001:db8:a::10") {
				if q := query(source.String(), p, to); q.To.Addr().Is6() == source.Is6() {
					a, err := topo.Ask(t.Context(), q)
					require.NoError(t, err)
					require.Equal(t, lab.Answered, a.Verdict, "%s: %s", q, a)
					require.Equal(t, to, a.Name)
					require.Equal(t, a.Source, a.Peer)
				}
			}
			require.NoError(t, s.Close())
		}
		a, err := topo.Ask(t.Context(), query("10.128.0.100", p, "172.20.0.1:81"))
		require.NoError(t, err)
		require.Equal(t, lab.Passed, a.Verdict, "the wire swallows it again: %s", a)
	}
}

// Without a route back to the client, only a masqueraded connection is answered.
func TestMissingMasqueradeShows(t *testing.T) {
	topo := lab.Start(t, lab.Spec{
		Node: addrs("198.51.100.10"),
		Hosts: []lab.Host{
			{Name: "outside", Place: lab.Far, Addrs: addrs("203.0.113.5")},
			{Name: "b", Place: lab.Far, Addrs: addrs("10.128.0.11 10.128.1.21"), Reach: []netip.Prefix{netip.MustParsePrefix("198.51.100.10/32")}},
		},
	})
	load(t, topo, rules)
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP, lab.SCTP} {
		lab.Serve(t, topo, p, ap("10.128.0.11:8080"))
		lab.Serve(t, topo, p, ap("10.128.1.21:8080"))
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			kept, err := topo.Ask(t.Context(), query("203.0.113.5", p, "172.20.0.2:80"))
			require.NoError(t, err)
			require.Equal(t, lab.Unanswered, kept.Verdict, kept)
			require.Equal(t, "10.128.1.21:8080", kept.Name)
			require.Equal(t, "203.0.113.5", kept.Peer.Addr().String())
			masq, err := topo.Ask(t.Context(), query("203.0.113.5", p, "172.20.0.4:80"))
			require.NoError(t, err)
			require.Equal(t, lab.Answered, masq.Verdict, masq)
			require.True(t, masq.Masqueraded(), masq)
		})
	}
}

// A packet that the node makes with the virtual address as its source: the answer cannot come back, as
// nobody has the address, but the translation is seen.
func TestSourceThatNobodyHas(t *testing.T) {
	topo := network(t)
	load(t, topo, rules)
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP, lab.SCTP} {
		for _, c := range [][3]string{{"172.20.0.1", "172.20.0.1:80", "10.128.0.11:8080"}, {"fd20::1", "[fd20::1]:80", "[fd10:128:0:a::11]:8080"}} {
			lab.Serve(t, topo, p, ap(c[2]))
			a, err := topo.Ask(t.Context(), query(c[0], p, c[1]))
			require.NoError(t, err)
			require.Equal(t, lab.Unanswered, a.Verdict, "%s: %s", p, a)
			require.Equal(t, c[2], a.Name)
			require.False(t, a.Masqueraded(), "%s", a)
		}
		a, err := topo.Ask(t.Context(), query("172.20.0.4", p, "172.20.0.4:80"))
		require.NoError(t, err)
		require.Equal(t, lab.Unanswered, a.Verdict, "%s: %s", p, a)
		require.Equal(t, "10.128.0.11:8080", a.Name)
		require.Equal(t, "198.51.100.10", a.Peer.Addr().String())
	}
}

func TestLoopback(t *testing.T) {
	topo := network(t)
	load(t, topo, rules)
	lab.Serve(t, topo, lab.TCP, ap("10.128.0.11:8080"))
	q := query("127.0.0.1", lab.TCP, "127.0.0.1:30080")
	a, err := topo.Ask(t.Context(), q)
	require.NoError(t, err)
	require.NotEqual(t, lab.Answered, a.Verdict, "without route_localnet: %s", a)
	require.NoError(t, topo.Node.Sysctl("net/ipv4/conf/all/route_localnet", "1"))
	a, err = topo.Ask(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, lab.Answered, a.Verdict, "%s", a)
	require.Equal(t, "10.128.0.11:8080", a.Name)
	require.Equal(t, "198.51.100.10", a.Peer.Addr().String())

	for _, c := range [][2]string{{"127.0.0.1", "127.0.0.1:9"}, {"::1", "[::1]:9"}} {
		a, err = topo.Ask(t.Context(), query(c[0], lab.TCP, c[1]))
		require.NoError(t, err)
		require.Equal(t, lab.Refused, a.Verdict, "%s", a)
		lab.Serve(t, topo, lab.TCP, ap(c[1]))
		a, err = topo.Ask(t.Context(), query(c[0], lab.TCP, c[1]))
		require.NoError(t, err)
		require.Equal(t, c[1], a.Name)
	}
}

// A packet from outside to the node's loopback, which no socket can send.
func TestInject(t *testing.T) {
	topo := network(t)
	load(t, topo, rules)
	sniffer, err := topo.Node.Sniff()
	require.NoError(t, err)
	defer sniffer.Close()
	for _, p := range []lab.Packet{
		{Proto: lab.TCP, Src: ap("203.0.113.5:4000"), Dst: ap("127.0.0.1:30080"), Flags: lab.SYN, Seq: 4711},
		{Proto: lab.UDP, Src: ap("203.0.113.5:4000"), Dst: ap("172.20.0.1:80"), Payload: []byte("odd")},
		{Proto: lab.UDP, Src: ap("[2001:db8:e::5]:4000"), Dst: ap("[fd20::1]:80"), Payload: []byte("even")},
		{Proto: lab.SCTP, Src: ap("203.0.113.5:4000"), Dst: ap("172.20.0.1:80"), Payload: lab.SCTPInit()},
		{Proto: lab.ICMP, Src: ap("[2001:db8:e::5]:0"), Dst: ap("[fd10:128:0:a::11]:0"), Type: 128},
	} {
		require.NoError(t, topo.Node.Sysctl("net/ipv4/conf/all/route_localnet", "1"))
		require.NoError(t, topo.Inject("outside", p))
		in := sight(t, sniffer, func(s lab.Packet) bool { return !s.Out && s.Proto == p.Proto && s.Dst == p.Dst })
		require.Equal(t, topo.NodeLink("outside"), in.Link)
		require.Equal(t, p.Src, in.Src)
		require.Equal(t, p.Payload, in.Payload)
		require.Equal(t, p.Seq, in.Seq)
		out := sight(t, sniffer, func(s lab.Packet) bool { return s.Out && s.Proto == p.Proto && s.Link == "veth-a" })
		require.True(t, out.Dst.Addr() == addrs("10.128.0.11")[0] || out.Dst.Addr() == addrs("fd10:128:0:a::11")[0], out)
		if p.Proto != lab.ICMP {
			require.EqualValues(t, 8080, out.Dst.Port())
		}
		// The checksums were right: the host's kernel answers.
		sight(t, sniffer, func(s lab.Packet) bool {
			return !s.Out && s.Link == "veth-a" && (s.Proto == p.Proto || s.Proto == lab.ICMP)
		})
	}
	require.Error(t, topo.Inject("nobody", lab.Packet{Proto: lab.UDP, Src: ap("203.0.113.5:1"), Dst: ap("203.0.113.5:1")}))
}

func sight(t *testing.T, s *lab.Sniffer, want func(lab.Packet) bool) lab.Packet {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	var seen []string
	for {
		p, ok, err := s.Next(t.Context(), deadline)
		require.NoError(t, err)
		require.True(t, ok, "seen only:\n%s", strings.Join(seen, "\n"))
		seen = append(seen, p.String())
		if want(p) {
			return p
		}
	}
}

func TestFlows(t *testing.T) {
	lab.CheckLeaks(t)
	topo := network(t)
	load(t, topo, rules)
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP, lab.SCTP} {
		for _, c := range [][3]string{
			{"10.128.0.100", "172.20.0.1:80", "10.128.0.11:8080"},
			{"203.0.113.5", "172.20.0.4:80", "10.128.0.11:8080"},
			{"2001:db8:a::10", "[fd20::4]:80", "[fd10:128:0:a::11]:8080"},
		} {
			server, err := topo.Serve(p, ap(c[2]))
			require.NoError(t, err)
			q := query(c[0], p, c[1])
			q.Source = netip.AddrPortFrom(q.Source.Addr(), 40000)
			f, err := topo.Open(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, c[2], f.First().Name)
			for range 5 {
				a, err := f.Ping(t.Context(), 0)
				require.NoError(t, err)
				require.Equal(t, lab.Answered, a.Verdict, "%s: %s", q, a)
				require.Equal(t, f.First().Name, a.Name)
				require.Equal(t, f.First().Peer, a.Peer)
				require.EqualValues(t, 40000, a.Source.Port())
			}
			seen := 1
			if p == lab.UDP {
				seen = 6
			}
			require.GreaterOrEqual(t, server.Seen(), seen)
			require.NoError(t, server.Close())
			a, err := f.Ping(t.Context(), 0)
			require.NoError(t, err)
			require.Equal(t, lab.Refused, a.Verdict, "the server has gone: %s: %s", q, a)
			require.NoError(t, f.Close())
			_, err = f.Ping(t.Context(), 0)
			require.ErrorIs(t, err, lab.ErrClosed)
		}
	}
}

// One server may answer at every address of its host, each time from the address that was asked.
func TestWildcardServers(t *testing.T) {
	lab.CheckLeaks(t)
	topo := network(t)
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP, lab.SCTP} {
		_, err := topo.Node.Serve(p, ap("0.0.0.0:7"))
		require.NoError(t, err)
		_, err = topo.Node.ServeAs("six", p, ap("[::]:7"))
		require.NoError(t, err)
		_, err = topo.Node.Serve(p, ap("0.0.0.0:7"))
		require.Error(t, err, "the port is taken")
		for _, to := range []string{"198.51.100.10:7", "198.51.101.10:7", "[2001:db8:a::10]:7"} {
			source, name := "203.0.113.5", to
			if ap(to).Addr().Is6() {
				source, name = "2001:db8:e::5", "six"
			}
			a, err := topo.Ask(t.Context(), query(source, p, to))
			require.NoError(t, err)
			require.Equal(t, lab.Answered, a.Verdict, a)
			require.Equal(t, name, a.Name)
		}
	}
}

func TestNodeAddressesComeAndGo(t *testing.T) {
	topo := network(t)
	extra := addrs("192.0.2.77 2001:db8:f::1")
	for i, source := range []string{"203.0.113.5", "2001:db8:e::5"} {
		at := netip.AddrPortFrom(extra[i], 8080)
		q := query(source, lab.TCP, at.String())
		require.Nil(t, topo.Owner(extra[i]))
		require.NoError(t, topo.AddNodeAddr(extra[i]))
		require.Equal(t, topo.Node, topo.Owner(extra[i]))
		lab.Serve(t, topo, lab.TCP, at)
		a, err := topo.Ask(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, lab.Answered, a.Verdict, a)
		require.NoError(t, topo.DelNodeAddr(extra[i]))
		a, err = topo.Ask(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, lab.Passed, a.Verdict, a)
	}
}

func TestWrongSpecs(t *testing.T) {
	lab.NeedRoot(t)
	lab.CheckLeaks(t)
	for name, hosts := range map[string][]lab.Host{
		"no name":      {{Addrs: addrs("10.0.0.1")}},
		"same name":    {{Name: "a"}, {Name: "a"}},
		"same address": {{Name: "a", Addrs: addrs("10.0.0.1")}, {Name: "b", Addrs: addrs("10.0.0.1")}},
		"node address": {{Name: "a", Addrs: addrs("198.51.100.10")}},
		"long name":    {{Name: "a-name-of-twenty-one"}},
		"same link":    {{Name: "a", Link: "x"}, {Name: "b", Link: "x"}},
	} {
		_, err := lab.Build(lab.Spec{Node: addrs("198.51.100.10"), Hosts: hosts})
		require.ErrorContains(t, err, "build topology", name)
	}
}

func TestWrongQueries(t *testing.T) {
	topo := network(t)
	for name, q := range map[string]lab.Query{
		"no source":      {Proto: lab.TCP, To: ap("10.128.0.11:80")},
		"no destination": {Proto: lab.TCP, Source: ap("10.128.0.100:0")},
		"no protocol":    {Source: ap("10.128.0.100:0"), To: ap("10.128.0.11:80")},
		"two families":   {Proto: lab.UDP, Source: ap("10.128.0.100:0"), To: ap("[fd10:128:0:a::11]:80")},
	} {
		_, err := topo.Ask(t.Context(), q)
		require.Error(t, err, name)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := topo.Ask(ctx, query("10.128.0.100", lab.UDP, "172.20.0.1:80"))
	require.ErrorIs(t, err, context.Canceled)
}

// A fixed source port is kept through all attempts to find out.
func TestFixedSourcePort(t *testing.T) {
	topo := network(t)
	load(t, topo, rules)
	lab.Serve(t, topo, lab.TCP, ap("10.128.0.11:8080"))
	lab.Serve(t, topo, lab.UDP, ap("10.128.0.11:8080"))
	lab.Serve(t, topo, lab.SCTP, ap("10.128.0.11:8080"))
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP, lab.SCTP} {
		for to, verdict := range map[string]lab.Verdict{
			"172.20.0.1:80": lab.Answered, "172.20.0.1:81": lab.Passed, "172.20.0.8:80": lab.Refused, "172.20.0.9:80": lab.Dropped,
		} {
			q := query("10.128.0.100", p, to)
			q.Source = ap("10.128.0.100:40001")
			for range 2 {
				a, err := topo.Ask(t.Context(), q)
				require.NoError(t, err)
				require.Equal(t, verdict, a.Verdict, "%s: %s", q, a)
				require.EqualValues(t, 40001, a.Source.Port())
			}
		}
	}
}

func TestAskMany(t *testing.T) {
	topo := network(t)
	load(t, topo, rules)
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP, lab.SCTP} {
		lab.Serve(t, topo, p, ap("10.128.0.11:8080"))
		lab.Serve(t, topo, p, ap("10.128.0.12:8080"))
		tally, err := topo.AskMany(t.Context(), query("10.128.0.100", p, "172.20.0.5:80"), 200)
		require.NoError(t, err)
		require.Equal(t, 200, tally.Asked)
		require.Equal(t, 200, tally.ByName["10.128.0.11:8080"]+tally.ByName["10.128.0.12:8080"], "%+v", tally)
		require.Greater(t, tally.ByName["10.128.0.11:8080"], 40, "%+v", tally)
		require.Greater(t, tally.ByName["10.128.0.12:8080"], 40, "%+v", tally)
		require.Equal(t, map[netip.Addr]int{addrs("10.128.0.100")[0]: 200}, tally.ByPeer)

		tally, err = topo.AskMany(t.Context(), query("10.128.0.100", p, "172.20.0.8:80"), 50)
		require.NoError(t, err)
		require.Equal(t, 50, tally.Refused)
	}
}

// A Load reports what a change breaks, and nothing where it breaks nothing.
func TestLoad(t *testing.T) {
	lab.CheckLeaks(t)
	topo := network(t)
	load(t, topo, rules)
	lab.Serve(t, topo, lab.TCP, ap("10.128.0.11:8080"))
	lab.Serve(t, topo, lab.TCP, ap("10.128.0.12:8080"))
	l := lab.Load{Query: query("10.128.0.100", lab.TCP, "172.20.0.5:80"), Rate: 400, Flows: 4}

	report, err := topo.Load(t.Context(), l, func(context.Context) error {
		time.Sleep(300 * time.Millisecond)
		return nil
	})
	require.NoError(t, err)
	require.Zero(t, report.Failed, "%v", report.Err())
	require.GreaterOrEqual(t, report.Asked, 8)
	require.GreaterOrEqual(t, report.Pings, 8)
	require.GreaterOrEqual(t, report.Took, 300*time.Millisecond)

	drop := func(ctx context.Context) error {
		c := topo.Node.Command(ctx, "nft", "add rule ip t verdicts ip daddr {10.128.0.11, 10.128.0.12} drop")
		if out, err := c.CombinedOutput(); err != nil {
			return errors.New(string(out))
		}
		time.Sleep(300 * time.Millisecond)
		out, err := topo.Node.Command(ctx, "nft", "flush chain ip t verdicts").CombinedOutput()
		if err != nil {
			return errors.New(string(out))
		}
		return nil
	}
	report, err = topo.Load(t.Context(), l, drop)
	require.NoError(t, err)
	require.Positive(t, report.Retransmitted, "a SYN was lost: %+v", report)
	require.Positive(t, report.Slow)
	require.ErrorContains(t, report.Err(), "SYN again")

	reset := func(ctx context.Context) error {
		out, err := topo.Node.Command(ctx, "nft", "add rule ip t verdicts ip daddr {10.128.0.11, 10.128.0.12} meta l4proto tcp reject with tcp reset").CombinedOutput()
		if err != nil {
			return errors.New(string(out))
		}
		return nil
	}
	report, err = topo.Load(t.Context(), l, reset)
	require.NoError(t, err)
	require.Positive(t, report.Failed)
	require.ErrorContains(t, report.Err(), "refused")
	require.ErrorContains(t, report.Err(), "open flow")

	_, err = topo.Load(t.Context(), l, func(context.Context) error { return nil })
	require.ErrorContains(t, err, "refused", "the flows cannot be opened")
	l.Flows = 0
	broken := errors.New("broken")
	_, err = topo.Load(t.Context(), l, func(context.Context) error { return broken })
	require.ErrorIs(t, err, broken)
}
