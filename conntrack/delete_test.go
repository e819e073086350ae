package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/mdlayher/netlink"
	"github.com/stretchr/testify/require"
	timo "github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"
)

// listed returns the flows of a table with what names them.
func listed(t *testing.T, c *Cleaner) (flows []flow) {
	t.Helper()
	m, err := listFamily(model.IPv4)
	require.NoError(t, err)
	require.NoError(t, c.table.ask(t.Context(), m, func(msgs [][]byte) error {
		for _, msg := range msgs {
			var f flow
			require.True(t, f.decode(append([]byte(nil), msg...)))
			flows = append(flows, f)
		}
		return nil
	}))
	return flows
}

// deleteAll deletes flows over a Cleaner's socket.
func deleteAll(t *testing.T, c *Cleaner, flows []flow) (*deleter, error) {
	d := &deleter{conn: c.killer}
	for i := range flows {
		if err := d.add(t.Context(), &flows[i]); err != nil {
			return d, err
		}
	}
	return d, d.flush(t.Context())
}

// crowd puts n flows into a table.
func crowd(t *testing.T, ns *lab.NetNS, n int) {
	t.Helper()
	flows := make([]entry, n)
	for i := range flows {
		flows[i] = entry{client: at(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 1000), to: at(vip, 53), from: epA}
	}
	put(t, ns, flows...)
}

// TestDeleteWhatIsGone: somebody else deletes half of the flows between listing and deletion, at the edges of a batch too.
func TestDeleteWhatIsGone(t *testing.T) {
	for _, n := range []int{1, 2, batch - 1, batch, batch + 1, 2*batch + 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			ns := lab.StartNetNS(t, "node")
			c := newCleaner(t, ns, Config{})
			crowd(t, ns, n)
			flows := listed(t, c)
			require.Len(t, flows, n)
			half, err := deleteAll(t, c, flows[n/2:])
			require.NoError(t, err)
			require.Equal(t, n-n/2, half.deleted)
			d, err := deleteAll(t, c, flows)
			require.NoError(t, err)
			require.Equal(t, n/2, d.deleted)
			require.Equal(t, n-n/2, d.gone)
			require.NoError(t, d.failures.err())
			require.Empty(t, table(t, ns))
		})
	}
}

// TestDeleteKnowsTheFlowAgain: one that came back with the same client and destination, and leads elsewhere now, is
// another flow, even if it took the same place in memory.
func TestDeleteKnowsTheFlowAgain(t *testing.T) {
	ns := lab.StartNetNS(t, "node")
	c := newCleaner(t, ns, Config{})
	put(t, ns, flowA)
	old := listed(t, c)
	_, err := deleteAll(t, c, old)
	require.NoError(t, err)
	again := flowA
	again.from = epB
	put(t, ns, again)
	d, err := deleteAll(t, c, old)
	require.NoError(t, err)
	require.Equal(t, 0, d.deleted)
	require.Equal(t, 1, d.gone)
	require.Len(t, table(t, ns), 1)
}

// TestDeleteNeedsTheID: a flow with the same addresses and ports in both directions may be another still.
func TestDeleteNeedsTheID(t *testing.T) {
	ns := lab.StartNetNS(t, "node")
	c := newCleaner(t, ns, Config{})
	put(t, ns, flowA)
	flows := listed(t, c)
	flows[0].id[attrHeaderLen]++
	d, err := deleteAll(t, c, flows)
	require.NoError(t, err)
	require.Equal(t, 1, d.gone)
	require.Len(t, table(t, ns), 1)
}

// TestListAgainAfterGivingUp: the kernel takes no second listing on a socket that has not read the first to its end.
func TestListAgainAfterGivingUp(t *testing.T) {
	ns := lab.StartNetNS(t, "node")
	c := newCleaner(t, ns, Config{})
	crowd(t, ns, 400)
	m, err := listFamily(model.IPv4)
	require.NoError(t, err)
	for range 3 {
		require.ErrorIs(t, c.table.ask(t.Context(), m, func([][]byte) error { return errSeen }), errSeen)
	}
	require.Len(t, listed(t, c), 400)
}

// TestDeleteSamplesErrors: hundreds of failures are counted, and described in a line or three.
func TestDeleteSamplesErrors(t *testing.T) {
	ns := lab.StartNetNS(t, "node")
	c := newCleaner(t, ns, Config{})
	crowd(t, ns, 300)
	flows := listed(t, c)
	for i := range flows {
		if i%2 == 0 {
			flows[i].zoneAttr = []byte{5, 0, ctaZone, 0, 1, 0, 0, 0} // which the kernel refuses to read
		}
	}
	flows[1].id = nil // and this one we do
	d, err := deleteAll(t, c, flows)
	require.NoError(t, err)
	require.Equal(t, 149, d.deleted)
	require.Zero(t, d.gone)
	err = d.failures.err()
	require.ErrorContains(t, err, "151 stale flows could not be deleted")
	require.ErrorContains(t, err, "10.128.0.11:5353")
	require.LessOrEqual(t, strings.Count(err.Error(), "10.128.0.11:5353"), samples)
	require.Len(t, table(t, ns), 151)
}

// withoutAdmin runs f on a thread without CAP_NET_ADMIN.
func withoutAdmin(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		err := unix.Capget(&header, &caps[0])
		caps[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		defer func() { done <- err }() // also if f fails the test
		if err = errors.Join(err, unix.Capset(&header, &caps[0])); err == nil {
			f()
		}
	}()
	require.NoError(t, <-done)
}

func TestWithoutPermission(t *testing.T) {
	ns, c := begun(t, Config{}, dns(epA))
	crowd(t, ns, 120)
	flows := listed(t, c)
	applied(c, model.DiffStates(dns(epA), dns(epB)))
	withoutAdmin(t, func() {
		_, err := New(t.Context(), Config{NetNS: ns.FD()})
		require.ErrorIs(t, err, model.ErrPermission)
		require.ErrorContains(t, err, "CAP_NET_ADMIN")

		r, err := Probe(t.Context(), Config{NetNS: ns.FD()})
		require.NoError(t, err)
		require.ErrorIs(t, r.Err(), model.ErrPermission)

		_, err = c.Clean(t.Context())
		require.ErrorIs(t, err, model.ErrPermission)
		d, err := deleteAll(t, c, flows)
		require.ErrorIs(t, err, model.ErrPermission)
		require.Zero(t, d.deleted)
	})
	requireOwed(t, c, true)
	require.Equal(t, 120, settle(t, c))
}

// TestOtherLibraryAgrees: what is deleted here is gone for others.
func TestOtherLibraryAgrees(t *testing.T) {
	ns, c := begun(t, Config{}, dns(epA))
	put(t, ns, flowA, inZone(5, flowA))
	other, err := timo.Dial(&netlink.Config{NetNS: ns.FD()})
	require.NoError(t, err)
	defer other.Close()
	flows, err := other.Dump(nil)
	require.NoError(t, err)
	require.Len(t, flows, 2)
	applied(c, model.DiffStates(dns(epA), dns(epB)))
	require.Equal(t, 2, settle(t, c))
	for _, f := range flows {
		_, err := other.Get(f)
		require.ErrorIs(t, err, unix.ENOENT)
	}
}
