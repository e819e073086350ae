package iptables

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

const vip4, vip6 = "172.20.0.1:80", "[fd20:96::1]:80"

// balanced returns a machine for one service at vip4 and vip6 with n endpoints of both families.
func balanced(tb testing.TB, f model.Family, svc model.Service, weights ...uint16) (*machine, []netip.AddrPort) {
	tb.Helper()
	svc.Frontends = []model.Frontend{{Addr: netip.MustParseAddrPort(vip4)}, {Addr: netip.MustParseAddrPort(vip6)}}
	s := model.State{Services: model.ServiceMap{"svc": svc}, Endpoints: model.EndpointMap{"svc": endpointsOf(f, weights...)}}
	_, forms := resolved(tb, s)
	m := newMachine(tb, f)
	e := testEnv(f, s.Node)
	_, rs := rulesetOf(e, forms)
	m.load(e, rs)
	var addrs []netip.AddrPort
	for _, e := range s.Endpoints["svc"] {
		addrs = append(addrs, e.Addr)
	}
	return m, addrs
}

func endpointsOf(f model.Family, weights ...uint16) []model.Endpoint {
	var eps []model.Endpoint
	for i, w := range weights {
		a := netip.AddrFrom4([4]byte{10, 128, byte(i >> 8), byte(i)})
		if f == model.IPv6 {
			a = netip.AddrFrom16([16]byte{0xfd, 0x10, 14: byte(i >> 8), 15: byte(i)})
		}
		eps = append(eps, model.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Weight: w})
	}
	return eps
}

func equal(n int) []uint16 {
	w := make([]uint16, n)
	for i := range w {
		w[i] = 1
	}
	return w
}

// client returns the first packet of a connection to the service from some client.
func client(f model.Family, i int) packet {
	p := packet{in: "veth1", sport: uint16(1024 + i*7%60_000)}
	to := netip.MustParseAddrPort(vip4)
	p.src = netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})
	if f == model.IPv6 {
		to = netip.MustParseAddrPort(vip6)
		p.src = netip.AddrFrom16([16]byte{0xfd, 0x99, 14: byte(i >> 8), 15: byte(i)})
	}
	p.dst, p.dport = to.Addr(), to.Port()
	return p
}

// shares returns how likely each endpoint is to get a connection.
func sharesOf(t *testing.T, m *machine, p packet) map[netip.AddrPort]float64 {
	t.Helper()
	out := map[netip.AddrPort]float64{}
	for f, likely := range m.send(p) {
		require.Equal(t, "dnat", f.verdict)
		out[f.to] += likely
	}
	return out
}

// The chances that the rules give, multiplied out along the way, are those that the weights ask for. A statistic
// over a million connections could not tell the difference.
func TestRandomIsExact(t *testing.T) {
	for _, f := range model.Families {
		for _, n := range []int{1, 2, 3, 16, 17, 100, 319, 1000, 3000} {
			t.Run(fmt.Sprintf("%s/%d", f, n), func(t *testing.T) {
				m, addrs := balanced(t, f, model.Service{}, equal(n)...)
				shares := sharesOf(t, m, client(f, 1))
				require.Len(t, shares, n)
				chi := 0.0
				const connections = 1e6
				for _, a := range addrs {
					want := connections / float64(n)
					chi += (shares[a]*connections - want) * (shares[a]*connections - want) / want
				}
				require.Less(t, chi, 0.01, "chi squared of the expectation itself")
			})
		}
	}
}

func TestRandomFollowsWeights(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, n := range []int{2, 5, 16, 40, 500} {
		weights := make([]uint16, n)
		total := 0.0
		for i := range weights {
			weights[i] = uint16(1 + r.IntN(1000))
			total += float64(weights[i])
		}
		m, addrs := balanced(t, model.IPv4, model.Service{}, weights...)
		shares := sharesOf(t, m, client(model.IPv4, 1))
		for i, a := range addrs {
			require.InEpsilon(t, float64(weights[i])/total, shares[a], 1e-5)
		}
	}
	m, addrs := balanced(t, model.IPv4, model.Service{}, 1, math.MaxUint16, math.MaxUint16)
	require.Positive(t, sharesOf(t, m, client(model.IPv4, 1))[addrs[0]], "the lightest gets something")
}

