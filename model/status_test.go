package model

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A service that the kernel refuses stops nobody else, keeps its last good form, and is tried again, less and less often
// and apart from the others.
func TestQuarantine(t *testing.T) {
	cfg := quiet
	cfg.ServiceRetry = Backoff{Min: 2 * time.Second, Max: time.Minute}
	bubble(t, cfg, func(t *testing.T, b *bench) {
		b.start()
		require.NoError(t, b.Replace(stateOf(ServiceMap{"a": svc("10.0.0.1:80"), "m": svc("10.0.0.2:80"), "z": svc("10.0.0.3:80")})))
		require.NoError(t, b.Wait(t.Context()))
		b.p.calls()
		b.after(time.Minute)

		b.p.set(func() { b.p.refuse["m"] = errBroken })
		b.together(func() {
			for _, name := range []ServiceName{"a", "m", "z"} {
				b.SetEndpoints(name, eps("10.244.1.1:80"))
			}
		})
		require.NoError(t, b.Wait(t.Context()), "rejected counts as programmed")
		require.Equal(t, []string{"1m0s apply a m z"}, b.p.calls())
		require.Equal(t, []string{"10.244.1.1:80"}, b.p.holds("a"))
		require.Equal(t, []string{"10.244.0.2:80"}, b.p.holds("m"))
		require.Equal(t, []string{"10.244.1.1:80"}, b.p.holds("z"))
		st := b.Status("m")
		require.Equal(t, PhaseRejected, st.Phase)
		require.Equal(t, b.p.began.Add(time.Minute), st.Since)
		require.ErrorIs(t, st.Err, errBroken)
		require.True(t, st.InForce, "in its last good form")
		require.Equal(t, 1500*time.Millisecond, time.Until(st.Retry))
		require.Equal(t, 1, b.Overview().Rejected)

		b.after(time.Minute - time.Second)
		require.Equal(t, []string{"1m1.5s apply m", "1m4.5s apply m", "1m10.5s apply m", "1m22.5s apply m", "1m46.5s apply m"}, b.p.calls())
		require.Equal(t, st.Since, b.Status("m").Since, "it is rejected since the first time")

		// Its changes are tried at once, but after those of the others and not with them.
		b.together(func() {
			b.SetEndpoints("m", eps("10.244.1.2:80"))
			b.SetEndpoints("z", eps("10.244.1.2:80"))
		})
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, []string{"1m59s apply z", "1m59s apply m"}, b.p.calls())

		b.p.set(func() { delete(b.p.refuse, "m") })
		b.after(2 * time.Minute)
		require.Equal(t, []string{"2m44s apply m"}, b.p.calls())
		require.Equal(t, []string{"10.244.1.2:80"}, b.p.holds("m"))
		st = b.Status("m")
		require.Equal(t, PhaseProgrammed, st.Phase)
		require.Equal(t, 165*time.Second-time.Second, st.Since.Sub(b.p.began))
		require.NoError(t, st.Err)
		require.Zero(t, st.Retry)
		require.Zero(t, b.Overview().Rejected)
	})
}

// A service in quarantine that has changed is tried with its change, and not before.
func TestQuarantinedServiceChanges(t *testing.T) {
	cfg := quiet
	cfg.MinInterval, cfg.Burst = time.Minute, 1
	bubble(t, cfg, func(t *testing.T, b *bench) {
		b.start()
		b.after(time.Hour)
		b.p.set(func() { b.p.refuse["m"] = errBroken })
		b.SetService("m", svc("10.0.0.2:80"))
		synctest.Wait()
		b.SetEndpoints("m", eps("10.244.0.1:80"))
		b.after(time.Minute)
		require.Equal(t, []string{"1h0m0s apply m", "1h1m0s apply m"}, b.p.calls())
		b.p.set(func() { delete(b.p.refuse, "m") })
		b.after(time.Minute)
		require.Equal(t, []string{"1h1m1.5s apply m"}, b.p.calls(), "a retry need not wait")
		require.Equal(t, []string{"10.244.0.1:80"}, b.p.holds("m"))
	})
}

func TestQuarantinedServiceIsDeleted(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		b.p.set(func() { b.p.refuse["m"] = errBroken })
		b.SetService("m", svc("10.0.0.2:80"))
		require.NoError(t, b.Wait(t.Context()))
		require.False(t, b.Status("m").InForce)
		b.p.calls()
		b.together(func() {
			b.DeleteService("m")
			b.SetService("z", svc("10.0.0.3:80"))
		})
		require.NoError(t, b.Wait(t.Context()))
		b.after(time.Hour)
		require.Equal(t, []string{"0s apply -m z"}, b.p.calls(), "that needs no quarantine")
		require.Equal(t, PhaseAbsent, b.Status("m").Phase)
		require.Zero(t, b.Overview().Rejected)
	})
}

