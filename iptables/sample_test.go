package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/internal/passed"
	"github.com/headgate/headgate/model"
)

// A range is where real packets go that nobody answers: a namespace whose only link is loopback. What counts is which rule
// translated them.
type rangeNS struct {
	*lab.NetNS
	family model.Family
}

var (
	rangeVIP       = [...]string{"172.20.0.1/32", "fd20:96::1/128"}
	rangeEndpoints = [...]string{"10.128.0.0/16", "fd10::/64"}
	rangeClients   = [...]string{"10.9.0.0/16", "fd99::/64"}
)

func newRange(t *testing.T, f model.Family) *rangeNS {
	t.Helper()
	ns := newNS(t)
	require.NoError(t, ns.Sysctl("net/ipv6/ip_nonlocal_bind", "1"))
	flag := map[model.Family]string{model.IPv4: "-4", model.IPv6: "-6"}[f]
	for _, args := range [][]string{{"local", rangeClients[f]}, {rangeVIP[f]}, {rangeEndpoints[f]}} {
		_, err := command(ns.FD(), "", "ip", append(append([]string{flag, "route", "add"}, args...), "dev", "lo")...)
		require.NoError(t, err)
	}
	return &rangeNS{ns, f}
}

// shoot sends a datagram from each source to the service, each as the first of a connection.
func (r *rangeNS) shoot(t *testing.T, sources []netip.AddrPort) {
	t.Helper()
	to := netip.AddrPortFrom(netip.MustParsePrefix(rangeVIP[r.family]).Addr(), 80)
	require.NoError(t, r.Do(func() error {
		for _, from := range sources {
			if err := shootOnce(from, to); err != nil {
				return fmt.Errorf("%s: %w", from, err)
			}
		}
		return nil
	}))
}

func shootOnce(from, to netip.AddrPort) error {
	domain := unix.AF_INET
	if to.Addr().Is6() {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, sockaddr(from)); err != nil {
		return err
	}
	return unix.Sendto(fd, []byte("x"), 0, sockaddr(to))
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// hits returns how many connections each endpoint got, by the counters of the rules that translated them.
func (r *rangeNS) hits(t *testing.T, v Variant) map[netip.AddrPort]int {
	t.Helper()
	out := map[netip.AddrPort]int{}
	counts, err := passed.Count(within(t), r.NetNS, program(r.family, v, "-save"))
	require.NoError(t, err)
	for _, rule := range counts.Of("nat") {
		if _, to, ok := strings.Cut(rule.Text, "--to-destination "); ok && rule.Packets > 0 {
			out[netip.MustParseAddrPort(to)] += rule.Packets
		}
	}
	return out
}

// program makes a UDP service of the endpoints the only one.
func (r *rangeNS) program(t *testing.T, p *Programmer, svc model.Service, weights ...uint16) []model.Endpoint {
	t.Helper()
	svc.Protocol = model.UDP
	svc.Frontends = []model.Frontend{{Addr: netip.AddrPortFrom(netip.MustParsePrefix(rangeVIP[r.family]).Addr(), 80)}}
	eps := endpointsOf(r.family, weights...)
	res, err := p.Sync(within(t), model.State{Services: model.ServiceMap{"svc": svc}, Endpoints: model.EndpointMap{"svc": eps}})
	require.NoError(t, err)
	require.NoError(t, res.Err())
	return eps
}

// client returns the n-th source: all of one address, or all of different ones.
func (r *rangeNS) client(n int, one bool) netip.AddrPort {
	raw := netip.MustParsePrefix(rangeClients[r.family]).Addr().AsSlice()
	if one {
		raw[len(raw)-1] = 1
		a, _ := netip.AddrFromSlice(raw)
		return netip.AddrPortFrom(a, uint16(2000+n))
	}
	raw[len(raw)-2], raw[len(raw)-1] = byte(1+n>>8), byte(n)
	a, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(a, 5000)
}

// The kernel chooses as evenly as it was told: chi squared, at a chance of one in a million to fail by chance.
func TestRandomInTheKernel(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		for _, f := range model.Families {
			for _, n := range []int{2, 3, 16, 17, 319, 1000} {
				if f == model.IPv6 && n != 17 {
					continue // the same rules but for the addresses
				}
				t.Run(fmt.Sprintf("%s/%d", f, n), func(t *testing.T) {
					r := newRange(t, f)
					p := open(t, Config{NetNS: r.FD(), Variant: v})
					eps := r.program(t, p, model.Service{}, equal(n)...)
					connections := max(2000, 20*n)
					sources := make([]netip.AddrPort, connections)
					for i := range sources {
						sources[i] = r.client(i, true)
					}
					r.shoot(t, sources)
					got := r.hits(t, v)
					want := float64(connections) / float64(n)
					chi, sum := 0.0, 0
					for _, e := range eps {
						d := float64(got[e.Addr]) - want
						chi += d * d / want
						sum += got[e.Addr]
					}
					require.Equal(t, connections, sum, "connections translated")
					free := float64(n - 1)
					require.Less(t, chi, free+4.8*math.Sqrt(2*free)+15, "chi squared with %v degrees of freedom", free)
				})
			}
		}
	})
}

