package nft

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

func endpointsOf(weights ...uint16) []model.Endpoint {
	var eps []model.Endpoint
	for i, w := range weights {
		eps = append(eps, model.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80), Weight: w})
	}
	return eps
}

func count(l Layout) map[netip.AddrPort]int {
	n := map[netip.AddrPort]int{}
	for _, s := range l.taken() {
		n[s]++
	}
	return n
}

func TestSpreadByWeight(t *testing.T) {
	for _, tc := range []struct {
		weights []uint16
		want    []int
	}{
		{[]uint16{1}, []int{1}},
		{[]uint16{7, 7, 7}, []int{1, 1, 1}},
		{[]uint16{10, 20, 30}, []int{1, 2, 3}},
		{[]uint16{1, 65535}, []int{1, 1000}},
		{[]uint16{3, 5}, []int{3, 5}},
	} {
		eps := endpointsOf(tc.weights...)
		n := count(spread(nil, eps))
		for i, e := range eps {
			require.Equal(t, tc.want[i], n[e.Addr], "weights %v", tc.weights)
		}
	}
}

func TestSlotsFor(t *testing.T) {
	for n, want := range map[int]int{1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 7: 8, 9: 12, 13: 16, 17: 24, 100: 128, 1000: 1024, 1025: 1536} {
		require.Equal(t, want, slotsFor(n), "%d shares", n)
	}
}

// Whatever the endpoints become, each has its share of the slots, slot 0 is taken, and few slots are empty; the same
// endpoints move nothing, and none stands in two lists' way.
func TestSpreadProperties(t *testing.T) {
	for name, f := range map[string]func(Layout, []model.Endpoint) Layout{"by chance": spread, "in turn": inTurn} {
		t.Run(name, func(t *testing.T) {
			chance := rand.New(rand.NewPCG(1, 2))
			all := endpointsOf(make([]uint16, 40)...)
			var old Layout
			for range 2000 {
				eps := slices.Clone(all)
				chance.Shuffle(len(eps), func(i, j int) { eps[i], eps[j] = eps[j], eps[i] })
				eps = eps[:1+chance.IntN(20)]
				slices.SortFunc(eps, func(a, b model.Endpoint) int { return a.Addr.Compare(b.Addr) })
				for i := range eps {
					eps[i].Weight = uint16(1 + chance.IntN(3))
				}
				next := f(old, eps)
				shares, total := shares(eps)
				want := map[netip.AddrPort]int{}
				for i, e := range eps {
					want[e.Addr] = shares[i]
				}
				require.Equal(t, want, count(next))
				require.True(t, next[0].IsValid())
				if name == "in turn" {
					require.Len(t, next, total)
				}
				require.GreaterOrEqual(t, total*8, len(next)*5, "%d of %d slots are taken", total, len(next))
				require.Equal(t, next, f(next, eps), "the same endpoints move nothing")
				old = next
			}
		})
	}
}

// One endpoint more is one slot more, one less at most one more that moves into slot 0; the others stay.
func TestSpreadMovesOne(t *testing.T) {
	eps := endpointsOf(slices.Repeat([]uint16{1}, 100)...)
	full := spread(nil, eps)
	changed := func(a, b Layout) (n int) {
		require.Len(t, b, len(a))
		for i := range a {
			if a[i] != b[i] {
				n++
			}
		}
		return n
	}
	for i := range eps {
		fewer := spread(full, slices.Delete(slices.Clone(eps), i, i+1))
		require.LessOrEqual(t, changed(full, fewer), 2, "without endpoint %d", i)
		require.LessOrEqual(t, changed(fewer, spread(fewer, eps)), 1, "endpoint %d again", i)
	}
}

func TestHashedShares(t *testing.T) {
	for _, weights := range [][]uint16{{1}, {1, 1, 1}, {1, 2, 3}, slices.Repeat([]uint16{1}, 100), {100, 1}} {
		t.Run(fmt.Sprint(len(weights), " endpoints"), func(t *testing.T) {
			eps := endpointsOf(weights...)
			l, err := hashed(eps)
			require.NoError(t, err)
			sum := 0
			for _, w := range weights {
				sum += int(w)
			}
			n := count(l)
			for i, e := range eps {
				share := float64(len(l)) * float64(weights[i]) / float64(sum)
				require.InDelta(t, share, n[e.Addr], math.Max(2, share/10), "endpoint %d", i)
			}
		})
	}
}

// When one of a hundred endpoints goes, few slots of the others change hands.
func TestHashedDisruption(t *testing.T) {
	eps := endpointsOf(slices.Repeat([]uint16{1}, 100)...)
	before, err := hashed(eps)
	require.NoError(t, err)
	after, err := hashed(slices.Delete(slices.Clone(eps), 50, 51))
	require.NoError(t, err)
	moved := 0
	for i, s := range before {
		if s != eps[50].Addr && after[i] != s {
			moved++
		}
	}
	require.Less(t, moved, len(before)/20)
}

func TestHashedTooHeavy(t *testing.T) {
	_, err := hashed(endpointsOf(65535, 2))
	require.ErrorIs(t, err, model.ErrNotSupported)
	_, err = hashed(endpointsOf(slices.Repeat([]uint16{1}, 3276)...))
	require.NoError(t, err)
}

// The table is part of what nodes of different versions must agree on: it may not change.
func TestHashedIsFixed(t *testing.T) {
	l, err := hashed(endpointsOf(1, 1, 1))
	require.NoError(t, err)
	var first []byte
	for _, s := range l[:24] {
		first = append(first, '0'+s.Addr().As4()[3])
	}
	require.Equal(t, "210020022220020022111111", string(first))
}

// The slots of a list of the whole cluster must not reach into those of the endpoints on the node.
func TestListsStayApart(t *testing.T) {
	res := &model.Resolved{}
	res.Selections[model.IPv4].Cluster = make([]model.Endpoint, localOffset+1)
	for i := range res.Selections[model.IPv4].Cluster {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		res.Selections[model.IPv4].Cluster[i] = model.Endpoint{Addr: netip.AddrPortFrom(a, 80), Weight: 1}
	}
	_, err := Lay(res, model.IPv4, [2]bool{true, true}, Layouts{})
	require.NoError(t, err)
	res.Selections[model.IPv4].Local = res.Selections[model.IPv4].Cluster[:1]
	_, err = Lay(res, model.IPv4, [2]bool{true, true}, Layouts{})
	require.ErrorIs(t, err, model.ErrNotSupported)
}