// What makes no sense, or cannot be done, is not tried again until it changes.
func TestSenselessServiceIsNotRepeated(t *testing.T) {
	for name, bad := range map[string]Service{"invalid": {Protocol: 9}, "unsupported": {Balance: LeastConn}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, quiet, func(t *testing.T, b *bench) {
				b.start()
				b.together(func() {
					b.SetService("m", bad)
					b.SetService("a", svc("10.0.0.1:80"))
				})
				b.after(time.Hour)
				require.Len(t, b.p.calls(), 1)
				st := b.Status("m")
				require.Equal(t, PhaseRejected, st.Phase)
				require.Error(t, st.Err)
				require.Zero(t, st.Retry)
				require.Equal(t, PhaseProgrammed, b.Status("a").Phase)
				b.SetService("m", svc("10.0.0.2:80"))
				require.NoError(t, b.Wait(t.Context()))
				require.Equal(t, PhaseProgrammed, b.Status("m").Phase)
			})
		})
	}
}

func TestEndpointLeftOutShows(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		b.SetService("a", svc("10.0.0.1:80"))
		b.SetEndpoints("a", eps("10.244.0.1:80", "127.0.0.1:80"))
		require.NoError(t, b.Wait(t.Context()))
		st := b.Status("a")
		require.Equal(t, PhaseProgrammed, st.Phase, "the service is there")
		require.ErrorIs(t, st.Err, ErrInvalid)
		require.ErrorContains(t, st.Err, "127.0.0.1:80")
		b.SetEndpoints("a", eps("10.244.0.1:80"))
		require.NoError(t, b.Wait(t.Context()))
		require.NoError(t, b.Status("a").Err)
	})
}

func TestConflictingServiceNamesTheHolder(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		key := FrontendKey{Addr: svc("192.0.2.1:80").Frontends[0].Addr}
		set := func(name ServiceName, own string) { b.SetService(name, svc("192.0.2.1:80", own)) }
		set("b", "10.0.0.2:80")
		require.NoError(t, b.Wait(t.Context()))
		b.together(func() {
			set("a", "10.0.0.1:80")
			set("c", "10.0.0.3:80")
			set("d", "10.0.0.4:80")
		})
		require.NoError(t, b.Wait(t.Context()))
		by := func(holder ServiceName) []ConflictError { return []ConflictError{{Frontend: key, Holder: holder}} }
		for _, name := range []ServiceName{"a", "c", "d"} {
			st := b.Status(name)
			require.Equal(t, PhaseConflicting, st.Phase)
			require.Equal(t, by("b"), st.Conflicts)
			require.ErrorIs(t, st.Err, ErrConflict)
			require.ErrorContains(t, st.Err, `"b"`)
			require.True(t, st.InForce)
			require.Zero(t, st.Retry, "it takes over by itself")
		}
		require.Equal(t, 3, b.Overview().Conflicting)

		// The holder goes: one takes over, and the others wait for that one now, though no Programmer says so.
		b.DeleteService("b")
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, PhaseProgrammed, b.Status("a").Phase)
		require.Empty(t, b.Status("a").Conflicts)
		for _, name := range []ServiceName{"c", "d"} {
			require.Equal(t, by("a"), b.Status(name).Conflicts)
			require.ErrorContains(t, b.Status(name).Err, `"a"`)
		}
		// A newcomer that comes as the holder goes, and is first by name.
		b.together(func() {
			b.SetService("a", svc("10.0.0.1:80"))
			set("aa", "10.0.0.5:80")
		})
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, PhaseProgrammed, b.Status("aa").Phase)
		require.Equal(t, by("aa"), b.Status("c").Conflicts)
		require.Equal(t, 2, b.Overview().Conflicting)
		b.together(func() {
			b.DeleteService("aa")
			b.DeleteService("c")
		})
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, PhaseProgrammed, b.Status("d").Phase)
		require.Zero(t, b.Overview().Conflicting)
	})
}

// What is deleted is gone too if everything had to be synced for it.
func TestStatusOfServiceDeletedBySync(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		b.SetService("a", svc("10.0.0.1:80"))
		b.SetService("bad", Service{Protocol: 9})
		require.NoError(t, b.Wait(t.Context()))
		b.p.set(func() { b.p.fail = []error{errBroken} })
		b.together(func() {
			b.DeleteService("a")
			b.DeleteService("bad")
		})
		b.after(time.Second / 20)
		st := b.Status("a")
		require.Equal(t, PhasePending, st.Phase)
		require.True(t, st.InForce)
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, Status{}, b.Status("a"))
		require.Equal(t, Status{}, b.Status("bad"))
		require.Zero(t, b.Overview().Rejected)
		require.Empty(t, b.book.records)
	})
}