// In every round each endpoint has as many turns as its weight says, and no neighbours are far apart.
func TestRoundRobinTakesTurns(t *testing.T) {
	for _, weights := range [][]uint16{{1, 1}, {1, 1, 1}, equal(16), equal(17), equal(319), equal(1000), {1, 2, 3}, {10, 10, 30}, {5, 1}, append(equal(20), 7, 9)} {
		m, addrs := balanced(t, model.IPv4, model.Service{Balance: model.RoundRobin}, weights...)
		divisor, round := 0, 0
		for _, w := range weights {
			divisor = gcd(int(w), divisor)
		}
		for _, w := range weights {
			round += int(w) / divisor
		}
		for range 3 {
			got := map[netip.AddrPort]int{}
			for range round {
				for a := range sharesOf(t, m, client(model.IPv4, 1)) {
					got[a]++
				}
			}
			for i, a := range addrs {
				require.Equal(t, int(weights[i])/divisor, got[a], "turns of endpoint %d of %v", i, weights)
			}
		}
	}
}

func TestRoundRobinRoundsAreBounded(t *testing.T) {
	slots := slotsOf(endpointsOf(model.IPv4, 1, math.MaxUint16, 32_767), maxTurns)
	require.LessOrEqual(t, len(slots), maxTurns+3)
	got := map[netip.AddrPort]int{}
	for _, e := range slots {
		got[e.Addr]++
	}
	require.Len(t, got, 3)
	require.Len(t, slotsOf(endpointsOf(model.IPv4, equal(5000)...), maxTurns), 5000, "as many as there are endpoints")
}

// chooses returns the endpoint of each of many clients.
func chooses(t *testing.T, m *machine, f model.Family, clients int) []netip.AddrPort {
	t.Helper()
	out := make([]netip.AddrPort, clients)
	for i := range out {
		shares := sharesOf(t, m, client(f, i))
		require.Len(t, shares, 1, "a hash leaves nothing to chance")
		for a := range shares {
			out[i] = a
		}
	}
	return out
}

func TestHashesSpreadAndStay(t *testing.T) {
	const clients = 1200
	for _, balance := range []model.Balance{model.SourceHash, model.Maglev} {
		for _, f := range model.Families {
			for _, weights := range [][]uint16{{1, 1}, equal(40), {1, 2, 3}} {
				for _, port := range []bool{false, true} {
					svc := model.Service{Balance: balance, HashPort: port}
					m, addrs := balanced(t, f, svc, weights...)
					at := chooses(t, m, f, clients)
					require.Equal(t, at[:100], chooses(t, m, f, 100), "the same clients again")
					got := map[netip.AddrPort]float64{}
					for _, a := range at {
						got[a]++
					}
					total := 0.0
					for _, w := range weights {
						total += float64(w)
					}
					for i, a := range addrs {
						want := clients * float64(weights[i]) / total
						require.InDelta(t, want, got[a], 5*math.Sqrt(want)+0.03*want, "%s %s %v port %v: endpoint %d", balance, f, weights, port, i)
					}
				}
			}
		}
	}
}

// With HashPort the connections of one client are spread, without they are not.
func TestHashPort(t *testing.T) {
	for _, f := range model.Families {
		for _, port := range []bool{false, true} {
			m, _ := balanced(t, f, model.Service{Balance: model.SourceHash, HashPort: port}, equal(8)...)
			got := map[netip.AddrPort]bool{}
			for sport := range 100 {
				p := client(f, 5)
				p.sport = uint16(2000 + sport)
				for a := range sharesOf(t, m, p) {
					got[a] = true
				}
			}
			require.Equal(t, port, len(got) > 1)
		}
	}
}

// When an endpoint of a Maglev service goes, few clients of the others move.
func TestMaglevMovesFew(t *testing.T) {
	const clients = 1500
	svc := model.Service{Balance: model.Maglev}
	before, addrs := balanced(t, model.IPv4, svc, equal(20)...)
	was := chooses(t, before, model.IPv4, clients)
	svc.Frontends = []model.Frontend{{Addr: netip.MustParseAddrPort(vip4)}}
	s := model.State{Services: model.ServiceMap{"svc": svc}, Endpoints: model.EndpointMap{"svc": endpointsOf(model.IPv4, equal(20)...)[1:]}}
	_, forms := resolved(t, s)
	after := newMachine(t, model.IPv4)
	e := testEnv(model.IPv4, s.Node)
	_, rs := rulesetOf(e, forms)
	after.load(e, rs)
	moved := 0
	for i, a := range chooses(t, after, model.IPv4, clients) {
		if was[i] != addrs[0] && a != was[i] {
			moved++
		}
	}
	require.Less(t, moved, clients/20, "clients whose endpoint stayed and who moved all the same")
}

