package model

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A pair is two backends that write one log, so that the order shows.
type pair struct {
	from, to *scripted
	want     State
}

func inPair(t *testing.T, test func(t *testing.T, p *pair)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &pair{from: newScripted("old"), to: newScripted("new"), want: stateOf(ServiceMap{"a": svc("10.0.0.1:80"), "b": svc("10.0.0.2:80")})}
		_, err := p.from.Sync(t.Context(), p.want)
		require.NoError(t, err)
		p.from.set(func() { p.from.took = time.Second })
		p.to.set(func() { p.to.took = time.Second })
		p.from.log = nil
		test(t, p)
	})
}

func TestSwitch(t *testing.T) {
	inPair(t, func(t *testing.T, p *pair) {
		sw, err := Switch(t.Context(), p.from, p.to, p.want)
		require.NoError(t, err)
		require.True(t, sw.Active)
		require.Equal(t, 2, sw.Result.Changed)
		require.Empty(t, sw.Remains)
		require.Equal(t, []string{"0s sync a b", "1s check", "3s check"}, p.to.log, "the new one is programmed and verified before, and verified after")
		require.Equal(t, []string{"2s cleanup"}, p.from.log)
		require.NoError(t, sw.Drained(t.Context()), "nothing remains")
	})
}

// Removing the old one may harm the new one: that is mended.
func TestSwitchMends(t *testing.T) {
	inPair(t, func(t *testing.T, p *pair) {
		p.to.checks = []error{nil, ErrDrift}
		sw, err := Switch(t.Context(), p.from, p.to, p.want)
		require.NoError(t, err)
		require.True(t, sw.Active)
		require.Equal(t, []string{"0s sync a b", "1s check", "3s check", "4s sync a b"}, p.to.log)
	})
}

// If the new one cannot take over, nothing of it stays, and the old one is not touched.
func TestSwitchThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(p *pair)
		want    error
		written bool // by the new one, and to be removed again
	}{
		"cannot work here":         {func(p *pair) { p.to.probe = ErrPermission }, ErrPermission, false},
		"cannot do a service":      {func(p *pair) { p.want.Services["a"] = Service{Balance: LeastConn} }, ErrNotSupported, false},
		"cannot be programmed":     {func(p *pair) { p.to.fail = []error{ErrBusy} }, ErrBusy, true},
		"refuses a service":        {func(p *pair) { p.to.refuse["b"] = errBroken }, errBroken, true},
		"is not what it should be": {func(p *pair) { p.to.checks = []error{ErrDrift} }, ErrDrift, true},
		"hangs":                    {func(p *pair) { p.to.hang = 1 }, context.DeadlineExceeded, true},
	} {
		t.Run(name, func(t *testing.T) {
			inPair(t, func(t *testing.T, p *pair) {
				c.prepare(p)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				sw, err := Switch(ctx, p.from, p.to, p.want)
				require.ErrorIs(t, err, c.want)
				require.False(t, sw.Active)
				require.Empty(t, p.from.log, "the old one stands")
				require.Equal(t, []string{"10.244.0.1:80"}, p.from.holds("a"))
				if c.written {
					require.Contains(t, p.to.log[len(p.to.log)-1], "cleanup")
				} else {
					require.Empty(t, p.to.log, "nothing was written")
				}
				require.Nil(t, p.to.holds("a"))
			})
		})
	}
}

// What makes no sense to any backend, and conflicts, stop no switch.
func TestSwitchWithBadServices(t *testing.T) {
	inPair(t, func(t *testing.T, p *pair) {
		p.want.Services["bad"] = Service{Protocol: 9}
		p.want.Services["twin"] = svc("10.0.0.1:80")
		sw, err := Switch(t.Context(), p.from, p.to, p.want)
		require.NoError(t, err)
		require.Len(t, sw.Result.Rejected, 2)
	})
}

func TestSwitchThatCannotRemoveTheOld(t *testing.T) {
	inPair(t, func(t *testing.T, p *pair) {
		p.from.cleanup = errBroken
		sw, err := Switch(t.Context(), p.from, p.to, p.want)
		require.ErrorIs(t, err, errBroken)
		require.True(t, sw.Active, "the new one stays in force")
		require.Equal(t, []string{"10.244.0.1:80"}, p.to.holds("a"))
	})
}

// Leaving a backend that needs its rules for open connections: they stay until the connections have ended.
func TestSwitchDrains(t *testing.T) {
	inPair(t, func(t *testing.T, p *pair) {
		rest := []Drain{{Service: "a", Endpoint: netip.MustParseAddrPort("10.244.0.1:80"), Connections: 2}}
		p.from.drains = rest
		sw, err := Switch(t.Context(), drainer{p.from}, p.to, p.want)
		require.NoError(t, err)
		require.Equal(t, rest, sw.Remains)
		require.Equal(t, []string{"2s retire"}, p.from.log)
		p.from.set(func() { p.from.took = 0 })
		go func() {
			time.Sleep(10*time.Second - time.Millisecond)
			p.from.set(func() { p.from.drains = nil })
		}()
		began := time.Now()
		require.NoError(t, sw.Drained(t.Context()))
		require.Equal(t, 10*time.Second, time.Since(began))

		p.from.set(func() { p.from.drains = rest })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, sw.Drained(ctx), context.DeadlineExceeded)
	})
}

