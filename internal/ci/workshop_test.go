package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func shop(t *testing.T) (*workshop, *strings.Builder) {
	t.Helper()
	var out strings.Builder
	w, err := newWorkshop(&out)
	require.NoError(t, err)
	w.patience = 300 * time.Millisecond
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w, &out
}

func sh(script string) command { return command{args: []string{"sh", "-c", script}} }

func TestStepsEnd(t *testing.T) {
	silent := sh("echo bad.go")
	silent.silent = true
	events := func(w *workshop) reader { return newEvents(w.out, "host") }
	verbose := func(w *workshop) reader { return newVerbose(w.out, "kernel") }
	for _, sc := range []struct {
		name string
		step step
		err  string
		says string
	}{
		{"well", step{commands: []command{sh("echo fine; echo on both >&2")}}, "", "fine\non both\n"},
		{"with a status", step{commands: []command{sh("exit 3"), sh("echo the next one runs all the same")}}, "exit status 3", "the next one"},
		{"with a finding", step{commands: []command{silent}}, "it found something", "bad.go\n"},
		{"without a program", step{commands: []command{{args: []string{"no-such-program"}}}}, "executable file not found", "$ no-such-program\n"},
		{"with nothing to do", step{}, "there is nothing to run", ""},
		{"without a test", step{commands: []command{sh(":")}, read: events}, "no test ran", ""},
		{"with tests of nobody knows whom", step{commands: []command{sh("echo '--- PASS: TestA (0.00s)'")}, read: verbose}, "package was not told", ""},
		{"late", step{commands: []command{sh("sleep 600 & sleep 600")}, limit: 200 * time.Millisecond}, "took more than 200ms", ""},
	} {
		t.Run(sc.name, func(t *testing.T) {
			if sc.step.limit == 0 {
				sc.step.limit = time.Minute
			}
			w, out := shop(t)
			o := w.run(t.Context(), sc.step)
			if sc.err == "" {
				require.NoError(t, o.err)
			} else {
				require.ErrorContains(t, o.err, sc.err)
			}
			require.Contains(t, out.String(), sc.says)
			require.Empty(t, w.processes())
		})
	}
}

// Commands that run at once can wait for each other; what each prints stays together.
func TestStepRunsAtOnce(t *testing.T) {
	w, out := shop(t)
	meet := func(mine, other string) command {
		return sh("echo I am " + mine + "; touch $TMPDIR/" + mine + "; until [ -e $TMPDIR/" + other + " ]; do sleep 0.01; done; echo so am I")
	}
	o := w.run(t.Context(), step{commands: []command{meet("a", "b"), meet("b", "a")}, atOnce: true, limit: time.Minute})
	require.NoError(t, o.err)
	require.Contains(t, out.String(), "I am a\nso am I\n")
	require.Contains(t, out.String(), "I am b\nso am I\n")
}

func TestStepCollectsTests(t *testing.T) {
	w, _ := shop(t)
	one := sh(`echo '{"Action":"pass","Package":"m/a","Test":"TestA"}'`)
	two := sh(`echo '{"Action":"fail","Package":"m/b","Test":"TestB"}'; exit 1`)
	o := w.run(t.Context(), step{name: "test", commands: []command{one, two}, limit: time.Minute, read: func(w *workshop) reader { return newEvents(w.out, "host") }})
	require.Error(t, o.err)
	require.Equal(t, []result{{place: "host", pkg: "m/a", test: "TestA"}, {place: "host", pkg: "m/b", test: "TestB", status: failed}}, o.tests)
}

func TestLeftoversAreFound(t *testing.T) {
	w, _ := shop(t)
	before := lookAround(t.Context())
	require.NotEmpty(t, before["/sys/class/net"])

	// A process that left its group, as a daemon does.
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	daemon := exec.CommandContext(ctx, "sleep", "600")
	daemon.Env = append(os.Environ(), w.mark)
	require.NoError(t, daemon.Start())
	require.NoError(t, os.WriteFile(filepath.Join(w.temp, "forgotten"), nil, 0o600))
	before["/sys/class/net"] = append(before["/sys/class/net"], "veth-gone")

	o := w.leftovers(t.Context(), before)
	require.ErrorContains(t, o.err, "sleep 600")
	require.ErrorContains(t, o.err, "file "+filepath.Join(w.temp, "forgotten"))
	require.ErrorContains(t, o.err, "/sys/class/net: gone: veth-gone")

	stop()
	_ = daemon.Wait()
	require.Empty(t, w.processes())
}

func TestViewChanges(t *testing.T) {
	before := view{"nft list tables": {"table ip a", "table ip b"}, "only before": {"x"}}
	after := view{"nft list tables": {"table ip b", "table ip headgate"}, "only after": {"y"}}
	require.Equal(t, []string{"nft list tables: new: table ip headgate", "nft list tables: gone: table ip a", "only before: gone: x"}, before.changes(after))
	require.Empty(t, before.changes(before))
}

func TestTree(t *testing.T) {
	t.Chdir("../..")
	tree, err := readTree(t.Context())
	require.NoError(t, err)
	require.Equal(t, ".", tree.modules[0])
	require.Contains(t, tree.kernelTests, "github.com/headgate/headgate/internal/lab")
	require.NotContains(t, tree.kernelTests, "github.com/headgate/headgate/internal/house")
	require.Contains(t, tree.programs, "examples/quickstart")
	names := map[string]bool{}
	for _, s := range tree.steps() {
		require.NotEmpty(t, s.commands, s.name)
		require.Positive(t, s.limit, s.name)
		require.False(t, names[s.name], s.name)
		names[s.name] = true
	}
	some, err := choose(tree.steps(), []string{"vm", "format"})
	require.NoError(t, err)
	require.Len(t, some, 2)
	require.Equal(t, "format", some[0].name)
	_, err = choose(tree.steps(), []string{"typo"})
	require.ErrorContains(t, err, `no step "typo"; there are format, vet,`)
}
