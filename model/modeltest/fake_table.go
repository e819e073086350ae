package modeltest

import (
	"net/netip"
	"slices"
	"syscall"

	"github.com/headgate/headgate/model"
)

// How a table of the pretended kernel changes, and what it refuses.

// An undo takes back one step of a transaction, with all that the kernel remembered.
type undo func()

// put adds an object, or changes one that is there. It refuses what the rules do not allow.
func (t *table) put(key, value any, change bool) (undo, error) {
	switch k := key.(type) {
	case nodeKey:
		old := t.node
		if (old != nil) != change {
			return nil, wrongly(change)
		}
		t.node = value.(*model.Node)
		return func() { t.node = old }, nil
	case strangerKey:
		old, there := t.strangers[k.name]
		if there != change {
			return nil, wrongly(change)
		}
		t.strangers[k.name] = value.(string)
		if !there {
			return func() { delete(t.strangers, k.name) }, nil
		}
		return func() { t.strangers[k.name] = old }, nil
	case groupKey:
		return t.putGroup(k, value.(groupValue), change)
	case memberKey:
		return t.putMember(k, value.(memberValue), change)
	case frontKey:
		return t.putFront(k, value.(frontValue), change)
	case rangeKey:
		return t.putRange(k, change)
	}
	return nil, syscall.EINVAL
}

// wrongly is the error of who changes what is not there, or adds what is.
func wrongly(change bool) error {
	if change {
		return syscall.ENOENT
	}
	return syscall.EEXIST
}

func (t *table) putGroup(k groupKey, v groupValue, change bool) (undo, error) {
	g := t.groups[k]
	if (g != nil) != change {
		return nil, wrongly(change)
	}
	if g == nil {
		t.groups[k] = &group{groupValue: v, key: k, pins: map[netip.Addr]pin{}, conns: map[netip.AddrPort]int{}}
		return func() { delete(t.groups, k) }, nil
	}
	old, pins := g.groupValue, g.pins
	g.groupValue = v
	if v.affinity != old.affinity {
		g.pins = map[netip.Addr]pin{} // nobody is kept by a rule that is no more
	}
	return func() { g.groupValue, g.pins = old, pins }, nil
}

func (t *table) putMember(k memberKey, v memberValue, change bool) (undo, error) {
	g := t.groups[k.group]
	if g == nil || v.weight == 0 {
		return nil, syscall.EINVAL
	}
	i, there := g.find(k.list, k.addr)
	if there != change {
		return nil, wrongly(change)
	}
	old := g.members[k.list]
	ms := slices.Clone(old)
	if there {
		ms[i].memberValue = v
	} else {
		ms = slices.Insert(ms, i, member{k.addr, v})
	}
	g.members[k.list] = ms
	return func() { g.members[k.list] = old }, nil
}

func (t *table) putFront(k frontKey, v frontValue, change bool) (undo, error) {
	g := t.groups[v.group]
	if g == nil {
		return nil, syscall.ENOENT
	}
	f := t.fronts[k]
	if (f != nil) != change {
		return nil, wrongly(change)
	}
	g.fronts++
	t.own(k, v.kind, 1)
	if f == nil {
		t.fronts[k] = &front{frontValue: v}
		return func() { delete(t.fronts, k); g.fronts--; t.own(k, v.kind, -1) }, nil
	}
	old, before := f.frontValue, t.groups[f.group]
	before.fronts--
	t.own(k, old.kind, -1)
	f.frontValue = v
	return func() {
		f.frontValue = old
		before.fronts++
		g.fronts--
		t.own(k, old.kind, 1)
		t.own(k, v.kind, -1)
	}, nil
}

// own counts a frontend at its address.
func (t *table) own(k frontKey, kind model.FrontendKind, n int) {
	if kind == model.NodePort {
		return
	}
	c := t.owned[k.Addr.Addr()]
	c[0] += n
	if kind == model.Internal {
		c[1] += n
	}
	if t.owned[k.Addr.Addr()] = c; c[0] == 0 {
		delete(t.owned, k.Addr.Addr())
	}
}

func (t *table) putRange(k rangeKey, change bool) (undo, error) {
	f := t.fronts[k.front]
	switch {
	case f == nil:
		return nil, syscall.ENOENT
	case change || !k.prefix.IsValid() || k.prefix.Masked() != k.prefix || model.FamilyOf(k.prefix.Addr()) != model.FamilyOf(k.front.Addr.Addr()):
		return nil, syscall.EINVAL
	case slices.ContainsFunc(f.ranges, k.prefix.Overlaps):
		return nil, syscall.EEXIST
	}
	old := f.ranges
	i, _ := slices.BinarySearchFunc(old, k.prefix, comparePrefixes)
	f.ranges = slices.Insert(slices.Clone(old), i, k.prefix)
	return func() { f.ranges = old }, nil
}

func comparePrefixes(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}

// remove removes an object that nothing refers to and nothing belongs to.
func (t *table) remove(key any) (undo, error) {
	switch k := key.(type) {
	case nodeKey:
		old := t.node
		if old == nil {
			return nil, syscall.ENOENT
		}
		t.node = nil
		return func() { t.node = old }, nil
	case strangerKey:
		old, ok := t.strangers[k.name]
		if !ok {
			return nil, syscall.ENOENT
		}
		delete(t.strangers, k.name)
		return func() { t.strangers[k.name] = old }, nil
	case groupKey:
		g := t.groups[k]
		switch {
		case g == nil:
			return nil, syscall.ENOENT
		case g.fronts > 0 || len(g.members[model.Cluster])+len(g.members[model.Local]) > 0:
			return nil, syscall.EBUSY
		}
		delete(t.groups, k)
		return func() { t.groups[k] = g }, nil
	case memberKey:
		return t.removeMember(k)
	case frontKey:
		f := t.fronts[k]
		switch {
		case f == nil:
			return nil, syscall.ENOENT
		case len(f.ranges) > 0:
			return nil, syscall.EBUSY
		}
		g := t.groups[f.group]
		delete(t.fronts, k)
		g.fronts--
		t.own(k, f.kind, -1)
		return func() { t.fronts[k] = f; g.fronts++; t.own(k, f.kind, 1) }, nil
	case rangeKey:
		f := t.fronts[k.front]
		if f == nil || !slices.Contains(f.ranges, k.prefix) {
			return nil, syscall.ENOENT
		}
		old := f.ranges
		f.ranges = slices.DeleteFunc(slices.Clone(old), func(p netip.Prefix) bool { return p == k.prefix })
		return func() { f.ranges = old }, nil
	}
	return nil, syscall.EINVAL
}

func (t *table) removeMember(k memberKey) (undo, error) {
	g := t.groups[k.group]
	if g == nil {
		return nil, syscall.ENOENT
	}
	i, there := g.find(k.list, k.addr)
	if !there {
		return nil, syscall.ENOENT
	}
	old, pins := g.members[k.list], g.pins
	g.members[k.list] = slices.Delete(slices.Clone(old), i, i+1)
	if _, elsewhere := g.find(1-k.list, k.addr); !elsewhere && len(pins) > 0 {
		g.pins = map[netip.Addr]pin{}
		for client, p := range pins {
			if p.addr != k.addr {
				g.pins[client] = p
			}
		}
	}
	return func() { g.members[k.list], g.pins = old, pins }, nil
}
