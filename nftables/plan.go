package nftables

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/model"
)

// A record is what the kernel holds of ours, as far as plans need it. What services put there follows from their
// resolved forms and their layouts, so it is not kept.
type record struct {
	node   model.Node
	tables [2]tableRecord
	laid   map[model.ServiceName]*[2]layouts
}

// A tableRecord is what is in one family's table besides what single services put there.
type tableRecord struct {
	chains map[route]bool    // shared chains
	shared map[sharedKey]int // how many services need a shared element
	stale  []stale           // chains and maps that nothing leads to any more
}

// A stale object goes in a later transaction than the one that removed the last reference to it: kernels below 6.2
// release that late, and a packet may still be in the chain.
type stale struct {
	name  string
	isMap bool
	since time.Time
}

func newRecord(node model.Node) *record {
	r := &record{node: node, laid: map[model.ServiceName]*[2]layouts{}}
	for i := range r.tables {
		r.tables[i] = tableRecord{chains: map[route]bool{}, shared: map[sharedKey]int{}}
	}
	return r
}

// untidy reports whether something waits for a later transaction.
func (r *record) untidy() bool {
	return len(r.tables[0].stale)+len(r.tables[1].stale) > 0
}

// grace is how long what packets in flight may still need is left in place.
const grace = 10 * time.Millisecond

// A plan is the way from one record to the next: a transaction, and what to note once it is committed.
type plan struct {
	cfg   Config
	now   time.Time
	batch *batch
	old   *record
	// fresh says that the tables were emptied: nothing of the old record is in the kernel, except maps of clients.
	fresh bool

	node    model.Node
	chains  [2]map[route][]model.ServiceName // shared chains to be made, and who needs them
	shared  [2]map[sharedKey]int             // by how much the counts change
	stale   [2][]stale
	revived [2]map[string]bool // stale objects that are needed again, or go now
	// found is what a fresh plan found in the kernel, wanted the names of all chains and maps of clients it makes or keeps.
	found  [2]structure
	wanted [2]map[string]bool
	laid   map[model.ServiceName]*[2]layouts
	// prune has the maps of clients from which the clients of other endpoints must go.
	prune []pruning
	// refused has the services that cannot be planned.
	refused map[model.ServiceName]error
	*memory
}

// A memory is used again and again, by one plan at a time: the forms of one service, and the elements of diffRuns.
type memory struct {
	before  form
	after   [2]form
	scratch [2]element
}

// put sets a key of a map that may not have been made yet: most plans are small and need few of them.
func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

// A pruning says which endpoints a map of clients may lead to.
type pruning struct {
	family  model.Family
	name    string
	addrs   []netip.Addr
	service model.ServiceName
}

func newPlan(cfg Config, old *record, node model.Node, now time.Time, exact bool, mem *memory) *plan {
	p := &plan{cfg: cfg, now: now, old: old, node: node, batch: newBatch(cfg.Table), laid: map[model.ServiceName]*[2]layouts{}, memory: mem}
	p.batch.exact = exact
	return p
}

// rules returns the ruleset of a family for a node.
func (p *plan) rules(fam model.Family, node model.Node) ruleset {
	return ruleset{cfg: p.cfg, node: node, family: fam}
}

// change plans the way of one service from one form to the next; either may be nil.
func (p *plan) change(c model.ResolvedChange) {
	var old, next [2]layouts
	if l := p.old.laid[c.Name]; l != nil {
		old = *l
	}
	for _, fam := range model.Families {
		if c.After == nil {
			p.after[fam].reset()
			continue
		}
		var err error
		if next[fam], err = lay(c.After, fam, old[fam]); err != nil {
			put(&p.refused, c.Name, err)
			return
		}
		p.rules(fam, p.node).render(&p.after[fam], c.After, next[fam])
	}
	for _, fam := range model.Families {
		p.before.reset()
		if !p.fresh {
			p.rules(fam, p.old.node).render(&p.before, c.Before, old[fam])
		}
		p.diff(fam, c.Name, &p.before, &p.after[fam])
	}
	p.laid[c.Name] = nil
	if c.After != nil {
		p.laid[c.Name] = &next
	}
}

