package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// A witness remembers how the kernel looked when we last wrote, to tell whether anybody else has written since.
type witness struct {
	// generation is the number of the namespace's last transaction, if it was ours or did not touch us; 0, unknown.
	generation uint32
	// rules are the handles of our rules, sets the names of our sets; tables the handles of our tables.
	rules  [2]map[string][]uint64
	sets   [2]map[string]bool
	tables [2]uint64
	// doubtful says that somebody else has written, so that our elements may not be as written; verified is when they
	// last were.
	doubtful bool
	verified time.Time
	// unconditional says that the next transaction shall not depend on the generation: others keep committing.
	unconditional bool
}

// before notes the generation before a transaction without a condition.
func (k *witness) before(s *socket) (err error) {
	k.generation, err = s.readGeneration()
	return err
}

// committed notes the outcome of a transaction. If it was conditional on the generation, the kernel's is one more now.
func (k *witness) committed(s *socket, done *plan, made handles, conditional bool) error {
	if done.fresh {
		*k = witness{generation: k.generation, verified: done.now}
		for _, fam := range model.Families {
			k.rules[fam], k.sets[fam] = map[string][]uint64{}, map[string]bool{}
			for name := range done.found[fam].sets {
				k.sets[fam][name] = true
			}
		}
	}
	for _, fam := range model.Families {
		for _, chain := range done.batch.flushed[fam] {
			delete(k.rules[fam], chain)
		}
		maps.Copy(k.rules[fam], made[fam])
		for name, there := range done.batch.sets[fam] {
			if there {
				k.sets[fam][name] = true
			} else {
				delete(k.sets[fam], name)
			}
		}
	}
	if k.generation++; k.generation == 0 {
		k.generation = 1 // the kernel leaves 0 out, too
	}
	if conditional {
		return nil
	}
	return k.look(s, done)
}

// look asks for the generation after a transaction without a condition: if it is not the next one, somebody else has
// written meanwhile.
func (k *witness) look(s *socket, done *plan) error {
	id, err := s.readGeneration()
	if err != nil {
		return err
	}
	k.doubtful = k.doubtful || id != k.generation
	k.generation = id
	if !done.fresh {
		return nil
	}
	for _, fam := range model.Families {
		if k.tables[fam], _, err = s.readTable(done.cfg.Table, fam); err != nil {
			return err
		}
	}
	return nil
}

// compare reports whether the structure of our tables is as we wrote it: an error that wraps model.ErrDrift and says
// what differs, if it is not. It notes the generation at which that was so.
func (k *witness) compare(ctx context.Context, p *Programmer) error {
	var id uint32
	err := p.exchange(ctx, func(s *socket) (err error) {
		id, err = s.readGeneration()
		return err
	})
	if err != nil {
		return err
	}
	found, err := p.structures(ctx)
	if err != nil {
		return err
	}
	for _, fam := range model.Families {
		if what := k.differs(fam, found[fam]); what != "" {
			return fmt.Errorf("%w: table %s %s: %s", model.ErrDrift, nftFamily(fam), p.cfg.Table, what)
		}
	}
	k.doubtful = k.doubtful || id != k.generation
	k.generation = id
	return nil
}

func nftFamily(fam model.Family) string {
	if fam == model.IPv4 {
		return "ip"
	}
	return "ip6"
}

// differs says what is not as we wrote it in a table; nothing, if all is.
func (k *witness) differs(fam model.Family, found structure) string {
	switch {
	case found.table == 0:
		return "it is gone"
	case found.table != k.tables[fam]:
		return "somebody has made it anew"
	}
	for chain, handles := range k.rules[fam] {
		if !slices.Equal(handles, found.rules[chain]) {
			return fmt.Sprintf("the rules of chain %s are not those that were written", chain)
		}
	}
	for chain := range found.rules {
		if _, ours := k.rules[fam][chain]; !ours {
			return fmt.Sprintf("chain %s has rules of somebody else", chain)
		}
	}
	for set := range k.sets[fam] {
		if _, ok := found.sets[set]; !ok {
			return fmt.Sprintf("set %s is gone", set)
		}
	}
	for set := range found.sets {
		if !k.sets[fam][set] {
			return fmt.Sprintf("set %s is somebody else's", set)
		}
	}
	return ""
}

