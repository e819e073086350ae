package ipvs_test

import (
	"context"
	"encoding/binary"
	"flag"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/nlink"
	"github.com/headgate/headgate/ipvs"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

var chaosDuration = flag.Duration("chaos.duration", 15*time.Second, "how long TestChaos goes on")

func TestChaos(t *testing.T) {
	needIPVS(t)
	f := &failing{}
	modeltest.RunChaos(t, chaosTarget(f), modeltest.Chaos{
		Duration: *chaosDuration,
		Timeout:  time.Minute, // an emulated processor is slow
		Disturb: map[string]func(testing.TB, modeltest.World) func(){
			"others write rules all the time":            always("nft 'add table ip theirs; delete table ip theirs'"),
			"others write virtual services all the time": always("ipvsadm -A -t 10.103.97.2:6443 -s rr; ipvsadm -D -t 10.103.97.2:6443"),
			"others write routes all the time":           always("ip route add local 10.103.97.2 dev lo proto 99; ip route del local 10.103.97.2 dev lo proto 99"),
		},
		Fail: map[string]func(testing.TB, modeltest.World){
			"refuse rules":                    f.next(unix.NETLINK_NETFILTER, corruptBatch, 1),
			"refuse virtual services":         f.next(unix.NETLINK_GENERIC, corruptAll, 1),
			"refuse several virtual services": f.next(unix.NETLINK_GENERIC, corruptAll, 5),
			"refuse routes":                   f.next(unix.NETLINK_ROUTE, corruptAll, 1),
			"lose the answer":                 f.next(unix.NETLINK_GENERIC, leaveOpen, 1),
		},
		Child: func(tb testing.TB, w modeltest.World) *exec.Cmd {
			return modeltest.ChaosCommand(tb, w, "TestChaosChild")
		},
	})
}

// TestChaosChild is what TestChaos kills.
func TestChaosChild(t *testing.T) { modeltest.ChaosChild(t, chaosTarget(&failing{})) }

// chaosTarget is target with requests that fail, and a second instance that shares no label bits with the first.
func chaosTarget(f *failing) modeltest.Target {
	of := func(cfg ipvs.Config, trace func(int, []byte)) func(testing.TB, modeltest.World) model.Programmer {
		return func(tb testing.TB, w modeltest.World) model.Programmer {
			tb.Helper()
			cfg, refuseService := cfg, spoil(w)
			cfg.NetNS, cfg.SetSysctls, cfg.VerifyInterval, cfg.Timeout = w.NetNS(), true, 1, 5*time.Second
			cfg.Trace = func(family int, messages []byte) {
				refuseService(family, messages)
				trace(family, messages)
			}
			p, err := ipvs.New(context.Background(), cfg)
			require.NoError(tb, err)
			// A connection that was cut off keeps its namespace for minutes, and the services in it their schedulers.
			tb.Cleanup(func() { _, _ = run(w.NetNS(), "", "ipvsadm", "-C") })
			return p
		}
	}
	c := target()
	c.New = of(ipvs.Config{}, f.trace)
	c.Second = of(ipvs.Config{Table: "second", RouteProtocol: 105, BalancedLabel: 120, MasqueradeLabel: 121}, func(int, []byte) {})
	return c
}

// failing spoils what is sent to the kernel.
type failing struct{ spoiler atomic.Pointer[failure] }

// A failure spoils the next pieces of a netlink family.
type failure struct {
	family int
	spoil  func(messages []byte)
	left   atomic.Int64
}

// next spoils the next n pieces that are sent to a part of the kernel.
func (f *failing) next(family int, spoil func([]byte), n int64) func(testing.TB, modeltest.World) {
	return func(testing.TB, modeltest.World) {
		fail := &failure{family: family, spoil: spoil}
		fail.left.Store(n)
		f.spoiler.Store(fail)
	}
}

func (f *failing) trace(family int, messages []byte) {
	if fail := f.spoiler.Load(); fail != nil && fail.family == family && fail.left.Add(-1) >= 0 {
		fail.spoil(messages)
	}
}

// each calls f with every message of a piece.
func each(messages []byte, f func(m []byte)) {
	for len(messages) > 0 {
		size := nlink.MessageLen(messages)
		f(messages[:size])
		messages = messages[size:]
	}
}

// corruptBatch gives the second message of a transaction a subsystem that no kernel has.
func corruptBatch(batch []byte) {
	second := binary.NativeEndian.Uint32(batch) // the length of the first, which is aligned
	batch[second+5] = 0x7f                      // of the type, the byte that says the subsystem
}

// corruptAll makes the kernel refuse every message: it is of a kind that no kernel has.
func corruptAll(messages []byte) {
	each(messages, func(m []byte) { binary.NativeEndian.PutUint16(m[4:], 0x7ffe) })
}

// leaveOpen has the kernel do everything and answer nothing.
func leaveOpen(messages []byte) {
	each(messages, func(m []byte) { binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST) })
}

// always makes others run a script as fast as they can.
func always(script string) func(testing.TB, modeltest.World) func() {
	return func(_ testing.TB, w modeltest.World) func() {
		return modeltest.Always(func() { _, _ = run(w.NetNS(), "", "sh", "-c", script) })
	}
}
