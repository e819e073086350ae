package nftables

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/headgate/headgate/model"
)

// A layout is how the endpoints of one list of a service stand in its slots. The kernel draws a number below active
// and takes the endpoint in that slot. Slots behind are left over from a longer list: each still holds an endpoint that
// serves, for packets that have read the old count, and goes in a later transaction.
type layout struct {
	slots  []netip.AddrPort
	active int
}

// maxSlots is how many slots weights may take in one list, unless there are more endpoints than that.
const maxSlots = 1000

// spread returns the layout for a list of endpoints that are drawn by number, changing as few slots of the old one as
// can be.
func spread(old layout, eps []model.Endpoint) layout {
	if len(old.slots) == 0 && equalWeights(eps) {
		next := layout{active: len(eps), slots: make([]netip.AddrPort, len(eps))}
		for i := range eps {
			next.slots[i] = eps[i].Addr
		}
		return next
	}
	want, total := shares(eps)
	next := layout{active: total, slots: make([]netip.AddrPort, max(total, len(old.slots)))}
	var holes []int
	for i := range next.slots {
		if i < len(old.slots) && want[old.slots[i]] > 0 && i < total {
			next.slots[i] = old.slots[i]
			want[old.slots[i]]--
		} else if i < total {
			holes = append(holes, i)
		}
	}
	for _, e := range eps {
		for ; want[e.Addr] > 0; want[e.Addr]-- {
			next.slots[holes[0]] = e.Addr
			holes = holes[1:]
		}
	}
	next.fillSurplus(old, func(a netip.AddrPort) bool { _, ok := want[a]; return ok })
	return next
}

func equalWeights(eps []model.Endpoint) bool {
	return !slices.ContainsFunc(eps, func(e model.Endpoint) bool { return e.Weight != eps[0].Weight })
}

// fillSurplus fills the slots behind the active ones: with what they hold, if that still serves.
func (l *layout) fillSurplus(old layout, serves func(netip.AddrPort) bool) {
	if l.active == 0 {
		l.slots = nil
		return
	}
	for i := l.active; i < len(l.slots); i++ {
		if serves(old.slots[i]) {
			l.slots[i] = old.slots[i]
		} else {
			l.slots[i] = l.slots[i%l.active]
		}
	}
}

// trimmed returns the layout without its surplus.
func (l layout) trimmed() layout { return layout{slots: l.slots[:l.active:l.active], active: l.active} }

// surplus reports whether there are slots to be removed later.
func (l layout) surplus() bool { return len(l.slots) > l.active }

// shares returns how many slots each endpoint gets: its weight, divided by what all weights have in common and, beyond
// maxSlots in all, scaled down to at least one.
func shares(eps []model.Endpoint) (want map[netip.AddrPort]int, total int) {
	want = make(map[netip.AddrPort]int, len(eps))
	weights, sum := reduced(eps)
	limit := max(maxSlots, len(eps))
	for i, e := range eps {
		n := weights[i]
		if sum > limit {
			n = max(1, (n*limit+sum/2)/sum)
		}
		want[e.Addr] = n
		total += n
	}
	return want, total
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
func hashed(old layout, eps []model.Endpoint) (layout, error) {
	weights, sum := reduced(eps)
	size := 0
	for _, s := range hashSizes {
		if s >= sum*slotsPerShare {
			size = s
			break
		}
	}
	if size == 0 {
		return layout{}, fmt.Errorf("hashing over a weight of %d in all, more than %d: %w",
			sum, hashSizes[len(hashSizes)-1]/slotsPerShare, model.ErrNotSupported)
	}
	next := layout{active: size, slots: make([]netip.AddrPort, max(size, len(old.slots)))}
	turns := make([]walk, len(eps))
	for i, e := range eps {
		turns[i] = newWalk(e.Addr, size)
	}
	for filled := 0; filled < size; {
		for i := range eps {
			for n := 0; n < weights[i] && filled < size; n++ {
				next.slots[turns[i].free(next.slots)] = eps[i].Addr
				filled++
			}
		}
	}
	serving := make(map[netip.AddrPort]bool, len(eps))
	for _, e := range eps {
		serving[e.Addr] = true
	}
	next.fillSurplus(old, func(a netip.AddrPort) bool { return serving[a] })
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
func (w *walk) free(slots []netip.AddrPort) int {
	for slots[w.at].IsValid() {
		w.at = (w.at + w.step) % w.size
	}
	return w.at
}
