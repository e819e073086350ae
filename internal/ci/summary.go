package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// budget is how long everything together should take, on two processors. More is told, and fails nothing.
const budget = 40 * time.Minute

// summarize prints what became of everything, and returns errFailed if something did not pass. The last line counts
// tests, once in each place where they ran, and steps that run no tests.
func summarize(out io.Writer, done []outcome, partial bool, took time.Duration) error {
	var tests []result
	counts := map[status]int{}
	fmt.Fprintf(out, "\n=== summary\n")
	for _, o := range done {
		verdict := "ok"
		if o.err != nil {
			verdict = "FAILED: " + strings.ReplaceAll(o.err.Error(), "\n", "; ")
		}
		fmt.Fprintf(out, "%-12s %6s  %s\n", o.name, o.took.Round(time.Second), verdict)
		tests = append(tests, o.tests...)
		own := count(o.tests)
		switch {
		case o.err != nil && own[failed] == 0:
			counts[failed]++ // something else than a test
		case o.err == nil && len(o.tests) == 0:
			counts[passed]++
		}
	}
	summarizePlaces(out, tests)
	untested := summarizeSkips(out, tests)
	for s, n := range count(tests) {
		counts[s] += n
	}
	counts[failed] += untested
	counts[skipped] -= untested
	if took > budget {
		fmt.Fprintf(out, "took %v, more than the %v that it should\n", took.Round(time.Second), budget)
	}
	if partial {
		fmt.Fprintln(out, "only some of the steps were asked for")
	}
	fmt.Fprintf(out, "everything: %d passed, %d failed, %d skipped\n", counts[passed], counts[failed], counts[skipped])
	if counts[failed] > 0 {
		return errFailed
	}
	return nil
}

func count(tests []result) map[status]int {
	n := map[status]int{}
	for _, r := range tests {
		n[r.status]++
	}
	return n
}

// summarizePlaces prints how the tests ended in each place, and which failed.
func summarizePlaces(out io.Writer, tests []result) {
	byPlace := map[string][]result{}
	for _, r := range tests {
		byPlace[r.place] = append(byPlace[r.place], r)
	}
	for _, place := range slices.Sorted(maps.Keys(byPlace)) {
		n := count(byPlace[place])
		fmt.Fprintf(out, "tests on %s: passed %d, failed %d, skipped %d\n", place, n[passed], n[failed], n[skipped])
		for _, r := range byPlace[place] {
			if r.status == failed {
				fmt.Fprintf(out, "  FAILED %s %s\n", r.pkg, r.test)
			}
		}
	}
}

// summarizeSkips prints which tests were skipped where and why, and returns how many nobody ran.
func summarizeSkips(out io.Writer, tests []result) (untested int) {
	for _, s := range skips(tests) {
		instead := "passed on " + strings.Join(s.passed, ", ")
		if len(s.passed) == 0 && s.documented() {
			instead = "as documented"
		} else if len(s.passed) == 0 {
			instead = "and passed NOWHERE, which is a failure"
			untested++
		}
		for i, place := range s.places {
			fmt.Fprintf(out, "skipped on %s, %s: %s %s: %s\n", place, instead, s.pkg, s.test, s.reasons[i])
		}
	}
	return untested
}
