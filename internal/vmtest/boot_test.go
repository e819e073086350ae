package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/vmtest/wire"
)

// A script is a sink that writes down what it is told.
type script struct{ strings.Builder }

func (s *script) start(task int) { fmt.Fprintf(s, "start %d\n", task) }
func (s *script) output(task int, kind wire.Kind, p []byte) {
	fmt.Fprintf(s, "output %d %c %s\n", task, kind, p)
}
func (s *script) exit(r wire.Result) { fmt.Fprintf(s, "exit %d %d\n", r.Task, r.Code) }

// listen lets a boot hear what say sends, and returns what came of it.
func listen(t *testing.T, say func(w *wire.Writer)) (told string, done bool, err error) {
	t.Helper()
	var line bytes.Buffer
	w, err := wire.NewWriter(&line, "6.1.0")
	require.NoError(t, err)
	say(w)
	var s script
	b := boot{tasks: 2, sink: &s, note: func(format string, args ...any) { fmt.Fprintf(&s, "note "+format+"\n", args...) }}
	done, err = b.converse(&line, func(release string) { fmt.Fprintf(&s, "up %s\n", release) })
	return s.String(), done, err
}

func TestConversation(t *testing.T) {
	told, done, err := listen(t, func(w *wire.Writer) {
		_ = w.Send(wire.Note, []byte("hello"))
		for i := range 2 {
			_ = w.SendJSON(wire.Start, i)
			_ = w.Send(wire.Stdout, []byte("x"))
			_ = w.SendJSON(wire.Exit, wire.Result{Task: i, Code: i})
		}
		_ = w.Send(wire.Done, nil)
	})
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, "up 6.1.0\nnote guest: hello\nstart 0\noutput 0 o x\nexit 0 0\nstart 1\noutput 1 o x\nexit 1 1\n", told)
}

// All tasks ended well, and yet the guest did not say that it was done.
func TestMissingEndIsNotDone(t *testing.T) {
	_, done, err := listen(t, func(w *wire.Writer) {
		for i := range 2 {
			_ = w.SendJSON(wire.Start, i)
			_ = w.SendJSON(wire.Exit, wire.Result{Task: i})
		}
	})
	require.NoError(t, err)
	require.False(t, done)
}

func TestGuestThatTalksNonsense(t *testing.T) {
	start := func(w *wire.Writer) { _ = w.SendJSON(wire.Start, 0) }
	for name, c := range map[string]struct {
		say  func(w *wire.Writer)
		want string
	}{
		"unknown task":   {func(w *wire.Writer) { _ = w.SendJSON(wire.Start, 2) }, "a task that it was not given"},
		"negative task":  {func(w *wire.Writer) { _ = w.SendJSON(wire.Start, -1) }, "a task that it was not given"},
		"no number":      {func(w *wire.Writer) { _ = w.Send(wire.Start, []byte("x")) }, "a task that it was not given"},
		"early output":   {func(w *wire.Writer) { _ = w.Send(wire.Stdout, nil) }, "output of no task"},
		"early exit":     {func(w *wire.Writer) { _ = w.SendJSON(wire.Exit, wire.Result{}) }, "has not begun"},
		"foreign exit":   {func(w *wire.Writer) { start(w); _ = w.SendJSON(wire.Exit, wire.Result{Task: 1}) }, "has not begun"},
		"exit not JSON":  {func(w *wire.Writer) { start(w); _ = w.Send(wire.Exit, []byte("{")) }, "has not begun"},
		"line not whole": {func(w *wire.Writer) { start(w); _ = w.Send('?', []byte("x")) }, "not a frame"},
	} {
		t.Run(name, func(t *testing.T) {
			_, done, err := listen(t, c.say)
			require.False(t, done)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestSilentGuest(t *testing.T) {
	var s script
	b := boot{tasks: 1, sink: &s}
	done, err := b.converse(strings.NewReader("some noise"), func(string) { t.Error("it is not up") })
	require.NoError(t, err)
	require.False(t, done)
	require.False(t, b.begun, "so that it is started once more")
	require.Empty(t, s.String())
}

func TestDiagnosis(t *testing.T) {
	qemu, nonsense := errors.New("qemu: exit status 1"), errors.New("not a frame")
	for name, c := range map[string]struct {
		cause         error
		console       string
		lineErr, qemu error
		want          error
	}{
		"deadline":           {cause: errLimit, console: "Kernel panic", want: errLimit},
		"panic":              {console: "[1.2] Kernel panic - not syncing", want: errPanic},
		"QEMU does not run":  {qemu: qemu, want: qemu},
		"nonsense":           {cause: nonsense, lineErr: nonsense, want: nonsense},
		"quiet end":          {want: errNoEnd},
		"QEMU and nonsense":  {lineErr: nonsense, qemu: qemu, want: qemu},
		"nonsense by itself": {lineErr: nonsense, want: nonsense},
	} {
		t.Run(name, func(t *testing.T) {
			b := boot{console: &tail{}}
			_, _ = io.WriteString(b.console, c.console)
			require.Equal(t, c.want, b.diagnose(c.cause, c.lineErr, c.qemu))
		})
	}
}

func TestProgramStreams(t *testing.T) {
	var out, errs strings.Builder
	p := &programRun{out: &out, err: &errs}
	p.output(0, wire.Stdout, []byte("a"))
	p.output(0, wire.Stderr, []byte("b"))
	require.Nil(t, p.result)
	p.exit(wire.Result{Code: 4})
	require.Equal(t, "a", out.String())
	require.Equal(t, "b", errs.String())
	require.Equal(t, 4, p.result.Code)
}
