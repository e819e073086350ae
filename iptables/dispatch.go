package iptables

// A dispatch says how a tree is written as chains.
type dispatch struct {
	names  names
	layout layout
	table  table
	kind   byte
	// base distinguishes several trees of one kind; empty where there is only one in a family.
	base string
	// otherwise ends each chain: what becomes of packets that the tree does not know, instead of coming back.
	otherwise string
}

// rootSlot stands for the root where other nodes have their slot: the prefix of their parent and one digit. So a
// node keeps its name when keys come and go below it, and only a change of the levels above renames it.
const rootSlot = "root"

func (d dispatch) chainName(slot string) string {
	return d.names.hashed(d.kind, d.layout.family.String(), d.base, slot)
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

// rules returns what the chain of a node consists of. The packets in it are known to begin with its prefix.
func (d dispatch) rules(n *node) []rule {
	rules := d.known(n)
	if d.otherwise != "" {
		rules = append(rules, rule{text: d.otherwise})
	}
	return rules
}

func (d dispatch) known(n *node) []rule {
	if n.leaf() {
		known := n.prefix
		if n.count == 1 {
			known = "" // a root; some targets want to see the protocol in their own rule
		}
		rules := make([]rule, len(n.entries))
		for i := range n.entries {
			rules[i] = d.entryRule(known, &n.entries[i])
		}
		return rules
	}
	rules := make([]rule, 0, fanOut)
	for digit, k := range n.kids {
		switch {
		case k == nil:
		case k.count == 1:
			rules = append(rules, d.entryRule(n.prefix, &k.entries[0]))
		default:
			slot := n.prefix + string(rune(digit))
			rules = append(rules, rule{text: words(d.layout.match(n.prefix, k.prefix), goTo(d.chainName(slot)))})
		}
	}
	return rules
}

func (d dispatch) entryRule(known string, e *entry) rule {
	return rule{text: words(d.layout.match(known, e.key), e.rest), owner: e.owner}
}

// chains returns all chains of a tree.
func (d dispatch) chains(t tree) []chain {
	w := treeDiff{before: map[string]*node{}, after: map[string]*node{}}
	w.walk("", nil, rootSlot, t.root)
	out := make([]chain, 0, len(w.after))
	for _, slot := range sortedKeys(w.after) {
		out = append(out, chain{table: d.table, name: d.chainName(slot), rules: d.rules(w.after[slot])})
	}
	return out
}

// diff says which chains lead from one tree to another, looking only at what they do not share.
func (d dispatch) diff(before, after tree, to *edits) {
	if before.root == after.root {
		return
	}
	w := treeDiff{before: map[string]*node{}, after: map[string]*node{}}
	w.walk(rootSlot, before.root, rootSlot, after.root)
	for _, slot := range sortedKeys(w.before) {
		if w.after[slot] == nil {
			to.remove(chain{table: d.table, name: d.chainName(slot), rules: d.rules(w.before[slot])})
		}
	}
	for _, slot := range sortedKeys(w.after) {
		c := chain{table: d.table, name: d.chainName(slot), rules: d.rules(w.after[slot])}
		if old := w.before[slot]; old != nil {
			to.change(c, d.rules(old))
		} else {
			to.create(c)
		}
	}
}

// A treeDiff gathers, by slot, the nodes that two trees do not share. Nodes without a chain are left out.
type treeDiff struct{ before, after map[string]*node }

func (w *treeDiff) walk(slotB string, b *node, slotA string, a *node) {
	if b == a && (slotB == slotA || b == nil) {
		return
	}
	note(w.before, slotB, b)
	note(w.after, slotA, a)
	switch {
	case b == a: // the same subtree, hung elsewhere: only its top has another name
	case b == nil || a == nil:
		w.both(b, a)
	case b.prefix == a.prefix:
		w.both(b, a)
	case len(a.prefix) < len(b.prefix) && b.prefix[:len(a.prefix)] == a.prefix:
		w.descend(slotB, b, a, false)
	case len(b.prefix) < len(a.prefix) && a.prefix[:len(b.prefix)] == b.prefix:
		w.descend(slotA, a, b, true)
	default:
		w.both(b, nil)
		w.both(nil, a)
	}
}

// both compares the children of two nodes that split at the same digit, or of one.
func (w *treeDiff) both(b, a *node) {
	for digit := range fanOut {
		var kidB, kidA *node
		var slotB, slotA string
		if b != nil {
			kidB, slotB = b.kids[digit], b.prefix+string(rune(digit))
		}
		if a != nil {
			kidA, slotA = a.kids[digit], a.prefix+string(rune(digit))
		}
		if kidB != nil || kidA != nil {
			w.walk(slotB, kidB, slotA, kidA)
		}
	}
}

// descend compares a node with the child of another one that splits earlier. The earlier one is of the tree before
// if old, else of the one after.
func (w *treeDiff) descend(slot string, n, earlier *node, old bool) {
	met := false
	for digit, kid := range earlier.kids {
		if kid == nil {
			continue
		}
		kidSlot := earlier.prefix + string(rune(digit))
		same := int(n.prefix[len(earlier.prefix)]) == digit
		met = met || same
		switch {
		case same && old:
			w.walk(kidSlot, kid, slot, n)
		case same:
			w.walk(slot, n, kidSlot, kid)
		case old:
			w.walk(kidSlot, kid, "", nil)
		default:
			w.walk("", nil, kidSlot, kid)
		}
	}
	if met {
		return
	}
	if old {
		w.both(nil, n)
	} else {
		w.both(n, nil)
	}
}

func note(m map[string]*node, slot string, n *node) {
	if n != nil && (n.count > 1 || slot == rootSlot) {
		m[slot] = n
	}
}
