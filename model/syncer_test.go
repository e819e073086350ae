package model

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Nothing is written, and so nothing of an earlier process harmed, before what is wanted is complete.
func TestNothingBeforeTheStateIsComplete(t *testing.T) {
	bubble(t, SyncerConfig{}, func(t *testing.T, b *bench) {
		b.run()
		b.SetService("a", svc("10.0.0.1:80"))
		b.after(3 * time.Hour)
		b.SetEndpoints("a", eps("10.244.0.1:80"))
		b.after(3 * time.Hour)
		require.Empty(t, b.p.log, "not even a check")
		require.Equal(t, PhasePending, b.Status("a").Phase)
		require.False(t, b.Overview().Ready)

		b.Ready()
		synctest.Wait()
		require.Equal(t, []string{"6h0m0s sync a"}, b.p.calls(), "all at once, and compared with the kernel")
		require.Equal(t, []string{"10.244.0.1:80"}, b.p.holds("a"))
	})
}

func TestReplaceCompletesTheState(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.run()
		b.SetService("gone", svc("10.0.0.9:80"))
		require.NoError(t, b.Replace(stateOf(ServiceMap{"a": svc("10.0.0.1:80"), "b": svc("10.0.0.2:80")})))
		synctest.Wait()
		require.Equal(t, []string{"0s sync a b"}, b.p.calls())
		require.True(t, b.Overview().Ready)
	})
}

// A snapshot that no longer names a service or an endpoint takes it away, at once.
func TestReplaceComputesDeletes(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		s := stateOf(ServiceMap{"a": svc("10.0.0.1:80"), "b": svc("10.0.0.2:80"), "c": svc("10.0.0.3:80")})
		s.Endpoints["a"] = eps("10.244.0.1:80", "10.244.0.2:80")
		require.NoError(t, b.Replace(s))
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, []string{"0s apply a b c"}, b.p.calls())

		next := stateOf(ServiceMap{"a": svc("10.0.0.1:80"), "c": svc("10.0.0.3:80")})
		next.Endpoints["c"] = s.Endpoints["c"]
		require.NoError(t, b.Replace(next))
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, []string{"0s apply a -b"}, b.p.calls(), "and what is the same costs nothing")
		require.Equal(t, []string{"10.244.0.1:80"}, b.p.holds("a"))
		require.Nil(t, b.p.holds("b"))
		require.Equal(t, PhaseAbsent, b.Status("b").Phase)
	})
}

func TestFirstChangeIsImmediateAndTheRestIsGathered(t *testing.T) {
	cfg := quiet
	cfg.MinInterval, cfg.Burst = time.Second, 2
	bubble(t, cfg, func(t *testing.T, b *bench) {
		b.start()
		b.after(time.Minute)
		for i := range 30 { // three seconds of one change each tenth
			b.SetService(ServiceName(fmt.Sprintf("s%02d", i)), svc(fmt.Sprintf("10.0.0.%d:80", i+1)))
			b.after(100 * time.Millisecond)
		}
		b.after(time.Minute)
		require.Equal(t, []string{
			"1m0s apply s00", "1m0.1s apply s01",
			"1m1s apply s02 s03 s04 s05 s06 s07 s08 s09",
			"1m2s apply s10 s11 s12 s13 s14 s15 s16 s17 s18 s19",
			"1m3s apply s20 s21 s22 s23 s24 s25 s26 s27 s28 s29",
		}, b.p.calls())
	})
}

// Programming that takes longer than the interval is followed by as much rest.
func TestSlowProgrammingRests(t *testing.T) {
	cfg := quiet
	cfg.MinInterval, cfg.Burst = 100*time.Millisecond, 1
	bubble(t, cfg, func(t *testing.T, b *bench) {
		b.start()
		b.after(time.Minute)
		b.p.set(func() { b.p.took = 2 * time.Second })
		b.SetService("a", svc("10.0.0.1:80"))
		b.after(time.Second)
		b.SetService("b", svc("10.0.0.2:80"))
		b.after(time.Minute)
		require.Equal(t, []string{"1m0s apply a", "1m4s apply b"}, b.p.calls())
	})
}

