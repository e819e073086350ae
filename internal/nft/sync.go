package nft

import "github.com/headgate/headgate/model"

// planSync plans the way from whatever the kernel holds to the given forms, in one transaction. Elements are flushed and
// written anew, since reading them first would take two to three times as long. Sets are not made anew, though the kernel
// would be as quick about that: a packet that is on its way through the old rules would find the old set's elements gone.
// Sets of ranges are read and stay, see [kept]; maps of clients stay, with those clients in them whose endpoint still
// serves. Chains stay that have the right rules: for each that uses a map the kernel would walk through all of it, the
// elements that go included.
func planSync(p *Plan, found [2]structure, in Input) {
	p.fresh = true
	p.makeRules()
	p.batch.grown = len(in.Forms) > maxElements
	p.laid = make(map[model.ServiceName]laid, len(in.Forms))
	p.shared[model.IPv4] = make(map[SharedKey]int, len(in.Forms))
	for _, fam := range model.Families {
		p.adopt(fam, found[fam])
	}
	for _, f := range in.Forms {
		p.change(f.Name, f)
	}
	if in.Extra != nil {
		in.Extra(p)
	}
	p.finish()
	p.batch.settle(p.renewFrame)
	for _, fam := range model.Families {
		p.dropUnknown(fam)
	}
}

// adopt plans the table, its sets and the chains that do not depend on services. A table that we did not make is made
// anew, and so is one that somebody has put to sleep: it serves nobody.
func (p *Plan) adopt(fam model.Family, found structure) {
	table := p.cfg.Name
	if found.table != 0 && (!found.ours || found.dormant) {
		p.batch.write(sectionTables, func(w *Wire) { w.writeTable(table, fam) }) // it may have gone meanwhile
		p.batch.write(sectionTables, func(w *Wire) { w.deleteTable(table, fam) })
		found = structure{}
	}
	p.found[fam] = found
	p.batch.write(sectionTables, func(w *Wire) { w.writeTable(table, fam) })
	for _, spec := range p.cfg.Sets {
		if there, ok := found.sets[spec.Name]; ok && !there.same(spec.info(fam)) {
			p.batch.deleteSet(fam, spec.Name)
			delete(found.sets, spec.Name)
			clear(found.rules) // those that use the set must go first
		}
	}
	for id, spec := range p.cfg.Sets {
		if !spec.Lazy {
			p.adoptSet(fam, SetID(id))
		}
	}
	for _, c := range p.rules[fam].Frame() {
		p.makeChain(fam, c)
	}
}

// adoptSet plans a set, empty, or one of ranges that settle brings into order.
func (p *Plan) adoptSet(fam model.Family, id SetID, owners ...model.ServiceName) {
	spec, found := p.cfg.Sets[id], p.found[fam]
	put(&p.wanted[fam], spec.Name, true)
	switch _, ok := found.sets[spec.Name]; {
	case ok && found.ranges[spec.Name] != nil:
		p.batch.keep(fam, id, found.ranges[spec.Name])
	case ok:
		p.batch.write(sectionGone, func(w *Wire) { w.flushSet(p.cfg.Name, fam, spec.Name) }, owners...)
	default:
		p.batch.makeSet(fam, spec, owners...)
	}
}

// provide sees to it that a lazy set is there.
func (p *Plan) provide(fam model.Family, id SetID, name model.ServiceName) {
	if !p.cfg.Sets[id].Lazy || p.lazy[fam][id] || !p.fresh && p.old.tables[fam].lazy[id] {
		return
	}
	put(&p.lazy[fam], id, true)
	p.adoptSet(fam, id, name)
}

// renewFrame plans the chains that do not depend on services anew, where they stand: a set that they use is to be deleted.
func (p *Plan) renewFrame(fam model.Family) {
	for _, c := range p.rules[fam].Frame() {
		if p.stand[fam][c.Name] {
			delete(p.stand[fam], c.Name)
			p.batch.flush(fam, c.Name)
			p.writeRules(fam, c)
		}
	}
}

// info returns what the kernel tells of a chain once it is made.
func (c Chain) info() chainInfo {
	if c.Hook == nil {
		return chainInfo{}
	}
	return chainInfo{kind: c.Hook.Kind, hook: c.Hook.Num, priority: c.Hook.Priority, base: true}
}

// dropUnknown plans the removal of what is in our table and shall not be. Sets go now. Chains, now without rules, go
// later, because the kernel may not have released them yet; but base chains, to which nothing leads, go at once.
func (p *Plan) dropUnknown(fam model.Family) {
	found := p.found[fam]
	for name := range found.sets {
		if !p.wanted[fam][name] {
			p.batch.deleteSet(fam, name)
		}
	}
	for name, info := range found.chains {
		switch {
		case p.wanted[fam][name]:
		case info.base:
			p.batch.deleteChain(fam, name)
		default:
			p.batch.flush(fam, name)
			p.retire(fam, name, false)
		}
	}
}
