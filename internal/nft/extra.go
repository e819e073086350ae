package nft

import (
	"github.com/headgate/headgate/model"
)

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
			p.batch.forget(fam, p.cfg.Sets[key.Set], []Element{was}) // it may have expired
		case e.Comment == removed:
			p.batch.del(fam, &was, nobody)
		case !there:
			p.batch.add(fam, &e, nobody)
		case was != e:
			p.batch.replace(fam, &was, &e, nobody)
		}
	}
}

const removed = "\x00" // is no comment of anybody
