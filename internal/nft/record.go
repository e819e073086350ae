package nft

import (
	"maps"
	"slices"
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
	lazy   map[SetID]bool // lazy sets that are there
	// recording says that the chains of RecordAffinity are there.
	recording bool
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
		r.tables[i] = tableRecord{chains: map[Route]bool{}, shared: map[SharedKey]int{}, extra: map[ElementKey]Element{}, lazy: map[SetID]bool{}}
	}
	return r
}

// untidy reports whether something waits for a later transaction.
func (r *record) untidy() bool {
	return len(r.tables[0].stale)+len(r.tables[1].stale) > 0
}

// grace is how long what packets in flight may still need is left in place.
const grace = 10 * time.Millisecond

// commit notes what the kernel holds now.
func (p *Plan) commit() *record {
	r := p.old
	if p.fresh {
		r = newRecord(p.node)
		r.laid, p.laid = p.laid, nil
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
		maps.Copy(t.lazy, p.lazy[fam])
		t.recording = t.recording || p.recording[fam]
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
	p.old, p.found = nil, [2]structure{} // the plan is kept for the next one, what it knew is not
	return r
}
