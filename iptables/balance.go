package iptables

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/model"
)

// A balancer writes the chains that spread connections over the endpoints of one service.
type balancer struct {
	env     *env
	service *model.Resolved
	kind    byte // of the chains below the first

	// keptTarget, if set, returns the rest of the rule that sends a connection to an endpoint in another way than to
	// translate its destination at once; empty for that way.
	keptTarget func(*model.Endpoint) string
	// chains are those that were written.
	chains []chain
}

// fill appends to a chain the rules that send each connection that comes through to one of the endpoints.
func (b *balancer) fill(c *chain, eps []model.Endpoint) {
	if len(eps) <= leafSize {
		rules := len(eps)
		if b.service.Service.Affinity > 0 {
			rules *= 2
		}
		c.rules = slices.Grow(c.rules, rules)
	}
	b.remembered(c, eps)
	if len(eps) == 1 {
		b.add(c, "", &eps[0])
		return
	}
	switch b.service.Service.Balance {
	case model.RoundRobin:
		b.turns(c, 0, "", slotsOf(eps, maxTurns))
	case model.SourceHash:
		b.hash(c, eps)
	case model.Maglev:
		b.maglev(c, eps)
	default:
		b.chance(c, 0, "", inHashOrder(eps))
	}
}

// remembered appends the rules that send a client back to the endpoint that it had before.
func (b *balancer) remembered(c *chain, eps []model.Endpoint) {
	if b.service.Service.Affinity == 0 {
		return
	}
	seconds := affinitySeconds(b.service.Service.Affinity)
	for i := range eps {
		b.rule(c, matchRecent(b.env.family, b.list(&eps[i]), seconds), "", &eps[i])
	}
}

// list names the list of clients of an endpoint.
func (b *balancer) list(e *model.Endpoint) string {
	return b.env.names.recent(b.service.Name, b.service.Service.Protocol.String()+" "+e.Addr.String(), b.service.Service.Affinity.String())
}

// affinitySeconds writes a timeout for xt_recent, which counts in whole seconds and multiplies them with the kernel's
// tick rate in 32 bits; empty for those that are too long for that and are never forgotten for their age.
func affinitySeconds(d time.Duration) string {
	const longest = math.MaxUint32 / 1000 // seconds, with the fastest tick that a kernel may be built with
	s := (d + time.Second - 1) / time.Second
	if s > longest {
		return ""
	}
	return strconv.FormatInt(int64(s), 10)
}

// add appends the rule that sends what matches to an endpoint.
func (b *balancer) add(c *chain, match string, e *model.Endpoint) {
	remember := ""
	if b.service.Service.Affinity > 0 {
		remember = matchRemember(b.env.family, b.list(e))
	}
	b.rule(c, match, remember, e)
}

// rule appends a rule to the chain. Most rules are such, so it is written in one piece.
func (b *balancer) rule(c *chain, match, remember string, e *model.Endpoint) {
	var buf [256]byte
	text := append(buf[:0], matchProto(b.service.Service.Protocol)...)
	for _, part := range [...]string{match, remember} {
		if part != "" {
			text = append(append(text, ' '), part...)
		}
	}
	text = append(text, ' ')
	kept := ""
	if b.keptTarget != nil {
		kept = b.keptTarget(e)
	}
	if kept != "" {
		text = append(text, kept...)
	} else {
		text = appendTarget(text, e.Addr)
	}
	c.rules = append(c.rules, rule{text: string(text), owner: b.service.Name})
}

// sub returns a chain below the first one, told apart by path, for its rules to be appended.
func (b *balancer) sub(path string) *chain {
	return &chain{table: nat, name: b.env.names.hashed(b.kind, b.env.family.String(), string(b.service.Name), path)}
}

func (b *balancer) done(c *chain) { b.chains = append(b.chains, *c) }

// A hashed endpoint has its place in a tree by a hash of its address and port, so that it stays there when others come
// and go.
type hashed struct {
	*model.Endpoint
	hash string // digits
}

func inHashOrder(eps []model.Endpoint) []hashed {
	const length = 64 / digitBits
	out := make([]hashed, len(eps))
	var text [64]byte
	var digits strings.Builder // of all, in one piece, of which each has its share
	digits.Grow(len(eps) * length)
	for i := range eps {
		sum := fnv64(eps[i].Addr.AppendTo(text[:0]))
		for d := range length {
			digits.WriteByte(byte(sum>>(64-digitBits*(d+1))) & (fanOut - 1))
		}
	}
	for i := range eps {
		out[i] = hashed{&eps[i], digits.String()[i*length : (i+1)*length]}
	}
	slices.SortFunc(out, func(a, b hashed) int {
		if c := strings.Compare(a.hash, b.hash); c != 0 {
			return c
		}
		return a.Addr.Compare(b.Addr)
	})
	return out
}

