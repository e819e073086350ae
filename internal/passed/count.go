package passed

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/headgate/headgate/internal/lab"
)

// Counts are the chains of the tables nat and filter, and their rules, each with its counter of packets.
type Counts map[place][]Rule

// A place is a chain of a table.
type place struct{ table, chain string }

// A Rule is one rule of a chain.
type Rule struct {
	Text    string // as iptables-save prints it, without -A and the chain
	Packets int
}

var (
	chain  = regexp.MustCompile(`^:(\S+) `)
	line   = regexp.MustCompile(`^\[(\d+):\d+\] -A (\S+) (.*)$`)
	target = regexp.MustCompile(`(?:^| )-([jg]) (\S+)`)
)

// Count reads the counters of a namespace with iptables-save or one of its kin.
func Count(ctx context.Context, ns *lab.NetNS, save string) (Counts, error) {
	out := Counts{}
	for _, table := range []string{"nat", "filter"} {
		text, err := ns.Command(ctx, save, "-c", "-t", table).Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", save, err)
		}
		for l := range strings.Lines(string(text)) {
			if m := chain.FindStringSubmatch(l); m != nil {
				out[place{table, m[1]}] = nil
			} else if m := line.FindStringSubmatch(strings.TrimSuffix(l, "\n")); m != nil {
				n, _ := strconv.Atoi(m[1]) // all digits
				at := place{table, m[2]}
				out[at] = append(out[at], Rule{m[3], n})
			}
		}
	}
	return out, nil
}

// Of returns the rules of all chains of a table.
func (c Counts) Of(table string) []Rule {
	var all []Rule
	for at, rules := range c {
		if at.table == table {
			all = append(all, rules...)
		}
	}
	return all
}

// passedSince returns how many rules a packet passed from the beginning of a chain on that was the only one to come to
// it between two counts.
func (c Counts) passedSince(before Counts, table, chain string) int {
	n, _ := c.walk(before, place{table, chain})
	return n
}

// walk counts the rules of a chain up to the one that counted the packet and kept it, and those of the chains that it was
// sent to in between. Ended says that it did not come back.
func (c Counts) walk(before Counts, at place) (n int, ended bool) {
	for i, r := range c[at] {
		n++
		if r.Packets == before[at][i].Packets {
			continue
		}
		m := target.FindStringSubmatch(r.Text)
		if m == nil || m[2] == "MARK" {
			continue // on to the next rule
		}
		to := place{at.table, m[2]}
		if _, leads := c[to]; !leads {
			return n, m[2] != "RETURN"
		}
		below, ended := c.walk(before, to)
		if n += below; ended || m[1] == "g" {
			return n, ended
		}
	}
	return n, false
}
