package nodewatch

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

var _ model.NodeWatcher = (*Watcher)(nil)

// patience is for machines that others use too.
const patience = time.Minute

func addrs(ss ...string) []netip.Addr {
	out := []netip.Addr{}
	for _, s := range ss {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// A station is a namespace that is watched, and what was told of it.
type station struct {
	ns   *lab.NetNS
	w    *Watcher
	stop context.CancelFunc
	done chan error

	mu    sync.Mutex // guards told
	told  [][]netip.Addr
	heard chan struct{}
}

// watched returns a namespace of which the first report has come.
func watched(t *testing.T, cfg Config) *station {
	t.Helper()
	lab.CheckLeaks(t)
	s := &station{ns: lab.StartNetNS(t, "node"), done: make(chan error, 1), heard: make(chan struct{}, 1)}
	cfg.NetNS = s.ns.FD()
	var err error
	s.w, err = New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.w.Close()) })
	s.watch(t)
	s.hears(t)
	return s
}

func (s *station) watch(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	t.Cleanup(cancel)
	done := make(chan error, 1)
	s.done = done
	go func() {
		done <- s.w.Watch(ctx, func(a []netip.Addr) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.told = append(s.told, a)
			select {
			case s.heard <- struct{}{}:
			default:
			}
		})
	}()
}

// last is what was told last.
func (s *station) last() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.told) == 0 {
		return nil
	}
	return s.told[len(s.told)-1]
}

// hears waits until just these addresses have been told.
func (s *station) hears(t *testing.T, want ...string) {
	t.Helper()
	late := time.After(patience)
	for {
		if got := s.last(); got != nil && slices.Equal(got, addrs(want...)) {
			return
		}
		select {
		case <-s.heard:
		case <-late:
			require.Equal(t, addrs(want...), s.last(), "waited long enough")
		}
	}
}

func TestAddressesComeAndGo(t *testing.T) {
	s := watched(t, Config{})
	require.Empty(t, s.last(), "loopback is no address of the node's to others")
	add := func(a string) { require.NoError(t, s.ns.AddAddr("lo", netip.MustParseAddr(a))) }
	del := func(a string) { require.NoError(t, s.ns.DelAddr("lo", netip.MustParseAddr(a))) }
	add("198.51.100.10")
	s.hears(t, "198.51.100.10")
	add("2001:db8:a::10")
	s.hears(t, "198.51.100.10", "2001:db8:a::10")
	add("127.0.0.2")
	add("10.0.0.1")
	s.hears(t, "10.0.0.1", "198.51.100.10", "2001:db8:a::10")
	del("198.51.100.10")
	s.hears(t, "10.0.0.1", "2001:db8:a::10")
	del("10.0.0.1")
	del("2001:db8:a::10")
	s.hears(t)
	got, err := s.w.Addrs(t.Context())
	require.NoError(t, err)
	require.Empty(t, got)
}

// What is as before is not told again.
func TestNothingNewIsNotTold(t *testing.T) {
	s := watched(t, Config{})
	a := netip.MustParseAddr("198.51.100.10")
	for range 20 {
		require.NoError(t, s.ns.AddAddr("lo", netip.MustParseAddr("127.0.0.9")))
		require.NoError(t, s.ns.DelAddr("lo", netip.MustParseAddr("127.0.0.9")))
	}
	require.NoError(t, s.ns.AddAddr("lo", a))
	s.hears(t, a.String())
	require.Len(t, s.told, 2)
}

// A swarm of changes ends in the right report, even if the kernel could not keep all of them for us.
func TestSwarm(t *testing.T) {
	s := watched(t, Config{Settle: 500 * time.Millisecond})
	require.NoError(t, s.w.events.SetReadBuffer(1024)) // room for a few messages
	const many = 400
	var want []string
	first := netip.MustParseAddr("10.1.0.1")
	for a, i := first, 0; i < many; a, i = a.Next(), i+1 {
		require.NoError(t, s.ns.AddAddr("lo", a))
		want = append(want, a.String())
	}
	s.hears(t, want...)
	require.Less(t, len(s.told), many/2, "they were gathered")
	for a, i := first, 0; i < many; a, i = a.Next(), i+1 {
		require.NoError(t, s.ns.DelAddr("lo", a))
	}
	s.hears(t)
}

// An IPv6 address counts once it is known to be unique, and a link-local one never.
func TestUnsureAddresses(t *testing.T) {
	s := watched(t, Config{})
	h, err := s.ns.Netlink()
	require.NoError(t, err)
	for _, setting := range []string{"accept_dad", "dad_transmits"} { // which the lab switches off, to save time
		require.NoError(t, s.ns.Sysctl("net/ipv6/conf/default/"+setting, "1"))
		require.NoError(t, s.ns.Sysctl("net/ipv6/conf/all/"+setting, "1"))
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "left"
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: "right"}
	require.NoError(t, h.LinkAdd(link))
	unsure, err := netlink.ParseAddr("2001:db8:a::10/64")
	require.NoError(t, err)
	require.NoError(t, h.AddrAdd(link, unsure)) // the link is down: nobody can be asked
	require.NoError(t, s.ns.AddAddr("lo", netip.MustParseAddr("198.51.100.10")))
	s.hears(t, "198.51.100.10")
	right, err := h.LinkByName("right")
	require.NoError(t, err)
	require.NoError(t, h.LinkSetUp(link))
	require.NoError(t, h.LinkSetUp(right)) // which brings link-local addresses
	s.hears(t, "198.51.100.10", "2001:db8:a::10")
	require.NoError(t, h.LinkDel(link))
	s.hears(t, "198.51.100.10")
}