// Check reports whether the kernel still holds what was last written. If nobody has committed anything to nftables
// since, it costs one question; else it compares tables, chains, sets and rules and, at most once in
// [Config.VerifyInterval], every element.
func (p *Programmer) Check(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return model.ErrClosed
	case p.record == nil:
		return model.ErrNotSynced
	}
	err := p.check(ctx)
	if err != nil {
		return fmt.Errorf("nftables: check: %w", err)
	}
	return nil
}

func (p *Programmer) check(ctx context.Context) error {
	var id uint32
	err := p.exchange(ctx, func(s *socket) (err error) {
		id, err = s.readGeneration()
		return err
	})
	if err != nil {
		return err
	}
	if id != p.kernel.generation {
		if err := p.kernel.compare(ctx, p); err != nil {
			return err
		}
	}
	if !p.kernel.doubtful {
		return nil
	}
	now := time.Now()
	if p.cfg.VerifyInterval < 0 || now.Sub(p.kernel.verified) < p.cfg.VerifyInterval {
		return nil
	}
	if err := p.verify(ctx); err != nil {
		return err
	}
	p.kernel.verified, p.kernel.doubtful = now, false
	return nil
}

// verify compares every element in our tables with what was written.
func (p *Programmer) verify(ctx context.Context) error {
	var want [2][setCount]map[string]elementInfo
	for _, fam := range model.Families {
		for id := range want[fam] {
			want[fam][id] = map[string]elementInfo{}
		}
	}
	all := newPlan(p.cfg, p.record, p.record.node, time.Now(), false, &p.memory)
	all.fresh = true
	all.batch.seen = func(fam model.Family, e *element) {
		i := e.info()
		want[fam][e.set][i.key] = i
	}
	for name, laid := range p.record.laid {
		for _, fam := range model.Families {
			all.rules(fam, p.record.node).render(&all.after[fam], p.resolver.Form(name), laid[fam])
			all.diff(fam, name, &form{}, &all.after[fam])
		}
	}
	all.finish()
	for _, fam := range model.Families {
		for id, elements := range want[fam] {
			if err := p.compareSet(ctx, fam, setNames[id], elements); err != nil {
				return err
			}
		}
	}
	return nil
}

// info returns what the kernel tells of an element once it is made.
func (e *element) info() elementInfo {
	var w wire
	w.writeElement(e, false)
	i, err := readElement(w.buf[attrLen:])
	if err != nil {
		panic("nftables: an element that cannot be read back: " + err.Error())
	}
	return i
}

// compareSet compares a set in the kernel with the elements that were written to it.
func (p *Programmer) compareSet(ctx context.Context, fam model.Family, set string, want map[string]elementInfo) error {
	left := maps.Clone(want)
	var what string
	err := p.exchange(ctx, func(s *socket) error {
		return s.readElements(p.cfg.Table, fam, set, func(elem []byte) error {
			i, err := readElement(elem)
			if w, ok := want[i.key]; !ok {
				what = "has an element of somebody else"
			} else if w != i {
				what = "has an element that somebody changed"
			}
			delete(left, i.key)
			return err
		})
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: table %s %s: set %s is gone", model.ErrDrift, nftFamily(fam), p.cfg.Table, set)
	case err != nil:
		return err
	case what == "" && len(left) > 0:
		what = fmt.Sprintf("lacks %d elements", len(left))
	}
	if what != "" {
		return fmt.Errorf("%w: table %s %s: set %s %s", model.ErrDrift, nftFamily(fam), p.cfg.Table, set, what)
	}
	return nil
}
