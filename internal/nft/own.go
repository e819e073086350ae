package nft

import (
	"bytes"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

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
			reshaped = p.makeMap(fam, name, a.Set) || reshaped
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
			if reshaped {
				delete(p.found[fam].rules, a.Name) // so that they are not taken for those that are wanted
			}
			p.makeChain(fam, *a, name)
		case reshaped || !sameRules(*a, *b):
			p.batch.changed++
			p.batch.flush(fam, a.Name, name)
			p.writeRules(fam, *a, name)
		}
	})
	p.planPruning(fam, name, before, after)
}

// makeMap plans a map of clients. After a restart, one of the same shape stays. It reports whether one of another goes.
func (p *Plan) makeMap(fam model.Family, name model.ServiceName, s Set) (reshaped bool) {
	put(&p.wanted[fam], s.Name, true)
	there, found := p.found[fam].sets[s.Name]
	switch {
	case found && there.same(s.info(fam)):
		return false
	case found:
		p.batch.deleteSet(fam, s.Name, name)
	case p.isStale(fam, s.Name):
		p.revive(fam, s.Name, name)
	}
	p.batch.makeSet(fam, s, name)
	return found
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

// makeChain plans a chain with its rules. After a restart, one with the same rules stays.
func (p *Plan) makeChain(fam model.Family, c Chain, owners ...model.ServiceName) {
	put(&p.wanted[fam], c.Name, true)
	if p.isStale(fam, c.Name) {
		put(&p.revived[fam], c.Name, true)
		p.batch.flush(fam, c.Name, owners...)
	}
	if there, ok := p.found[fam].chains[c.Name]; ok {
		if there == c.info() && c.written(p.found[fam].rules[c.Name]) {
			put(&p.stand[fam], c.Name, true)
			return
		}
		p.batch.flush(fam, c.Name, owners...)
		if there != c.info() {
			p.batch.deleteChain(fam, c.Name)
		}
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

// written reports whether rules in the kernel are those of the chain.
func (c Chain) written(rules []ruleInfo) bool {
	var w Wire
	return slices.EqualFunc(c.Rules, rules, func(r Rule, there ruleInfo) bool {
		w.Buf = w.Buf[:0]
		w.writeRule("", 0, "", r)
		_, _, wanted, err := wholeRuleOf(w.Buf[unix.SizeofNlMsghdr:])
		wanted.handle = there.handle
		return err == nil && wanted == there
	})
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
