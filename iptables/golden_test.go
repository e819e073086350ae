package iptables

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// golden returns what iptables-save lists of a ruleset of ours in a namespace that holds nothing else.
func golden(e *env, rs ruleset) string {
	var b strings.Builder
	for _, t := range []table{filter, nat} {
		builtin := map[table][]string{filter: {"INPUT", "FORWARD", "OUTPUT"}, nat: {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}}[t]
		fmt.Fprintf(&b, "*%s\n", t)
		for _, name := range builtin {
			fmt.Fprintf(&b, ":%s ACCEPT\n", name)
		}
		for _, c := range rs[t] {
			fmt.Fprintf(&b, ":%s -\n", c.name)
		}
		for _, name := range builtin {
			var front, back []string
			for _, j := range e.jumps() {
				switch line := fmt.Sprintf("-A %s %s\n", name, j.text); {
				case j.table != t || j.from != name:
				case j.last:
					back = append(back, line)
				default:
					front = slices.Insert(front, 0, line) // each is inserted before those inserted so far
				}
			}
			b.WriteString(strings.Join(append(front, back...), ""))
		}
		for _, c := range rs[t] {
			for _, r := range c.rules {
				fmt.Fprintf(&b, "-A %s %s\n", c.name, r.text)
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

const sixthLine = "# ip6tables-save\n"

// goldenFile returns the golden file of a scenario: what it is about, the IPv4 rules and, where there are any frontends of
// that family, the IPv6 rules.
func goldenFile(sc modeltest.Scenario, rules [2]string) string {
	six := ""
	for _, s := range sc.State.Services {
		for _, f := range s.Frontends {
			if f.Addr.Addr().Is6() {
				six = sixthLine + rules[model.IPv6]
			}
		}
	}
	return "# " + strings.ReplaceAll(strings.TrimSpace(sc.Doc), "\n", "\n# ") + "\n# iptables-save\n" + rules[model.IPv4] + six
}

// rulesOf returns the golden rules of a state, by family.
func rulesOf(t *testing.T, s model.State) (out [2]string) {
	t.Helper()
	_, forms := resolved(t, s)
	for _, f := range model.Families {
		e := testEnv(f, s.Node)
		_, rs := rulesetOf(e, forms)
		out[f] = golden(e, rs)
	}
	return out
}

// Each scenario's rules are those that were reviewed. With -update they are written anew, to be reviewed.
func TestGolden(t *testing.T) {
	files := map[string]bool{}
	for _, sc := range modeltest.Scenarios() {
		t.Run(sc.Name, func(t *testing.T) {
			path := filepath.Join("testdata", sc.Name+".rules")
			files[path] = true
			got := goldenFile(sc, rulesOf(t, sc.State))
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), got)
		})
	}
	all, err := filepath.Glob("testdata/*.rules")
	require.NoError(t, err)
	for _, path := range all {
		if !files[path] && *update {
			require.NoError(t, os.Remove(path))
		} else {
			require.True(t, files[path], "%s is of no scenario", path)
		}
	}
}

// The tools accept every golden file, without being told that they come from us.
func TestGoldenIsAccepted(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.rules")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	eachVariant(t, func(t *testing.T, v Variant) {
		ns := newNS(t)
		for _, path := range paths {
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			four, six, _ := strings.Cut(string(b), sixthLine)
			for f, rules := range [2]string{four, six} {
				out, err := command(ns.FD(), rules, program(model.Family(f), v, "-restore"), "--test")
				require.NoError(t, err, "%s, %s", path, model.Family(f))
				require.Empty(t, out)
			}
		}
	})
}

// What a Programmer writes is, as the kernel has it, what the golden files show, to the byte: in any order of scenarios, with
// both variants and in both families.
func TestGoldenInTheKernel(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		ns := newNS(t)
		p := open(t, Config{NetNS: ns.FD(), Variant: v, RejectOtherPorts: true})
		require.NoError(t, ns.Sysctl("net/ipv4/conf/all/route_localnet", "1"))
		for _, sc := range modeltest.Scenarios() {
			p.resolver.Reset() // a rejected service has no form from before
			_, err := p.Sync(within(t), sc.State)
			require.NoError(t, err)
			for f, want := range rulesOf(t, sc.State) {
				got, err := command(ns.FD(), "", program(model.Family(f), v, "-save"))
				require.NoError(t, err)
				got = counters.ReplaceAllString(noise.ReplaceAllString(got, ""), "")
				require.Equal(t, inOrder(want), inOrder(got), "%s, %s", sc.Name, model.Family(f))
			}
		}
	})
}

// inOrder sorts the tables of a listing, and the chains within one; rules stay in order.
func inOrder(save string) string {
	tables := strings.SplitAfter(save, "COMMIT\n")
	for i, t := range tables {
		lines := strings.SplitAfter(t, "\n")
		slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(chainIn(a), chainIn(b)) })
		tables[i] = strings.Join(lines, "")
	}
	slices.Sort(tables)
	return strings.Join(tables, "")
}

// chainIn returns what of a line decides about its place.
func chainIn(line string) string {
	if rest, ok := strings.CutPrefix(line, "-A "); ok {
		name, _, _ := strings.Cut(rest, " ")
		return "-A " + name
	}
	return line
}
