package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSkipsThatNobodyMakesUpFor(t *testing.T) {
	tests := []result{
		{place: "host", pkg: "m/ipvs", test: "TestIPVS", status: skipped, reason: "no ip_vs"},
		{place: "kernel 6.1", pkg: "m/ipvs", test: "TestIPVS"},
		{place: "host", pkg: "m/a", test: "TestDummy", status: skipped, reason: "no dummy"},
		{place: "kernel 6.1", pkg: "m/a", test: "TestDummy", status: skipped, reason: "no dummy either"},
		{place: "host", pkg: "m/b", test: "TestOnlyHere", status: skipped, reason: "never"},
		{place: "kernel 6.1", pkg: "m/b", test: "TestElsewhere"},
		{place: "kernel 6.1", pkg: "m/c", test: "TestBroken", status: skipped, reason: "not here"},
		{place: "host", pkg: "m/c", test: "TestBroken", status: failed},
	}
	require.Equal(t, []skip{
		{"m/a", "TestDummy", []string{"host", "kernel 6.1"}, []string{"no dummy", "no dummy either"}, nil},
		{"m/b", "TestOnlyHere", []string{"host"}, []string{"never"}, nil},
		{"m/c", "TestBroken", []string{"kernel 6.1"}, []string{"not here"}, nil},
		{"m/ipvs", "TestIPVS", []string{"host"}, []string{"no ip_vs"}, []string{"kernel 6.1"}},
	}, skips(tests))
}

func TestSummary(t *testing.T) {
	good := outcome{name: "vet", took: 3 * time.Second}
	tests := outcome{name: "test", tests: []result{{place: "host", pkg: "m/a", test: "TestA"}, {place: "host", pkg: "m/a", test: "TestB", status: skipped, reason: "no ip_vs"}}}
	vm := outcome{name: "vm", tests: []result{{place: "kernel 6.1", pkg: "m/a", test: "TestB"}}}

	for _, sc := range []struct {
		name string
		done []outcome
		last string
		says string
		err  error
	}{
		{"all is well", []outcome{good, tests, vm}, "everything: 3 passed, 0 failed, 1 skipped", "skipped on host, passed on kernel 6.1: m/a TestB: no ip_vs\n", nil},
		{"a skip that nobody makes up for", []outcome{good, tests}, "everything: 2 passed, 1 failed, 0 skipped", "NOWHERE", errFailed},
		{"a step that fails", []outcome{good, {name: "format", err: errors.New("it found something")}}, "everything: 1 passed, 1 failed, 0 skipped", "FAILED: it found something\n", errFailed},
		{"a test that fails is counted once", []outcome{{name: "test", err: errors.New("exit status 1"), tests: []result{{place: "host", pkg: "m/a", test: "TestA", status: failed}}}},
			"everything: 0 passed, 1 failed, 0 skipped", "  FAILED m/a TestA\n", errFailed},
		{"a package that does not build", []outcome{{name: "test", err: errors.New("exit status 1"), tests: tests.tests}, vm},
			"everything: 2 passed, 1 failed, 1 skipped", "FAILED: exit status 1", errFailed},
	} {
		t.Run(sc.name, func(t *testing.T) {
			var out strings.Builder
			err := summarize(&out, sc.done, false, time.Minute)
			require.Equal(t, sc.err, err)
			all := strings.Split(strings.TrimSpace(out.String()), "\n")
			require.Equal(t, sc.last, all[len(all)-1])
			require.Contains(t, out.String(), sc.says)
		})
	}
}

func TestSummarySaysWhatWasNotAsked(t *testing.T) {
	var out strings.Builder
	require.NoError(t, summarize(&out, []outcome{{name: "vet"}}, true, time.Hour))
	require.Contains(t, out.String(), "took 1h0m0s, more than")
	require.Contains(t, out.String(), "only some of the steps were asked for\neverything: 1 passed")
}
