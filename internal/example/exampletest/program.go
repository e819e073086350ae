// Package exampletest is for the tests of the programs below examples: it runs them as their readers do, and looks at
// what they print and leave behind.
package exampletest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// asProgram makes a test binary the program itself: so it runs where there is no Go, and as anybody.
const asProgram = "HEADGATE_EXAMPLE_AS_PROGRAM"

// Main is what TestMain calls. It returns the exit code: of the tests or, in a process that Command started, 0 once the
// program has returned.
func Main(m *testing.M, program func()) int {
	if os.Getenv(asProgram) == "" {
		return m.Run()
	}
	program()
	return 0
}

// Command returns the program, ready to be run with the arguments. It ends with the test.
func Command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// Run runs the program and returns what it printed and its exit code.
func Run(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var ended *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &ended) {
		require.NoError(t, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Succeed runs the program with the arguments, sees that it succeeds, complains of nothing and leaves nothing behind,
// and returns what it printed.
func Succeed(t *testing.T, args ...string) string {
	t.Helper()
	before := machine(t)
	out, errs, code := Run(t, Command(t, args...))
	require.Zero(t, code, "%s%s", out, errs)
	require.Empty(t, errs)
	require.Equal(t, before, machine(t), "the program left something behind")
	return out
}

// machine returns what a careless program would change: named namespaces, and the links of this one.
func machine(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/run/netns/*", "/sys/class/net/*"} {
		names, err := filepath.Glob(pattern)
		require.NoError(t, err)
		all = append(all, names...)
	}
	return all
}

// TellWhatIsMissing runs the program as somebody who may do nothing, and sees that it says how to start it. Dir is its
// folder as one gives it to go run.
func TellWhatIsMissing(t *testing.T, dir string) {
	t.Helper()
	cmd := Command(t)
	if os.Geteuid() == 0 {
		cmd.Path = ForEverybody(t, cmd.Path)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	_, errs, code := Run(t, cmd)
	require.Equal(t, 1, code)
	require.Contains(t, errs, "sudo go run "+dir)
	require.Contains(t, errs, "operation not permitted")
	require.NotContains(t, errs, "goroutine", "a stack trace helps nobody here")
}

// ForEverybody copies a program to a folder of its own, where everybody may run it, and returns its path.
func ForEverybody(t *testing.T, path string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "example")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	from, err := os.Open(path)
	require.NoError(t, err)
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(dir, "program"), os.O_CREATE|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(to, from)
	require.NoError(t, err)
	require.NoError(t, to.Close())
	return to.Name()
}
