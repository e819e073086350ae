package iptables

import (
	"bytes"
	"strings"
)

// A listing is what iptables-save lists of one table.
type listing struct {
	// readable is false for a table that the nf_tables variant cannot show, because somebody put rules in it that
	// iptables has no words for. Then nothing else is known.
	readable bool
	chains   map[string][]string // rules by chain, in our words: without "-A" and the chain
	policies map[string]string   // of the built-in chains
	rules    int
}

// parseSave reads the output of iptables-save -t table.
func parseSave(out []byte) listing {
	l := listing{readable: true, chains: map[string][]string{}, policies: map[string]string{}}
	for len(out) > 0 {
		var line []byte
		line, out, _ = bytes.Cut(out, []byte("\n"))
		if len(line) == 0 {
			continue
		}
		switch line[0] {
		case '#':
			if bytes.Contains(line, []byte("is incompatible")) {
				return listing{}
			}
		case ':':
			name, rest, _ := strings.Cut(string(line[1:]), " ")
			policy, _, _ := strings.Cut(rest, " ")
			l.chains[name] = nil
			if policy != "-" {
				l.policies[name] = policy
			}
		case '-':
			if name, rule, ok := strings.Cut(strings.TrimPrefix(string(line), "-A "), " "); ok {
				l.chains[name] = append(l.chains[name], rule)
				l.rules++
			}
		}
	}
	return l
}

// target returns where a rule jumps or goes to, "" for a rule that does neither. What looks like a target inside a
// comment is none: iptables-save writes the target behind all matches, so the last one counts, and in a rule without
// one the name would end in a quote, as no name of ours does.
func target(rule string) string {
	for _, flag := range []string{" -j ", " -g "} {
		if i := strings.LastIndex(" "+rule, flag); i >= 0 {
			name, _, _ := strings.Cut((" " + rule)[i+len(flag):], " ")
			return name
		}
	}
	return ""
}

// jumpsIn returns the rules of chains that are not ours which lead to chains of ours, and split those with our mark from
// those that somebody else wrote.
func (l *listing) jumpsIn(n names) (ours, foreign []jumpFound) {
	for chain, rules := range l.chains {
		if n.owns(chain) {
			continue
		}
		for _, r := range rules {
			if to := target(r); n.owns(to) {
				f := jumpFound{from: chain, text: r, to: to}
				if strings.Contains(r, `--comment "`+jumpMark) {
					ours = append(ours, f)
				} else {
					foreign = append(foreign, f)
				}
			}
		}
	}
	return ours, foreign
}

// A jumpFound is a rule in a chain of others that leads to one of ours.
type jumpFound struct{ from, text, to string }

// owned returns the names of our chains.
func (l *listing) owned(n names) []string {
	var own []string
	for _, name := range sortedKeys(l.chains) {
		if n.owns(name) {
			own = append(own, name)
		}
	}
	return own
}