// chance spreads at random, in proportion to the weights: a rule for each endpoint, matching with the share that it has
// of what the rules before it left. Many are split by their hashes, so that a change rewrites the chains on one path.
func (b *balancer) chance(c *chain, level int, path string, eps []hashed) {
	left := uint64(0)
	for _, e := range eps {
		left += uint64(e.Weight)
	}
	if len(eps) <= leafSize || level == balanceLevels {
		for _, e := range eps {
			b.add(c, b.env.chance(uint64(e.Weight), left), e.Endpoint)
			left -= uint64(e.Weight)
		}
		return
	}
	digits := 1
	if ways(len(eps)) > fanOut {
		digits = 2
	}
	for len(eps) > 0 {
		below := eps[0].hash[:len(path)+digits]
		end, weight := 0, uint64(0)
		for end < len(eps) && strings.HasPrefix(eps[end].hash, below) {
			weight += uint64(eps[end].Weight)
			end++
		}
		match := b.env.chance(weight, left)
		if end == 1 {
			b.add(c, match, eps[0].Endpoint)
		} else {
			sub := b.sub(below)
			b.chance(sub, level+1, below, eps[:end])
			b.done(sub)
			c.add(b.service.Name, match, goTo(sub.name))
		}
		left -= weight
		eps = eps[end:]
	}
}

// ways is into how many chains n endpoints are split, which do not fit into one: fanOut or its square.
func ways(n int) int {
	if n <= fanOut*leafSize {
		return fanOut
	}
	return fanOut * fanOut
}

// turns spreads in turn: the first rule takes every nth connection, the second every (n-1)th of the others, and so on.
// Of many, as many as the number of chains does not divide have rules here, and each chain takes an equal share of
// the rest; so in n connections each slot has its turn once.
func (b *balancer) turns(c *chain, level int, path string, slots []*model.Endpoint) {
	if len(slots) <= leafSize || level == balanceLevels {
		for i, e := range slots {
			b.add(c, matchTurn(len(slots)-i), e)
		}
		return
	}
	n := ways(len(slots))
	for len(slots)%n != 0 {
		b.add(c, matchTurn(len(slots)), slots[0])
		slots = slots[1:]
	}
	for i := range n {
		// Neighbours go to different chains, which are visited in turn.
		var mine []*model.Endpoint
		for j := i; j < len(slots); j += n {
			mine = append(mine, slots[j])
		}
		if len(mine) == 1 {
			b.add(c, matchTurn(n-i), mine[0])
			continue
		}
		below := path + strconv.Itoa(i) + "."
		sub := b.sub(below)
		b.turns(sub, level+1, below, mine)
		b.done(sub)
		c.add(b.service.Name, matchTurn(n-i), goTo(sub.name))
	}
}

// maxTurns is how many turns a round has at most, or as many as there are endpoints.
const maxTurns = 1000

// slotsOf gives each endpoint slots in proportion to its weight, at least one each, spread evenly over the round. Weights
// are divided by their common divisor, and rounded where the round would be longer than limit.
func slotsOf(eps []model.Endpoint, limit int) []*model.Endpoint {
	counts, total := shares(eps, limit)
	slots := make([]*model.Endpoint, 0, total)
	if total == len(eps) {
		for i := range eps {
			slots = append(slots, &eps[i])
		}
		return slots
	}
	credit := make([]int, len(eps))
	for range total {
		best := 0
		for i := range eps {
			credit[i] += counts[i]
			if credit[i] > credit[best] {
				best = i
			}
		}
		credit[best] -= total
		slots = append(slots, &eps[best])
	}
	return slots
}

// shares reduces weights to small numbers: divided by their common divisor and, where their sum would exceed the limit,
// scaled down and rounded, at least to one.
func shares(eps []model.Endpoint, limit int) (counts []int, total int) {
	divisor := 0
	for i := range eps {
		divisor = gcd(int(eps[i].Weight), divisor)
	}
	sum := 0
	for i := range eps {
		sum += int(eps[i].Weight) / divisor
	}
	counts = make([]int, len(eps))
	for i := range eps {
		counts[i] = int(eps[i].Weight) / divisor
		if sum > limit {
			counts[i] = max(1, counts[i]*limit/sum)
		}
		total += counts[i]
	}
	return counts, total
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// fnv64 is the hash FNV-1a, finished so that its first bits depend on the whole text.
func fnv64[T string | []byte](s T) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// checkBalance says why a service that the FeatureSet allows cannot be balanced all the same.
func checkBalance(s model.Service, eps []model.Endpoint) error {
	if s.Balance != model.Maglev {
		return nil
	}
	for _, f := range model.Families {
		var own []model.Endpoint
		for _, e := range eps {
			if e.Addr.IsValid() && model.FamilyOf(e.Addr.Addr().Unmap()) == f && e.State != model.NotReady {
				e.Weight = max(e.Weight, 1)
				own = append(own, e)
			}
		}
		if _, total := shares(own, math.MaxInt32); total*slotsPerShare > maxSlots {
			return fmt.Errorf("maglev over endpoints of a reduced total weight of %d, more than %d: %w", total, maxSlots/slotsPerShare, model.ErrNotSupported)
		}
	}
	return nil
}
