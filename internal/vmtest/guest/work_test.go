package main

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/vmtest/wire"
)

// runShell runs a task here instead of in a machine and returns the streams
// that it sent.
func runShell(t *testing.T, merge bool, script string) (wire.Result, map[wire.Kind]string) {
	t.Helper()
	var line bytes.Buffer
	w, err := wire.NewWriter(&line, "x")
	require.NoError(t, err)
	result := run(wire.Task{Name: "script", Path: "/bin/sh", Args: []string{"-c", script}, Dir: t.TempDir(), Merge: merge}, noLimit, w)
	r, _, err := wire.NewReader(&line)
	require.NoError(t, err)
	streams := map[wire.Kind]string{}
	for {
		kind, p, err := r.Next()
		if err == io.EOF {
			return result, streams
		}
		require.NoError(t, err)
		streams[kind] += string(p)
	}
}

func TestRunSendsStreamsAndStatus(t *testing.T) {
	result, streams := runShell(t, false, "echo out; echo err >&2; exit 7")
	require.Equal(t, 7, result.Code)
	require.Empty(t, result.Reason)
	require.Positive(t, result.Elapsed)
	require.Equal(t, map[wire.Kind]string{wire.Stdout: "out\n", wire.Stderr: "err\n"}, streams)
}

func TestRunMergesInOrder(t *testing.T) {
	result, streams := runShell(t, true, "echo 1; echo 2 >&2; echo 3")
	require.Zero(t, result.Code)
	require.Equal(t, map[wire.Kind]string{wire.Stdout: "1\n2\n3\n"}, streams)
}

func TestRunTellsASignal(t *testing.T) {
	result, _ := runShell(t, true, "kill -KILL $$")
	require.Equal(t, -1, result.Code)
	require.Equal(t, "signal: killed", result.Reason)
}

func TestRunTellsWhatCannotStart(t *testing.T) {
	w, err := wire.NewWriter(io.Discard, "x")
	require.NoError(t, err)
	result := run(wire.Task{Path: filepath.Join(t.TempDir(), "absent"), Dir: "/"}, noLimit, w)
	require.Equal(t, -1, result.Code)
	require.Contains(t, result.Reason, syscall.ENOENT.Error())
}

func TestRunDoesNotWaitForWhatATaskLeftBehind(t *testing.T) {
	started := time.Now()
	result, streams := runShell(t, true, "sleep 600 & echo done")
	require.Zero(t, result.Code)
	require.Equal(t, "done\n", streams[wire.Stdout])
	require.Contains(t, streams[wire.Note], "left processes behind")
	require.Less(t, time.Since(started), 5*time.Minute)
}

func TestMarginsLeaveTimeToTell(t *testing.T) {
	for left, want := range map[time.Duration][2]time.Duration{
		15 * time.Minute: {14*time.Minute + 40*time.Second, 14*time.Minute + 50*time.Second},
		50 * time.Second: {40 * time.Second, 45 * time.Second},
		-time.Second:     {time.Second, 2 * time.Second},
	} {
		testTimeout, quit := margins(left)
		require.Equal(t, want, [2]time.Duration{testTimeout, quit}, left)
	}
}

func TestRunAsksForStacksBeforeTheLimit(t *testing.T) {
	w, err := wire.NewWriter(io.Discard, "x")
	require.NoError(t, err)
	result := run(wire.Task{Path: "/bin/sleep", Args: []string{"600"}, Dir: "/"}, time.Second, w)
	require.Equal(t, -1, result.Code)
	require.Equal(t, "signal: quit", strings.TrimSuffix(result.Reason, " (core dumped)"))
}

// The flag goes before the task's own, so that the caller's wins.
func TestRunTellsATestItsTimeout(t *testing.T) {
	var line bytes.Buffer
	w, err := wire.NewWriter(&line, "x")
	require.NoError(t, err)
	result := run(wire.Task{Path: "/bin/echo", Args: []string{"-test.v"}, Dir: "/", Timeout: true}, time.Minute, w)
	require.Zero(t, result.Code)
	require.Contains(t, line.String(), "-test.timeout=48s -test.v\n")
}