// diff plans the way from one form of a service to the next in one family.
func (p *plan) diff(fam model.Family, name model.ServiceName, before, after *form) {
	p.diffElements(fam, name, before.elements, after.elements)
	p.diffRuns(fam, name, before.runs, after.runs)
	p.diffShared(fam, before.shared, after.shared)
	for _, r := range after.routes {
		p.ensure(fam, r, name)
	}
	p.diffOwn(fam, name, before, after)
}

// matched pairs the items of two lists with equal keys, and calls change with each pair; nil stands for a missing one.
func matched[T any, K comparable](before, after []T, key func(*T) K, change func(before, after *T)) {
	if len(before) == 0 {
		for i := range after {
			change(nil, &after[i])
		}
		return
	}
	if len(before)+len(after) <= 16 {
		matchedFew(before, after, key, change)
		return
	}
	index := make(map[K]int, len(before))
	for i := range before {
		index[key(&before[i])] = i
	}
	for i := range after {
		k := key(&after[i])
		if j, ok := index[k]; ok {
			delete(index, k)
			change(&before[j], &after[i])
		} else {
			change(nil, &after[i])
		}
	}
	for i := range before {
		if j, ok := index[key(&before[i])]; ok && i == j {
			change(&before[i], nil)
		}
	}
}

// matchedFew is matched for lists so short that an index costs more than it saves.
func matchedFew[T any, K comparable](before, after []T, key func(*T) K, change func(before, after *T)) {
	find := func(in []T, k K) *T {
		for i := range in {
			if key(&in[i]) == k {
				return &in[i]
			}
		}
		return nil
	}
	for i := range after {
		change(find(before, key(&after[i])), &after[i])
	}
	for i := range before {
		if find(after, key(&before[i])) == nil {
			change(&before[i], nil)
		}
	}
}

func (p *plan) diffElements(fam model.Family, name model.ServiceName, before, after []element) {
	matched(before, after, func(e *element) elementKey { return e.elementKey }, func(b, a *element) {
		switch {
		case b == nil:
			p.batch.add(fam, a, name)
		case a == nil:
			p.batch.del(fam, b, name)
		case *a != *b:
			p.batch.replace(fam, b, a, name)
		}
	})
}

func (p *plan) diffRuns(fam model.Family, name model.ServiceName, before, after []run) {
	key := func(r *run) elementKey {
		return elementKey{set: r.set, addr: r.addr, proto: r.proto, port: r.port, slot: uint32(r.list)}
	}
	matched(before, after, key, func(b, a *run) {
		var was, is layout
		if b != nil {
			was = b.layout
		}
		if a != nil {
			is = a.layout
		}
		old, next := &p.scratch[0], &p.scratch[1]
		for i := range max(len(was), len(is)) {
			switch before, after := was.at(i), is.at(i); {
			case before == after:
			case !before.IsValid():
				*next = a.element(i)
				p.batch.add(fam, next, name)
			case !after.IsValid():
				*old = b.element(i)
				p.batch.del(fam, old, name)
			default:
				*old, *next = b.element(i), a.element(i)
				p.batch.replace(fam, old, next, name)
			}
		}
	})
}

// diffShared plans how many services more or fewer need each shared element. What a service needs seldom changes, but
// for what comes or goes at the end.
func (p *plan) diffShared(fam model.Family, before, after []sharedKey) {
	same := 0
	for same < min(len(before), len(after)) && before[same] == after[same] {
		same++
	}
	for _, k := range before[same:] {
		put(&p.shared[fam], k, p.shared[fam][k]-1)
	}
	for _, k := range after[same:] {
		put(&p.shared[fam], k, p.shared[fam][k]+1)
	}
}

// ensure sees to it that a shared chain, and the one it leads to, are there.
func (p *plan) ensure(fam model.Family, r route, name model.ServiceName) {
	if !p.fresh && p.old.tables[fam].chains[r] {
		return
	}
	put(&p.chains[fam], r, append(p.chains[fam][r], name))
	if next, ok := r.needs(); ok {
		p.ensure(fam, next, name)
	}
}

