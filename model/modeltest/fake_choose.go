package modeltest

import (
	"encoding/binary"
	"hash/fnv"
	"math"

	"github.com/headgate/headgate/model"
)

// choose returns which member of a list serves a packet: where its client is pinned, else by the way of balancing.
func (g *group) choose(q *packet, list model.TrafficPolicy) int {
	if g.affinity <= 0 {
		return g.balanceOver(q, list)
	}
	now := q.kernel.clock
	i := -1
	if p, ok := g.pins[q.From]; ok && now.Before(p.until) {
		if at, ok := g.find(list, p.addr); ok {
			i = at
		}
	}
	if i < 0 {
		i = g.balanceOver(q, list)
	}
	g.pins[q.From] = pin{g.members[list][i].addr, now.Add(g.affinity)}
	return i
}

func (g *group) balanceOver(q *packet, list model.TrafficPolicy) int {
	ms := g.members[list]
	switch g.balance {
	case model.RoundRobin:
		turn := g.turns[list] % total(ms)
		g.turns[list] = turn + 1
		return nth(ms, turn)
	case model.LeastConn:
		return g.leastBusy(ms)
	case model.SourceHash:
		return nth(ms, int(g.hash(q, nil)%uint64(total(ms))))
	case model.Maglev:
		return g.rendezvous(q, ms)
	}
	return nth(ms, q.kernel.chance.IntN(total(ms)))
}

// total is the sum of the weights.
func total(ms []member) int {
	sum := 0
	for _, m := range ms {
		sum += int(m.weight)
	}
	return sum
}

// nth returns the member whose share of 0..total-1 holds n.
func nth(ms []member, n int) int {
	for i, m := range ms {
		if n < int(m.weight) {
			return i
		}
		n -= int(m.weight)
	}
	return len(ms) - 1
}

// leastBusy returns the member with the fewest connections relative to its weight. None ever ends here.
func (g *group) leastBusy(ms []member) int {
	best := 0
	for i, m := range ms {
		if g.conns[m.addr]*int(ms[best].weight) < g.conns[ms[best].addr]*int(m.weight) {
			best = i
		}
	}
	return best
}

// hash hashes what identifies the client, and something else if given. It is the same in every Kernel.
func (g *group) hash(q *packet, with []byte) uint64 {
	h := fnv.New64a()
	a := q.From.As16()
	h.Write(a[:])
	if g.hashPort {
		var port [2]byte
		binary.BigEndian.PutUint16(port[:], q.port)
		h.Write(port[:])
	}
	h.Write(with)
	v := h.Sum64() // its low bits are not random enough by themselves
	v ^= v >> 33
	v *= 0xff51afd7ed558ccd
	v ^= v >> 33
	v *= 0xc4ceb9fe1a85ec53
	return v ^ v>>33
}

// rendezvous keeps the promise of Maglev by other means: each client ranks the members by a hash of both, weighted,
// and takes the first. A member that goes moves none but its own clients.
func (g *group) rendezvous(q *packet, ms []member) int {
	best, at := math.Inf(-1), 0
	for i, m := range ms {
		b, _ := m.addr.MarshalBinary()
		u := (float64(g.hash(q, b)>>11) + 0.5) / (1 << 53)
		if score := float64(m.weight) / -math.Log(u); score > best {
			best, at = score, i
		}
	}
	return at
}
