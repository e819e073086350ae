package model

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever somebody did to our rules is noticed by the next check and repaired at once, from what is wanted now.
func TestDriftIsRepaired(t *testing.T) {
	cfg := quiet
	cfg.CheckPeriod = 10 * time.Second
	bubble(t, cfg, func(t *testing.T, b *bench) {
		b.start()
		b.SetService("gone", svc("10.0.0.9:80"))
		b.SetService("a", svc("10.0.0.1:80"))
		b.DeleteService("gone")
		b.after(9 * time.Second)
		b.p.calls()
		b.p.set(func() { b.p.checks = []error{nil, fmt.Errorf("flushed: %w", ErrDrift), nil} })
		b.after(2 * time.Second)
		require.Empty(t, b.p.calls(), "the kernel holds everything")
		require.Equal(t, 10*time.Second, b.Overview().LastCheck.Sub(b.p.began))
		b.after(10 * time.Second)
		require.Equal(t, []string{"20s sync a"}, b.p.calls())
		require.EqualValues(t, 1, b.Overview().Drifts)
		require.Equal(t, 20*time.Second, b.Overview().LastFull.Sub(b.p.began))
		b.after(time.Hour)
		require.Empty(t, b.p.calls(), "it holds it again")
	})
}

// While a repair fails nothing counts as programmed.
func TestWaitDuringDrift(t *testing.T) {
	cfg := quiet
	cfg.CheckPeriod = 10 * time.Second
	bubble(t, cfg, func(t *testing.T, b *bench) {
		b.start()
		b.SetService("a", svc("10.0.0.1:80"))
		require.NoError(t, b.Wait(t.Context()))
		b.p.set(func() { b.p.checks, b.p.fail = []error{ErrDrift}, []error{errBroken, errBroken} })
		b.after(10 * time.Second)
		b.SetService("a", svc("10.0.0.1:80"))
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, 10450*time.Millisecond, time.Since(b.p.began))
	})
}

func TestDriftFoundByApplyIsRepairedAtOnce(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		b.p.set(func() { b.p.fail = []error{ErrDrift, errBroken} })
		b.SetService("a", svc("10.0.0.1:80"))
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, []string{"0s apply a", "0s sync a", "150ms sync a"}, b.p.calls(), "a repair that fails is repeated, patiently")
		require.EqualValues(t, 1, b.Overview().Drifts)
	})
}

func TestFailingCheckIsNoDrift(t *testing.T) {
	cfg := quiet
	cfg.CheckPeriod = 10 * time.Second
	bubble(t, cfg, func(t *testing.T, b *bench) {
		b.start()
		b.p.set(func() { b.p.checks = []error{ErrBusy, nil, ErrNotSynced} })
		b.after(25 * time.Second)
		require.Empty(t, b.p.calls())
		require.Equal(t, 20*time.Second, b.Overview().LastCheck.Sub(b.p.began))
		b.after(10 * time.Second)
		require.Equal(t, []string{"30s sync "}, b.p.calls(), "somebody removed our rules through the Programmer itself")
		require.Zero(t, b.Overview().Drifts)
	})
}

// Everything is synced on a period, which differs from one node to the next.
func TestResyncPeriod(t *testing.T) {
	cfg := quiet
	cfg.ResyncPeriod = time.Hour
	bubble(t, cfg, func(t *testing.T, b *bench) {
		chance := []float64{0, 0.999, 0.5, 0.5}
		b.random = func() float64 { c := chance[0]; chance = append(chance[1:], c); return c }
		b.start()
		b.after(4 * time.Hour)
		require.Equal(t, []string{"54m0s sync ", "1h59m59.28s sync ", "2h59m59.28s sync ", "3h59m59.28s sync "}, b.p.calls())
	})
}

func TestResync(t *testing.T) {
	cfg := quiet
	cfg.MinInterval = time.Hour
	bubble(t, cfg, func(t *testing.T, b *bench) {
		b.start()
		b.after(time.Hour)
		for _, name := range []ServiceName{"a", "b"} { // which uses up the burst
			b.SetService(name, svc())
			require.NoError(t, b.Wait(t.Context()))
		}
		b.p.calls()
		b.DeleteService("b") // which is due in an hour
		b.p.set(func() { b.p.took = time.Second })
		require.NoError(t, b.Resync(t.Context()))
		require.Equal(t, []string{"1h0m0s sync a"}, b.p.calls(), "at once, and from what is wanted now")
		require.NoError(t, b.Wait(t.Context()), "which makes up for the change")

		// One that is under way may have read the kernel before whatever made somebody call.
		go func() { _ = b.Resync(context.Background()) }()
		b.after(time.Second / 2)
		require.NoError(t, b.Resync(t.Context()))
		require.Equal(t, []string{"1h0m1s sync a", "1h0m2s sync a"}, b.p.calls())
	})
}

func TestResyncDoesNotWaitForABackoff(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		b.p.set(func() { b.p.fail = slices9(errBroken) })
		b.SetService("a", svc("10.0.0.1:80"))
		b.after(25 * time.Second)
		b.p.calls()
		require.NoError(t, b.Resync(t.Context()))
		require.Equal(t, []string{"25s sync a", "47.5s sync a"}, b.p.calls(), "at once, and if that fails after a while")
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScripted("scripted")
		s := NewSyncer(drainer{p}, quiet)
		b := &bench{Syncer: s, p: p, t: t}
		b.Ready()
		b.run()
		b.SetService("a", svc("10.0.0.1:80"))
		synctest.Wait()
		p.calls()
		d := Drain{Service: "a", Endpoint: netip.MustParseAddrPort("10.244.0.1:80"), Connections: 3}
		p.set(func() { p.drains = []Drain{d} })
		b.DeleteService("a")
		b.after(3*time.Second + time.Second/2)
		require.Equal(t, []string{"0s apply -a", "0s drain", "1s drain", "2s drain", "3s drain"}, p.calls())
		st := b.Status("a")
		require.Equal(t, PhaseDraining, st.Phase)
		require.Equal(t, p.began, st.Since)
		require.Equal(t, []Drain{d}, st.Drains)
		require.Equal(t, 1, b.Overview().Draining)
		b.SetService("a", svc("10.0.0.1:80"))
		synctest.Wait()
		require.Equal(t, PhaseProgrammed, b.Status("a").Phase)
		require.Equal(t, []Drain{d}, b.Status("a").Drains, "some of its endpoints may drain still")
		b.DeleteService("a")
		synctest.Wait()
		p.set(func() { p.drains = nil })
		b.after(time.Second)
		require.Equal(t, PhaseAbsent, b.Status("a").Phase)
		p.calls()
		b.after(time.Hour)
		require.Empty(t, p.calls(), "nothing drains, nobody asks")
	})
}
