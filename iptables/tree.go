package iptables

import (
	"slices"
	"strings"

	"github.com/headgate/headgate/model"
)

// A tree finds the rule for a packet in few steps, where a list would try one rule after the other. Its keys are
// strings of two-bit digits, an address, a protocol and a port say. A node is a set of keys that begin alike, and most
// nodes become a chain:
//
//	SERVICES  -d 10.96.0.0/18 -j T-1
//	T-1       -d 10.96.16.9/32 -p tcp -m tcp --dport 80 -g I-1 a child with one entry needs no chain
//	          -d 10.96.0.0/20 -g T-2                           at most four children to a node
//	T-2       -p tcp ... -g ...                                a leaf: at most leafSize entries
//
// The shape follows from the set of keys alone, whatever the order in which they came: a set of up to leafSize keys is a
// leaf, a larger one splits at the first digit in which its keys differ. So a change of one key changes the chains
// on one path. A tree never changes: with and without return a new one that shares what is the same. The zero tree
// is empty.
type tree struct{ root *node }

const (
	leafSize  = 16
	fanOut    = 4 // two rules to a bit is the least that a list of children costs
	digitBits = 2
)

// An entry is what a tree finds: the rest of a rule, behind the matches of the key.
type entry struct {
	key   string // digits, each a byte of 0 to 3; no key begins another one
	rest  string
	owner model.ServiceName
	// refs counts, where several services share an entry, how often they do.
	refs int
}

type node struct {
	prefix  string // what all keys below begin with
	count   int    // how many entries are below
	entries []entry
	kids    [fanOut]*node // by the digit behind the prefix; all nil in a leaf
	// edges lead to the nodes that the node's chain leads to, and height is of how many chains the longest path
	// from here is.
	edges  []edge
	height int
}

// An edge leads to a node by the slot in which it hangs: the prefix of its parent and a digit.
type edge struct {
	slot string
	to   *node
}

// maxEdges is how many rules the chain of a node that is no leaf may have when it does the work of a child too.
const maxEdges = 8

// finish fills in what follows from the kids.
//
// A child with more than half of the entries has no chain of its own, but hands its children up, as long as they are
// few. So addresses here and there beside a dense range do not cost a chain each.
func (n *node) finish() *node {
	n.count, n.height, n.edges = 0, 1, n.edges[:0]
	for digit, k := range n.kids {
		if k != nil {
			n.count += k.count
			n.edges = append(n.edges, edge{n.slot(digit), k})
		}
	}
	for {
		i := slices.IndexFunc(n.edges, func(e edge) bool { return !e.to.leaf() && 2*e.to.count > n.count })
		if i < 0 {
			break
		}
		heavy := n.edges[i].to
		if len(n.edges)-1+heavy.degree() > maxEdges {
			break
		}
		n.edges = slices.Delete(n.edges, i, i+1)
		for digit, k := range heavy.kids {
			if k != nil {
				n.edges = append(n.edges, edge{heavy.slot(digit), k})
			}
		}
	}
	for _, e := range n.edges {
		if e.to.count > 1 {
			n.height = max(n.height, 1+e.to.height)
		}
	}
	return n
}

func (n *node) slot(digit int) string { return n.prefix + string(rune(digit)) }

// degree is how many children a node has.
func (n *node) degree() int {
	d := 0
	for _, k := range n.kids {
		if k != nil {
			d++
		}
	}
	return d
}

func (n *node) leaf() bool { return n.count <= leafSize }

// newTree returns a tree of entries in any order. An entry that is given several times has as many references.
func newTree(entries []entry) tree {
	slices.SortStableFunc(entries, func(a, b entry) int { return strings.Compare(a.key, b.key) })
	out := entries[:0]
	for _, e := range entries {
		e.refs = 1
		if n := len(out); n > 0 && out[n-1].key == e.key {
			e.refs += out[n-1].refs
			out[n-1] = e
		} else {
			out = append(out, e)
		}
	}
	return tree{build(out)}
}