func TestChangesThatCancelEachOther(t *testing.T) {
	cfg := quiet
	cfg.MinInterval, cfg.Burst = time.Second, 1
	bubble(t, cfg, func(t *testing.T, b *bench) {
		b.start()
		b.SetService("a", svc("10.0.0.1:80"))
		require.Equal(t, PhasePending, b.Status("a").Phase)
		b.DeleteService("a")
		require.Equal(t, PhaseAbsent, b.Status("a").Phase)
		require.NoError(t, b.Wait(t.Context()), "nothing is left to wait for")
		b.after(time.Hour)
		require.Empty(t, b.p.calls())

		b.SetService("a", svc("10.0.0.1:80"))
		synctest.Wait()
		b.SetService("a", svc("10.0.0.1:80"))
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, []string{"1h0m0s apply a"}, b.p.calls(), "the same again is no change")
	})
}

// Wait is about changes, not about time: a programming that began before a change does not count.
func TestWaitIsTiedToChanges(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		b.p.set(func() { b.p.took = time.Second })
		b.SetService("a", svc("10.0.0.1:80"))
		b.after(time.Second / 2) // a is being programmed
		b.SetEndpoints("a", eps("10.244.0.1:80"))
		began := time.Now()
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, time.Second/2+2*time.Second, time.Since(began), "the rest of the first, its rest, and the second")
		require.Equal(t, []string{"10.244.0.1:80"}, b.p.holds("a"))

		// A change that is undone while it is being programmed has to be undone in the kernel too.
		b.SetEndpoints("a", nil)
		b.after(2 * time.Second)
		b.p.calls()
		b.SetEndpoints("a", eps("10.244.0.1:80"))
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, []string{"10.244.0.1:80"}, b.p.holds("a"))
		require.NotEmpty(t, b.p.calls())
	})
}

// A change that is undone while an earlier one is being programmed leaves nothing to do.
func TestChangeUndoneMeanwhile(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		b.p.set(func() { b.p.took = time.Second })
		b.SetService("a", svc("10.0.0.1:80"))
		b.after(time.Second / 2)
		b.SetEndpoints("a", eps("10.244.0.1:80"))
		b.after(time.Second / 4)
		b.SetEndpoints("a", nil)
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, time.Second, time.Since(b.p.began))
		require.Equal(t, Status{Phase: PhaseProgrammed, Since: time.Now(), InForce: true}, b.Status("a"))
		require.Zero(t, b.Overview().Pending)
		b.after(time.Hour)
		require.Equal(t, []string{"0s apply a"}, b.p.calls())
	})
}

func TestWaitEnds(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("too slow"))
		defer cancel()
		b.p.set(func() {
			b.p.fail = []error{errBroken, errBroken, errBroken, errBroken, errBroken, errBroken, errBroken, errBroken, errBroken}
		})
		b.SetService("a", svc("10.0.0.1:80"))
		err := b.Wait(ctx)
		require.ErrorContains(t, err, "too slow")
		require.ErrorIs(t, err, errBroken, "and it says what is wrong")

		waits := make(chan error)
		go func() { waits <- b.Wait(context.Background()) }()
		synctest.Wait()
		b.stop()
		require.ErrorIs(t, <-waits, ErrClosed)
		require.ErrorIs(t, b.Wait(context.Background()), ErrClosed)
		require.ErrorIs(t, b.Resync(context.Background()), ErrClosed)
		require.False(t, b.Overview().Running)
	})
}

// What was programmed stays as it is when programming fails, and the attempt is repeated without anybody asking, with
// everything.
func TestFailureIsRepeated(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		b.after(time.Minute)
		b.p.set(func() { b.p.fail = slices9(errBroken) })
		b.SetService("a", svc("10.0.0.1:80"))
		b.after(time.Second / 20)
		st := b.Status("a")
		require.Equal(t, PhasePending, st.Phase)
		require.ErrorIs(t, st.Err, errBroken)
		o := b.Overview()
		require.Equal(t, 1, o.Failures)
		require.ErrorIs(t, o.Err, errBroken)
		require.Equal(t, 100*time.Millisecond, time.Until(o.Retry))
		b.SetService("b", svc("10.0.0.2:80")) // a change does not hurry it
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, []string{
			"1m0s apply a", "1m0.15s sync a b", "1m0.45s sync a b", "1m1.05s sync a b", "1m2.25s sync a b", "1m4.65s sync a b",
			"1m9.45s sync a b", "1m19.05s sync a b", "1m38.25s sync a b", "2m0.75s sync a b",
		}, b.p.calls())
		require.Equal(t, PhaseProgrammed, b.Status("a").Phase)
		require.NoError(t, b.Status("a").Err)
		o = b.Overview()
		require.Zero(t, o.Failures)
		require.NoError(t, o.Err)

		b.SetService("c", svc("10.0.0.3:80"))
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, []string{"2m0.75s apply c"}, b.p.calls(), "afterwards changes are applied again")
	})
}

