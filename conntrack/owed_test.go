package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// dns returns a state of one service with these endpoints, and flow an entry to it.
func dns(eps ...netip.AddrPort) model.State {
	return state("dns", service(at(vip, 53)), endpoints(eps...)...)
}

var (
	epA, epB, epC = at(podA, 5353), at(podB, 5353), at(addr("10.128.0.13"), 5353)

	flowA = entry{client: at(pod, 41001), to: at(vip, 53), from: epA}
	flowB = entry{client: at(pod, 41002), to: at(vip, 53), from: epB}
	flowC = entry{client: at(pod, 41003), to: at(vip, 53), from: epC}
)

// begun returns a Cleaner that was told of a state and owes nothing.
func begun(t *testing.T, cfg Config, s model.State) (*lab.NetNS, *Cleaner) {
	t.Helper()
	ns := lab.StartNetNS(t, "node")
	c := newCleaner(t, ns, cfg)
	synced(c, s)
	require.Zero(t, settle(t, c))
	return ns, c
}

// clean cleans once and returns how many flows went.
func clean(t *testing.T, c *Cleaner) int {
	t.Helper()
	res, err := c.Clean(testContext(t))
	require.NoError(t, err)
	return res.Deleted
}

func requireOwed(t *testing.T, c *Cleaner, want bool) {
	t.Helper()
	_, owed := c.Due()
	require.Equal(t, want, owed)
}

func TestNothingBeforeTheFirstSync(t *testing.T) {
	ns := lab.StartNetNS(t, "node")
	c := newCleaner(t, ns, Config{})
	put(t, ns, flowA)
	requireOwed(t, c, false)
	require.Zero(t, clean(t, c))
	c.Applying(model.DiffStates(dns(epA), dns(epB)))
	c.Programmed(model.Result{}, model.ErrNotSynced)
	applied(c, model.DiffStates(dns(epA), dns(epB))) // which no Programmer does
	c.Programmed(model.Result{}, nil)                // of nothing that was announced
	requireOwed(t, c, false)
	require.Zero(t, settle(t, c))
	require.Zero(t, c.Stats())
	synced(c, dns(epB))
	require.Equal(t, 1, settle(t, c))
}

func TestRulesFirst(t *testing.T) {
	ns, c := begun(t, Config{}, dns(epA))
	put(t, ns, flowA)
	c.Applying(model.DiffStates(dns(epA), dns(epB)))
	requireOwed(t, c, false)
	require.Zero(t, clean(t, c), "while it is being programmed")
	c.Programmed(model.Result{}, nil)
	requireOwed(t, c, true)
	require.Equal(t, 1, clean(t, c))
}

func TestSecondLook(t *testing.T) {
	ns, c := begun(t, Config{}, dns(epA))
	c.cfg.SecondLook = time.Hour
	applied(c, model.DiffStates(dns(epA), dns(epB)))
	require.Zero(t, clean(t, c))
	put(t, ns, flowA) // by a packet that met the old rules
	due, owed := c.Due()
	require.True(t, owed)
	require.Greater(t, time.Until(due), 30*time.Minute)
	looks := c.Stats().Looks
	require.Zero(t, clean(t, c), "it is not due yet")
	require.Equal(t, looks, c.Stats().Looks)
	res, err := c.cleanUntil(t.Context(), due)
	require.NoError(t, err)
	require.Equal(t, 1, res.Deleted)
	requireOwed(t, c, false)
	put(t, ns, flowA)
	require.Zero(t, settle(t, c), "there is no third")
	require.Equal(t, looks+1, c.Stats().Looks)
}

func TestCleaningFails(t *testing.T) {
	ns, c := begun(t, Config{}, dns(epA))
	put(t, ns, flowA, flowB)
	applied(c, model.DiffStates(dns(epA), dns(epB)))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := c.Clean(ctx)
	require.ErrorIs(t, err, context.Canceled)
	requireOwed(t, c, true)
	_, err = c.Settle(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, settle(t, c))
	require.Equal(t, []uint16{41002}, clients(t, ns))
}

