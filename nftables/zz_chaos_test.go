package nftables_test

import (
	"flag"
	"os/exec"
	"testing"
	"time"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

var chaosDuration = flag.Duration("chaos.duration", 10*time.Second, "")

func TestChaos(t *testing.T) {
	tgt := target()
	tgt.NewWorld = func(tb testing.TB, n model.Node) modeltest.World {
		w := modeltest.NewLab(tb, n)
		tb.Cleanup(func() {
			if tb.Failed() {
				out, _ := run(w.NetNS(), "", "nft", "list", "ruleset")
				tb.Log(out)
			}
		})
		return w
	}
	modeltest.RunChaos(t, tgt, modeltest.Chaos{
		Duration: *chaosDuration,
		Child:    func(tb testing.TB, w modeltest.World) *exec.Cmd { return modeltest.ChaosCommand(tb, w, "TestChaosChild") },
	})
}

func TestChaosChild(t *testing.T) { modeltest.ChaosChild(t, target()) }