// diffOwn plans the way from the chains and maps that a service has of its own to those that it shall have.
func (p *plan) diffOwn(fam model.Family, name model.ServiceName, before, after *form) {
	if len(before.chains)+len(before.maps)+len(after.chains)+len(after.maps) == 0 {
		return
	}
	// A map whose shape changes is made anew, and no rule may use it in between.
	reshaped := false
	matched(before.maps, after.maps, func(m *clientMap) string { return m.name }, func(b, a *clientMap) {
		switch {
		case a == nil:
			p.retire(fam, b.name, true)
		case b == nil:
			p.makeMap(fam, name, a.setSpec)
		case !b.sameShape(a.setSpec):
			reshaped = true
			p.batch.deleteSet(fam, a.name, name)
			p.makeMap(fam, name, a.setSpec)
		}
	})
	matched(before.chains, after.chains, func(c *chainSpec) string { return c.name }, func(b, a *chainSpec) {
		switch {
		case a == nil:
			if reshaped {
				p.batch.flush(fam, b.name, name)
			}
			p.retire(fam, b.name, false)
		case b == nil:
			p.makeChain(fam, *a, name)
		case reshaped || !sameRules(*a, *b):
			p.batch.changed++
			p.batch.flush(fam, a.name, name)
			p.writeRules(fam, *a, name)
		}
	})
	p.planPruning(fam, name, before, after)
}

// makeMap plans a map of clients. After a restart, one of the same shape stays.
func (p *plan) makeMap(fam model.Family, name model.ServiceName, s setSpec) {
	put(&p.wanted[fam], s.name, true)
	there, found := p.found[fam].sets[s.name]
	switch {
	case found && there.same(s.info(fam)):
		return
	case found:
		p.batch.deleteSet(fam, s.name, name)
	case p.isStale(fam, s.name):
		p.revive(fam, s.name, name)
	}
	p.batch.makeSet(fam, s, name)
}

// revive plans the removal of a stale map that is needed again, empty. No stale chain may use it any more.
func (p *plan) revive(fam model.Family, stale string, name model.ServiceName) {
	put(&p.revived[fam], stale, true)
	for _, o := range p.old.tables[fam].stale {
		if !o.isMap {
			p.batch.flush(fam, o.name, name)
		}
	}
	p.batch.deleteSet(fam, stale, name)
}

// makeChain plans a chain with its rules.
func (p *plan) makeChain(fam model.Family, c chainSpec, owners ...model.ServiceName) {
	put(&p.wanted[fam], c.name, true)
	if p.isStale(fam, c.name) {
		put(&p.revived[fam], c.name, true)
		p.batch.flush(fam, c.name, owners...)
	}
	p.batch.added++
	p.batch.write(sectionChains, func(w *wire) { w.writeChain(p.cfg.Table, fam, c) }, owners...)
	p.writeRules(fam, c, owners...)
}

func (p *plan) writeRules(fam model.Family, c chainSpec, owners ...model.ServiceName) {
	for _, r := range c.rules {
		p.batch.write(sectionRules, func(w *wire) { w.writeRule(p.cfg.Table, fam, c.name, r) }, owners...)
	}
}

func (p *plan) isStale(fam model.Family, name string) bool {
	return !p.fresh && !p.revived[fam][name] &&
		slices.ContainsFunc(p.old.tables[fam].stale, func(s stale) bool { return s.name == name })
}

func (p *plan) retire(fam model.Family, name string, isMap bool) {
	p.stale[fam] = append(p.stale[fam], stale{name: name, isMap: isMap, since: p.now})
}

// sameRules reports whether two chains have the same rules, byte for byte.
func sameRules(a, b chainSpec) bool {
	var wa, wb wire
	for _, r := range a.rules {
		wa.writeRule("", 0, a.name, r)
	}
	for _, r := range b.rules {
		wb.writeRule("", 0, b.name, r)
	}
	return bytes.Equal(wa.buf, wb.buf)
}

