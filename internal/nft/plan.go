package nft

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/model"
)

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
	// found is what a fresh plan found in the kernel, wanted the names of all chains and sets it makes or keeps.
	// stand has the chains that stay as they are.
	found         [2]structure
	wanted, stand [2]map[string]bool
	laid          map[model.ServiceName]laid // nil for services that go
	lazy          [2]map[SetID]bool          // lazy sets that are made
	// recording says that the chains of RecordAffinity are made.
	recording [2]bool
	extra     [2]map[ElementKey]Element // Comment "\x00" for those that go
	// prune has the maps of clients from which the clients of other endpoints must go.
	prune []pruning
	// refused has the services that cannot be planned.
	refused map[model.ServiceName]error
	// warnings are for the Result.
	warnings []string
	*memory
}

// A memory is used again and again, by one plan at a time: the plan itself, the forms of one service, the elements of
// diffRuns, and the batch with its buffers.
type memory struct {
	plan    Plan
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
	p, services := &mem.plan, mem.plan.laid
	if services == nil || len(services) > 100 {
		services = map[model.ServiceName]laid{}
	}
	clear(services)
	mem.last.reset()
	*p = Plan{cfg: cfg, now: now, old: old, node: node, rules: old.rules, batch: mem.last, laid: services, memory: mem}
	p.batch.exact = exact
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
		used := rules.Lists(after)
		var err error
		if next.lay[fam], err = Lay(after, fam, used, old.lay[fam]); err != nil {
			put(&p.refused, name, err)
			return
		}
		if Rounded(after, fam, used) {
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

// diff plans the way from one form of a service to the next in one family.
func (p *Plan) diff(fam model.Family, name model.ServiceName, before, after *Form) {
	p.diffElements(fam, name, before.elements, after.elements)
	p.diffRuns(fam, name, before.runs, after.runs)
	p.diffShared(fam, before.shared, after.shared)
	for _, r := range after.routes {
		p.ensure(fam, r, name)
	}
	if after.records && !p.recording[fam] && (p.fresh || !p.old.tables[fam].recording) {
		p.recording[fam] = true
		for _, c := range p.rules[fam].RecordAffinity() {
			p.makeChain(fam, c, name)
		}
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
	for i := range after {
		p.provide(fam, after[i].set, name)
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

// ensure sees to it that a shared chain, and those it leads to, are there.
func (p *Plan) ensure(fam model.Family, r Route, name model.ServiceName) {
	if !p.fresh && p.old.tables[fam].chains[r] {
		return
	}
	put(&p.chains[fam], r, append(p.chains[fam][r], name))
	r.needs(func(next Route) { p.ensure(fam, next, name) })
}

// finish plans what concerns no single service: shared chains and elements, and what is stale.
func (p *Plan) finish() {
	for _, fam := range model.Families {
		p.finishExtra(fam)
		rs := p.rules[fam]
		if len(p.chains[fam]) > 0 {
			byName := func(a, b Route) int { return strings.Compare(a.chain(), b.chain()) }
			for _, r := range slices.SortedFunc(maps.Keys(p.chains[fam]), byName) {
				p.makeChain(fam, rs.Route(r), p.chains[fam][r]...)
			}
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
				p.batch.add(fam, e, nobody)
			case was > 0 && was+change == 0:
				p.batch.del(fam, e, nobody)
			}
		}
	}
}
