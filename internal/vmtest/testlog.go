package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// A testLog reads what one test binary prints and counts how its tests end.
// Verbose, it passes every line on as it comes; otherwise it keeps each test's
// output until the test has ended and shows that of failed ones alone, as
// "go test" does.
//
// The binary is run with -test.v=test2json, which sets a mark before each line
// of the testing package and names the test whenever output changes hands
// (go doc cmd/test2json). Without marks the lines are recognised all the same.
type testLog struct {
	out     io.Writer
	verbose bool

	partial []byte // the line being written
	marked  bool   // marks have been seen: lines without are no events
	current string // the test that output belongs to, "" for none
	pending []*output

	passed, failed int
	skips          []skip
}

// output is what one test has written so far.
type output struct {
	test string
	text strings.Builder
}

// A skip is a test that did not run, and why.
type skip struct{ test, reason string }

// mark is what the testing package sets before its own lines.
const mark = '\x16'

// Write takes the next piece of the binary's output, cut anywhere.
func (l *testLog) Write(p []byte) (int, error) {
	l.partial = append(l.partial, p...)
	for {
		i := bytes.IndexByte(l.partial, '\n')
		if i < 0 {
			return len(p), nil
		}
		line := string(l.partial[:i])
		l.partial = l.partial[i+1:]
		l.line(line)
	}
}

// finish is told when nothing more comes. If the binary failed, the output of
// tests that had not ended, and of none, says why, so it is shown.
func (l *testLog) finish(failed bool) {
	if len(l.partial) > 0 {
		l.line(string(l.partial))
		l.partial = nil
	}
	if failed && !l.verbose {
		for _, o := range l.pending {
			fmt.Fprint(l.out, o.text.String())
		}
	}
	l.pending = nil
}

// unfinished names the tests that had begun and not ended, outermost first.
func (l *testLog) unfinished() []string {
	var names []string
	for _, o := range l.pending {
		if o.test != "" {
			names = append(names, o.test)
		}
	}
	return names
}

// line takes one line. Output without a newline may stand before a mark.
func (l *testLog) line(text string) {
	before, after, found := strings.Cut(text, string(mark))
	if found {
		l.marked = true
		if before != "" {
			l.keep(before)
		}
		text = after
	}
	if (found || !l.marked) && l.event(strings.TrimLeft(text, " ")) {
		return
	}
	l.keep(text)
}

var (
	begins = regexp.MustCompile(`^=== (RUN|PAUSE|CONT|NAME|ATTR|ARTIFACTS) *(\S*)`)
	ends   = regexp.MustCompile(`^--- (PASS|FAIL|SKIP|BENCH): (\S+)`)
	logged = regexp.MustCompile(`^\s+\S+\.go:\d+: ?(.*)$`)
)

// event takes a line of the testing package, and reports whether it was one.
func (l *testLog) event(text string) bool {
	if m := begins.FindStringSubmatch(text); m != nil {
		if m[2] != "" {
			l.show(text)
		}
		l.current = m[2]
		if m[1] == "RUN" {
			l.of(m[2])
		}
		return true
	}
	if m := ends.FindStringSubmatch(text); m != nil {
		l.end(m[1], m[2], text)
		return true
	}
	if text == "PASS" || text == "FAIL" {
		l.show(text)
		return true
	}
	return false
}

// show prints what only a verbose log shows.
func (l *testLog) show(text string) {
	if l.verbose {
		fmt.Fprintln(l.out, text)
	}
}

// end settles a test.
func (l *testLog) end(how, test, text string) {
	l.show(text)
	written := l.of(test).text.String()
	switch how {
	case "PASS":
		l.passed++
	case "SKIP":
		l.skips = append(l.skips, skip{test, reason(written)})
	case "FAIL":
		l.failed++
		if !l.verbose {
			fmt.Fprintf(l.out, "%s%s\n", written, text)
		}
	}
	l.pending = slices.DeleteFunc(l.pending, func(o *output) bool { return o.test == test })
	if l.current == test {
		l.current = ""
	}
}

// keep remembers a line of output. Results of benchmarks are shown at once:
// whoever runs them wants to see them.
func (l *testLog) keep(text string) {
	l.show(text)
	if strings.HasPrefix(text, "Benchmark") && strings.Contains(text, " ns/op") && !l.verbose {
		fmt.Fprintln(l.out, text)
		return
	}
	o := l.of(l.current)
	o.text.WriteString(text)
	o.text.WriteByte('\n')
}

// of returns the output of a test, which it notes as begun.
func (l *testLog) of(test string) *output {
	for _, o := range l.pending {
		if o.test == test {
			return o
		}
	}
	o := &output{test: test}
	l.pending = append(l.pending, o)
	return o
}

// reason is the last message that a test logged, on one line.
func reason(written string) string {
	var words []string
	for line := range strings.Lines(written) {
		line = strings.TrimRight(line, "\n")
		if m := logged.FindStringSubmatch(line); m != nil {
			words = []string{m[1]}
		} else if len(words) > 0 && strings.HasPrefix(line, "        ") {
			words = append(words, strings.TrimSpace(line))
		}
	}
	if text := strings.Join(words, " "); text != "" {
		return text
	}
	return "no reason given"
}
