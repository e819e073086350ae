package main

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// A skip is a test that was skipped somewhere.
type skip struct {
	pkg, test string
	places    []string // where it was skipped
	reasons   []string // why, in the same order
	passed    []string // where it ran and passed
}

// asDocumented matches the reasons of the conformance suite for what a backend documents: a difference that its
// FeatureSet names, or an ability that it lacks and, as another test of the suite sees, refuses by name.
var asDocumented = regexp.MustCompile(`^\S+ (?:differs: \S|cannot do it: \S|can do everything$|can do no affinity shorter than )`)

// documented reports whether a test is about something that a backend documents not to do.
func (s skip) documented() bool {
	return !slices.ContainsFunc(s.reasons, func(reason string) bool { return !asDocumented.MatchString(reason) })
}

// skips returns every test that was skipped, sorted, with where it ran instead: one that has nowhere passed has been
// tested by nobody.
func skips(tests []result) []skip {
	type key struct{ pkg, test string }
	found := map[key]*skip{}
	for _, r := range tests {
		if r.status == skipped {
			k := key{r.pkg, r.test}
			if found[k] == nil {
				found[k] = &skip{pkg: r.pkg, test: r.test}
			}
			found[k].places = append(found[k].places, r.place)
			found[k].reasons = append(found[k].reasons, r.reason)
		}
	}
	for _, r := range tests {
		if s := found[key{r.pkg, r.test}]; s != nil && r.status == passed {
			s.passed = append(s.passed, r.place)
		}
	}
	sorted := slices.SortedFunc(maps.Values(found), func(a, b *skip) int {
		return cmp.Or(strings.Compare(a.pkg, b.pkg), strings.Compare(a.test, b.test))
	})
	out := make([]skip, len(sorted))
	for i, s := range sorted {
		out[i] = *s
	}
	return out
}