func TestProgrammingFails(t *testing.T) {
	for _, how := range []string{"apply", "sync", "silence"} {
		t.Run(how, func(t *testing.T) {
			ns, c := begun(t, Config{}, dns(epA))
			put(t, ns, flowA, flowB, flowC)
			switch how {
			case "apply":
				c.Applying(model.DiffStates(dns(epA), dns(epB)))
				c.Programmed(model.Result{}, fmt.Errorf("kernel: %w", model.ErrBusy))
			case "sync":
				c.Syncing(dns(epB))
				c.Programmed(model.Result{}, context.DeadlineExceeded)
			case "silence":
				c.Syncing(dns(epB)) // and the embedder never told
			}
			requireOwed(t, c, false)
			require.Zero(t, clean(t, c))
			c.Applying(model.DiffStates(dns(epB), dns(epC)))
			c.Programmed(model.Result{}, model.ErrNotSynced)
			require.Zero(t, clean(t, c))
			synced(c, dns(epC))
			require.Equal(t, 2, settle(t, c))
			require.Equal(t, []uint16{41003}, clients(t, ns))
		})
	}
}

// TestFailedAttemptLeavesFlows: a service that was programmed for a moment, by an attempt that failed, and is in no
// state before or after it.
func TestFailedAttemptLeavesFlows(t *testing.T) {
	ns, c := begun(t, Config{}, model.State{})
	c.Applying(model.DiffStates(model.State{}, dns(epA)))
	put(t, ns, flowA)
	c.Programmed(model.Result{}, errors.New("timeout"))
	synced(c, model.State{})
	require.Equal(t, 1, settle(t, c))
}

func TestCleaningFailsThenMoreChanges(t *testing.T) {
	ns, c := begun(t, Config{}, dns(epA, epB))
	put(t, ns, flowA, flowB, flowC)
	dead, cancel := context.WithCancel(context.Background())
	cancel()
	applied(c, model.DiffStates(dns(epA, epB), dns(epB)))
	_, err := c.Clean(dead)
	require.Error(t, err)
	applied(c, model.DiffStates(dns(epB), dns(epC)))
	_, err = c.Clean(dead)
	require.Error(t, err)
	require.Equal(t, 2, settle(t, c))
	require.Equal(t, []uint16{41003}, clients(t, ns))
}

// TestOwedDoesNotGrow: cleaning fails for as long as it takes to change 3,000 endpoints.
func TestOwedDoesNotGrow(t *testing.T) {
	ns, c := begun(t, Config{}, dns(epB))
	put(t, ns, flowA, flowB)
	dead, cancel := context.WithCancel(context.Background())
	cancel()
	last := dns(epB)
	for i := range 3000 {
		next := dns(at(netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}), 53))
		applied(c, model.DiffStates(last, next))
		if i%100 == 0 {
			_, err := c.Clean(dead)
			require.ErrorIs(t, err, context.Canceled)
		}
		last = next
	}
	require.Len(t, c.owed, 1)
	require.LessOrEqual(t, len(c.owed[0].task.gone)+len(c.owed[0].task.pairs), maxDetails)
	applied(c, model.DiffStates(last, model.State{}))
	require.Equal(t, 2, settle(t, c), "a frontend that is gone is not forgotten over all that")
}

// TestSettleWhileProgramming waits for the outcome instead of looking again and again.
func TestSettleWhileProgramming(t *testing.T) {
	ns, c := begun(t, Config{}, dns(epA))
	put(t, ns, flowA)
	applied(c, model.DiffStates(dns(epA), dns(epB)))
	c.Applying(model.DiffStates(dns(epB), dns(epC)))
	require.Zero(t, settle(t, c))
	require.Len(t, table(t, ns), 1)
	c.Programmed(model.Result{}, model.ErrNotSynced)
	require.Equal(t, 1, settle(t, c))
}

