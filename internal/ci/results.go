package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// A result is how one test ended, in one place.
type result struct {
	place  string // "host", or a kernel
	pkg    string
	test   string
	status status
	reason string // why it was skipped
}

// A status is how a test ended.
type status int

const (
	passed status = iota
	failed
	skipped
)

// lines calls f for every whole line written to it.
type lines struct {
	rest []byte
	f    func(line string)
}

func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 {
			return len(p), nil
		}
		l.f(string(l.rest[:i]))
		l.rest = l.rest[i+1:]
	}
}

func (l *lines) flush() {
	if len(l.rest) > 0 {
		l.f(string(l.rest))
		l.rest = nil
	}
}

// Events reads what "go test -json" prints, and shows of it what "go test" would: a line for each package, and all that
// a failed test said.
type events struct {
	lines
	out    io.Writer
	place  string
	said   map[string]*strings.Builder // by package and test
	counts map[string]*[3]int          // by package and status
	seen   []result
}

func newEvents(out io.Writer, place string) *events {
	e := &events{out: out, place: place, said: map[string]*strings.Builder{}, counts: map[string]*[3]int{}}
	e.f = e.line
	return e
}

func (e *events) finish() []result {
	e.flush()
	return e.seen
}

// line takes one event, see "go doc test2json". What is no event is shown.
func (e *events) line(text string) {
	var ev struct {
		Action, Package, ImportPath, Test, Output string
		Elapsed                                   float64
	}
	if err := json.Unmarshal([]byte(text), &ev); err != nil {
		fmt.Fprintln(e.out, text)
		return
	}
	key := ev.Package + " " + ev.Test
	switch ev.Action {
	case "output":
		if e.said[key] == nil {
			e.said[key] = new(strings.Builder)
		}
		e.said[key].WriteString(ev.Output)
	case "build-output":
		fmt.Fprint(e.out, ev.Output)
	case "pass", "fail", "skip":
		e.end(key, ev.Package, ev.Test, map[string]status{"pass": passed, "fail": failed, "skip": skipped}[ev.Action], ev.Elapsed)
		delete(e.said, key)
	}
}

// end notes the end of a test, or of a package where test is empty.
func (e *events) end(key, pkg, test string, s status, elapsed float64) {
	said := ""
	if b := e.said[key]; b != nil {
		said = b.String()
	}
	counts := e.counts[pkg]
	if counts == nil {
		counts = new([3]int)
		e.counts[pkg] = counts
	}
	if test != "" {
		r := result{place: e.place, pkg: pkg, test: test, status: s}
		if s == skipped {
			r.reason = reason(said)
		}
		counts[s]++
		e.seen = append(e.seen, r)
	}
	switch {
	case s == failed:
		fmt.Fprint(e.out, said)
		if test == "" {
			fmt.Fprintf(e.out, "FAIL\t%s\t%.1fs\n", pkg, elapsed)
		}
	case test == "" && s == skipped:
		fmt.Fprintf(e.out, "?   \t%s\t[no tests]\n", pkg)
	case test == "":
		fmt.Fprintf(e.out, "ok  \t%s\t%.1fs\t%d passed, %d skipped\n", pkg, elapsed, counts[passed], counts[skipped])
	}
}

// Verbose reads what the VM runner prints with -v, both streams in one, and shows all of it but the passing of tests.
type verbose struct {
	lines
	out   io.Writer
	place string
	pkg   string
	said  strings.Builder // since the last test began or ended
	seen  []result
}

func newVerbose(out io.Writer, place string) *verbose {
	v := &verbose{out: out, place: place}
	v.f = v.line
	return v
}

func (v *verbose) finish() []result {
	v.flush()
	return v.seen
}

var (
	testEnds   = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+)`)
	testBegins = regexp.MustCompile(`^=== (RUN|PAUSE|CONT|NAME)\s`)
)

func (v *verbose) line(text string) {
	if pkg, ok := strings.CutPrefix(text, "vmtest: running "); ok {
		v.pkg = pkg
		fmt.Fprintln(v.out, text)
		return
	}
	if testBegins.MatchString(text) {
		return
	}
	m := testEnds.FindStringSubmatch(text)
	if m == nil {
		v.said.WriteString(text + "\n")
		fmt.Fprintln(v.out, text)
		return
	}
	r := result{place: v.place, pkg: v.pkg, test: m[2]}
	switch m[1] {
	case "FAIL":
		r.status = failed
		fmt.Fprintln(v.out, text)
	case "SKIP":
		r.status = skipped
		r.reason = reason(v.said.String())
		fmt.Fprintln(v.out, text)
	}
	v.said.Reset()
	v.seen = append(v.seen, r)
}

var logged = regexp.MustCompile(`^\s+\S+\.go:\d+: ?(.*)$`)

// reason returns the last message that a skipped test logged.
func reason(said string) string {
	last := "no reason given"
	for line := range strings.Lines(said) {
		if m := logged.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			last = m[1]
		}
	}
	return last
}
