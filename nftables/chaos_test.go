package nftables_test

import (
	"context"
	"encoding/binary"
	"flag"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/headgate/headgate/nftables"
)

var chaosDuration = flag.Duration("chaos.duration", 15*time.Second, "how long TestChaos goes on")

func TestChaos(t *testing.T) {
	modeltest.RunChaos(t, chaosTarget(), modeltest.Chaos{
		Duration: *chaosDuration,
		Disturb:  map[string]func(testing.TB, modeltest.World) func(){"others commit all the time": commitAlways},
		Fail:     map[string]func(testing.TB, modeltest.World){"refuse one batch": refuseNext(1), "refuse several": refuseNext(5)},
		Child: func(tb testing.TB, w modeltest.World) *exec.Cmd {
			return modeltest.ChaosCommand(tb, w, "TestChaosChild")
		},
	})
}

// TestChaosChild is what TestChaos kills.
func TestChaosChild(t *testing.T) { modeltest.ChaosChild(t, chaosTarget()) }

// chaosTarget is target with a second instance that shares no label bits with the first.
func chaosTarget() modeltest.Target {
	of := func(cfg nftables.Config) func(testing.TB, modeltest.World) model.Programmer {
		return func(tb testing.TB, w modeltest.World) model.Programmer {
			tb.Helper()
			cfg := cfg
			refuseService, refuseBatch := spoil(w), corrupt(w)
			cfg.NetNS, cfg.VerifyInterval = w.NetNS(), 1
			cfg.Trace = func(batch []byte) {
				refuseService(batch)
				refuseBatch(batch)
			}
			p, err := nftables.New(context.Background(), cfg)
			require.NoError(tb, err)
			return p
		}
	}
	c := target()
	c.New, c.Second = of(nftables.Config{}), of(nftables.Config{Table: "second", BalancedLabel: 120, MasqueradeLabel: 121})
	return c
}

// commitAlways makes others commit as fast as they can, so that the ruleset is never of the generation that one has seen.
func commitAlways(_ testing.TB, w modeltest.World) func() {
	return modeltest.Always(func() { _, _ = run(w.NetNS(), "", "nft", "add table ip theirs; delete table ip theirs") })
}

// refusals is how many of the next batches the kernel shall refuse, by the namespace's descriptor.
var refusals sync.Map

// refuseNext makes the kernel refuse the next n batches, whatever is in them.
func refuseNext(n int64) func(testing.TB, modeltest.World) {
	return func(_ testing.TB, w modeltest.World) {
		left, _ := refusals.LoadOrStore(w.NetNS(), new(atomic.Int64))
		left.(*atomic.Int64).Store(n)
	}
}

// corrupt returns a trace that gives the second message of such a batch a subsystem that no kernel has.
func corrupt(w modeltest.World) func([]byte) {
	return func(batch []byte) {
		left, ok := refusals.Load(w.NetNS())
		if !ok || left.(*atomic.Int64).Add(-1) < 0 {
			return
		}
		second := binary.NativeEndian.Uint32(batch) // the length of the first, which is aligned
		batch[second+5] = 0x7f                      // of the type, the byte that says the subsystem
	}
}
