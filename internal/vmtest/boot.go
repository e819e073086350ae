package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/headgate/headgate/internal/vmtest/wire"
)

// bootLimit is how long a guest may take until it speaks. Emulated on a very
// busy machine 70 s have been seen; a healthy boot takes 5.
const bootLimit = 3 * time.Minute

// Why a guest is given up.
var (
	errBootLimit = errors.New("the guest did not come up")
	errLimit     = errors.New("the guest ran out of time")
	errPanic     = errors.New("the guest's kernel panicked")
	errNoEnd     = errors.New("the guest ended before its work was done")
)

// A boot is one start of a machine.
type boot struct {
	machine machine
	limit   time.Duration // for the guest's work once it is up
	tasks   int           // how many the guest was given
	sink    sink
	note    func(format string, args ...any)

	console *tail
	begun   bool // a task has started, so that starting over would run it twice
	task    int  // the one that runs, once begun
}

// runGuest boots the machine and stays with it to its end. A guest that never
// came to its first task is started once more: emulated timers on a busy host
// make a kernel stop at boot now and then. The error says why the work was not
// done; the tail is of the last boot's console.
func runGuest(ctx context.Context, b boot) (*tail, error) {
	b.console = &tail{}
	err := b.run(ctx)
	if err == nil || b.begun || ctx.Err() != nil {
		return b.console, err
	}
	b.note("%v; starting it once more. Its console ended so:\n%s", err, indent(b.console.lines(10)))
	b.console = &tail{}
	err = b.run(ctx)
	return b.console, err
}

// run boots once.
func (b *boot) run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watch := time.AfterFunc(bootLimit, func() { stop(errBootLimit) })
	defer func() { watch.Stop() }()

	line, lineIn := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := b.machine.run(ctx, lineIn, b.console)
		_ = lineIn.CloseWithError(io.EOF)
		ended <- err
	}()

	started := time.Now()
	done, err := b.converse(line, func(release string) {
		watch.Stop()
		watch = time.AfterFunc(b.limit, func() { stop(errLimit) })
		b.note("%s is up after %v", release, round(time.Since(started)))
	})
	if done {
		// The work is done; a guest that cannot switch itself off is told to go.
		powerOff := time.AfterFunc(10*time.Second, func() { stop(nil) })
		defer powerOff.Stop()
	} else if err != nil {
		stop(err)
	}
	_, _ = io.Copy(io.Discard, line) // QEMU must not wait for a reader
	qemuErr := <-ended
	if done {
		return nil
	}
	return b.diagnose(context.Cause(ctx), err, qemuErr)
}

// diagnose chooses the error that says most about a guest that did not finish.
func (b *boot) diagnose(cause, lineErr, qemuErr error) error {
	switch {
	case cause != nil:
		return cause
	case b.console.contains("Kernel panic"):
		return errPanic
	case qemuErr != nil:
		return qemuErr
	case lineErr != nil:
		return lineErr
	}
	return errNoEnd
}

// converse listens to the guest until the line ends or the guest is done. up
// is called with the kernel's release when the guest first speaks. An end of
// the line is no error here: the caller knows more.
func (b *boot) converse(line io.Reader, up func(release string)) (done bool, err error) {
	r, release, err := wire.NewReader(line)
	if err != nil {
		return false, nil
	}
	up(release)
	for {
		kind, p, err := r.Next()
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return false, nil
		case err == nil && kind == wire.Done:
			return true, nil
		case err == nil:
			err = b.hear(kind, p)
		}
		if err != nil {
			return false, err
		}
	}
}

// hear takes one frame.
func (b *boot) hear(kind wire.Kind, p []byte) error {
	switch kind {
	case wire.Start:
		if err := json.Unmarshal(p, &b.task); err != nil || b.task < 0 || b.task >= b.tasks {
			return fmt.Errorf("the guest starts a task that it was not given: %s", p)
		}
		b.begun = true
		b.sink.start(b.task)
	case wire.Stdout, wire.Stderr:
		if !b.begun {
			return errors.New("the guest sends output of no task")
		}
		b.sink.output(b.task, kind, p)
	case wire.Exit:
		var result wire.Result
		if err := json.Unmarshal(p, &result); err != nil || !b.begun || result.Task != b.task {
			return fmt.Errorf("the guest ends a task that it has not begun: %s", p)
		}
		b.sink.exit(result)
	case wire.Note:
		b.note("guest: %s", p)
	}
	return nil
}
