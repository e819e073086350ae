package nft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/nlink"
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
	// unseen says that somebody else has written and the structure has not been looked at since; doubtful, that our
	// elements may not be as written; verified is when they last were.
	unseen   bool
	doubtful bool
	verified time.Time
	// unconditional says that the next transaction shall not depend on the generation: others keep committing.
	unconditional bool
}

// committed notes the outcome of a transaction. If it was conditional on the generation, the kernel's is one more now.
func (k *witness) committed(s *socket, done *Plan, made handles, conditional bool) error {
	if done.fresh {
		*k = witness{generation: k.generation, verified: done.now}
		for _, fam := range model.Families {
			k.rules[fam], k.sets[fam] = map[string][]uint64{}, map[string]bool{}
			for name := range done.found[fam].sets {
				k.sets[fam][name] = true
			}
			for name := range done.stand[fam] {
				for _, r := range done.found[fam].rules[name] {
					k.rules[fam][name] = append(k.rules[fam][name], r.handle)
				}
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
func (k *witness) look(s *socket, done *Plan) error {
	id, err := s.readGeneration()
	if err != nil {
		return err
	}
	k.unseen = k.unseen || id != k.generation
	k.doubtful = k.doubtful || k.unseen
	k.generation = id
	if !done.fresh {
		return nil
	}
	for _, fam := range model.Families {
		var st structure
		if err := s.readTable(done.cfg.Name, fam, &st); err != nil {
			return err
		}
		k.tables[fam] = st.table
	}
	return nil
}

// compare reports whether the structure of our tables is as we wrote it: an error that wraps model.ErrDrift and says
// what differs, if it is not. It notes the generation at which that was so.
func (k *witness) compare(ctx context.Context, t *Table) error {
	id, err := t.generation(ctx)
	if err != nil {
		return err
	}
	found, err := t.structures(ctx, ruleOf)
	if err != nil {
		return err
	}
	for _, fam := range model.Families {
		if what := k.differs(fam, found[fam]); what != "" {
			return fmt.Errorf("%w: table %s %s: %s", model.ErrDrift, nftFamily(fam), t.cfg.Name, what)
		}
	}
	k.doubtful = k.doubtful || id != k.generation
	k.generation, k.unseen = id, false
	return nil
}

// generation asks for the number of the last transaction that anybody committed.
func (t *Table) generation(ctx context.Context) (id uint32, err error) {
	err = t.exchange(ctx, func(s *socket) error {
		id, err = s.readGeneration()
		return err
	})
	return id, err
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
	case found.dormant:
		return "it is dormant"
	}
	for chain, info := range found.chains {
		if info.drops {
			return fmt.Sprintf("chain %s has policy drop", chain)
		}
	}
	for chain, handles := range k.rules[fam] {
		if !slices.EqualFunc(handles, found.rules[chain], func(h uint64, r ruleInfo) bool { return h == r.handle }) {
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

// Check reports whether the tables are still as they were written: nil, or an error that wraps [model.ErrDrift] and says
// what differs. If nobody has committed anything to nftables since, it costs one question; else it compares tables,
// chains, sets and rules and, at most once in [Config.VerifyInterval], every element.
func (t *Table) Check(ctx context.Context) error {
	if t.record == nil {
		return model.ErrNotSynced
	}
	id, err := t.generation(ctx)
	if err != nil {
		return err
	}
	if id != t.kernel.generation || t.kernel.unseen {
		if err := t.kernel.compare(ctx, t); err != nil {
			return err
		}
	}
	if !t.kernel.doubtful {
		return nil
	}
	now := time.Now()
	if t.cfg.VerifyInterval < 0 || now.Sub(t.kernel.verified) < t.cfg.VerifyInterval {
		return nil
	}
	if err := t.verify(ctx); err != nil {
		return err
	}
	t.kernel.verified, t.kernel.doubtful = now, false
	return nil
}

// verify compares every element in the tables with what was written.
func (t *Table) verify(ctx context.Context) error {
	var want [2][]map[string]elementInfo
	for _, fam := range model.Families {
		for range t.cfg.Sets {
			want[fam] = append(want[fam], map[string]elementInfo{})
		}
	}
	all := newPlan(&t.cfg, t.record, t.record.node, time.Now(), false, &t.memory)
	all.fresh = true
	all.batch.seen = func(fam model.Family, e *Element) {
		i := e.info(&t.cfg.Sets[e.Set])
		want[fam][e.Set][i.key] = i
	}
	for name, l := range t.record.laid {
		for _, fam := range model.Families {
			all.rules[fam].Render(&all.after[fam], l.res, l.lay[fam])
			all.diff(fam, name, &Form{}, &all.after[fam])
		}
	}
	all.finish()
	for _, fam := range model.Families {
		for _, e := range t.record.tables[fam].extra {
			all.batch.seen(fam, &e)
		}
		for id, elements := range want[fam] {
			if t.cfg.Sets[id].Lazy && !t.record.tables[fam].lazy[SetID(id)] {
				continue
			}
			if err := t.compareSet(ctx, fam, &t.cfg.Sets[id], elements); err != nil {
				return err
			}
		}
	}
	return nil
}

// info returns what the kernel tells of an element once it is made.
func (e *Element) info(s *Set) elementInfo {
	var w Wire
	w.writeElement(s, e, false)
	i, err := readElement(w.Buf[nlink.AttrLen:])
	if err != nil {
		panic("nftables: an element that cannot be read back: " + err.Error())
	}
	return i
}

// compareSet compares a set in the kernel with the elements that were written to it.
func (t *Table) compareSet(ctx context.Context, fam model.Family, set *Set, want map[string]elementInfo) error {
	var left map[string]elementInfo
	var what string
	err := t.exchange(ctx, func(s *socket) error {
		return nlink.Steady(func() error {
			left, what = maps.Clone(want), ""
			return s.readElements(t.cfg.Name, fam, set.Name, func(elem []byte) error {
				i, err := readElement(elem)
				i.left = 0 // it is being counted down
				if w, ok := want[i.key]; !ok {
					what = "has an element of somebody else"
				} else if w != i {
					what = "has an element that somebody changed"
				}
				delete(left, i.key)
				return err
			})
		})
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: table %s %s: set %s is gone", model.ErrDrift, nftFamily(fam), t.cfg.Name, set.Name)
	case err != nil:
		return err
	case what == "" && len(left) > 0 && !set.Expires:
		what = fmt.Sprintf("lacks %d elements", len(left))
	}
	if what != "" {
		return fmt.Errorf("%w: table %s %s: set %s %s", model.ErrDrift, nftFamily(fam), t.cfg.Name, set.Name, what)
	}
	return nil
}
