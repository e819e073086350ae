package iptables

import (
	"math/bits"
	"slices"
	"strconv"

	"github.com/headgate/headgate/model"
)

// The kernel has no match that hashes a source address and is of use here: what iptables-save lists of xt_cluster cannot
// be loaded again, and HMARK takes the whole packet mark. So the rules that hash carry small programs for xt_bpf.
//
// All programs of a service compute the same 32-bit hash h of the source and compare it with their bounds:
//
//	for each word w of the source address [and the source port]: h = (h ^ w) * m; h ^= h >> 15
//	h ^= h >> 16; h *= 0x85ebca6b; h ^= h >> 13; h *= 0xc2b2ae35; h ^= h >> 16
//
// The first h is the configured seed; m is 0x9e3779b1. With the port, that is the first word.

// A sourceHash is what the rules of a service hash.
type sourceHash struct {
	family model.Family
	seed   uint32
	port   bool // the source port along with the address
}

const (
	hashStep   = 0x9e3779b1
	hashFinal1 = 0x85ebca6b
	hashFinal2 = 0xc2b2ae35
)

// program returns the instructions that leave the hash in A.
func (h sourceHash) program() []instruction {
	var p []instruction
	step := func() {
		p = append(p, instruction{code: bpfMulK, k: hashStep})
		p = appendFold(p, 15)
	}
	if h.port {
		// The port first: reading it takes the register that the hash needs afterwards.
		if h.family == model.IPv4 {
			p = append(p, instruction{code: bpfLoadHeaderX, k: 0})
		} else {
			p = append(p, instruction{code: bpfLoadImmX, k: 40})
		}
		p = append(p, instruction{code: bpfLoadHalfX, k: 0}, instruction{code: bpfXorK, k: h.seed})
		step()
		p = append(p, instruction{code: bpfStore, k: 0})
	}
	src, _, n := addrOffsets(h.family)
	for i := range n {
		if i > 0 {
			p = append(p, instruction{code: bpfStore, k: 0})
		}
		p = append(p, instruction{code: bpfLoadWord, k: src + 4*i})
		if i == 0 && !h.port {
			p = append(p, instruction{code: bpfXorK, k: h.seed})
		} else {
			p = append(p, instruction{code: bpfLoadMemX, k: 0}, instruction{code: bpfXorX})
		}
		step()
	}
	p = appendFold(p, 16)
	p = append(p, instruction{code: bpfMulK, k: hashFinal1})
	p = appendFold(p, 13)
	p = append(p, instruction{code: bpfMulK, k: hashFinal2})
	return appendFold(p, 16)
}

// appendFold appends A ^= A >> n.
func appendFold(p []instruction, n uint32) []instruction {
	return append(p, instruction{code: bpfTax}, instruction{code: bpfRshK, k: n}, instruction{code: bpfXorX})
}

// below matches sources whose hash is less than bound. Nothing is needed for 1<<32.
func (h sourceHash) below(bound uint64) string {
	if bound >= 1<<32 {
		return ""
	}
	return matchProgram(unless(h.program(), instruction{code: bpfJumpGeK, k: uint32(bound)}))
}

// slotIn matches sources whose slot, the first bits of the hash, is one of the 32 in a row that the mask names by its
// last five bits.
func (h sourceHash) slotIn(size int, mask uint32) string {
	p := append(h.program(),
		instruction{code: bpfRshK, k: uint32(32 - size)},
		instruction{code: bpfAndK, k: slotsPerChain - 1},
		instruction{code: bpfTax},
		instruction{code: bpfLoadImm, k: 1},
		instruction{code: bpfLshX})
	return matchProgram(whether(p, instruction{code: bpfJumpSetK, k: mask}))
}

// hash gives each endpoint a range of the hash, in proportion to its weight.
func (b *balancer) hash(c *chain, eps []model.Endpoint) {
	total := uint64(0)
	bounds := make([]uint64, len(eps)) // of the hash; first, weights up to and with the endpoint
	for i := range eps {
		total += uint64(eps[i].Weight)
		bounds[i] = total
	}
	for i, w := range bounds {
		hi, lo := bits.Mul64(w, 1<<32)
		bounds[i], _ = bits.Div64(hi, lo, total)
	}
	b.ranges(c, 0, "", eps, bounds)
}

