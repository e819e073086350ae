package iptables

import (
	"context"
	"errors"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/headgate/headgate/model"
)

// commit has a script take effect. Each of its transactions does so wholly or not at all; after an error those before
// the one that failed stay.
func (t *tools) commit(ctx context.Context, s *script) error {
	if s.transactions == 0 {
		return nil
	}
	return t.feed(ctx, s.text)
}

// A toolError says how a program failed. It unwraps to what that means, where it is known: ErrBusy, ErrPermission,
// ErrNotSupported, or the error of a context.
type toolError struct {
	program string
	code    int // the exit code, -1 if there is none
	line    int // of the script, if the program names one; some versions are one off
	said    string
	cause   error
	// refusal says that the kernel, or the program in its stead, refused something in the script: asking again for the
	// same is of no use, but for less may be.
	refusal bool
}

func (e *toolError) Error() string {
	parts := []string{filepath.Base(e.program)}
	if e.code >= 0 {
		parts = append(parts, "exit code "+strconv.Itoa(e.code))
	}
	if e.said != "" {
		parts = append(parts, e.said)
	}
	if e.cause != nil {
		parts = append(parts, e.cause.Error())
	}
	return strings.Join(parts, ": ")
}

func (e *toolError) Unwrap() error { return e.cause }

// refusalOf returns the error of a program that refused something in its script; nil for any other.
func refusalOf(err error) *toolError {
	var te *toolError
	if errors.As(err, &te) && te.refusal {
		return te
	}
	return nil
}

// codeBusy is how the programs exit for want of a resource (RESOURCE_PROBLEM in xtables.h): the lock, or, in the nf_tables
// variant, whatever the kernel says.
const codeBusy = 4

var (
	namedLine  = regexp.MustCompile(`line:? ?(\d+)`)
	saidReason = regexp.MustCompile(`failed \(([^)]*)\)`)
)

// newToolError gives a failure its meaning. The texts are those of iptables 1.8 and of the C library.
func newToolError(program string, err error, stderr string) error {
	e := &toolError{program: program, code: -1, said: condense(stderr), cause: err}
	var exit interface{ ExitCode() int }
	if !errors.As(err, &exit) || exit.ExitCode() < 0 {
		return e // not started, or killed
	}
	e.code, e.cause = exit.ExitCode(), nil
	if m := namedLine.FindStringSubmatch(stderr); m != nil {
		e.line, _ = strconv.Atoi(m[1])
	}
	reason := ""
	if m := saidReason.FindStringSubmatch(stderr); m != nil {
		reason = m[1]
	}
	said := func(texts ...string) bool {
		for _, t := range texts {
			if strings.Contains(stderr, t) {
				return true
			}
		}
		return false
	}
	switch {
	case said("Permission denied", "Operation not permitted", "you must be root"):
		e.cause = model.ErrPermission
	case said("xtables lock", "Resource temporarily unavailable", "Device or resource busy", "Interrupted system call", "No buffer space"):
		e.cause = model.ErrBusy
	case said("initialize iptables table", "initialize ip6tables table", "unable to initialize table", "Table does not exist"):
		e.cause = model.ErrNotSupported
		if len(Legacy.lacks()) > 0 {
			e.cause = model.ErrPermission
		}
	case said("Couldn't load match", "Couldn't load target", "missing kernel module", "unknown option"):
		e.cause, e.refusal = model.ErrNotSupported, true
	case e.code == codeBusy && reason == "":
		e.cause = model.ErrBusy
	default:
		e.refusal = true
	}
	return e
}

// condense makes one short line of what a program said.
func condense(stderr string) string {
	const longest = 400
	var lines []string
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "Warning: cannot open /etc/xtables/connlabel.conf") && !strings.HasPrefix(line, "Try `") {
			lines = append(lines, line)
		}
	}
	s := strings.Join(lines, "; ")
	if len(s) > longest {
		s = s[:longest] + "..."
	}
	return s
}
