package conntrack

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// rawEntries returns entries as a kernel lists them.
func rawEntries(t *testing.T, entries ...entry) (msgs [][]byte) {
	t.Helper()
	ns := lab.StartNetNS(t, "source")
	c := newCleaner(t, ns, Config{})
	put(t, ns, entries...)
	m, err := listFamily(model.IPv4)
	require.NoError(t, err)
	require.NoError(t, c.table.ask(t.Context(), m, func(some [][]byte) error {
		for _, msg := range some {
			msgs = append(msgs, append([]byte(nil), msg...))
		}
		return nil
	}))
	require.Len(t, msgs, len(entries))
	return msgs
}

// withFakeTable has a Cleaner list from a fake kernel from now on.
func withFakeTable(t *testing.T, c *Cleaner) *fakeKernel {
	k := newFakeKernel(t, time.Minute)
	real := c.table
	c.table = k.conn
	t.Cleanup(func() { c.table = real })
	return k
}

// TestChangeDuringALook: while flows are being looked at, a new endpoint is programmed and gets its first flow. By what
// was known when the look began that flow is stale.
func TestChangeDuringALook(t *testing.T) {
	for _, how := range []string{"in flight", "done", "sync in flight", "failed"} {
		t.Run(how, func(t *testing.T) {
			msg := rawEntries(t, flowC)[0]
			ns, c := begun(t, Config{}, dns(epA, epB))
			put(t, ns, flowC)
			applied(c, model.DiffStates(dns(epA, epB), model.State{Node: dns().Node}))
			applied(c, model.DiffStates(model.State{Node: dns().Node}, dns(epA, epB)))
			k := withFakeTable(t, c)
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				seq := k.request()
				switch how {
				case "in flight":
					c.Applying(model.DiffStates(dns(epA, epB), dns(epA, epB, epC)))
				case "done":
					applied(c, model.DiffStates(dns(epA, epB), dns(epA, epB, epC)))
				case "sync in flight":
					c.Syncing(dns(epA, epB, epC))
				case "failed":
					c.Syncing(dns(epA, epB, epC))
					c.Programmed(model.Result{}, model.ErrBusy)
				}
				k.say(item(seq, string(msg)), end(unix.NLMSG_DONE, seq, 0))
			}()
			require.Zero(t, clean(t, c))
			<-answered
			require.Len(t, clients(t, ns), 1)
			require.Zero(t, c.Stats().Stale)
		})
	}
}

// TestChangeDuringALookIsLookedAtAgain: what was left alone because it was being programmed, and turns out stale.
func TestChangeDuringALookIsLookedAtAgain(t *testing.T) {
	msg := rawEntries(t, flowC)[0]
	ns, c := begun(t, Config{}, dns(epA, epC))
	c.cfg.SecondLook = time.Hour // it is not what finds the flow
	put(t, ns, flowC)
	applied(c, model.DiffStates(dns(epA, epC), dns(epA)))
	real := c.table
	k := withFakeTable(t, c)
	go func() {
		seq := k.request()
		c.Applying(model.DiffStates(dns(epA), dns(epA, epB)))
		k.say(item(seq, string(msg)), end(unix.NLMSG_DONE, seq, 0))
	}()
	require.Zero(t, clean(t, c))
	c.Programmed(model.Result{}, nil)
	c.table = real
	require.Equal(t, 1, clean(t, c))
}

// TestCleaningBesidesProgramming has one goroutine program without end, another clean, a third look on, and flows that
// are right all the time.
func TestCleaningBesidesProgramming(t *testing.T) {
	ns, c := begun(t, Config{SecondLook: time.Millisecond}, dns(epA, epB, epC))
	put(t, ns, flowA, flowB)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	const rounds = 60
	loop := func(f func()) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					f()
				}
			}
		})
	}
	loop(func() {
		_, err := c.Clean(t.Context())
		require.NoError(t, err)
	})
	loop(func() {
		_, err := c.Flows(t.Context(), model.FrontendKey{Protocol: model.UDP, Addr: at(vip, 53)})
		require.NoError(t, err)
		_, err = c.Usage(t.Context())
		require.NoError(t, err)
		c.Due()
	})
	for range rounds {
		put(t, ns, flowC)
		applied(c, model.DiffStates(dns(epA, epB, epC), dns(epA, epB)))
		require.Eventually(t, func() bool { return len(clients(t, ns)) == 2 }, 30*time.Second, time.Millisecond)
		synced(c, dns(epA, epB))
		applied(c, model.DiffStates(dns(epA, epB), dns(epA, epB, epC)))
	}
	close(stop)
	wg.Wait()
	require.Equal(t, rounds, c.Stats().Deleted)
}

// TestCloseEndsClean: a Clean that waits for the kernel ends with the Cleaner.
func TestCloseEndsClean(t *testing.T) {
	ns := lab.StartNetNS(t, "node")
	c, err := New(t.Context(), Config{NetNS: ns.FD(), Timeout: time.Minute})
	require.NoError(t, err)
	synced(c, dns(epA))
	k := newFakeKernel(t, time.Minute)
	c.table.close()
	c.table = k.conn
	go func() {
		k.request()
		c.Close()
	}()
	_, err = c.Clean(t.Context())
	require.ErrorIs(t, err, model.ErrClosed)
}

// TestNothingIsLeftBehind: no descriptor and no thread in another namespace.
func TestNothingIsLeftBehind(t *testing.T) {
	ns := lab.StartNetNS(t, "node")
	use := func() {
		c, err := New(t.Context(), Config{NetNS: ns.FD()})
		require.NoError(t, err)
		synced(c, dns(epA))
		_, err = c.Clean(t.Context())
		require.NoError(t, err)
		_, err = c.Tune(t.Context(), Tuning{UDP: 30 * time.Second})
		require.NoError(t, err)
		require.NoError(t, c.Close())
		_, err = New(t.Context(), Config{NetNS: 1 << 20})
		require.Error(t, err)
	}
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(entries)
	}
	use()
	before := descriptors()
	for range 20 {
		use()
	}
	require.LessOrEqual(t, descriptors(), before+2)
	require.Equal(t, 1, threadsIn(t, ns), "the one that keeps the namespace alive")
}

// threadsIn returns how many threads of this process are in a namespace.
func threadsIn(t *testing.T, ns *lab.NetNS) (n int) {
	t.Helper()
	want, err := os.Readlink(ns.Path())
	require.NoError(t, err)
	tasks, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	for _, task := range tasks {
		if got, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net"); err == nil && got == want {
			n++
		}
	}
	return n
}
