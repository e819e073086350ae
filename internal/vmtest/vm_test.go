package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// These tests boot real machines with the packages in testdata/module, which
// is a module of its own. They run in parallel: some of them mostly wait.

// result is what a run of the command left behind.
type result struct {
	status      int
	out, errors string
}

// requireGuest skips a test where no machine can be had without installing or
// downloading something, which a test does not do by itself. In CI everything
// has to be there.
func requireGuest(t *testing.T) {
	t.Helper()
	var lacking string
	cache, err := os.UserCacheDir()
	switch packages := missing(needs, onHost); {
	case os.Getenv("HEADGATE_VM") != "":
		t.Skip("already in a test machine")
	case testing.Short():
		t.Skip("boots a machine; not with -short")
	case len(packages) > 0:
		lacking = "these packages: " + strings.Join(packages, " ")
	case err != nil || !exists(filepath.Join(cache, "headgate-vmtest", "6.1")):
		lacking = "kernel 6.1"
	default:
		t.Parallel()
		return
	}
	message := "lacks " + lacking + `; run "go run ./internal/vmtest -prepare"`
	if os.Getenv("CI") != "" {
		t.Fatal(message)
	}
	t.Skip(message)
}

// vmtest runs the command in this process.
func vmtest(t *testing.T, args ...string) result {
	t.Helper()
	requireGuest(t)
	var out, errors bytes.Buffer
	c, err := parseArgs(append([]string{"-C", "testdata/module"}, args...), &errors)
	require.NoError(t, err)
	r := runner{config: c, out: &out, err: &errors}
	status, err := r.run(t.Context())
	t.Logf("vmtest %s: status %d\n%s%s", strings.Join(args, " "), status, out.String(), errors.String())
	require.NoError(t, err)
	return result{status, out.String(), errors.String()}
}

func TestPassingPackages(t *testing.T) {
	r := vmtest(t, "-modules", "", "-env", "GREETING=good day", "./pass", "./kernel", "./empty")
	require.Equal(t, statusOK, r.status)
	require.Regexp(t, `(?m)^ok  \texample\.test/guests/pass\t[0-9.]+s \(kernel 6\.1\.[0-9]+\) \[1 skipped\]$`, r.out)
	require.Regexp(t, `(?m)^ok  \texample\.test/guests/kernel\t[0-9.]+s \(kernel 6\.1\.[0-9]+\)$`, r.out)
	require.Contains(t, r.out, "?   \texample.test/guests/empty\t[no test files]\n")
	require.Contains(t, r.out, "skipped in example.test/guests/pass: 1× skipped on purpose (TestSkipped)\n")
	require.Regexp(t, `(?m)^tests on kernel 6\.1\.[0-9]+: [0-9]+ passed, 0 failed, 1 skipped$`, r.out)
	require.NotContains(t, r.out, "=== RUN")
}

// Every package runs whatever became of those before it; the last one hangs, and
// stops itself in time to say where.
func TestFailuresFailTheRun(t *testing.T) {
	r := vmtest(t, "-modules", "", "-timeout", "30s", "-run", "Fine|Fails|Loopback|Hang", "./fail", "./pass", "./hang")
	require.Equal(t, statusFailed, r.status)
	require.Contains(t, r.out, "failed on purpose\n--- FAIL: TestFails")
	require.NotContains(t, r.out, "nobody needs to see this")
	require.Regexp(t, `(?m)^FAIL\texample\.test/guests/fail\t.*\[exit status 1\]$`, r.out)
	require.Regexp(t, `(?m)^ok  \texample\.test/guests/pass\t`, r.out)
	require.Contains(t, r.out, ": 2 passed, 1 failed, 0 skipped")

	require.Contains(t, r.out, "about to hang")
	require.Contains(t, r.out, "panic: test timed out after")
	require.Contains(t, r.out, "hang.TestHang(")
	require.Regexp(t, `(?m)^FAIL\texample\.test/guests/hang\t.*\[exit status 2\]$`, r.out)
}

func TestPanickingKernelFailsTheRun(t *testing.T) {
	r := vmtest(t, "-v", "./crash", "./pass")
	require.Equal(t, statusFailed, r.status)
	require.Contains(t, r.errors, "the guest's kernel panicked; the end of its console:\n")
	require.Contains(t, r.errors, "Kernel panic - not syncing: sysrq triggered crash")
	require.Contains(t, r.out, "=== RUN   TestCrash\n")
	require.Regexp(t, `(?m)^FAIL\texample\.test/guests/crash\t\[the guest's kernel panicked in TestCrash\] \(kernel 6\.1`, r.out)
	require.Regexp(t, `(?m)^FAIL\texample\.test/guests/pass\t\[not run: the guest's kernel panicked\]`, r.out)
	require.Equal(t, 1, strings.Count(r.errors, " is up after "), "a run that had begun is not begun again")
}