// TestEndpointComesBack: gone and back before anybody looked.
func TestEndpointComesBack(t *testing.T) {
	ns, c := begun(t, Config{}, dns(epA, epB))
	put(t, ns, flowA, flowB)
	applied(c, model.DiffStates(dns(epA, epB), dns(epB)))
	applied(c, model.DiffStates(dns(epB), dns(epA, epB)))
	require.Zero(t, settle(t, c))
}

func TestRejectedServiceKeepsItsFlows(t *testing.T) {
	rejected := func(op string, err error) model.Result {
		return model.Result{Rejected: []*model.ServiceError{{Service: "dns", Backend: "nftables", Op: op, Err: err}}}
	}
	for name, res := range map[string]model.Result{
		"commit":       rejected("commit", errors.New("the kernel said no")),
		"plan":         rejected("plan", model.ErrNotSupported),
		"not able":     rejected("validate", fmt.Errorf("balance: %w", model.ErrNotSupported)),
		"not supplied": rejected("validate", model.ErrInvalid), // an endpoint was left out: the rest is programmed
	} {
		t.Run(name, func(t *testing.T) {
			ns, c := begun(t, Config{}, dns(epA))
			put(t, ns, flowA)
			c.Applying(model.DiffStates(dns(epA), dns(epB)))
			c.Programmed(res, nil)
			if name == "not supplied" {
				require.Equal(t, 1, settle(t, c))
				return
			}
			require.Zero(t, settle(t, c))
			c.Syncing(dns(epB))
			c.Programmed(res, nil)
			require.Zero(t, settle(t, c))
			applied(c, model.DiffStates(dns(epB), dns(epC))) // accepted
			require.Equal(t, 1, settle(t, c))
		})
	}
}

// TestInvalidServiceKeepsItsFlows: what makes no sense is in no backend, whatever protocol it says.
func TestInvalidServiceKeepsItsFlows(t *testing.T) {
	ns, c := begun(t, Config{}, dns(epA))
	put(t, ns, flowA)
	bad := dns(epB)
	bad.Services["dns"] = model.Service{Protocol: model.TCP, Frontends: []model.Frontend{{Addr: at(vip, 0)}}}
	applied(c, model.DiffStates(dns(epA), bad))
	require.Zero(t, settle(t, c))
	synced(c, bad)
	require.Zero(t, settle(t, c))
}

// TestConflict: a frontend that two services claim is the holder's, and the other's when that goes.
func TestConflict(t *testing.T) {
	first := state("a", service(at(vip, 53)), endpoints(epA)...)
	ns, c := begun(t, Config{}, first)
	put(t, ns, flowA, flowB)
	both := with(first, func(s *model.State) {
		s.Services["b"], s.Endpoints["b"] = service(at(vip, 53), at(vip2, 53)), endpoints(epB)
	})
	applied(c, model.DiffStates(first, both))
	require.Zero(t, settle(t, c), "vip is a's still: flowB is not among what this change concerns")
	onlyB := with(both, func(s *model.State) { delete(s.Services, "a") })
	applied(c, model.DiffStates(both, onlyB))
	require.Equal(t, 1, settle(t, c))
	require.Equal(t, []uint16{41002}, clients(t, ns))
}

func TestClose(t *testing.T) {
	ns := lab.StartNetNS(t, "node")
	c, err := New(testContext(t), Config{NetNS: ns.FD()})
	require.NoError(t, err)
	synced(c, dns(epA))
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	_, err = c.Clean(testContext(t))
	require.ErrorIs(t, err, model.ErrClosed)
	_, err = c.Usage(testContext(t))
	require.ErrorIs(t, err, model.ErrClosed)
	_, err = c.Flows(testContext(t), model.FrontendKey{Protocol: model.UDP, Addr: at(vip, 53)})
	require.ErrorIs(t, err, model.ErrClosed)
	_, err = c.Tune(testContext(t), Tuning{UDP: time.Minute})
	require.ErrorIs(t, err, model.ErrClosed)
}
