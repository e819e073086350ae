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
// A table is changed in one transaction, two tables in two. Between them a packet must not meet a hole: so walls
// are put up in the filter table before the nat table stops to balance, and taken down after it began. They concern
// only what was not translated.
func plan(before programmed, e *env, changes []model.ResolvedChange) (programmed, []stage) {
	olds, news := make([]*pieces, len(changes)), make([]*pieces, len(changes))
	walled, after := before.trees, before.trees
	for i, c := range changes {
		olds[i], news[i] = &pieces{}, e.pieces(c.After)
		if before.env != nil {
			olds[i] = before.env.pieces(c.Before)
		}
		after = after.without(olds[i])
	}
	for _, p := range news {
		after = after.with(p)
		walled = walled.with(p)
	}
	up, balance, down := edits{table: filter}, edits{table: nat}, edits{table: filter}
	for i := range changes {
		diffChains(ofTable(olds[i].chains, nat), ofTable(news[i].chains, nat), &balance, &balance)
		diffChains(ofTable(olds[i].chains, filter), ofTable(news[i].chains, filter), &up, &down)
	}
	for t := range numTrees {
		d := e.dispatch(t)
		if d.table == nat {
			d.diff(before.trees[t], after[t], &balance)
		} else {
			d.diff(before.trees[t], walled[t], &up)
			d.diff(walled[t], after[t], &down)
		}
	}
	between := before.sharedChains(filter)
	diffChains(between, e.sharedChains(filter, walled), &up, &down)
	diffChains(e.sharedChains(filter, walled), e.sharedChains(filter, after), &down, &down)
	diffChains(before.sharedChains(nat), e.sharedChains(nat, after), &balance, &balance)

	stages := []stage{{edits: up}, {edits: balance}, {edits: down}}
	diffJumps(before.jumps(), e.jumps(), stages)
	return programmed{env: e, trees: after}, slices.DeleteFunc(stages, func(s stage) bool { return s.empty() })
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

// diffJumps adds to the stages of each table the jumps that come, in the first one, and that go, in the last one.
func diffJumps(before, after []jump, stages []stage) {
	for _, j := range after {
		if !slices.Contains(before, j) {
			i := slices.IndexFunc(stages, func(s stage) bool { return s.table == j.table })
			stages[i].jumps = append(stages[i].jumps, j)
			stages[i].added++
		}
	}
	for _, j := range before {
		if !slices.Contains(after, j) {
			for i := len(stages) - 1; i >= 0; i-- {
				if stages[i].table == j.table {
					stages[i].unjumps = append(stages[i].unjumps, j)
					stages[i].deleted++
					break
				}
			}
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
