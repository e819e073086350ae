package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/headgate/headgate/internal/vmtest/wire"
)

// A runner does what a config asks for.
type runner struct {
	config
	out, err io.Writer // what tests and programs print; what we have to say
}

func (r *runner) note(format string, args ...any) {
	fmt.Fprintf(r.err, "vmtest: "+format+"\n", args...)
}

// Exit statuses beside a program's own.
const (
	statusOK     = 0
	statusFailed = 1 // a test failed, or a guest
	statusUsage  = 2
)

// run returns the exit status. An error means that it did not come to tests.
func (r *runner) run(ctx context.Context) (status int, err error) {
	if err := provide(ctx, r.note); err != nil {
		return statusFailed, err
	}
	var kernels []kernel
	store := store{dir: r.cache, mirror: r.mirror, note: r.note}
	for _, source := range r.kernels {
		k, err := store.get(ctx, source)
		if err != nil {
			return statusFailed, err
		}
		kernels = append(kernels, k)
	}
	if r.prepare {
		return statusOK, nil
	}
	out, err := os.MkdirTemp("", "headgate-vm-build-*")
	if err != nil {
		return statusFailed, err
	}
	defer os.RemoveAll(out)
	work, err := r.build(ctx, out)
	if err != nil || len(work.tasks) == 0 {
		return statusOf(err == nil), err
	}
	for _, k := range kernels {
		s, err := r.runOn(ctx, k, work)
		if err != nil {
			return statusFailed, err
		}
		status = max(status, s)
	}
	return status, nil
}

// A workload is what every kernel is given.
type workload struct {
	tree  tree
	tasks []wire.Task
}

// build makes the guest's file system with all that is to be run in it.
func (r *runner) build(ctx context.Context, out string) (workload, error) {
	started := time.Now()
	// Our own program for the guest is in the module that we were started in.
	guest, err := builder{out: out}.program(ctx, "init", "github.com/headgate/headgate/internal/vmtest/guest")
	if err != nil {
		return workload{}, err
	}
	binaries, args, err := r.binaries(ctx, builder{dir: r.dir, out: out})
	if err != nil || len(binaries) == 0 {
		return workload{}, err
	}
	r.note("built in %v", round(time.Since(started)))
	t, err := baseTree(guest)
	if err != nil {
		return workload{}, err
	}
	tasks, err := t.addPayload(binaries, args)
	return workload{tree: t, tasks: tasks}, err
}

// binaries builds what is to be run and returns it with its arguments.
func (r *runner) binaries(ctx context.Context, b builder) ([]binary, []string, error) {
	if r.program != "" {
		program, given := b.given(r.program)
		var err error
		if !given {
			program = binary{name: r.program, guestDir: "/root"}
			program.file, err = b.program(ctx, "program", r.program)
		}
		return []binary{program}, r.programArgs, err
	}
	packages, err := b.list(ctx, r.packages)
	if err != nil {
		return nil, nil, err
	}
	tests, without, err := b.tests(ctx, packages)
	for _, name := range without {
		fmt.Fprintf(r.out, "?   \t%s\t[no test files]\n", name)
	}
	return tests, r.testArgs, err
}

// runOn runs everything on one kernel and returns the exit status.
func (r *runner) runOn(ctx context.Context, k kernel, work workload) (int, error) {
	image, err := writeImage(work.tree, k, wire.Job{
		Modules: r.modules, Env: r.env, Tasks: work.tasks, Limit: r.timeout,
	})
	if err != nil {
		return statusFailed, err
	}
	defer image.Close()
	b := boot{
		machine: machine{cpus: r.cpus, memory: r.memory, kernel: k.image, initrd: image},
		limit:   r.timeout, tasks: len(work.tasks), note: r.note,
	}
	if r.program != "" {
		p := &programRun{out: r.out, err: r.err}
		b.sink = p
		console, err := runGuest(ctx, b)
		return r.programStatus(p.result, console, err), nil
	}
	var names []string
	for _, task := range work.tasks {
		names = append(names, task.Name)
	}
	s := newSuite(r.out, r.note, r.verbose, names)
	b.sink = s
	console, err := runGuest(ctx, b)
	died := ""
	if err != nil {
		died = err.Error()
		r.showConsole(err, console)
	}
	s.summarize(k.version, died)
	return statusOf(err == nil && s.passed()), nil
}

// programStatus is the program's own exit status where it came to one.
func (r *runner) programStatus(result *wire.Result, console *tail, err error) int {
	switch {
	case err != nil:
		r.showConsole(err, console)
		return statusFailed
	case result.Code < 0:
		r.note("%s: %s", r.program, result.Reason)
		return statusFailed
	}
	return result.Code
}

// showConsole tells how a guest ended that did not finish.
func (r *runner) showConsole(err error, console *tail) {
	r.note("%v; the end of its console:\n%s", err, indent(console.lines(40)))
}

func statusOf(ok bool) int {
	if ok {
		return statusOK
	}
	return statusFailed
}