func TestMaglevHasLimits(t *testing.T) {
	fits := model.Service{Balance: model.Maglev}
	require.NoError(t, checkBalance(fits, endpointsOf(model.IPv4, equal(maxSlots/slotsPerShare)...)))
	require.ErrorIs(t, checkBalance(fits, endpointsOf(model.IPv4, equal(maxSlots/slotsPerShare+1)...)), model.ErrNotSupported)
	require.ErrorIs(t, checkBalance(fits, endpointsOf(model.IPv6, 1, 65_535)), model.ErrNotSupported)
	require.NoError(t, checkBalance(fits, endpointsOf(model.IPv6, 30_000, 60_000)))
	require.NoError(t, checkBalance(model.Service{}, endpointsOf(model.IPv4, 1, 65_535)))
}

// The program in the rules computes what its description says.
func TestSourceHashProgram(t *testing.T) {
	for _, f := range model.Families {
		for _, port := range []bool{false, true} {
			h := sourceHash{family: f, seed: 12345, port: port}
			for i := range 200 {
				p := client(f, i*37)
				want := hashByHand(h, p)
				for _, bound := range []uint64{uint64(want), uint64(want) + 1} {
					matched := bound == 1<<32 || runProgram(t, programOf(t, h.below(bound)), header(&p))
					require.Equal(t, uint64(want) < bound, matched)
				}
				slot := want >> (32 - 10) & 31
				require.True(t, runProgram(t, programOf(t, h.slotIn(10, 1<<slot)), header(&p)))
				require.False(t, runProgram(t, programOf(t, h.slotIn(10, ^uint32(1<<slot))), header(&p)))
			}
		}
	}
}

// programOf returns the program of a match.
func programOf(t *testing.T, match string) []instruction {
	t.Helper()
	return parseProgram(t, splitWords(match)[3])
}

func hashByHand(h sourceHash, p packet) uint32 {
	var words []uint32
	if h.port {
		words = append(words, uint32(p.sport))
	}
	for raw := p.src.AsSlice(); len(raw) > 0; raw = raw[4:] {
		words = append(words, uint32(raw[0])<<24|uint32(raw[1])<<16|uint32(raw[2])<<8|uint32(raw[3]))
	}
	v := h.seed
	for _, w := range words {
		v = (v ^ w) * 0x9e3779b1
		v ^= v >> 15
	}
	v ^= v >> 16
	v *= 0x85ebca6b
	v ^= v >> 13
	v *= 0xc2b2ae35
	return v ^ v>>16
}

func TestSourceIsDestination(t *testing.T) {
	for _, f := range model.Families {
		p := client(f, 1)
		same := p
		same.dst = same.src
		program := programOf(t, sourceIsDestination(f))
		require.False(t, runProgram(t, program, header(&p)))
		require.True(t, runProgram(t, program, header(&same)))
		for bit := range f.Bits() {
			raw := same.src.AsSlice()
			raw[bit/8] ^= 1 << (bit % 8)
			other := same
			other.dst, _ = netip.AddrFromSlice(raw)
			require.False(t, runProgram(t, program, header(&other)), "they differ in bit %d", bit)
		}
	}
}

func TestMaglevTableIsFull(t *testing.T) {
	for _, weights := range [][]uint16{{1}, {1, 1, 1}, {3, 1}, equal(100)} {
		eps := endpointsOf(model.IPv4, weights...)
		counts, total := shares(eps, math.MaxInt32)
		size := max(minBits, bits.Len(uint(total*slotsPerShare)))
		got := map[uint16]int{}
		for _, e := range maglevTable(eps, counts, size) {
			got[e]++
		}
		require.Len(t, got, len(eps))
		for i, c := range counts {
			require.InDelta(t, float64(c)/float64(total), float64(got[uint16(i)])/float64(int(1)<<size), 1/float64(total*slotsPerShare)*float64(c)+0.001)
		}
	}
}

func TestAffinitySeconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Second: "1", 1500 * time.Millisecond: "2", 3 * time.Hour: "10800", 49 * 24 * time.Hour: "4233600",
		50 * 24 * time.Hour: "", model.MaxAffinity: "",
	} {
		require.Equal(t, want, affinitySeconds(d), "%v", d)
	}
}

// Whoever was remembered goes back, whatever chance would say; whoever was not is remembered.
func TestAffinityRules(t *testing.T) {
	for _, balance := range []model.Balance{model.RoundRobin, model.SourceHash, model.Maglev} {
		m, _ := balanced(t, model.IPv4, model.Service{Balance: balance, Affinity: time.Hour}, equal(40)...)
		at := map[int]netip.AddrPort{}
		for round := range 3 {
			for i := range 60 {
				for a := range sharesOf(t, m, client(model.IPv4, i)) {
					if round > 0 {
						require.Equal(t, at[i], a)
					}
					at[i] = a
				}
			}
		}
		require.Greater(t, len(m.lists), 20)
	}
}
