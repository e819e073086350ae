package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// marked turns the visible sign for the testing package's mark into it.
func marked(s string) string { return strings.ReplaceAll(s, "^", string(mark)) }

// sample is what a binary with a passing, a failing and two skipped tests
// prints under -test.v=test2json.
var sample = marked(`^=== RUN   TestA
    x_test.go:3: log of a passing test
partial line^--- PASS: TestA (0.00s)
^=== NAME  
^=== RUN   TestS
    x_test.go:4: this kernel has no IPVS,
        which is a pity
^--- SKIP: TestS (0.00s)
^=== NAME  
^=== RUN   TestSub
    x_test.go:5: log of the parent
^=== RUN   TestSub/one
^=== PAUSE TestSub/one
^=== NAME  TestSub
^=== RUN   TestSub/two
^=== PAUSE TestSub/two
^=== NAME  TestSub
^=== CONT  TestSub/one
^=== CONT  TestSub/two
^=== NAME  TestSub/one
    x_test.go:5: in one
^=== NAME  TestSub/two
    x_test.go:5: in two
--- FAIL: TestSub/two (printed by the test itself)
^=== NAME  TestSub/one
    x_test.go:5: bad
^--- FAIL: TestSub/one (0.01s)
^=== NAME  TestSub/two
^--- SKIP: TestSub/two (0.01s)
^--- FAIL: TestSub (0.00s)
^=== NAME  
^FAIL
`)

func TestLogCountsAndShowsFailures(t *testing.T) {
	var out strings.Builder
	l := &testLog{out: &out}
	// In pieces of every length: the serial line cuts anywhere.
	for rest := sample; rest != ""; {
		n := min(len(rest), 1+len(rest)%7)
		_, err := l.Write([]byte(rest[:n]))
		require.NoError(t, err)
		rest = rest[n:]
	}
	l.finish(true)
	require.Equal(t, 1, l.passed)
	require.Equal(t, 2, l.failed)
	require.Equal(t, []skip{
		{"TestS", "this kernel has no IPVS, which is a pity"},
		{"TestSub/two", "in two"},
	}, l.skips)
	require.Equal(t, `    x_test.go:5: in one
    x_test.go:5: bad
--- FAIL: TestSub/one (0.01s)
    x_test.go:5: log of the parent
--- FAIL: TestSub (0.00s)
`, out.String())
}

func TestVerboseLogPassesLinesOnAtOnce(t *testing.T) {
	var out strings.Builder
	l := &testLog{out: &out, verbose: true}
	_, err := l.Write([]byte("a line\nhalf a li"))
	require.NoError(t, err)
	require.Equal(t, "a line\n", out.String())
	out.Reset()
	_, err = l.Write([]byte("ne\n" + sample + "unended"))
	require.NoError(t, err)
	l.finish(true)
	want := "half a line\n" + sample + "unended\n"
	want = strings.ReplaceAll(want, marked("^=== NAME  \n"), "") // says that output belongs to no test
	want = strings.ReplaceAll(want, marked("partial line^"), "partial line\n")
	require.Equal(t, strings.ReplaceAll(want, string(mark), ""), out.String())
	require.Equal(t, 2, l.failed)
}

func TestLogShowsAPanic(t *testing.T) {
	var out strings.Builder
	l := &testLog{out: &out}
	_, err := l.Write([]byte(marked("^=== RUN   TestA\n^--- FAIL: TestA (0.00s)\npanic: boom\n\ngoroutine 7 [running]:\nmain")))
	require.NoError(t, err)
	l.finish(true)
	require.Equal(t, "--- FAIL: TestA (0.00s)\npanic: boom\n\ngoroutine 7 [running]:\nmain\n", out.String())
	require.Equal(t, 1, l.failed)
}

func TestLogShowsWhereAHungTestStood(t *testing.T) {
	var out strings.Builder
	l := &testLog{out: &out}
	_, err := l.Write([]byte(marked("^=== RUN   TestA\n^=== RUN   TestA/sub\n    x_test.go:1: before the hang\n")))
	require.NoError(t, err)
	require.Equal(t, []string{"TestA", "TestA/sub"}, l.unfinished())
	l.finish(true)
	require.Equal(t, "    x_test.go:1: before the hang\n", out.String())
}

func TestLogWithoutMarks(t *testing.T) {
	l := &testLog{out: &strings.Builder{}}
	_, err := l.Write([]byte("=== RUN   TestA\n=== RUN   TestA/x\n    a_test.go:1: why\n--- PASS: TestA (0.00s)\n    --- SKIP: TestA/x (0.00s)\nPASS\n"))
	require.NoError(t, err)
	l.finish(false)
	require.Equal(t, 1, l.passed)
	require.Equal(t, []skip{{"TestA/x", "why"}}, l.skips)
}

func TestBenchmarkResultsAreShown(t *testing.T) {
	var out strings.Builder
	l := &testLog{out: &out}
	_, err := l.Write([]byte(marked("^=== RUN   BenchmarkX\nBenchmarkX\nBenchmarkX-2   \t100\t 12 ns/op\n^PASS\n")))
	require.NoError(t, err)
	l.finish(false)
	require.Equal(t, "BenchmarkX-2   \t100\t 12 ns/op\n", out.String())
}

func TestReasons(t *testing.T) {
	for name, c := range map[string]struct{ written, want string }{
		"none":        {"", "no reason given"},
		"print only":  {"hello\n", "no reason given"},
		"last log":    {"    a_test.go:1: first\n    b_test.go:2: second\n", "second"},
		"two lines":   {"    a_test.go:1: first\n        more\n", "first more"},
		"then prints": {"    a_test.go:1: first\nprinted\n", "first"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, reason(c.written)) })
	}
}