// The test does not stop itself, nor does it listen to the guest's wish for its
// stacks: the host has to end it.
func TestHangingGuestIsEnded(t *testing.T) {
	r := vmtest(t, "-modules", "", "-timeout", "15s", "-env", "DEAF=1", "-args", "-test.timeout=0", "./hang")
	require.Equal(t, statusFailed, r.status)
	require.Contains(t, r.errors, "the guest ran out of time; the end of its console:\n")
	require.Contains(t, r.out, "about to hang")
	require.Contains(t, r.out, "FAIL\texample.test/guests/hang\t[the guest ran out of time in TestHang]")
}

func TestProgram(t *testing.T) {
	r := vmtest(t, "-program", "./prog", "--", "-backend", "ipvs", "two words")
	require.Equal(t, 7, r.status, "the program's own")
	require.Equal(t, `{"args":["-backend" "ipvs" "two words"]}`+"\n", r.out, "nothing but the program's output")
	require.Contains(t, r.errors, "a word to the side\n")
}

// The command as people start it, ended by a signal while its guest is there.
func TestSignalLeavesNothingBehind(t *testing.T) {
	requireGuest(t)
	built := filepath.Join(t.TempDir(), "vmtest")
	out, err := exec.Command("go", "build", "-o", built, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for name, c := range map[string]struct {
		command []string
		signal  syscall.Signal
		leaves  bool // temporary files, which nobody is left to remove
	}{
		"interrupt":        {[]string{built}, syscall.SIGINT, false},
		"terminate":        {[]string{built}, syscall.SIGTERM, false},
		"kill":             {[]string{built}, syscall.SIGKILL, true},
		"terminate go run": {[]string{"go", "run", "."}, syscall.SIGTERM, false},
	} {
		t.Run(name, func(t *testing.T) {
			temp, goTemp := t.TempDir(), t.TempDir()
			cmd := exec.Command(c.command[0], append(c.command[1:], "-program", built)...)
			cmd.Env = append(os.Environ(), "TMPDIR="+temp, "GOTMPDIR="+goTemp)
			require.NoError(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			started := untilQEMU(t, cmd.Process.Pid)
			require.NotEmpty(t, entries(t, temp), "what was built, to be removed")

			require.NoError(t, cmd.Process.Signal(c.signal))
			require.Error(t, cmd.Wait())
			for _, pid := range started {
				require.Eventually(t, func() bool {
					return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
				}, time.Minute, 20*time.Millisecond, "process %d is still there", pid)
			}
			if !c.leaves {
				require.Empty(t, entries(t, temp))
			}
		})
	}
}

func entries(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	found, err := os.ReadDir(dir)
	require.NoError(t, err)
	return found
}

// untilQEMU waits until QEMU is among the processes that pid has started, and
// returns them.
func untilQEMU(t *testing.T, pid int) []int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		started := descendants(pid)
		for _, child := range started {
			if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child)); strings.HasPrefix(string(name), "qemu") {
				return started
			}
		}
		require.NoError(t, pause(ctx), "QEMU was not started")
	}
}

// descendants returns the processes that pid has started, and they in turn.
func descendants(pid int) []int {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var found []int
	for _, list := range lists {
		text, _ := os.ReadFile(list) // gone with its thread, if not there
		for field := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				found = append(append(found, child), descendants(child)...)
			}
		}
	}
	return found
}

// A machine that cannot start is started once more, and then given up.
func TestMachineThatDoesNotStart(t *testing.T) {
	requireGuest(t)
	empty, err := os.CreateTemp(t.TempDir(), "initrd")
	require.NoError(t, err)
	defer empty.Close()
	var notes []string
	b := boot{
		machine: machine{cpus: 1, memory: 256, kernel: "/nonexistent", initrd: empty},
		limit:   time.Minute, tasks: 1, sink: &programRun{},
		note: func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) },
	}
	_, err = runGuest(context.Background(), b)
	require.ErrorContains(t, err, "/nonexistent")
	require.Len(t, notes, 1)
	require.Contains(t, notes[0], "starting it once more")
}
