package nft

import (
	"slices"

	"github.com/headgate/headgate/model"
)

// planSync plans the way from whatever the kernel holds to the given forms, in one transaction: the rules and elements
// of our table are flushed and written anew, since reading the elements first would take two to three times as long.
// Sets are not made anew, though the kernel would be as quick about that: a packet that is on its way through the old
// rules would find the old set's elements gone. Sets of ranges are read and stay, see [kept]; maps of clients stay, with
// those clients in them whose endpoint still serves.
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
	p.batch.settle()
	for _, fam := range model.Families {
		p.dropUnknown(fam)
	}
}

// adopt plans the table, its sets and the chains that do not depend on services. A table that we did not make is made
// anew, and so is one that somebody has put to sleep: it serves nobody.
func (p *Plan) adopt(fam model.Family, found structure) {
	table := p.cfg.Name
	if found.table != 0 && (!found.ours || found.dormant) {
		p.batch.write(sectionTables, func(w *Wire) { w.deleteTable(table, fam) })
		found = structure{}
	}
	p.found[fam] = found
	p.batch.write(sectionTables, func(w *Wire) { w.writeTable(table, fam) })
	if found.table != 0 {
		p.batch.flush(fam, "")
	}
	for id, spec := range p.cfg.Sets {
		switch there, ok := found.sets[spec.Name]; {
		case ok && found.ranges[spec.Name] != nil:
			p.batch.keep(fam, SetID(id), found.ranges[spec.Name])
		case ok && there.same(spec.info(fam)):
			p.batch.write(sectionGone, func(w *Wire) { w.flushSet(table, fam, spec.Name) })
		case ok:
			p.batch.deleteSet(fam, spec.Name)
			fallthrough
		default:
			p.batch.makeSet(fam, spec)
		}
	}
	for _, c := range p.rules[fam].Frame() {
		p.makeChain(fam, c)
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
		if !p.wanted[fam][name] && !slices.ContainsFunc(p.cfg.Sets, func(s Set) bool { return s.Name == name }) {
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
