package nft

import (
	"bytes"
	"fmt"
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
	rules  [2]Ruleset // for that node
	tables [2]tableRecord
	laid   map[model.ServiceName]laid
}

// laid is one service as it was last programmed; nothing, if it is not.
type laid struct {
	res *model.Resolved
	lay [2]Layouts
}

// A tableRecord is what is in one family's table besides what single services put there.
type tableRecord struct {
	chains map[Route]bool    // shared chains
	shared map[SharedKey]int // how many services need a shared element
	stale  []stale           // chains and maps that nothing leads to any more
	extra  map[ElementKey]Element
}

// A stale object goes in a later transaction than the one that removed the last reference to it: kernels below 6.2
// release that late, and a packet may still be in the chain.
type stale struct {
	name  string
	isMap bool
	since time.Time
}

func newRecord(node model.Node) *record {
	r := &record{node: node, laid: map[model.ServiceName]laid{}}
	for i := range r.tables {
		r.tables[i] = tableRecord{chains: map[Route]bool{}, shared: map[SharedKey]int{}, extra: map[ElementKey]Element{}}
	}
	return r
}

// untidy reports whether something waits for a later transaction.
func (r *record) untidy() bool {
	return len(r.tables[0].stale)+len(r.tables[1].stale) > 0
}

// grace is how long what packets in flight may still need is left in place.
const grace = 10 * time.Millisecond

// A Plan is the way from one record to the next: a transaction, and what to note once it is committed.
type Plan struct {
	cfg   *Config
	now   time.Time
	batch *batch
	old   *record
	// fresh says that the tables were emptied: nothing of the old record is in the kernel, except maps of clients.
	fresh bool

	node    model.Node
	rules   [2]Ruleset                       // for that node
	chains  [2]map[Route][]model.ServiceName // shared chains to be made, and who needs them
	shared  [2]map[SharedKey]int             // by how much the counts change
	stale   [2][]stale
	revived [2]map[string]bool // stale objects that are needed again, or go now
	// found is what a fresh plan found in the kernel, wanted the names of all chains and maps of clients it makes or keeps.
	found  [2]structure
	wanted [2]map[string]bool
	laid   map[model.ServiceName]laid // nil for services that go
	extra  [2]map[ElementKey]Element  // Comment "\x00" for those that go
	// prune has the maps of clients from which the clients of other endpoints must go.
	prune []pruning
	// refused has the services that cannot be planned.
	refused map[model.ServiceName]error
	// warnings are for the Result.
	warnings []string
	*memory
}