// Turns are taken one after the other, over chains and all.
func TestRoundRobinInTheKernel(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		for _, weights := range [][]uint16{equal(3), equal(40), {1, 2, 3}} {
			r := newRange(t, model.IPv4)
			p := open(t, Config{NetNS: r.FD(), Variant: v})
			eps := r.program(t, p, model.Service{Balance: model.RoundRobin}, weights...)
			round := 0
			for _, w := range weights {
				round += int(w)
			}
			sources := make([]netip.AddrPort, 3*round)
			for i := range sources {
				sources[i] = r.client(i, true)
			}
			r.shoot(t, sources)
			got := r.hits(t, v)
			for i, e := range eps {
				require.Equal(t, 3*int(weights[i]), got[e.Addr], "%v: endpoint %d", weights, i)
			}
		}
	})
}

// The kernel runs the programs as the tests do: each client goes where the machine says.
func TestHashesInTheKernel(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		for _, f := range model.Families {
			for _, svc := range []model.Service{{Balance: model.SourceHash}, {Balance: model.Maglev}, {Balance: model.SourceHash, HashPort: true}, {Balance: model.Maglev, HashPort: true}} {
				t.Run(fmt.Sprintf("%s/%s/port %v", f, svc.Balance, svc.HashPort), func(t *testing.T) {
					r := newRange(t, f)
					p := open(t, Config{NetNS: r.FD(), Variant: v})
					r.program(t, p, svc, 1, 2, 1, 3)
					_, rs := rulesetOf(p.sides[f].now.env, p.resolver.Forms())
					m := newMachine(t, f)
					m.load(p.sides[f].now.env, rs)
					want := map[netip.AddrPort]int{}
					sources := make([]netip.AddrPort, 300)
					vip := netip.MustParsePrefix(rangeVIP[f]).Addr()
					for i := range sources {
						sources[i] = r.client(i, svc.HashPort)
						for a := range sharesOf(t, m, packet{src: sources[i].Addr(), sport: sources[i].Port(), dst: vip, dport: 80, proto: model.UDP}) {
							want[a]++
						}
					}
					require.Len(t, want, 4)
					r.shoot(t, sources)
					require.Equal(t, want, r.hits(t, v))
				})
			}
		}
	})
}

// nf_tables follows at most 15 jumps and gotos. The longest way through the rules that there can be is as long as that.
func TestLongestWayIsAccepted(t *testing.T) {
	s := model.State{Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}, Node: model.Node{KeepClientAddress: true, Primary: []netip.Addr{netip.MustParseAddr("fd00::1")}}}
	l := layout{family: model.IPv6, addr: "-d ", ports: true}
	deep := model.Service{Affinity: model.MaxAffinity}
	for digit := range 60 {
		for i := range 8 {
			key := make([]byte, l.addrDigits())
			key[0] = 1 // 4000::/2
			key[1+digit], key[2+digit], key[3+digit] = 1, byte(i)&3, byte(i)>>2
			front := model.Frontend{Kind: model.FrontendKind(i % 2), Addr: netip.AddrPortFrom(l.prefix(string(key)).Addr(), 80)}
			for j := range 100 {
				front.SourceRanges = append(front.SourceRanges, netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 2: byte(2 * j)}), 24))
			}
			deep.Frontends = append(deep.Frontends, front)
		}
	}
	s.Services["deep"] = deep
	s.Endpoints["deep"] = endpointsOf(model.IPv6, equal(2000)...)
	for i := range s.Endpoints["deep"] {
		s.Endpoints["deep"][i].Local = i%7 == 0
	}
	_, forms := resolved(t, s)
	e := testEnv(model.IPv6, s.Node)
	_, rs := rulesetOf(e, forms)
	m := newMachine(t, model.IPv6)
	m.load(e, rs)
	require.Equal(t, 15, m.longestWay(nat), "this is the longest way that there can be")
	require.LessOrEqual(t, m.longestWay(filter), 15)
	ns := newNS(t)
	p := open(t, Config{NetNS: ns.FD(), Variant: NFT, RejectOtherPorts: true})
	res, err := p.Sync(within(t), s)
	require.NoError(t, err)
	require.NoError(t, res.Err())
}

// longestWay returns how many jumps and gotos follow each other at most.
func (m *machine) longestWay(t table) int {
	known := map[string]int{}
	var from func(chain string) int
	from = func(chain string) int {
		if n, ok := known[chain]; ok {
			return n
		}
		n := 0
		for _, r := range m.tables[t][chain] {
			if to := target(r.text); m.tables[t][to] != nil {
				n = max(n, 1+from(to))
			}
		}
		known[chain] = n
		return n
	}
	longest := 0
	for _, j := range m.jumps {
		if j.table == t {
			longest = max(longest, 1+from(target(j.text)))
		}
	}
	return longest
}
