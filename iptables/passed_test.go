package iptables

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// maxPassed is how many rules the first packet of a connection may pass, in all tables together.
const maxPassed = 70

// crowd returns a state with 10,000 internal addresses, 10,000 node ports, and 1,000 ports on one address, in a family; and
// the last of each, whose one endpoint is given. A hundred of them make a service, so that the chains of services do not
// keep the test waiting: it is about finding them.
func crowd(f model.Family, last netip.AddrPort) (s model.State, vip, nodePort, port netip.AddrPort) {
	s = model.State{Node: modeltest.StageNode(), Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	s.Node.ServiceRanges = nil
	base := netip.MustParseAddr("10.96.0.0").AsSlice()
	if f == model.IPv6 {
		base = netip.MustParseAddr("fd20:96::").AsSlice()
	}
	addr := func(i int) netip.Addr {
		raw := append([]byte(nil), base...)
		raw[len(raw)-3] += byte(i >> 16)
		raw[len(raw)-2] += byte(i >> 8)
		raw[len(raw)-1] += byte(i)
		a, _ := netip.AddrFromSlice(raw)
		return a
	}
	add := func(kind string, i int, to netip.AddrPort, front model.Frontend) {
		name := model.ServiceName(fmt.Sprintf("%s-%d", kind, i/100))
		svc := s.Services[name]
		svc.Frontends = append(svc.Frontends, front)
		s.Services[name] = svc
		s.Endpoints[name] = []model.Endpoint{{Addr: to, Local: true}}
	}
	other := netip.AddrPortFrom(last.Addr(), last.Port()+1)
	const many, ports = 10_000, 1000
	for i := range many {
		vip, nodePort = netip.AddrPortFrom(addr(1+i), 80), netip.AddrPortFrom(f.Unspecified(), uint16(30_000+i))
		to := other
		if i == many-1 {
			to = last
		}
		add("vip", i, to, model.Frontend{Addr: vip})
		add("port", i, to, model.Frontend{Kind: model.NodePort, Addr: nodePort})
	}
	for i := range ports {
		port = netip.AddrPortFrom(addr(0x20000), uint16(20_000+i))
		to := other
		if i == ports-1 {
			to = last
		}
		add("many", i, to, model.Frontend{Addr: port})
	}
	return s, vip, nodePort, port
}

// The first packets to the last of them are counted, by the counters of the rules that they matched: the rules before
// those in a chain were passed too. One client is its own endpoint and so is masqueraded, others are for being outside.
func TestRulesPassed(t *testing.T) {
	last := netip.MustParseAddrPort("10.128.0.11:8080")
	s, vip, nodePort, port := crowd(model.IPv4, last)
	nodePort = netip.AddrPortFrom(s.Node.Primary[0], nodePort.Port())
	pod := modeltest.Packet{Name: "itself", Kind: modeltest.FromPod, From: last.Addr()}
	outside := modeltest.Packet{Name: "outside", Kind: modeltest.FromOutside, From: netip.MustParseAddr("203.0.113.5")}
	eachVariant(t, func(t *testing.T, v Variant) {
		w := modeltest.NewLab(t, s.Node)
		p := open(t, Config{NetNS: w.NetNS(), Variant: v, RejectOtherPorts: true})
		w.(modeltest.Preparer).Prepare(t, model.State{Node: s.Node, Endpoints: model.EndpointMap{"": {{Addr: last, Local: true}}}}, nil)
		_, err := p.Sync(within(t), s)
		require.NoError(t, err)
		before := countedRules(t, w.NetNS(), model.IPv4, v)
		for _, to := range []struct {
			name string
			addr netip.AddrPort
		}{{"the last of 10,000 addresses", vip}, {"the last of 10,000 node ports", nodePort}, {"the last of 1,000 ports", port}} {
			for _, packet := range []modeltest.Packet{pod, outside} {
				packet.To = to.addr
				outcomes, err := w.Send(within(t), packet, 1)
				require.NoError(t, err)
				require.Equal(t, modeltest.Translated, outcomes[0].Verdict)
				require.Contains(t, s.Node.Addrs, outcomes[0].Source, "masqueraded")
				after := countedRules(t, w.NetNS(), model.IPv4, v)
				passed := rulesPassed(before, after, nat, "PREROUTING") + rulesPassed(before, after, nat, "POSTROUTING") + rulesPassed(before, after, filter, "FORWARD")
				t.Logf("%s to %s: %d rules", packet.Name, to.name, passed)
				require.Greater(t, passed, 10, "something was counted")
				require.LessOrEqual(t, passed, maxPassed, "%s to %s", packet.Name, to.name)
				before = after
			}
		}
	})
}

// In IPv6 addresses are four times as long, but a tree skips what they have in common.
func TestRulesPassedIPv6(t *testing.T) {
	last := netip.MustParseAddrPort("[fd10:128:0:a::11]:8080")
	s, vip, nodePort, port := crowd(model.IPv6, last)
	nodePort = netip.AddrPortFrom(s.Node.Primary[1], nodePort.Port())
	_, forms := resolved(t, s)
	e := testEnv(model.IPv6, s.Node)
	_, rs := rulesetOf(e, forms)
	m := newMachine(t, model.IPv6, s.Node.Addrs...)
	m.load(e, rs)
	for _, to := range []netip.AddrPort{vip, nodePort, port} {
		for _, from := range []string{"fd10:128:0:a::11", "2001:db8:e::5"} {
			m.passed = 0
			fates := m.send(probe{src: netip.MustParseAddr(from), dst: to.Addr(), dport: to.Port(), in: "veth-pod"})
			require.Equal(t, map[fate]float64{{verdict: "dnat", to: last, masq: true}: 1}, fates)
			t.Logf("%s to %s: %d rules", from, to, m.passed)
			require.LessOrEqual(t, m.passed, maxPassed)
		}
	}
}

// A counted is a rule with its counter of packets.
type counted struct {
	text    string
	packets int
}

var countedLine = regexp.MustCompile(`^\[(\d+):\d+\] -A (\S+) (.*)$`)

// countedRules lists the rules of both tables, by table and chain.
func countedRules(t *testing.T, netns int, f model.Family, v Variant) map[string][]counted {
	t.Helper()
	out := map[string][]counted{}
	for _, tbl := range tables {
		save, err := command(netns, "", program(f, v, "-save"), "-c", "-t", tbl.String())
		require.NoError(t, err)
		for line := range strings.Lines(save) {
			if m := countedLine.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
				n, _ := strconv.Atoi(m[1])
				key := tbl.String() + " " + m[2]
				out[key] = append(out[key], counted{m[3], n})
			}
		}
	}
	return out
}

// rulesPassed returns how many rules a packet passed that came to a chain between two counts.
func rulesPassed(before, after map[string][]counted, tbl table, chain string) int {
	key := tbl.String() + " " + chain
	n := 0
	for i, r := range after[key] {
		n++
		if r.packets == before[key][i].packets {
			continue
		}
		to := target(r.text)
		if _, ours := after[tbl.String()+" "+to]; ours {
			n += rulesPassed(before, after, tbl, to)
			if strings.Contains(r.text, "-g "+to) {
				return n
			}
			continue
		}
		if to != "" && to != "MARK" {
			return n
		}
	}
	return n
}
