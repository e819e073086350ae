package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A workshop is where steps run: with a folder for temporary files of their own and a mark in the environment by which
// processes that they leave behind are found.
type workshop struct {
	out  io.Writer
	temp string
	mark string
	// patience is how long processes may take to end after their step has.
	patience time.Duration
}

func newWorkshop(out io.Writer) (*workshop, error) {
	temp, err := os.MkdirTemp("", "headgate-ci-")
	if err != nil {
		return nil, err
	}
	// Tests become somebody else.
	if err := os.Chmod(temp, 0o777|os.ModeSticky); err != nil {
		return nil, err
	}
	return &workshop{out: out, temp: temp, mark: "HEADGATE_CI=" + temp, patience: 10 * time.Second}, nil
}

func (w *workshop) Close() error { return os.RemoveAll(w.temp) }

// An outcome is how a step ended.
type outcome struct {
	name  string
	took  time.Duration
	err   error
	tests []result // of a step that runs tests
}

// A reader makes something of what a command prints.
type reader interface {
	io.Writer
	// finish is called when nothing more comes, and returns the tests that were seen.
	finish() []result
}

// run runs a step to its end, whatever becomes of its commands.
func (w *workshop) run(ctx context.Context, s step) outcome {
	fmt.Fprintf(w.out, "\n=== %s\n", s.name)
	ctx, cancel := context.WithTimeoutCause(ctx, s.limit, fmt.Errorf("took more than %v", s.limit))
	defer cancel()
	o := outcome{name: s.name}
	var errs []error
	started := time.Now()
	if len(s.commands) == 0 {
		errs = append(errs, errors.New("there is nothing to run"))
	}
	for r := range w.commands(ctx, s) {
		o.tests = append(o.tests, r.tests...)
		if r.err != nil {
			errs = append(errs, r.err)
		}
	}
	o.took, o.err = time.Since(started), errors.Join(errs...)
	switch nameless := func(r result) bool { return r.pkg == "" }; {
	case o.err != nil || s.read == nil:
	case len(o.tests) == 0:
		o.err = errors.New("no test ran")
	case slices.ContainsFunc(o.tests, nameless):
		o.err = errors.New("there are tests whose package was not told: what ran where is not known")
	}
	return o
}

// String returns the command as one would type it.
func (c command) String() string {
	line := strings.Join(c.args, " ")
	if c.dir != "" && c.dir != "." {
		line = "cd " + c.dir + " && " + line
	}
	return line
}

// An ending is how a command ended.
type ending struct {
	tests []result
	err   error
}

// commands runs the commands of a step and yields how each ended.
func (w *workshop) commands(ctx context.Context, s step) iter.Seq[ending] {
	one := func(w *workshop, c command) ending {
		tests, err := w.command(ctx, c, s.read)
		if err != nil {
			fmt.Fprintf(w.out, "%s: %v\n", c, err)
		}
		return ending{tests, err}
	}
	return func(yield func(ending) bool) {
		if !s.atOnce {
			for _, c := range s.commands {
				yield(one(w, c))
			}
			return
		}
		type said struct {
			ending
			out *bytes.Buffer
		}
		ended := make(chan said)
		for _, c := range s.commands {
			go func() {
				own := *w
				e := said{out: new(bytes.Buffer)}
				own.out = e.out
				e.ending = one(&own, c)
				ended <- e
			}()
		}
		for range s.commands {
			e := <-ended
			w.out.Write(e.out.Bytes())
			yield(e.ending)
		}
	}
}

// command runs one command.
func (w *workshop) command(ctx context.Context, c command, read func(*workshop) reader) ([]result, error) {
	fmt.Fprintf(w.out, "$ %s\n", c)
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "TMPDIR="+w.temp, w.mark)
	// The command and all that it starts are one process group, so that a limit ends all of it.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	var r reader
	var said bytes.Buffer
	switch {
	case read != nil:
		r = read(w)
		cmd.Stdout, cmd.Stderr = r, r // the same: one pipe, so that the order stays
	case c.silent:
		cmd.Stdout = io.MultiWriter(w.out, &said)
		cmd.Stderr = cmd.Stdout
	default:
		cmd.Stdout, cmd.Stderr = w.out, w.out
	}
	err := cmd.Run()
	if cmd.Process != nil {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // what did not end with it
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err == nil && said.Len() > 0 {
		err = errors.New("it found something")
	}
	if r == nil {
		return nil, err
	}
	return r.finish(), err
}
