package nft

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/headgate/headgate/model"
)

// A Layout is how the endpoints of one list of a service stand in its slots, numbered from 0. The kernel draws a number
// below their count. A slot may be empty, and whoever draws it draws again: so endpoints come and go without the count
// changing, at the cost of one element. Slot 0 is never empty, for it takes whoever has drawn in vain too often.
type Layout []netip.AddrPort

// draws is how often at most a slot is drawn. Five eighths of the slots are taken at least, so that fewer than one
// connection in 100,000 ends up with slot 0 for having drawn in vain.
const draws = 12

// maxSlots is how many slots weights may take in one list, unless there are more endpoints than that.
const maxSlots = 1000

// slotsFor returns how many slots there are for n shares: a power of two or half as many again, so that few counts, and
// so few chains, are in use.
func slotsFor(n int) int {
	size := 1
	for size < n {
		if half := size + size/2; half >= n && half > size {
			return half
		}
		size *= 2
	}
	return size
}

// spread returns the layout for a list of endpoints that are drawn by chance, changing as few slots of the old one as
// can be.
func spread(old Layout, eps []model.Endpoint) Layout {
	if len(old) == 0 && equalWeights(eps) {
		next := make(Layout, slotsFor(len(eps)))
		for i := range eps {
			next[i] = eps[i].Addr
		}
		return next
	}
	want, total := shares(eps)
	size := len(old)
	if total > size || total*8 < size*5 {
		size = slotsFor(total)
	}
	return old.filled(make(Layout, size), want, eps)
}

// inTurn returns the layout for a list of endpoints that are taken in turn: without empty slots.
func inTurn(old Layout, eps []model.Endpoint) Layout {
	want, total := shares(eps)
	return old.filled(make(Layout, total), want, eps)
}

// filled fills a layout with as many slots of each endpoint as wanted: those that it has, as far as they go, then the
// lowest empty ones. It uses up want, which goes with the endpoints; those are sorted.
func (l Layout) filled(next Layout, want []int, eps []model.Endpoint) Layout {
	byAddr := func(e model.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) }
	for i := range min(len(l), len(next)) {
		if j, ok := slices.BinarySearchFunc(eps, l[i], byAddr); ok && want[j] > 0 {
			next[i] = l[i]
			want[j]--
		}
	}
	hole := 0
	for j := range eps {
		for ; want[j] > 0; want[j]-- {
			for next[hole].IsValid() {
				hole++
			}
			next[hole] = eps[j].Addr
		}
	}
	if !next[0].IsValid() {
		last := len(next) - 1
		for !next[last].IsValid() {
			last--
		}
		next[0], next[last] = next[last], netip.AddrPort{}
	}
	return next
}

func equalWeights(eps []model.Endpoint) bool {
	return !slices.ContainsFunc(eps, func(e model.Endpoint) bool { return e.Weight != eps[0].Weight })
}

// at returns what is in a slot; nothing, beyond the last.
func (l Layout) at(i int) netip.AddrPort {
	if i < len(l) {
		return l[i]
	}
	return netip.AddrPort{}
}

// taken returns the slots that are not empty.
func (l Layout) taken() []netip.AddrPort {
	if !slices.ContainsFunc(l, func(s netip.AddrPort) bool { return !s.IsValid() }) {
		return l
	}
	return slices.DeleteFunc(slices.Clone(l), func(s netip.AddrPort) bool { return !s.IsValid() })
}

// shares returns how many slots each endpoint gets: its weight, divided by what all weights have in common and, beyond
// maxSlots in all, scaled down to at least one.
func shares(eps []model.Endpoint) (want []int, total int) {
	want, sum := reduced(eps)
	limit := max(maxSlots, len(eps))
	for i, n := range want {
		if sum > limit {
			want[i] = max(1, (n*limit+sum/2)/sum)
		}
		total += want[i]
	}
	return want, total
}

// rounded reports whether weights must be scaled down to have room.
func rounded(eps []model.Endpoint) bool {
	if len(eps) == 0 || equalWeights(eps) {
		return false
	}
	_, sum := reduced(eps)
	return sum > max(maxSlots, len(eps))
}

// reduced returns the weights divided by their greatest common divisor, and their sum.
func reduced(eps []model.Endpoint) (weights []int, sum int) {
	divisor := 0
	for _, e := range eps {
		divisor = gcd(divisor, int(e.Weight))
	}
	weights = make([]int, len(eps))
	for i, e := range eps {
		weights[i] = int(e.Weight) / divisor
		sum += weights[i]
	}
	return weights, sum
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// hashSizes are the numbers of slots that a hashed list may have: primes, so that every step visits every slot.
var hashSizes = [...]int{251, 1021, 4093, 16381, 65521}

// slotsPerShare is how many slots each share of weight has at least: the spread is even within some percent.
const slotsPerShare = 20

// hashed returns the layout for a list of endpoints that are picked by hash: a Maglev table, which is the same on every
// node and of which little changes when an endpoint comes or goes.
//
// The construction is the one in Eisenbud et al., Maglev: A Fast and Reliable Software Network Load Balancer (2016),
// section 3.4, with as many turns in each round as an endpoint has shares.
func hashed(eps []model.Endpoint) (Layout, error) {
	weights, sum := reduced(eps)
	size := 0
	for _, s := range hashSizes {
		if s >= sum*slotsPerShare {
			size = s
			break
		}
	}
	if size == 0 {
		return nil, fmt.Errorf("hashing over a weight of %d in all, more than %d: %w",
			sum, hashSizes[len(hashSizes)-1]/slotsPerShare, model.ErrNotSupported)
	}
	next := make(Layout, size)
	turns := make([]walk, len(eps))
	for i, e := range eps {
		turns[i] = newWalk(e.Addr, size)
	}
	for filled := 0; filled < size; {
		for i := range eps {
			for n := 0; n < weights[i] && filled < size; n++ {
				next[turns[i].free(next)] = eps[i].Addr
				filled++
			}
		}
	}
	return next, nil
}

// A walk visits every slot of a table once, in an order of its own.
type walk struct{ at, step, size int }

func newWalk(addr netip.AddrPort, size int) walk {
	b, _ := addr.MarshalBinary()
	offset, step := fnv(b, 0xcbf29ce484222325), fnv(b, 0x9e3779b97f4a7c15)
	return walk{at: int(offset % uint64(size)), step: int(step%uint64(size-1)) + 1, size: size}
}

// fnv is FNV-1a with a final mix, so that near addresses lie far apart.
func fnv(b []byte, basis uint64) uint64 {
	h := basis
	for _, c := range b {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h ^ h>>32
}

// free returns the next slot of the walk that nobody has taken.
func (w *walk) free(slots Layout) int {
	for slots[w.at].IsValid() {
		w.at = (w.at + w.step) % w.size
	}
	return w.at
}