// A Syncer switches with all that is wanted, and goes on with the other one.
func TestSyncerSwitches(t *testing.T) {
	withSweeper(t, quiet, func(t *testing.T, b *bench, c *sweeper) {
		b.SetService("a", svc("10.0.0.1:80"))
		b.after(time.Minute)
		since := b.Status("a").Since
		b.p.calls()
		c.calls()
		to := newScripted("other")
		to.set(func() { to.took = time.Second })
		done := make(chan Switched)
		go func() {
			sw, err := b.Switch(context.Background(), to)
			require.NoError(t, err)
			done <- sw
		}()
		b.after(time.Second / 2)
		b.SetService("b", svc("10.0.0.2:80"))
		require.True(t, (<-done).Active)
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, []string{"2m2s cleanup"}, b.p.calls())
		require.Equal(t, []string{"0s sync a", "3s apply b"}, to.calls(), "what came meanwhile is programmed by the new one")
		require.Same(t, to, b.Programmer())
		require.Equal(t, "other", b.Overview().Backend)
		require.Equal(t, since, b.Status("a").Since)
		require.Contains(t, c.calls(), "2m0s syncing a")
	})
}

func TestSyncerSwitchThatFails(t *testing.T) {
	withSweeper(t, quiet, func(t *testing.T, b *bench, c *sweeper) {
		b.SetService("a", svc("10.0.0.1:80"))
		require.NoError(t, b.Wait(t.Context()))
		b.p.calls()
		to := newScripted("other")
		to.refuse["a"] = errBroken
		b.SetEndpoints("a", eps("10.244.0.1:80"))
		sw, err := b.Switch(t.Context(), to)
		require.ErrorIs(t, err, errBroken)
		require.False(t, sw.Active)
		require.NoError(t, b.Wait(t.Context()))
		b.SetEndpoints("a", eps("10.244.0.2:80"))
		require.NoError(t, b.Wait(t.Context()))
		require.Same(t, b.p, b.Programmer())
		require.Equal(t, []string{"10.244.0.2:80"}, b.p.holds("a"))
		require.Nil(t, to.holds("a"))
		require.NotContains(t, b.p.calls(), "1m0s cleanup")
		require.Equal(t, PhaseProgrammed, b.Status("a").Phase)
	})
}

func TestSyncerSwitchFromDrainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, to := newScripted("old"), newScripted("new")
		b := &bench{Syncer: NewSyncer(drainer{p}, quiet), p: p, t: t}
		require.NoError(t, b.Replace(stateOf(ServiceMap{"a": svc("10.0.0.1:80")})))
		_, err := b.Switch(t.Context(), to)
		require.NoError(t, err, "also before Run")
		require.Equal(t, PhaseProgrammed, b.Status("a").Phase)
		require.Empty(t, p.holds("a"))

		p.set(func() { p.drains = []Drain{{Service: "a", Connections: 1}}; p.log = nil })
		b.Syncer = NewSyncer(drainer{p}, quiet)
		_, err = b.Switch(t.Context(), to)
		require.ErrorIs(t, err, ErrNotSynced, "what is wanted is not known")
		require.NoError(t, b.Replace(stateOf(ServiceMap{"b": svc("10.0.0.1:80")})))
		b.run()
		synctest.Wait()
		sw, err := b.Switch(t.Context(), to)
		require.NoError(t, err)
		require.Len(t, sw.Remains, 1)
		b.after(time.Minute)
		require.Equal(t, PhaseDraining, b.Status("a").Phase, "Run makes the old one drain")
		p.set(func() { p.drains = nil })
		b.after(time.Second)
		require.Equal(t, PhaseAbsent, b.Status("a").Phase)
		p.calls()
		require.NoError(t, p.Close())
		b.after(time.Hour)
		require.Empty(t, p.calls())
		require.Empty(t, b.leaving)
	})
}

func TestFirstSupported(t *testing.T) {
	refused := func(err error) Candidate {
		return Candidate{"refused", func(context.Context) (Programmer, error) { return nil, err }}
	}
	with := func(p *scripted) Candidate {
		return Candidate{p.Features().Backend, func(context.Context) (Programmer, error) { return p, nil }}
	}
	lame, good, unused := newScripted("lame"), newScripted("good"), newScripted("unused")
	lame.probe = ErrNotSupported
	c, err := FirstSupported(t.Context(), refused(ErrPermission), with(lame), with(good), with(unused))
	require.NoError(t, err)
	require.Equal(t, "good", c.Name)
	require.Same(t, good, c.Programmer)
	require.Equal(t, "good", c.Report.Backend)
	require.Len(t, c.Refused, 2)
	require.EqualError(t, c.Refused[0], "refused: permission denied")
	require.ErrorIs(t, c.Refused[1], ErrNotSupported)
	require.ErrorContains(t, c.Refused[1], "something")
	require.True(t, lame.closed)
	require.False(t, good.closed)
	require.Empty(t, append(append(lame.log, good.log...), unused.log...), "nothing is written")

	c, err = FirstSupported(t.Context(), refused(ErrPermission), refused(errBroken))
	require.Nil(t, c.Programmer)
	require.ErrorIs(t, err, ErrPermission)
	require.ErrorIs(t, err, errBroken)
	require.Len(t, c.Refused, 2)
	_, err = FirstSupported(t.Context())
	require.ErrorIs(t, err, ErrNotSupported)

	ctx, cancel := context.WithCancel(t.Context())
	first := Candidate{"first", func(context.Context) (Programmer, error) { cancel(); return nil, errors.New("no") }}
	c, err = FirstSupported(ctx, first, with(good))
	require.ErrorIs(t, err, context.Canceled)
	require.Nil(t, c.Programmer)
}
