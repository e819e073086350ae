package iptables

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

var chaosDuration = flag.Duration("chaos.duration", 15*time.Second, "how long TestChaos goes on, for each variant")

func TestChaos(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		target, faults := chaosTarget(v)
		modeltest.RunChaos(t, target, modeltest.Chaos{
			Duration:  *chaosDuration,
			Overlooks: v == Legacy, // the kernel tells the sizes of its tables alone
			Disturb: map[string]func(testing.TB, modeltest.World) func(){
				"hold the xtables lock": holdLock, "others write all the time": writeAlways(v),
			},
			Fail: map[string]func(testing.TB, modeltest.World){
				"the lock is not to be had": faults.next(1, false, 4),
				"refuse several":            faults.next(3, false, 1),
				"lose the answer":           faults.next(1, true, 1),
			},
			Child: func(tb testing.TB, w modeltest.World) *exec.Cmd {
				return modeltest.ChaosCommand(tb, w, "TestChaosChild/"+v.String())
			},
		})
	})
}

// TestChaosChild is what TestChaos kills.
func TestChaosChild(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		target, _ := chaosTarget(v)
		modeltest.ChaosChild(t, target)
	})
}

// chaosTarget is suiteTarget with programs that fail, and a second instance that shares neither mark nor label.
func chaosTarget(v Variant) (modeltest.Target, *failing) {
	f, target := &failing{}, suiteTarget(v)
	target.Refuse = nil // it also refuses what was taken before
	first := target.New
	target.New = func(tb testing.TB, w modeltest.World) model.Programmer {
		p := first(tb, w).(*Programmer)
		for _, s := range p.sides {
			s.exec = f.wrap(s.exec)
		}
		return p
	}
	target.Second = func(tb testing.TB, w modeltest.World) model.Programmer {
		tb.Helper()
		p, err := New(context.Background(), Config{NetNS: w.NetNS(), Variant: v, Prefix: "SECOND", MasqueradeMark: 0x8000, ConntrackLabel: 119})
		require.NoError(tb, err)
		return p
	}
	return target, f
}

// failing makes the next calls of iptables-restore fail.
type failing struct {
	mu    sync.Mutex // guards what follows
	left  int
	after bool // they do what they shall first
	code  int
}

// next makes n calls fail with an exit code.
func (f *failing) next(n int, after bool, code int) func(testing.TB, modeltest.World) {
	return func(testing.TB, modeltest.World) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.left, f.after, f.code = n, after, code
	}
}

func (f *failing) wrap(run runner) runner {
	return func(ctx context.Context, program string, args []string, stdin []byte) ([]byte, error) {
		f.mu.Lock()
		fails, after, err := f.left > 0 && strings.Contains(program, "restore"), f.after, &toolError{program: program, code: f.code, cause: model.ErrBusy}
		if fails {
			f.left--
		}
		f.mu.Unlock()
		if fails && !after {
			return nil, err
		}
		out, ran := run(ctx, program, args, stdin)
		if fails && ran == nil {
			return nil, err
		}
		return out, ran
	}
}

// holdLock holds the lock that iptables programs share.
func holdLock(tb testing.TB, _ modeltest.World) func() {
	lock, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(tb, err)
	require.NoError(tb, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	return func() { require.NoError(tb, lock.Close()) }
}

// writeAlways makes others write into the same tables as fast as they can.
func writeAlways(v Variant) func(testing.TB, modeltest.World) func() {
	return func(_ testing.TB, w modeltest.World) func() {
		const theirs = "*nat\n:THEIRS - [0:0]\n-A THEIRS -j RETURN\nCOMMIT\n*nat\n-F THEIRS\n-X THEIRS\nCOMMIT\n"
		return modeltest.Always(func() { _ = restore(w.NetNS(), model.IPv4, v, theirs) })
	}
}
