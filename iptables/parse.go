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

// parseTables reads the output of iptables-save for several tables. Those that it does not name are empty.
func parseTables(out []byte) (all [len(tables)]listing) {
	for _, t := range tables {
		_, own, _ := bytes.Cut(out, []byte("*"+t.String()+"\n"))
		own, _, _ = bytes.Cut(own, []byte("\nCOMMIT\n"))
		all[t] = parseSave(own)
	}
	return all
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

// target returns where a rule jumps or goes to, "" for a rule that does neither.
func target(rule string) string {
	words := splitWords(rule)
	for i := len(words) - 2; i >= 0; i-- {
		if words[i] == "-j" || words[i] == "-g" {
			return words[i+1]
		}
	}
	return ""
}

// splitWords splits a rule into words as iptables-restore does: at spaces outside of double quotes, where a backslash
// makes the next byte an ordinary one.
func splitWords(rule string) []string {
	var out []string
	var word []byte
	quoted, inWord := false, false
	for i := 0; i < len(rule); i++ {
		switch c := rule[i]; {
		case c == '\\' && quoted && i+1 < len(rule):
			i++
			word = append(word, rule[i])
		case c == '"':
			quoted, inWord = !quoted, true
		case c == ' ' && !quoted:
			if inWord {
				out = append(out, string(word))
			}
			word, inWord = word[:0], false
		default:
			word, inWord = append(word, c), true
		}
	}
	if inWord {
		out = append(out, string(word))
	}
	return out
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
