package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/vmtest/wire"
)

// A sink is told what happens in the guest, in order.
type sink interface {
	start(task int)
	output(task int, kind wire.Kind, p []byte)
	exit(wire.Result)
}

// A suite is the run of some packages' tests on one kernel. It is the sink
// that prints what "go test" would, and remembers it for the summary.
type suite struct {
	out      io.Writer
	note     func(format string, args ...any)
	verbose  bool
	packages []*packageRun // in the order of the job's tasks
}

// A packageRun is one package's tests, run or to be run.
type packageRun struct {
	name   string
	log    testLog
	state  runState
	result wire.Result // once ended
}

type runState int

const (
	waiting runState = iota
	running
	ended
)

func newSuite(out io.Writer, note func(format string, args ...any), verbose bool, names []string) *suite {
	s := &suite{out: out, note: note, verbose: verbose}
	for _, name := range names {
		s.packages = append(s.packages, &packageRun{name: name, log: testLog{out: out, verbose: verbose}})
	}
	return s
}

func (s *suite) start(task int) {
	p := s.packages[task]
	p.state = running
	s.note("running %s", p.name)
}

func (s *suite) output(task int, _ wire.Kind, text []byte) {
	_, _ = s.packages[task].log.Write(text)
}

func (s *suite) exit(r wire.Result) {
	p := s.packages[r.Task]
	p.state, p.result = ended, r
	p.log.finish(r.Code != 0)
}

// passed reports whether every package's tests ran and passed.
func (s *suite) passed() bool {
	return !slices.ContainsFunc(s.packages, func(p *packageRun) bool {
		return p.state != ended || p.result.Code != 0
	})
}

// summarize prints one line for each package, then what was skipped. died says
// why the guest did not come to its end, "" if it did.
func (s *suite) summarize(kernel, died string) {
	var lines []string
	var passed, failed, skipped int
	for _, p := range s.packages {
		lines = append(lines, p.summary(kernel, died))
		if p.state == running {
			p.log.finish(true) // shows what its tests had to say, above the lines
		}
		passed, failed, skipped = passed+p.log.passed, failed+p.log.failed, skipped+len(p.log.skips)
	}
	for _, line := range lines {
		fmt.Fprintln(s.out, line)
	}
	for _, p := range s.packages {
		for _, line := range skipLines(p.log.skips) {
			fmt.Fprintf(s.out, "skipped in %s: %s\n", p.name, line)
		}
	}
	fmt.Fprintf(s.out, "tests on kernel %s: %d passed, %d failed, %d skipped\n", kernel, passed, failed, skipped)
}

// summary is the package's line in the manner of "go test".
func (p *packageRun) summary(kernel, died string) string {
	const ok, skip, fail = "ok  ", "skip", "FAIL"
	line := func(verdict, remark string) string {
		return strings.TrimRight(fmt.Sprintf("%s\t%s\t%.3fs (kernel %s) %s", verdict, p.name, p.result.Elapsed.Seconds(), kernel, remark), " ")
	}
	stuck := p.log.unfinished()
	total := p.log.passed + p.log.failed + len(p.log.skips)
	switch {
	case p.state == waiting:
		return fmt.Sprintf("%s\t%s\t[not run: %s] (kernel %s)", fail, p.name, died, kernel)
	case p.state == running && len(stuck) > 0:
		return fmt.Sprintf("%s\t%s\t[%s in %s] (kernel %s)", fail, p.name, died, strings.Join(stuck, ", "), kernel)
	case p.state == running:
		return fmt.Sprintf("%s\t%s\t[%s] (kernel %s)", fail, p.name, died, kernel)
	case p.result.Reason != "":
		return line(fail, "["+p.result.Reason+"]")
	case p.result.Code != 0:
		return line(fail, fmt.Sprintf("[exit status %d]", p.result.Code))
	case total == 0:
		return line(ok, "[no tests to run]")
	case len(p.log.skips) == total:
		return line(skip, fmt.Sprintf("[all %d skipped]", total))
	case len(p.log.skips) > 0:
		return line(ok, fmt.Sprintf("[%d skipped]", len(p.log.skips)))
	}
	return line(ok, "")
}

// skipLines tells each reason once, with the tests that gave it.
func skipLines(skips []skip) []string {
	tests := map[string][]string{}
	for _, s := range skips {
		tests[s.reason] = append(tests[s.reason], s.test)
	}
	const most = 5
	var lines []string
	for _, reason := range slices.Sorted(maps.Keys(tests)) {
		names := tests[reason]
		line := fmt.Sprintf("%d× %s (%s", len(names), reason, strings.Join(names[:min(len(names), most)], ", "))
		if more := len(names) - most; more > 0 {
			line += fmt.Sprintf(" and %d more", more)
		}
		lines = append(lines, line+")")
	}
	return lines
}

// A programRun is the sink for one program: its streams become ours.
type programRun struct {
	out, err io.Writer
	result   *wire.Result // nil until it has ended
}

func (p *programRun) start(int) {}

func (p *programRun) output(_ int, kind wire.Kind, text []byte) {
	if kind == wire.Stderr {
		_, _ = p.err.Write(text)
		return
	}
	_, _ = p.out.Write(text)
}

func (p *programRun) exit(r wire.Result) { p.result = &r }

// round is for reports: no more digits than anybody reads.
func round(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }
