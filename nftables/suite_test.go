package nftables_test

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/headgate/headgate/nftables"
)

// newIn returns a constructor of Programmers for a world's node, for a table of the given name.
func newIn(table string) func(tb testing.TB, w modeltest.World) model.Programmer {
	return func(tb testing.TB, w modeltest.World) model.Programmer {
		tb.Helper()
		p, err := nftables.New(context.Background(), nftables.Config{Table: table, NetNS: w.NetNS(), VerifyInterval: 1})
		require.NoError(tb, err)
		tb.Cleanup(func() { require.NoError(tb, p.Close()) })
		return p
	}
}

// run runs a stock tool in the network namespace of a descriptor.
func run(netns int, stdin, name string, args ...string) (string, error) {
	type result struct {
		out []byte
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := unix.Setns(netns, unix.CLONE_NEWNET); err != nil {
			done <- result{err: err}
			return
		}
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		done <- result{out, err}
	}()
	r := <-done
	if r.err != nil {
		return "", fmt.Errorf("%s %q: %w: %s", name, args, r.err, r.out)
	}
	return string(r.out), nil
}

func target() modeltest.Target {
	return modeltest.Target{
		Name:   "nftables",
		New:    newIn("headgate"),
		Second: newIn("second"),
	}
}

func TestSuite(t *testing.T)   { modeltest.Run(t, target()) }
func TestVectors(t *testing.T) { modeltest.RunVectors(t, target()) }
