package nftables

import (
	"slices"

	"github.com/headgate/headgate/model"
)

// planSync plans the way from whatever the kernel holds to the given forms, in one transaction: the rules and sets of
// our table are made anew, since reading the elements first would take two to three times as long, and since the kernel
// drops a whole set faster than its elements one by one.
// Maps of clients stay, with those clients in them whose endpoint still serves.
func planSync(p *plan, found [2]structure, forms []*model.Resolved) {
	p.fresh = true
	p.batch.grown = len(forms) > maxElements
	p.laid = make(map[model.ServiceName]*[2]layouts, len(forms))
	p.shared[model.IPv4] = make(map[sharedKey]int, len(forms))
	for _, fam := range model.Families {
		p.adopt(fam, found[fam])
	}
	for _, f := range forms {
		p.change(model.ResolvedChange{Name: f.Name, After: f})
	}
	p.finish()
	for _, fam := range model.Families {
		p.dropUnknown(fam)
	}
}

// adopt plans the table, its sets and the chains that do not depend on services. A table that we did not make is made
// anew.
func (p *plan) adopt(fam model.Family, found structure) {
	table := p.cfg.Table
	if found.table != 0 && !found.ours {
		p.batch.write(sectionTables, func(w *wire) { w.deleteTable(table, fam) })
		found = structure{}
	}
	p.found[fam] = found
	p.batch.write(sectionTables, func(w *wire) { w.writeTable(table, fam) })
	if found.table != 0 {
		p.batch.flush(fam, "")
	}
	for id := range setID(setCount) {
		spec := staticSet(id)
		if _, ok := found.sets[spec.name]; ok {
			p.batch.deleteSet(fam, spec.name)
		}
		p.batch.makeSet(fam, spec)
	}
	for _, c := range p.rules(fam, p.node).frame() {
		if there, ok := found.chains[c.name]; ok && there != c.info() {
			p.batch.deleteChain(fam, c.name)
		}
		p.makeChain(fam, c)
	}
}

// info returns what the kernel tells of a chain once it is made.
func (c chainSpec) info() chainInfo {
	if c.hook == nil {
		return chainInfo{}
	}
	return chainInfo{kind: c.hook.kind, hook: c.hook.hook, priority: c.hook.priority, base: true}
}

// dropUnknown plans the removal of what is in our table and shall not be. Sets go now. Chains, now without rules, go
// later, because the kernel may not have released them yet; but base chains, to which nothing leads, go at once.
func (p *plan) dropUnknown(fam model.Family) {
	found := p.found[fam]
	for name := range found.sets {
		if !p.wanted[fam][name] && !slices.Contains(setNames[:], name) {
			p.batch.deleteSet(fam, name)
		}
	}
	for name, info := range found.chains {
		switch {
		case p.wanted[fam][name]:
		case info.base:
			p.batch.deleteChain(fam, name)
		default:
			p.retire(fam, name, false)
		}
	}
}