func TestWatchEndsWithItsContext(t *testing.T) {
	s := watched(t, Config{})
	s.stop()
	require.ErrorIs(t, <-s.done, context.Canceled)
	require.NoError(t, s.ns.AddAddr("lo", netip.MustParseAddr("198.51.100.10")))
	s.watch(t) // and can be called again
	s.hears(t, "198.51.100.10")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.w.Watch(ctx, func([]netip.Addr) {}), context.DeadlineExceeded, "two do not watch at once")
}

func TestCloseEndsWatch(t *testing.T) {
	s := watched(t, Config{})
	require.NoError(t, s.w.Close())
	require.ErrorIs(t, <-s.done, model.ErrClosed)
	_, err := s.w.Addrs(t.Context())
	require.ErrorIs(t, err, model.ErrClosed)
	require.ErrorIs(t, s.w.Watch(t.Context(), func([]netip.Addr) {}), model.ErrClosed)
}

// The descriptor of the namespace need not stay open.
func TestNamespaceIsNotNeededLater(t *testing.T) {
	ns := lab.StartNetNS(t, "node")
	f, err := os.Open(ns.Path())
	require.NoError(t, err)
	w, err := New(Config{NetNS: int(f.Fd())})
	require.NoError(t, err)
	defer w.Close()
	require.NoError(t, f.Close())
	require.NoError(t, ns.AddAddr("lo", netip.MustParseAddr("198.51.100.10")))
	got, err := w.Addrs(t.Context())
	require.NoError(t, err)
	require.Equal(t, addrs("198.51.100.10"), got)
}

func TestNewRefuses(t *testing.T) {
	for _, cfg := range []Config{{NetNS: -1}, {Settle: -1}, {Timeout: -1}} {
		_, err := New(cfg)
		require.ErrorIs(t, err, model.ErrInvalid)
	}
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer f.Close()
	_, err = New(Config{NetNS: int(f.Fd())})
	require.Error(t, err, "that is no namespace")
}

// A listing that nobody waited for to its end does not confuse the next one.
func TestListingAfterOneThatWasLeftOff(t *testing.T) {
	ns := lab.StartNetNS(t, "node")
	for a, i := netip.MustParseAddr("10.1.0.1"), 0; i < 1000; a, i = a.Next(), i+1 {
		require.NoError(t, ns.AddAddr("lo", a))
	}
	w, err := New(Config{NetNS: ns.FD()})
	require.NoError(t, err)
	defer w.Close()
	for range 20 {
		w.cfg.Timeout = -1 // it has passed when the question is sent
		_, err := w.list(t.Context())
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		w.cfg.Timeout = patience
		got, err := w.Addrs(t.Context())
		require.NoError(t, err)
		require.Len(t, got, 1000)
	}
}

func TestMeaning(t *testing.T) {
	require.NoError(t, (&Watcher{}).because(t.Context(), nil))
	require.ErrorIs(t, meaning(unix.EPERM), model.ErrPermission)
	require.ErrorIs(t, meaning(os.ErrDeadlineExceeded), model.ErrBusy)
	other := errors.New("other")
	require.Equal(t, other, meaning(other))
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{unix.AF_INET, 24, 0, 0, 1, 0, 0, 0, 8, 0, unix.IFA_ADDRESS, 0, 10, 0, 0, 1, 8, 0, unix.IFA_LOCAL, 0, 10, 0, 0, 2})
	f.Add([]byte{unix.AF_INET6, 64, unix.IFA_F_TENTATIVE, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, ok := decode(b); ok && (!a.IsValid() || a.IsLoopback() || a.Zone() != "" || (model.Node{Addrs: []netip.Addr{a}}).Validate() != nil) {
			t.Fatalf("%v", a)
		}
	})
}

func TestDecode(t *testing.T) {
	a, ok := decode([]byte{unix.AF_INET, 24, 0, 0, 1, 0, 0, 0, 8, 0, unix.IFA_ADDRESS, 0, 10, 0, 0, 1, 8, 0, unix.IFA_LOCAL, 0, 10, 0, 0, 2})
	require.True(t, ok)
	require.Equal(t, netip.MustParseAddr("10.0.0.2"), a, "the near end of a point-to-point link")
	a, ok = decode([]byte{unix.AF_INET, 24, 0, 0, 1, 0, 0, 0, 8, 0, unix.IFA_LOCAL, 0, 10, 0, 0, 2, 8, 0, unix.IFA_ADDRESS, 0, 10, 0, 0, 1})
	require.True(t, ok)
	require.Equal(t, netip.MustParseAddr("10.0.0.2"), a)
	_, ok = decode([]byte{unix.AF_INET})
	require.False(t, ok)
}
