package iptables

import (
	"fmt"
	"slices"
	"strings"
)

// converge says what leads from what the kernel lists of one table to what shall be there. Chains that have the right
// rules already are not touched.
func converge(n names, tbl table, want []chain, jumps []jump, have listing) stage {
	s := stage{edits: edits{table: tbl}}
	wanted := make(map[string]bool, len(want))
	for _, c := range want {
		wanted[c.name] = true
		texts, there := have.chains[c.name]
		if !there {
			s.create(c)
			continue
		}
		s.change(c, unowned(texts))
	}
	_, foreign := have.jumpsIn(n)
	for _, name := range have.owned(n) {
		switch used := slices.ContainsFunc(foreign, func(f jumpFound) bool { return f.to == name }); {
		case wanted[name]:
		case used: // it cannot be deleted as long as somebody else's rule leads to it
			s.change(chain{table: tbl, name: name}, unowned(have.chains[name]))
			s.kept = append(s.kept, name)
		default:
			s.gone = append(s.gone, name)
			s.deleted += 1 + len(have.chains[name])
		}
	}
	s.convergeJumps(n, tbl, jumps, have)
	return s
}

func unowned(texts []string) []rule {
	rules := make([]rule, len(texts))
	for i, t := range texts {
		rules[i].text = t
	}
	return rules
}

// convergeJumps inserts the jumps that are missing and deletes those that are not wanted, or there twice.
func (s *stage) convergeJumps(n names, tbl table, jumps []jump, have listing) {
	ours, _ := have.jumpsIn(n)
	for _, j := range jumps {
		if j.table != tbl {
			continue
		}
		found := func(f jumpFound) bool { return f.from == j.from && f.text == j.text }
		if i := slices.IndexFunc(ours, found); i >= 0 {
			ours = slices.Delete(ours, i, i+1)
		} else {
			s.jumps = append(s.jumps, j)
			s.added++
		}
	}
	for _, f := range ours {
		s.unjumps = append(s.unjumps, jump{table: tbl, from: f.from, text: f.text})
		s.deleted++
	}
}

// drift says how the kernel's listing of one table differs from what was written; empty if it does not. If the tools
// show rules in other words than ours, only their numbers are compared.
func drift(n names, tbl table, want []chain, jumps []jump, have listing, exact bool) string {
	s := converge(n, tbl, want, jumps, have)
	var missing, other []string
	for _, c := range s.write {
		texts, there := have.chains[c.name]
		switch {
		case !there:
			missing = append(missing, c.name)
		case have.readable && (exact || len(texts) != len(c.rules)):
			other = append(other, c.name)
		}
	}
	var what []string
	for _, f := range []struct {
		say   string
		names []string
	}{{"chains missing", missing}, {"chains with other rules", other}, {"chains too many", s.gone}} {
		if len(f.names) > 0 {
			what = append(what, f.say+": "+few(f.names))
		}
	}
	for _, j := range s.jumps {
		what = append(what, "no jump from "+j.from)
	}
	for _, j := range s.unjumps {
		what = append(what, "a jump too many from "+j.from)
	}
	if len(what) == 0 {
		return ""
	}
	return fmt.Sprintf("table %s: %s", tbl, strings.Join(what, "; "))
}

// few names the first of many.
func few(names []string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