// A memory is used again and again, by one plan at a time: the forms of one service, the elements of diffRuns, and the
// buffers of the batch.
type memory struct {
	before  Form
	after   [2]Form
	scratch [2]Element
	last    *batch
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

func newPlan(cfg *Config, old *record, node model.Node, now time.Time, exact bool, mem *memory) *Plan {
	p := &Plan{cfg: cfg, now: now, old: old, node: node, rules: old.rules, batch: mem.last.next(), laid: map[model.ServiceName]laid{}, memory: mem}
	p.batch.exact = exact
	mem.last = p.batch
	if !node.Equal(old.node) {
		p.makeRules()
	}
	return p
}

func (p *Plan) makeRules() {
	for _, fam := range model.Families {
		p.rules[fam] = p.cfg.Ruleset(p.node, fam)
	}
}

// change plans the way of one service from what is recorded to a form; nil, if it goes.
func (p *Plan) change(name model.ServiceName, after *model.Resolved) {
	old := p.old.laid[name]
	if !p.fresh && old.res == after && p.node.Equal(p.old.node) {
		return
	}
	next := laid{res: after}
	for _, fam := range model.Families {
		if after == nil {
			p.after[fam].reset()
			continue
		}
		rules := p.rules[fam]
		var err error
		if next.lay[fam], err = Lay(after, fam, rules.Lists(after), old.lay[fam]); err != nil {
			put(&p.refused, name, err)
			return
		}
		if Rounded(after, fam, rules.Lists(after)) {
			p.warnings = append(p.warnings, fmt.Sprintf("service %q: %s: weights are rounded to shares of %d", string(name), fam, maxSlots))
		}
		rules.Render(&p.after[fam], after, next.lay[fam])
	}
	for _, fam := range model.Families {
		p.before.reset()
		if !p.fresh {
			p.old.rules[fam].Render(&p.before, old.res, old.lay[fam])
		}
		p.diff(fam, name, &p.before, &p.after[fam])
	}
	p.laid[name] = next
}

// Put plans that an element is there which no form has: in a set of the backend's own.
func (p *Plan) Put(fam model.Family, e Element) { put(&p.extra[fam], e.ElementKey, e) }

// Has reports whether an element that was Put is there, or was until its time was over.
func (p *Plan) Has(fam model.Family, key ElementKey) bool {
	if e, planned := p.extra[fam][key]; planned {
		return e.Comment != removed
	}
	_, there := p.old.tables[fam].extra[key]
	return there && !p.fresh
}

// Remove plans that an element which was Put is not there any more; a Put in the same plan takes that back.
func (p *Plan) Remove(fam model.Family, key ElementKey) {
	if _, there := p.old.tables[fam].extra[key]; there && !p.fresh {
		put(&p.extra[fam], key, Element{Comment: removed})
	}
}

// finishExtra plans the way from the elements that were Put to those that shall be.
func (p *Plan) finishExtra(fam model.Family) {
	for key, e := range p.extra[fam] {
		was, there := p.old.tables[fam].extra[key]
		switch there = there && !p.fresh; {
		case e.Comment == removed && was.Timeout > 0:
			p.batch.forget(fam, p.cfg.Sets[key.Set], []Element{was}, "") // it may have expired
		case e.Comment == removed:
			p.batch.del(fam, &was, "")
		case !there:
			p.batch.add(fam, &e, "")
		case was != e:
			p.batch.replace(fam, &was, &e, "")
		}
	}
}

const removed = "\x00" // is no comment of anybody

// diff plans the way from one form of a service to the next in one family.
func (p *Plan) diff(fam model.Family, name model.ServiceName, before, after *Form) {
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

func (p *Plan) diffElements(fam model.Family, name model.ServiceName, before, after []Element) {
	matched(before, after, func(e *Element) ElementKey { return e.ElementKey }, func(b, a *Element) {
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

func (p *Plan) diffRuns(fam model.Family, name model.ServiceName, before, after []run) {
	key := func(r *run) ElementKey {
		return ElementKey{Set: r.set, Addr: r.addr, Proto: r.proto, Port: r.port, Slot: uint32(r.list)}
	}
	matched(before, after, key, func(b, a *run) {
		var was, is Layout
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
func (p *Plan) diffShared(fam model.Family, before, after []SharedKey) {
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
func (p *Plan) ensure(fam model.Family, r Route, name model.ServiceName) {
	if !p.fresh && p.old.tables[fam].chains[r] {
		return
	}
	put(&p.chains[fam], r, append(p.chains[fam][r], name))
	if next, ok := r.needs(); ok {
		p.ensure(fam, next, name)
	}
}

// diffOwn plans the way from the chains and maps that a service has of its own to those that it shall have.
func (p *Plan) diffOwn(fam model.Family, name model.ServiceName, before, after *Form) {
	if len(before.chains)+len(before.maps)+len(after.chains)+len(after.maps) == 0 {
		return
	}
	// A map whose shape changes is made anew, and no rule may use it in between.
	reshaped := false
	matched(before.maps, after.maps, func(m *clientMap) string { return m.Name }, func(b, a *clientMap) {
		switch {
		case a == nil:
			p.retire(fam, b.Name, true)
		case b == nil:
			p.makeMap(fam, name, a.Set)
		case !b.sameShape(a.Set):
			reshaped = true
			p.batch.deleteSet(fam, a.Name, name)
			p.makeMap(fam, name, a.Set)
		}
	})
	matched(before.chains, after.chains, func(c *Chain) string { return c.Name }, func(b, a *Chain) {
		switch {
		case a == nil:
			if reshaped {
				p.batch.flush(fam, b.Name, name)
			}
			p.retire(fam, b.Name, false)
		case b == nil:
			p.makeChain(fam, *a, name)
		case reshaped || !sameRules(*a, *b):
			p.batch.changed++
			p.batch.flush(fam, a.Name, name)
			p.writeRules(fam, *a, name)
		}
	})
	p.planPruning(fam, name, before, after)
}

// makeMap plans a map of clients. After a restart, one of the same shape stays.
func (p *Plan) makeMap(fam model.Family, name model.ServiceName, s Set) {
	put(&p.wanted[fam], s.Name, true)
	there, found := p.found[fam].sets[s.Name]
	switch {
	case found && there.same(s.info(fam)):
		return
	case found:
		p.batch.deleteSet(fam, s.Name, name)
	case p.isStale(fam, s.Name):
		p.revive(fam, s.Name, name)
	}
	p.batch.makeSet(fam, s, name)
}

// revive plans the removal of a stale map that is needed again, empty. No stale chain may use it any more.
func (p *Plan) revive(fam model.Family, stale string, name model.ServiceName) {
	put(&p.revived[fam], stale, true)
	for _, o := range p.old.tables[fam].stale {
		if !o.isMap {
			p.batch.flush(fam, o.name, name)
		}
	}
	p.batch.deleteSet(fam, stale, name)
}

// makeChain plans a chain with its rules.
func (p *Plan) makeChain(fam model.Family, c Chain, owners ...model.ServiceName) {
	put(&p.wanted[fam], c.Name, true)
	if p.isStale(fam, c.Name) {
		put(&p.revived[fam], c.Name, true)
		p.batch.flush(fam, c.Name, owners...)
	}
	if there, ok := p.found[fam].chains[c.Name]; ok && there != c.info() {
		p.batch.deleteChain(fam, c.Name)
	}
	p.batch.added++
	p.batch.write(sectionChains, func(w *Wire) { w.writeChain(p.cfg.Name, fam, c) }, owners...)
	p.writeRules(fam, c, owners...)
}

func (p *Plan) writeRules(fam model.Family, c Chain, owners ...model.ServiceName) {
	for _, r := range c.Rules {
		p.batch.write(sectionRules, func(w *Wire) { w.writeRule(p.cfg.Name, fam, c.Name, r) }, owners...)
	}
}

func (p *Plan) isStale(fam model.Family, name string) bool {
	return !p.fresh && !p.revived[fam][name] &&
		slices.ContainsFunc(p.old.tables[fam].stale, func(s stale) bool { return s.name == name })
}

func (p *Plan) retire(fam model.Family, name string, isMap bool) {
	p.stale[fam] = append(p.stale[fam], stale{name: name, isMap: isMap, since: p.now})
}

// sameRules reports whether two chains have the same rules, byte for byte.
func sameRules(a, b Chain) bool {
	var wa, wb Wire
	for _, r := range a.Rules {
		wa.writeRule("", 0, a.Name, r)
	}
	for _, r := range b.Rules {
		wb.writeRule("", 0, b.Name, r)
	}
	return bytes.Equal(wa.Buf, wb.Buf)
}

// planPruning notes the maps of clients that stay while endpoints that they may lead to go.
func (p *Plan) planPruning(fam model.Family, name model.ServiceName, before, after *Form) {
	for _, m := range after.maps {
		there, kept := p.found[fam].sets[m.Name]
		kept = kept && there.same(m.info(fam))
		for _, b := range before.maps {
			gone := func(a netip.Addr) bool { return !slices.Contains(m.addrs, a) }
			kept = kept || b.Set.sameShape(m.Set) && slices.ContainsFunc(b.addrs, gone)
		}
		if kept {
			p.prune = append(p.prune, pruning{family: fam, name: m.Name, addrs: m.addrs, service: name})
		}
	}
}

// finish plans what concerns no single service: shared chains and elements, and what is stale.
func (p *Plan) finish() {
	for _, fam := range model.Families {
		p.finishExtra(fam)
		rs := p.rules[fam]
		byName := func(a, b Route) int { return strings.Compare(a.chain(), b.chain()) }
		for _, r := range slices.SortedFunc(maps.Keys(p.chains[fam]), byName) {
			p.makeChain(fam, rs.Route(r), p.chains[fam][r]...)
		}
		for k, change := range p.shared[fam] {
			was := 0
			if !p.fresh {
				was = p.old.tables[fam].shared[k]
			}
			e := &p.scratch[0]
			*e = k.element()
			switch {
			case was == 0 && change > 0:
				p.batch.add(fam, e, "")
			case was > 0 && was+change == 0:
				p.batch.del(fam, e, "")
			}
		}
	}
}

// sweep plans the removal of what has been stale for long enough.
func (p *Plan) sweep() {
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

func (p *Plan) deleteStale(fam model.Family, s stale) {
	if s.isMap {
		p.batch.deleteSet(fam, s.name)
	} else {
		p.batch.deleteChain(fam, s.name)
	}
}

// commit notes what the kernel holds now.
func (p *Plan) commit() *record {
	r := p.old
	if p.fresh {
		r = newRecord(p.node)
		r.laid = p.laid
		for i := range r.tables {
			if p.shared[i] != nil {
				r.tables[i].shared = p.shared[i]
			}
		}
	}
	r.node, r.rules = p.node, p.rules
	for name, l := range p.laid {
		if l.res == nil {
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
		for k, e := range p.extra[fam] {
			if e.Comment == removed {
				delete(t.extra, k)
			} else {
				t.extra[k] = e
			}
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
func (p *Plan) frame() {
	for _, fam := range model.Families {
		before, after := p.old.rules[fam].Frame(), p.rules[fam].Frame()
		matched(before, after, func(c *Chain) string { return c.Name }, func(b, a *Chain) {
			switch {
			case b == nil:
				p.makeChain(fam, *a)
			case a == nil:
				p.batch.flush(fam, b.Name)
				p.batch.deleteChain(fam, b.Name)
			case !sameRules(*a, *b):
				p.batch.changed++
				p.batch.flush(fam, a.Name)
				p.writeRules(fam, *a)
			}
		})
	}
}