// ranges sends each endpoint what is below its bound and not below the one before it.
func (b *balancer) ranges(c *chain, level int, path string, eps []model.Endpoint, bounds []uint64) {
	h := b.sourceHash()
	if len(eps) <= leafSize || level == balanceLevels {
		for i := range eps {
			match := h.below(bounds[i])
			if i == len(eps)-1 {
				match = "" // whoever is above does not come here
			}
			b.add(c, match, &eps[i])
		}
		return
	}
	n := ways(len(eps))
	for i := range n {
		from, to := i*len(eps)/n, (i+1)*len(eps)/n
		below := path + strconv.Itoa(i) + "."
		sub := b.sub(below)
		b.ranges(sub, level+1, below, eps[from:to], bounds[from:to])
		b.done(sub)
		match := h.below(bounds[to-1])
		if i == n-1 {
			match = ""
		}
		c.add(b.service.Name, match, goTo(sub.name))
	}
}

func (b *balancer) sourceHash() sourceHash {
	return sourceHash{family: b.env.family, seed: b.env.settings.hashSeed, port: b.service.Service.HashPort}
}

const (
	slotsPerShare = 20      // slots that the smallest endpoint has at least, so that shares are even
	minBits       = 8       // of a slot's number
	maxSlots      = 1 << 14 // beyond that the rules of one service would be too many
	slotsPerChain = 32      // bits of a mask
	partsPerTable = 32      // chains to each level, so that maxSlots takes balanceLevels of them
)

// maglev gives each endpoint slots of a table in the way of Eisenbud et al., "Maglev: A Fast and Reliable Software
// Network Load Balancer", section 3.4, so that a change moves few clients of others.
func (b *balancer) maglev(c *chain, eps []model.Endpoint) {
	counts, total := shares(eps, maxSlots/slotsPerShare)
	size := minBits
	for 1<<size < total*slotsPerShare {
		size++
	}
	b.slots(c, "", b.sourceHash(), size, 0, eps, maglevTable(eps, counts, size))
}

// slots writes the part of a table that begins with the slot first.
func (b *balancer) slots(c *chain, path string, h sourceHash, size int, first int, eps []model.Endpoint, table []uint16) {
	if len(table) <= slotsPerChain {
		b.masks(c, h, size, eps, table)
		return
	}
	part := max(len(table)/partsPerTable, slotsPerChain)
	for i := 0; i*part < len(table); i++ {
		below, end := path+strconv.Itoa(i)+".", (i+1)*part
		sub := b.sub(below)
		b.slots(sub, below, h, size, first+i*part, eps, table[i*part:end])
		b.done(sub)
		match := ""
		if end < len(table) {
			match = h.below(uint64(first+end) << (32 - size))
		}
		c.add(b.service.Name, match, goTo(sub.name))
	}
}

// masks writes the slots of one chain, a rule for each endpoint that has some.
func (b *balancer) masks(c *chain, h sourceHash, size int, eps []model.Endpoint, table []uint16) {
	var order []uint16
	masks := map[uint16]uint32{}
	for slot, e := range table {
		if masks[e] == 0 {
			order = append(order, e)
		}
		masks[e] |= 1 << slot
	}
	for i, e := range order {
		match := ""
		if i < len(order)-1 {
			match = h.slotIn(size, masks[e])
		}
		b.add(c, match, &eps[e])
	}
}

// maglevTable fills a table of 1<<size slots with indices of endpoints. Each in turn takes the next free slots, as many as
// its count, of its own permutation of all of them.
func maglevTable(eps []model.Endpoint, counts []int, size int) []uint16 {
	const free = 1<<16 - 1
	slots := 1 << size
	table := slices.Repeat([]uint16{free}, slots)
	next, skip := make([]int, len(eps)), make([]int, len(eps))
	for i := range eps {
		h := fnv64(eps[i].Addr.String())
		next[i] = int(h>>32) & (slots - 1)
		skip[i] = int(h)&(slots-1) | 1 // odd, so that every slot has its turn
	}
	for taken := 0; ; {
		for i := range eps {
			for range counts[i] {
				for table[next[i]] != free {
					next[i] = (next[i] + skip[i]) & (slots - 1)
				}
				table[next[i]] = uint16(i)
				if taken++; taken == slots {
					return table
				}
			}
		}
	}
}