// slices9 returns nine times an error.
func slices9(err error) []error { return []error{err, err, err, err, err, err, err, err, err} }

func TestBackoff(t *testing.T) {
	b := Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for failures, most := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 4: 800 * time.Millisecond, 5: time.Second, 1000: time.Second} {
		require.Equal(t, most/2, b.wait(failures, 0), "%d failures", failures)
		require.Equal(t, most*3/4, b.wait(failures, 0.5), "%d failures", failures)
		require.InDelta(t, most, b.wait(failures, 0.999999), float64(most)/1000, "%d failures", failures)
	}
	require.Equal(t, time.Duration(1<<62), Backoff{Min: 1, Max: 1<<63 - 1}.wait(1000, 0)+1, "no overflow")
}

func TestNotSyncedIsMendedAtOnce(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		b.p.set(func() { b.p.synced = false }) // somebody called Cleanup
		b.SetService("a", svc("10.0.0.1:80"))
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, []string{"0s apply a", "0s sync a"}, b.p.calls())
		require.Zero(t, b.Overview().Failures)
	})
}

func TestHangingProgrammerIsGivenUp(t *testing.T) {
	cfg := quiet
	cfg.Timeout = time.Minute
	bubble(t, cfg, func(t *testing.T, b *bench) {
		b.start()
		b.p.set(func() { b.p.hang = 1 })
		b.SetService("a", svc("10.0.0.1:80"))
		b.after(59 * time.Second)
		require.Equal(t, PhasePending, b.Status("a").Phase)
		require.Equal(t, 59*time.Second, b.Overview().Behind(time.Now()))
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, []string{"0s apply a", "1m0.15s sync a"}, b.p.calls())
	})
}

func TestRunOnce(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		require.Error(t, b.Run(t.Context()))
		require.True(t, b.Overview().Running)
		b.stop()
		require.NoError(t, <-b.done)
		b.done <- nil
		require.Error(t, b.Run(t.Context()), "nor a second time")
		require.False(t, b.Overview().Running)
	})
}

func TestClosedProgrammerEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScripted("scripted")
		s := NewSyncer(p, SyncerConfig{})
		s.Ready()
		require.NoError(t, p.Close())
		require.ErrorIs(t, s.Run(t.Context()), ErrClosed)
	})
}

// Stopping in the middle lets the call finish, and leaves the rules in place.
func TestStopInMidSync(t *testing.T) {
	cfg := quiet
	cfg.StopGrace = 10 * time.Second
	bubble(t, cfg, func(t *testing.T, b *bench) {
		b.start()
		b.p.set(func() { b.p.took = 3 * time.Second })
		b.SetService("a", svc("10.0.0.1:80"))
		b.after(time.Second)
		b.SetService("b", svc("10.0.0.2:80"))
		b.stop()
		require.NoError(t, <-b.done)
		b.done <- nil
		require.Equal(t, []string{"0s apply a"}, b.p.calls(), "no cleaning up, and nothing new is begun")
		require.Equal(t, "3s", b.p.ended[1], "it was let finish")
		require.NotNil(t, b.p.holds("a"))
		require.Equal(t, PhaseProgrammed, b.Status("a").Phase)
		require.Equal(t, PhasePending, b.Status("b").Phase)
	})
}

func TestStopWaitsNoLongerThanItsGrace(t *testing.T) {
	cfg := quiet
	cfg.StopGrace = 10 * time.Second
	for _, grace := range []time.Duration{10 * time.Second, -1} {
		cfg.StopGrace = grace
		bubble(t, cfg, func(t *testing.T, b *bench) {
			b.start()
			b.p.set(func() { b.p.hang = 1 })
			b.SetService("a", svc("10.0.0.1:80"))
			b.after(time.Second)
			began := time.Now()
			b.stop()
			require.NoError(t, <-b.done)
			b.done <- nil
			require.Equal(t, max(grace, 0), time.Since(began))
			require.Equal(t, []string{"0s apply a"}, b.p.calls())
			require.Zero(t, b.Overview().Failures, "that is no failure")
		})
	}
}
