package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
)

// asProgram makes this test binary the program itself: so it runs where there is no Go, and as anybody.
const asProgram = "QUICKSTART_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// program returns the quickstart, ready to be run with the arguments.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// start runs the quickstart and returns what it printed and its exit code.
func start(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		require.IsType(t, &exec.ExitError{}, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestEachBackend(t *testing.T) {
	lab.NeedRoot(t)
	for name, b := range backends {
		t.Run(name, func(t *testing.T) {
			_, err := exec.LookPath(b.list[0])
			require.NoError(t, err, "the rules cannot be shown")
			before := machine(t)
			out, errs, code := start(t, program(t, "-backend", name))
			require.Zero(t, code, "%s%s", out, errs)
			require.Empty(t, errs)

			served := regexp.MustCompile(`(?m)^(alpha|beta|gamma): (\d+)$`).FindAllStringSubmatch(out, -1)
			require.Len(t, served, 3, out)
			total := 0
			for _, m := range served {
				n := number(t, m[2])
				require.Greater(t, n, 40, "of 300 requests, an even share is 100: %s", out)
				total += n
			}
			require.Equal(t, 300, total)

			load := regexp.MustCompile(`(\d+) requests meanwhile, 0 failed`).FindStringSubmatch(out)
			require.NotNil(t, load, out)
			require.Positive(t, number(t, load[1]))

			require.Regexp(t, `Written to the kernel:\n  [1-9]\d* added, `, out)
			require.Regexp(t, `removed: .* bytes in \d+ transactions`, out)
			require.Regexp(t, `added: .* bytes in \d+ transactions`, out)
			require.Contains(t, out, "10.96.0.10", "the rules are not shown")
			require.Contains(t, out, string(web), "the rules do not name the service")
			require.Contains(t, out, "Cleaned up")
			require.Equal(t, before, machine(t), "the program left something behind")
		})
	}
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
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

func TestWithoutTheToolThatShowsTheRules(t *testing.T) {
	lab.NeedRoot(t)
	cmd := program(t, "-backend", "nftables")
	cmd.Env = append(cmd.Env, "PATH=/nowhere")
	out, errs, code := start(t, cmd)
	require.Zero(t, code, "%s%s", out, errs)
	require.Contains(t, out, "nft is not installed")
	require.Contains(t, out, "Cleaned up")
}

func TestUnprivilegedUserIsToldWhatToDo(t *testing.T) {
	cmd := program(t)
	if os.Geteuid() == 0 {
		cmd.Path = everybodys(t, cmd.Path)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	_, errs, code := start(t, cmd)
	require.Equal(t, 1, code)
	require.Contains(t, errs, "sudo go run ./examples/quickstart")
	require.Contains(t, errs, "operation not permitted")
	require.NotContains(t, errs, "goroutine", "a stack trace helps nobody here")
}

// everybodys copies a program to where everybody may run it.
func everybodys(t *testing.T, path string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "quickstart")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	from, err := os.Open(path)
	require.NoError(t, err)
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(dir, "quickstart"), os.O_CREATE|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(to, from)
	require.NoError(t, err)
	require.NoError(t, to.Close())
	return to.Name()
}

func TestUnknownBackend(t *testing.T) {
	_, errs, code := start(t, program(t, "-backend", "teleport"))
	require.Equal(t, 1, code)
	require.Equal(t, "quickstart: no backend \"teleport\"; there is nftables\n", errs)
}