func TestStatusSince(t *testing.T) {
	cfg := quiet
	cfg.MinInterval = 10 * time.Second
	bubble(t, cfg, func(t *testing.T, b *bench) {
		b.start()
		require.Equal(t, Status{}, b.Status("a"))
		b.SetEndpoints("a", eps("10.244.0.1:80"))
		require.Equal(t, Status{}, b.Status("a"), "endpoints of nobody")
		b.together(func() {
			b.SetService("a", svc("10.0.0.1:80"))
			b.SetService("b", svc("10.0.0.2:80"))
		})
		b.after(time.Minute)
		programmed := b.p.began
		require.Equal(t, Status{Phase: PhaseProgrammed, Since: programmed, InForce: true}, b.Status("a"))

		b.SetEndpoints("b", eps("10.244.0.1:80"))
		b.after(time.Second)
		b.SetEndpoints("b", eps("10.244.0.2:80"))
		b.after(time.Second) // the burst is used up
		b.SetEndpoints("a", eps("10.244.0.2:80"))
		b.after(time.Second)
		b.SetEndpoints("a", eps("10.244.0.3:80"))
		b.after(time.Second)
		require.Equal(t, Status{Phase: PhasePending, Since: programmed.Add(62 * time.Second), InForce: true}, b.Status("a"), "since the first change")
		require.Equal(t, "pending since 2000-01-01T00:01:02Z", b.Status("a").String())
		require.NoError(t, b.Resync(t.Context()))
		require.Equal(t, programmed.Add(64*time.Second), b.Status("a").Since, "its new form")
		since := b.Status("b").Since
		b.after(time.Minute)
		require.NoError(t, b.Resync(t.Context()))
		require.Equal(t, since, b.Status("b").Since, "a Sync changes nothing")

		b.DeleteService("a")
		b.DeleteService("b")
		b.after(time.Hour)
		require.Equal(t, Status{}, b.Status("a"))
	})
}

func TestWatch(t *testing.T) {
	cfg := quiet
	cfg.MinInterval = time.Second
	bubble(t, cfg, func(t *testing.T, b *bench) {
		b.start()
		b.SetService("a", svc("10.0.0.1:80"))
		require.NoError(t, b.Wait(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var lines []string
		done := make(chan bool)
		go func() {
			for name, st := range b.Watch(ctx) {
				mu.Lock()
				lines = append(lines, fmt.Sprintf("%s %s", name, st.Phase))
				mu.Unlock()
			}
			close(done)
		}()
		seen := func() []string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			all := lines
			lines = nil
			return all
		}
		expect := func(want ...string) {
			t.Helper()
			require.Equal(t, want, seen())
		}
		expect("a programmed")
		b.after(time.Hour)
		b.p.set(func() { b.p.took = time.Second / 2 })
		b.together(func() {
			b.SetService("b", svc("10.0.0.2:80"))
			b.SetService("c", Service{Balance: LeastConn})
		})
		expect("b pending", "c pending")
		b.after(time.Second)
		expect("b programmed", "c rejected")
		require.NoError(t, b.Resync(t.Context()))
		require.Empty(t, seen(), "nothing has changed")
		b.p.set(func() { b.p.fail = []error{errBroken} })
		b.SetEndpoints("a", eps("10.244.0.1:80"))
		expect("a pending")
		b.after(time.Second)
		expect("a pending") // now with an error
		b.after(time.Minute)
		expect("a programmed")
		b.DeleteService("a")
		expect("a pending")
		b.after(time.Minute)
		expect("a absent")
		cancel()
		<-done
		require.Empty(t, b.watchers)
	})
}

// Who is slow misses nothing but what was overtaken, and holds nobody up.
func TestSlowWatcher(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		took := map[ServiceName][]Phase{}
		done := make(chan bool)
		go func() {
			for name, st := range b.Watch(t.Context()) {
				took[name] = append(took[name], st.Phase)
				time.Sleep(time.Minute)
			}
			close(done)
		}()
		for i := range 100 {
			b.SetService("a", svc("10.0.0.1:80"))
			b.SetEndpoints("b", eps(fmt.Sprintf("10.244.0.%d:80", i+1)))
			b.SetService("b", svc("10.0.0.2:80"))
			require.NoError(t, b.Wait(t.Context()))
			b.after(time.Second)
			b.DeleteService("a")
			require.NoError(t, b.Wait(t.Context()))
		}
		require.Equal(t, 100*time.Second, time.Since(b.p.began))
		b.after(time.Hour)
		b.stop()
		<-done // the end of Run ends it
		require.Less(t, len(took["a"]), 5)
		require.Equal(t, PhaseAbsent, took["a"][len(took["a"])-1])
		require.Equal(t, PhaseProgrammed, took["b"][len(took["b"])-1])
	})
}

func TestWatchIsLeft(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		b.SetService("a", svc("10.0.0.1:80"))
		for name := range b.Watch(t.Context()) {
			require.EqualValues(t, "a", name)
			break
		}
		require.Empty(t, b.watchers)
	})
}