// with returns a tree that has the entry too, in place of one with the same key.
func (t tree) with(e entry) tree { return tree{t.root.with(e)} }

// without returns a tree that has no entry with the key.
func (t tree) without(key string) tree { return tree{t.root.without(key)} }

// find returns the entry with the key.
func (t tree) find(key string) (entry, bool) {
	n := t.root
	for n != nil && !n.leaf() {
		if !strings.HasPrefix(key, n.prefix) || len(key) == len(n.prefix) {
			return entry{}, false
		}
		n = n.kids[key[len(n.prefix)]]
	}
	if n == nil {
		return entry{}, false
	}
	i, ok := n.search(key)
	if !ok {
		return entry{}, false
	}
	return n.entries[i], true
}

// add returns a tree in which one more service refers to the entry.
func (t tree) add(e entry) tree {
	old, _ := t.find(e.key)
	e.refs = old.refs + 1
	return t.with(e)
}

// release takes back what add did.
func (t tree) release(key string) tree {
	e, ok := t.find(key)
	if !ok || e.refs <= 1 {
		return t.without(key)
	}
	e.refs--
	return t.with(e)
}

func (n *node) search(key string) (int, bool) {
	return slices.BinarySearchFunc(n.entries, key, func(e entry, k string) int { return strings.Compare(e.key, k) })
}

// build returns the node for a sorted list of entries.
func build(entries []entry) *node {
	if len(entries) == 0 {
		return nil
	}
	n := &node{prefix: common(entries[0].key, entries[len(entries)-1].key), count: len(entries)}
	if n.leaf() {
		n.entries, n.height = slices.Clone(entries), 1
		return n
	}
	for len(entries) > 0 {
		d := entries[0].key[len(n.prefix)]
		end := 1
		for end < len(entries) && entries[end].key[len(n.prefix)] == d {
			end++
		}
		n.kids[d] = build(entries[:end])
		entries = entries[end:]
	}
	return n.finish()
}

func (n *node) with(e entry) *node {
	switch {
	case n == nil:
		return build([]entry{e})
	case n.leaf():
		i, found := n.search(e.key)
		entries := slices.Clone(n.entries)
		if found {
			entries[i] = e
		} else {
			entries = slices.Insert(entries, i, e)
		}
		return build(entries)
	}
	p := common(n.prefix, e.key)
	if len(p) < len(n.prefix) {
		up := &node{prefix: p}
		up.kids[n.prefix[len(p)]] = n
		up.kids[e.key[len(p)]] = build([]entry{e})
		return up.finish()
	}
	d := e.key[len(p)]
	return n.replace(d, n.kids[d].with(e))
}

func (n *node) without(key string) *node {
	switch {
	case n == nil:
		return nil
	case n.leaf():
		i, found := n.search(key)
		if !found {
			return n
		}
		return build(slices.Delete(slices.Clone(n.entries), i, i+1))
	case !strings.HasPrefix(key, n.prefix) || len(key) == len(n.prefix):
		return n
	}
	d := key[len(n.prefix)]
	kid := n.kids[d].without(key)
	if kid == n.kids[d] {
		return n
	}
	return n.replace(d, kid)
}

// replace returns n with another child, as the shape demands it.
func (n *node) replace(d byte, kid *node) *node {
	up := &node{prefix: n.prefix, kids: n.kids}
	up.kids[d] = kid
	up.finish()
	switch {
	case up.leaf():
		return build(up.gather(nil))
	case up.degree() == 1:
		return up.kids[slices.IndexFunc(up.kids[:], func(k *node) bool { return k != nil })]
	}
	return up
}

// gather appends all entries below n, in order.
func (n *node) gather(to []entry) []entry {
	if n == nil {
		return to
	}
	to = append(to, n.entries...)
	for _, k := range n.kids {
		to = k.gather(to)
	}
	return to
}

// common returns what a and b both begin with.
func common(a, b string) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	return a[:i]
}
