package iptables

import (
	"container/heap"
	"strings"
)

// A dispatch says how a tree is written as chains.
type dispatch struct {
	names  names
	layout layout
	table  table
	kind   byte
	// otherwise ends each chain: what becomes of packets that the tree does not know, instead of coming back.
	otherwise string
	// levels is how many chains follow each other at most. In the last one all entries that are left are a list.
	levels int
}

// The kernel's nf_tables follows at most 15 jumps and gotos from the chain of a hook (NFT_JUMP_STACK_SIZE). They lead
// to SERVICES, treeLevels of a tree, two of sources, the entry of a service, balanceLevels below it, and one more: a
// balancing chain that several entries share before those, or the chain of an endpoint after them.
const (
	treeLevels    = 8
	balanceLevels = 2
)

// rootSlot stands for the root where other nodes have their slot: the prefix of their parent and one digit. So a
// node keeps its name when keys come and go below it, and only a change of the levels above renames it.
const rootSlot = "root"

func (d dispatch) chainName(slot string) string {
	return d.names.hashed(d.kind, d.layout.family.String(), slot)
}

// enter returns the rule that leads into a tree; empty if the tree is. What the tree does not know comes back.
func (d dispatch) enter(t tree) string {
	if t.root == nil {
		return ""
	}
	return words(d.matchRoot(t), jumpTo(d.chainName(rootSlot)))
}

// matchRoot matches what the chain of the root expects.
func (d dispatch) matchRoot(t tree) string { return d.layout.match("", t.root.prefix) }

// A spot is a node that has a chain, where it hangs, and at which level.
type spot struct {
	slot  string
	node  *node
	level int
}

// last reports whether no chains follow that of the spot.
func (d dispatch) last(s spot) bool { return s.node.leaf() || s.level >= d.levels }

// rules returns what the chain of a spot consists of. The packets in it are known to begin with the node's prefix.
func (d dispatch) rules(s spot) []rule {
	n := s.node
	var rules []rule
	if d.last(s) {
		known := n.prefix
		if n.count == 1 {
			known = "" // a root; some targets want to see the protocol in their own rule
		}
		for _, e := range n.gather(nil) {
			rules = append(rules, d.entryRule(known, &e))
		}
	} else {
		for _, e := range n.edges {
			if e.to.count == 1 {
				rules = append(rules, d.entryRule(n.prefix, &e.to.entries[0]))
			} else {
				rules = append(rules, rule{text: words(d.layout.match(n.prefix, e.to.prefix), goTo(d.chainName(e.slot)))})
			}
		}
	}
	if d.otherwise != "" {
		rules = append(rules, rule{text: d.otherwise})
	}
	return rules
}

func (d dispatch) entryRule(known string, e *entry) rule {
	return rule{text: words(d.layout.match(known, e.key), e.rest), owner: e.owner}
}

// below returns the spots to which the chain of a spot leads.
func (d dispatch) below(s spot) []spot {
	if d.last(s) {
		return nil
	}
	var out []spot
	for _, e := range s.node.edges {
		if e.to.count > 1 {
			out = append(out, spot{e.slot, e.to, s.level + 1})
		}
	}
	return out
}

// diff says which chains lead from one tree to another, looking only at what they do not share.
func (d dispatch) diff(before, after tree, to *edits) {
	if before.root == after.root {
		return
	}
	olds, news := d.unshared(before, after)
	for _, slot := range sortedKeys(olds) {
		if _, stays := news[slot]; !stays {
			to.remove(chain{table: d.table, name: d.chainName(slot), rules: d.rules(olds[slot])})
		}
	}
	for _, slot := range sortedKeys(news) {
		c := chain{table: d.table, name: d.chainName(slot), rules: d.rules(news[slot])}
		if old, was := olds[slot]; was {
			to.change(c, d.rules(old))
		} else {
			to.create(c)
		}
	}
}

// unshared returns, by slot, the spots of two trees which they do not have in common.
//
// Spots are visited by falling number of entries, in both trees at once. When one is met, all that is above it in
// either tree was met before, so if the other tree has the same one, it is the next.
func (d dispatch) unshared(before, after tree) (olds, news map[string]spot) {
	found := [2]map[string]spot{{}, {}}
	var q visits
	for side, t := range [2]tree{before, after} {
		if t.root != nil {
			q = append(q, visit{spot{rootSlot, t.root, 1}, side})
		}
	}
	heap.Init(&q)
	for len(q) > 0 {
		v := heap.Pop(&q).(visit)
		if len(q) > 0 && d.same(v.spot, q[0].spot) && v.side != q[0].side {
			heap.Pop(&q)
			continue
		}
		found[v.side][v.slot] = v.spot
		for _, s := range d.below(v.spot) {
			heap.Push(&q, visit{s, v.side})
		}
	}
	return found[0], found[1]
}

// same reports whether two spots have the same chains, down to the last one.
func (d dispatch) same(a, b spot) bool {
	fits := func(s spot) bool { return s.level+s.node.height-1 <= d.levels }
	return a.node == b.node && a.slot == b.slot && (a.level == b.level || fits(a) && fits(b))
}

// A visit is a spot of the tree before (side 0) or the one after (side 1).
type visit struct {
	spot
	side int
}

// visits is a heap of the spots to be visited: see container/heap.
type visits []visit

func (q visits) Len() int { return len(q) }
func (q visits) Less(i, j int) bool {
	a, b := q[i], q[j]
	if a.node.count != b.node.count {
		return a.node.count > b.node.count
	}
	if c := strings.Compare(a.slot, b.slot); c != 0 {
		return c < 0
	}
	return a.side < b.side
}
func (q visits) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *visits) Push(v any)   { *q = append(*q, v.(visit)) }
func (q *visits) Pop() any {
	last := len(*q) - 1
	v := (*q)[last]
	*q = (*q)[:last]
	return v
}
