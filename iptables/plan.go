package iptables

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/headgate/headgate/model"
)

// programmed is what the kernel holds, or shall hold, in one family, apart from the forms of the services. The zero
// value is nothing. It never changes.
type programmed struct {
	env   *env
	trees trees
}

// A stage is one transaction: what changes in one table.
type stage struct {
	edits
	jumps   []jump   // to be inserted
	unjumps []jump   // to be deleted
	kept    []string // chains that should be deleted and are only emptied, since somebody else's rules lead to them
}

func (s *stage) empty() bool {
	return len(s.write) == 0 && len(s.gone) == 0 && len(s.jumps) == 0 && len(s.unjumps) == 0
}

// plan says what leads from one state to another. Changes must have each service whose form changes and, where env
// says that services have other rules than before, all services.
//
// A table is changed in one transaction, so the nat table and the filter table are not changed at once. A packet that
// comes in between must meet what it would have met before or what it will meet afterwards, and the filter table
// concerns only what the nat table leaves alone. As long as the node stays the same, and no explicit frontend takes the
// place of a node port at the same address or leaves it to one:
//
//   - the wall of a frontend that was balanced so far stands before the nat table stops to balance it;
//   - any other wall is put up, changed or taken down afterwards, lest it stops what the nat table is about to balance;
//   - but what goes for good with its frontend or its address goes before, and what comes with a new one comes after.
func plan(before programmed, e *env, changes []model.ResolvedChange) (programmed, []stage) {
	olds, news := make([]*pieces, len(changes)), make([]*pieces, len(changes))
	after, none := before.trees, &pieces{}
	for i, c := range changes {
		olds[i], news[i] = none, e.pieces(c.After)
		if before.env != nil {
			olds[i] = before.env.pieces(c.Before)
		}
		after = after.without(olds[i])
	}
	after = after.with(news)
	mid := before.trees.between(after, olds, news)

	up, balance, down := edits{table: filter}, edits{table: nat}, edits{table: filter}
	for i := range changes {
		diffChains(ofTable(olds[i].chains, nat), ofTable(news[i].chains, nat), &balance, &balance)
		before.trees.diffWalls(ofTable(olds[i].chains, filter), ofTable(news[i].chains, filter), &up, &down)
	}
	for t := range numTrees {
		if d := e.dispatch(t); d.table == nat {
			d.diff(before.trees[t], after[t], &balance)
		} else {
			d.diff(before.trees[t], mid[t], &up)
			d.diff(mid[t], after[t], &down)
		}
	}
	var between []chain
	if before.env != nil {
		between = e.sharedChains(filter, mid)
	}
	diffChains(before.sharedChains(filter), between, &up, &down)
	diffChains(between, e.sharedChains(filter, after), &down, &down)
	diffChains(before.sharedChains(nat), e.sharedChains(nat, after), &balance, &balance)

	down.take(&up)
	stages := []stage{{edits: up}, {edits: balance}, {edits: down}}
	diffJumps(before.jumps(), e.jumps(), stages[1:]) // to chains that are there, or still are
	return programmed{env: e, trees: after}, slices.DeleteFunc(stages, func(s stage) bool { return s.empty() })
}

// balances reports whether the nat table balances what a wall of the given tree and key would stop.
func (t trees) balances(wall int, key string) bool {
	if wall == wallByPort {
		_, is := t[byPort].find(key)
		return is
	}
	e, is := t[byAddress].find(key)
	return is && !strings.HasSuffix(e.rest, targetAccept)
}

// between returns the trees of the filter table between the two changes of it, of which the first comes before that of
// the nat table.
func (t trees) between(after trees, olds, news []*pieces) trees {
	mid := t
	for _, p := range news {
		for _, wall := range []int{wallByAddress, wallByPort} {
			for _, e := range p.entries[wall] {
				if t.balances(wall, e.key) {
					mid[wall] = mid[wall].with(e)
				}
			}
		}
	}
	for _, p := range olds {
		for _, tree := range []int{wallByAddress, wallByPort, others, exempt} {
			for _, e := range p.entries[tree] {
				if !after.has(tree, e.key) && (tree == others || tree == exempt || t.balances(tree, e.key)) {
					mid[tree] = mid[tree].without(e.key)
				}
			}
		}
	}
	return mid
}

// has reports whether a tree of the filter table has an entry, or might have one again for the frontend that it is about.
func (t trees) has(tree int, key string) bool {
	_, has := t[tree].find(key)
	switch tree {
	case wallByAddress:
		_, balanced := t[byAddress].find(key)
		return has || balanced
	case wallByPort:
		_, balanced := t[byPort].find(key)
		return has || balanced
	}
	return has
}

// diffWalls is diffChains for the chains of walls. Those that come do no harm before something leads to them; those that
// change do so before the nat table, or after it.
func (t trees) diffWalls(before, after []chain, up, down *edits) {
	is := func(in []chain) func(chain) bool {
		return func(c chain) bool {
			return slices.ContainsFunc(in, func(o chain) bool { return o.name == c.name })
		}
	}
	var early, late []chain
	for _, c := range after {
		if !is(before)(c) || t.balances(c.wall, c.guards) {
			early = append(early, c)
		} else {
			late = append(late, c)
		}
	}
	stay := slices.DeleteFunc(slices.Clone(before), func(c chain) bool { return !is(early)(c) })
	diffChains(stay, early, up, up)
	diffChains(slices.DeleteFunc(slices.Clone(before), is(early)), late, down, down)
}

func (p programmed) sharedChains(t table) []chain {
	if p.env == nil {
		return nil
	}
	return p.env.sharedChains(t, p.trees)
}