// planPruning notes the maps of clients that stay while endpoints that they may lead to go.
func (p *plan) planPruning(fam model.Family, name model.ServiceName, before, after *form) {
	for _, m := range after.maps {
		there, kept := p.found[fam].sets[m.name]
		kept = kept && there.same(m.info(fam))
		for _, b := range before.maps {
			gone := func(a netip.Addr) bool { return !slices.Contains(m.addrs, a) }
			kept = kept || b.setSpec.sameShape(m.setSpec) && slices.ContainsFunc(b.addrs, gone)
		}
		if kept {
			p.prune = append(p.prune, pruning{family: fam, name: m.name, addrs: m.addrs, service: name})
		}
	}
}

// finish plans what concerns no single service: shared chains and elements, and what is stale.
func (p *plan) finish() {
	for _, fam := range model.Families {
		rs := p.rules(fam, p.node)
		byName := func(a, b route) int { return strings.Compare(a.chain(), b.chain()) }
		for _, r := range slices.SortedFunc(maps.Keys(p.chains[fam]), byName) {
			p.makeChain(fam, rs.chainSpec(r), p.chains[fam][r]...)
		}
		for k, change := range p.shared[fam] {
			was := 0
			if !p.fresh {
				was = p.old.tables[fam].shared[k]
			}
			e := k.element()
			switch {
			case was == 0 && change > 0:
				p.batch.add(fam, &e, "")
			case was > 0 && was+change == 0:
				p.batch.del(fam, &e, "")
			}
		}
	}
}

// sweep plans the removal of what has been stale for long enough.
func (p *plan) sweep() {
	for _, fam := range model.Families {
		for _, maps := range [...]bool{false, true} { // the rules that use a map go with their chains
			for _, s := range p.old.tables[fam].stale {
				if s.isMap == maps && !p.revived[fam][s.name] && p.now.Sub(s.since) > grace {
					put(&p.revived[fam], s.name, true)
					p.deleteStale(fam, s)
				}
			}
		}
	}
}

func (p *plan) deleteStale(fam model.Family, s stale) {
	if s.isMap {
		p.batch.deleteSet(fam, s.name)
	} else {
		p.batch.deleteChain(fam, s.name)
	}
}

// commit notes what the kernel holds now.
func (p *plan) commit() *record {
	r := p.old
	if p.fresh {
		r = &record{laid: p.laid}
		for i := range r.tables {
			r.tables[i] = tableRecord{chains: map[route]bool{}, shared: p.shared[i]}
			if p.shared[i] == nil {
				r.tables[i].shared = map[sharedKey]int{}
			}
		}
	}
	r.node = p.node
	for name, l := range p.laid {
		if l == nil {
			delete(r.laid, name)
		} else {
			r.laid[name] = l
		}
	}
	for _, fam := range model.Families {
		t := &r.tables[fam]
		for chain := range p.chains[fam] {
			t.chains[chain] = true
		}
		for k, change := range p.shared[fam] {
			if p.fresh {
				break // the counts are in place
			}
			if t.shared[k] += change; t.shared[k] == 0 {
				delete(t.shared, k)
			}
		}
		t.stale = slices.DeleteFunc(t.stale, func(s stale) bool { return p.revived[fam][s.name] })
		t.stale = append(t.stale, p.stale[fam]...)
	}
	return r
}

// frame plans the chains that depend on the node, where they change.
func (p *plan) frame() {
	for _, fam := range model.Families {
		before, after := p.rules(fam, p.old.node).frame(), p.rules(fam, p.node).frame()
		matched(before, after, func(c *chainSpec) string { return c.name }, func(b, a *chainSpec) {
			switch {
			case b == nil:
				p.makeChain(fam, *a)
			case a == nil:
				p.batch.flush(fam, b.name)
				p.batch.deleteChain(fam, b.name)
			case !sameRules(*a, *b):
				p.batch.changed++
				p.batch.flush(fam, a.name)
				p.writeRules(fam, *a)
			}
		})
	}
}
