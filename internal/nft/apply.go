package nft

import (
	"maps"
	"slices"

	"github.com/headgate/headgate/model"
)

// planApply plans changes against what the kernel holds.
func planApply(p *Plan, in Input) {
	changes := in.Changes
	if !p.node.Equal(p.old.node) {
		p.frame()
		// What a service needs may depend on the node even where its own form does not.
		changes = p.all(changes)
	}
	for _, c := range changes {
		p.change(c.Name, c.After)
	}
	if in.Extra != nil {
		in.Extra(p)
	}
	p.sweep()
	p.finish()
}

// all adds to changes the services that stay as they are, sorted by name.
func (p *Plan) all(changes []model.ResolvedChange) []model.ResolvedChange {
	all := make(map[model.ServiceName]*model.Resolved, len(p.old.laid)+len(changes))
	for name, l := range p.old.laid {
		all[name] = l.res
	}
	for _, c := range changes {
		all[c.Name] = c.After
	}
	out := make([]model.ResolvedChange, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, model.ResolvedChange{Name: name, After: all[name]})
	}
	return out
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