func (p programmed) jumps() []jump {
	if p.env == nil {
		return nil
	}
	return p.env.jumps()
}

// jumps returns the rules that lead into our chains. Those in front stand before the rules of others, whose DNAT would take
// packets away from us, or whose ACCEPT would keep the walls from them. What is accepted is accepted behind them:
// an administrator's rules are heard first, and only the policy of the chain is overruled.
func (e *env) jumps() []jump {
	say := func(why string) string { return comment(jumpMark + why) }
	js := []jump{
		{table: nat, from: "PREROUTING", text: words(say("services"), jumpTo(e.names.fixed(chainServices)))},
		{table: nat, from: "OUTPUT", text: words(say("services"), jumpTo(e.names.fixed(chainServices)))},
		{table: nat, from: "POSTROUTING", text: words(say("masquerade"), jumpTo(e.names.fixed(chainPostrouting)))},
	}
	for _, from := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		js = append(js, jump{table: filter, from: from, text: words(stateNew, say("services without endpoints, source ranges"), jumpTo(e.names.fixed(chainFilter)))})
	}
	js = append(js, jump{table: filter, from: "FORWARD", last: true, text: words(say("accept what is balanced"), jumpTo(e.names.fixed(chainForward)))})
	if e.loopback {
		js = append(js, jump{table: filter, from: "INPUT", text: words(matchDst(loopback[e.family]), "! -i lo", say("keep others from loopback"), jumpTo(e.names.fixed(chainLoopback)))})
	}
	if e.settings.dropInvalid {
		js = append(js, jump{table: filter, from: "FORWARD", text: words(stateInvalid, say("invalid packets of endpoints"), jumpTo(e.names.fixed(chainInvalid)))})
	}
	return js
}

// diffJumps adds to the stage of each table the jumps that come and go.
func diffJumps(before, after []jump, stages []stage) {
	of := func(j jump) *stage {
		return &stages[slices.IndexFunc(stages, func(s stage) bool { return s.table == j.table })]
	}
	for _, j := range after {
		if !slices.Contains(before, j) {
			of(j).jumps = append(of(j).jumps, j)
			of(j).added++
		}
	}
	for _, j := range before {
		if !slices.Contains(after, j) {
			of(j).unjumps = append(of(j).unjumps, j)
			of(j).deleted++
		}
	}
}

// edits are the chains of one table that change, and how many objects that are: chains that come and go, and rules.
type edits struct {
	table                   table
	write                   []chain // with all their rules
	gone                    []string
	added, changed, deleted int
}

func (e *edits) create(c chain) {
	e.write = append(e.write, c)
	e.added += 1 + len(c.rules)
}

func (e *edits) remove(c chain) {
	e.gone = append(e.gone, c.name)
	e.deleted += 1 + len(c.rules)
}

// take takes over the chains that go in an earlier stage: until this one, something may still lead to them.
func (e *edits) take(earlier *edits) {
	for _, name := range earlier.gone {
		if !slices.ContainsFunc(e.write, func(c chain) bool { return c.name == name }) {
			e.gone = append(e.gone, name)
		}
	}
	earlier.gone = nil
}

// change writes a chain unless it has the same rules already.
func (e *edits) change(c chain, old []rule) {
	if sameRules(c.rules, old) {
		return
	}
	e.write = append(e.write, c)
	counts := make(map[string]int, len(old))
	for _, r := range old {
		counts[r.text]++
	}
	added := 0
	for _, r := range c.rules {
		if counts[r.text] > 0 {
			counts[r.text]--
		} else {
			added++
		}
	}
	deleted := len(old) - (len(c.rules) - added)
	both := min(added, deleted)
	e.added += added - both
	e.changed += both
	e.deleted += deleted - both
	if added == 0 && deleted == 0 {
		e.changed++ // the order
	}
}

func sameRules(a, b []rule) bool {
	return slices.EqualFunc(a, b, func(x, y rule) bool { return x.text == y.text })
}

// diffChains says in one list of edits which chains come or change, and in another one which go.
func diffChains(before, after []chain, come, leave *edits) {
	if len(before) == 0 {
		for _, c := range after {
			come.create(c)
		}
		return
	}
	olds := make(map[string]chain, len(before))
	for _, c := range before {
		olds[c.name] = c
	}
	for _, c := range after {
		if old, ok := olds[c.name]; ok {
			come.change(c, old.rules)
			delete(olds, c.name)
		} else {
			come.create(c)
		}
	}
	for _, name := range sortedKeys(olds) {
		leave.remove(olds[name])
	}
}

func ofTable(chains []chain, t table) []chain {
	if !slices.ContainsFunc(chains, func(c chain) bool { return c.table != t }) {
		return chains
	}
	return slices.DeleteFunc(slices.Clone(chains), func(c chain) bool { return c.table != t })
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// A ruleset is all our chains of one family.
type ruleset [len(tables)][]chain

// rulesetOf returns all our chains for a state.
func rulesetOf(e *env, forms []*model.Resolved) (programmed, ruleset) {
	changes := make([]model.ResolvedChange, len(forms))
	for i, f := range forms {
		changes[i] = model.ResolvedChange{Name: f.Name, After: f}
	}
	p, stages := plan(programmed{}, e, changes)
	var rs ruleset
	for _, s := range stages {
		rs[s.table] = append(rs[s.table], s.write...)
	}
	for t := range rs {
		slices.SortFunc(rs[t], func(a, b chain) int { return strings.Compare(a.name, b.name) })
	}
	return p, rs
}
