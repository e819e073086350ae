package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/vmtest/wire"
)

// play lets a suite of packages a, b, … go through what happens in a guest.
func play(t *testing.T, packages int, steps ...any) (*suite, *strings.Builder) {
	t.Helper()
	var names []string
	for i := range packages {
		names = append(names, "m/"+string(rune('a'+i)))
	}
	var out strings.Builder
	s := newSuite(&out, t.Logf, false, names)
	current := 0
	for _, step := range steps {
		switch step := step.(type) {
		case int:
			current = step
			s.start(step)
		case string:
			s.output(current, wire.Stdout, []byte(marked(step)))
		case wire.Result:
			step.Task = current
			s.exit(step)
		}
	}
	return s, &out
}

const second = 1500 * time.Millisecond

func TestSummary(t *testing.T) {
	s, out := play(t, 6,
		0, "^=== RUN   TestA\n^--- PASS: TestA (0.00s)\n", wire.Result{Elapsed: second},
		1, "^=== RUN   TestB\nwhy it failed\n^--- FAIL: TestB (0.00s)\n", wire.Result{Code: 1, Elapsed: second},
		2, "^=== RUN   TestC\n    c.go:1: no IPVS\n^--- SKIP: TestC (0.00s)\n", wire.Result{Elapsed: second},
		3, wire.Result{Elapsed: second},
		4, wire.Result{Code: -1, Reason: "signal: killed", Elapsed: second},
		5, "^=== RUN   TestX\n^--- PASS: TestX (0.00s)\n^=== RUN   TestY\n    c.go:1: no IPVS\n^--- SKIP: TestY (0.00s)\n", wire.Result{Elapsed: second},
	)
	s.summarize("6.1.192", "")
	require.Equal(t, `why it failed
--- FAIL: TestB (0.00s)
ok  	m/a	1.500s (kernel 6.1.192)
FAIL	m/b	1.500s (kernel 6.1.192) [exit status 1]
skip	m/c	1.500s (kernel 6.1.192) [all 1 skipped]
ok  	m/d	1.500s (kernel 6.1.192) [no tests to run]
FAIL	m/e	1.500s (kernel 6.1.192) [signal: killed]
ok  	m/f	1.500s (kernel 6.1.192) [1 skipped]
skipped in m/c: 1× no IPVS (TestC)
skipped in m/f: 1× no IPVS (TestY)
tests on kernel 6.1.192: 2 passed, 1 failed, 2 skipped
`, out.String())
	require.False(t, s.passed())
}

func TestSummaryOfADeadGuest(t *testing.T) {
	s, out := play(t, 3,
		0, wire.Result{Elapsed: second},
		1, "^=== RUN   TestB\n^=== RUN   TestB/x\nlast words",
	)
	s.summarize("6.1.192", errPanic.Error())
	require.Equal(t, `last words
ok  	m/a	1.500s (kernel 6.1.192) [no tests to run]
FAIL	m/b	[the guest's kernel panicked in TestB, TestB/x] (kernel 6.1.192)
FAIL	m/c	[not run: the guest's kernel panicked] (kernel 6.1.192)
tests on kernel 6.1.192: 0 passed, 0 failed, 0 skipped
`, out.String())
	require.False(t, s.passed())
}

// Whatever the tests printed, only statuses count, and all of them.
func TestPassedWantsEveryStatus(t *testing.T) {
	pass := "^=== RUN   TestA\n^--- PASS: TestA (0.00s)\n^PASS\n"
	for name, c := range map[string]struct {
		steps []any
		want  bool
	}{
		"all":         {[]any{0, pass, wire.Result{}, 1, pass, wire.Result{}}, true},
		"not begun":   {[]any{0, pass, wire.Result{}}, false},
		"not ended":   {[]any{0, pass, wire.Result{}, 1, pass}, false},
		"bad status":  {[]any{0, pass, wire.Result{Code: 3}, 1, pass, wire.Result{}}, false},
		"by a signal": {[]any{0, pass, wire.Result{}, 1, pass, wire.Result{Code: -1}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := play(t, 2, c.steps...)
			require.Equal(t, c.want, s.passed())
		})
	}
}

func TestSkipLines(t *testing.T) {
	var skips []skip
	for i := range 7 {
		skips = append(skips, skip{fmt.Sprintf("T%d", i), "no SCTP"})
	}
	require.Equal(t, []string{
		"1× as root only (U)",
		"7× no SCTP (T0, T1, T2, T3, T4 and 2 more)",
	}, skipLines(append(skips, skip{"U", "as root only"})))
}

func TestTailKeepsTheEnd(t *testing.T) {
	var tl tail
	for i := range 5000 {
		fmt.Fprintf(&tl, "line %d\r\n", i)
	}
	require.LessOrEqual(t, len(tl.text), tailSize)
	require.Equal(t, []string{"line 4998", "line 4999"}, tl.lines(2))
	fmt.Fprint(&tl, "Kernel panic - not syncing: x\r\na\nb\nc\n")
	require.Equal(t, []string{"line 4997", "line 4998", "line 4999", "Kernel panic - not syncing: x", "a", "b", "c"}, tl.lines(2))
	require.True(t, tl.contains("Kernel panic"))
	require.Empty(t, new(tail).lines(2))
}
