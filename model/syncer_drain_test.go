package model

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What a switch could not remove is tried again, until it is gone; then somebody looks whether that harmed the new one.
func TestWhatWasLeftIsRemovedLater(t *testing.T) {
	cfg := quiet
	cfg.CheckPeriod = time.Hour
	var logged bytes.Buffer
	cfg.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	for name, programmer := range map[string]func(p *scripted) Programmer{
		"cleanup": func(p *scripted) Programmer { return p },
		"retire":  func(p *scripted) Programmer { return drainer{p} },
	} {
		t.Run(name, func(t *testing.T) {
			logged.Reset()
			bubble(t, cfg, func(t *testing.T, b *bench) {
				b.Syncer = NewSyncer(programmer(b.p), cfg)
				b.Ready()
				b.run()
				synctest.Wait()
				b.p.calls()
				to := newScripted("new")
				b.p.set(func() { b.p.cleanup = ErrBusy })
				sw, err := b.Switch(t.Context(), to)
				require.ErrorIs(t, err, ErrBusy)
				require.True(t, sw.Active)
				require.False(t, sw.Removed)
				b.after(1500 * time.Millisecond)
				require.Equal(t, []string{"0s " + name, "0s " + name, "1s " + name}, b.p.calls())
				b.p.set(func() { b.p.cleanup = nil })
				to.calls()
				to.set(func() { to.checks = []error{ErrDrift} })
				b.after(time.Second)
				require.Equal(t, "2s "+name, b.p.calls()[0])
				require.Equal(t, []string{"2s sync "}, to.calls(), "the old one took something of the new one along")
				b.after(time.Minute)
				require.Empty(t, b.p.calls())
				require.Equal(t, 1, strings.Count(logged.String(), "cannot drain"), "nobody wants to read that every second")
			})
		})
	}
}

// A backend that was left goes on draining while the new one cannot program.
func TestDrainingDoesNotWaitForProgramming(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.Syncer = NewSyncer(drainer{b.p}, quiet)
		b.Ready()
		b.run()
		synctest.Wait()
		d := Drain{Service: "a", Endpoint: netip.MustParseAddrPort("10.244.0.1:80"), Connections: 1}
		b.p.set(func() { b.p.drains = []Drain{d} })
		to := newScripted("new")
		_, err := b.Switch(t.Context(), to)
		require.NoError(t, err)
		synctest.Wait()
		b.p.calls()
		to.calls()
		to.set(func() {
			for range 1000 {
				to.fail = append(to.fail, ErrBusy)
			}
		})
		b.SetService("b", svc("10.0.0.2:80"))
		b.after(30 * time.Second)
		require.Len(t, b.p.calls(), 30, "once a second")
		require.Less(t, len(to.calls()), 12, "and that is no reason to be impatient")
		b.p.set(func() { b.p.drains = nil })
		b.after(30 * time.Second)
		require.Len(t, b.p.calls(), 1)
		require.NotZero(t, b.Overview().Failures)
	})
}

// A backend that hangs does not keep the other one from its work.
func TestSwitchIsGivenUp(t *testing.T) {
	cfg := quiet
	cfg.Timeout = 10 * time.Second
	bubble(t, cfg, func(t *testing.T, b *bench) {
		b.start()
		to := newScripted("new")
		to.set(func() { to.hang = 1 })
		sw, err := b.Switch(t.Context(), to)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, sw.Active)
		require.Equal(t, []string{"0s sync ", "10s cleanup"}, to.calls())
		b.SetService("a", svc("10.0.0.1:80"))
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, PhaseProgrammed, b.Status("a").Phase)
	})
}

// After the old one was removed the new one is verified again; if that fails it is synced.
func TestSwitchThatCannotBeVerified(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		to := newScripted("new")
		to.set(func() { to.checks = []error{nil, errBroken} })
		sw, err := b.Switch(t.Context(), to)
		require.ErrorIs(t, err, errBroken)
		require.True(t, sw.Active && sw.Removed)
		synctest.Wait()
		require.Equal(t, []string{"0s sync ", "0s sync "}, to.calls())
	})
}
