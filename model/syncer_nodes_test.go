package model

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A teller is a NodeWatcher that tells what it is given.
type teller struct{ say chan any } // []netip.Addr or error

func (w teller) Watch(ctx context.Context, told func([]netip.Addr)) error {
	for {
		select {
		case s := <-w.say:
			if err, ok := s.(error); ok {
				return err
			}
			told(s.([]netip.Addr))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func addrsOf(ss ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range ss {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func withTeller(t *testing.T, test func(t *testing.T, b *bench, say func(any))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := teller{make(chan any)}
		cfg := quiet
		cfg.Nodes = w
		p := newScripted("scripted")
		b := &bench{Syncer: NewSyncer(p, cfg), p: p, t: t}
		b.random = func() float64 { return 0.5 }
		require.NoError(t, b.Replace(State{Node: Node{Zone: "z", Addrs: addrsOf("198.51.100.99")}}))
		b.run()
		test(t, b, func(s any) { w.say <- s; synctest.Wait() })
	})
}

func TestNodeAddressesAreFollowed(t *testing.T) {
	withTeller(t, func(t *testing.T, b *bench, say func(any)) {
		b.after(time.Minute)
		require.Empty(t, b.p.calls(), "without its addresses the node is not complete")
		node := func() Node { b.p.mu.Lock(); defer b.p.mu.Unlock(); return b.p.resolver.Node() }

		mine := addrsOf("2001:db8::1", "198.51.100.1")
		say(mine)
		require.Equal(t, []string{"1m0s sync "}, b.p.calls())
		require.Equal(t, Node{Zone: "z", Addrs: addrsOf("198.51.100.1", "2001:db8::1")}, node())
		mine[0] = netip.MustParseAddr("203.0.113.1")
		require.Equal(t, addrsOf("198.51.100.1", "2001:db8::1"), node().Addrs, "it is a copy")

		say(addrsOf("198.51.100.1", "198.51.100.2"))
		require.Equal(t, []string{"1m0s apply node"}, b.p.calls())
		require.Equal(t, addrsOf("198.51.100.1", "198.51.100.2"), node().Addrs)
		say(addrsOf("198.51.100.2", "198.51.100.1"))
		require.Empty(t, b.p.calls(), "the same")

		require.NoError(t, b.SetNode(Node{Zone: "y"}))
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, Node{Zone: "y", Addrs: addrsOf("198.51.100.1", "198.51.100.2")}, node())
		require.NoError(t, b.Replace(State{Node: Node{Zone: "x"}}))
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, Node{Zone: "x", Addrs: addrsOf("198.51.100.1", "198.51.100.2")}, node())

		b.p.calls()
		say([]netip.Addr{netip.MustParseAddr("fe80::1%eth0")})
		require.Empty(t, b.p.calls(), "what makes no sense is not taken")
		say([]netip.Addr{})
		require.Empty(t, node().Addrs, "a node may lose all of them")
	})
}

func TestNodeWatcherThatFails(t *testing.T) {
	withTeller(t, func(t *testing.T, b *bench, say func(any)) {
		say(errBroken)
		require.Equal(t, []string{"0s sync "}, b.p.calls(), "it goes on without, with the addresses that were set")
		require.Equal(t, addrsOf("198.51.100.99"), b.p.resolver.Node().Addrs)
		say(errBroken) // when it is asked again
		require.Equal(t, 150*time.Millisecond, time.Since(b.p.began))
		say(addrsOf("198.51.100.1"))
		require.Equal(t, []string{"450ms apply node"}, b.p.calls())
	})
}

// Addresses that make no sense, though the first that are told, are no reason to do nothing for ever.
func TestNodeWatcherThatMakesNoSense(t *testing.T) {
	withTeller(t, func(t *testing.T, b *bench, say func(any)) {
		say([]netip.Addr{{}})
		require.Equal(t, []string{"0s sync "}, b.p.calls())
		require.Equal(t, addrsOf("198.51.100.99"), b.p.resolver.Node().Addrs)
	})
}

func TestSenselessNodeIsRefused(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.run()
		bad := Node{Addrs: []netip.Addr{{}}}
		require.ErrorIs(t, b.Replace(State{Node: bad}), ErrInvalid)
		b.after(time.Minute)
		require.Empty(t, b.p.calls(), "nothing was taken")
		require.NoError(t, b.Replace(State{Node: Node{Zone: "z"}}))
		require.ErrorIs(t, b.SetNode(bad), ErrInvalid)
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, Node{Zone: "z"}, b.p.resolver.Node())
	})
}

func TestNodeIsCopied(t *testing.T) {
	bubble(t, quiet, func(t *testing.T, b *bench) {
		b.start()
		mine := addrsOf("198.51.100.1")
		require.NoError(t, b.SetNode(Node{Addrs: mine}))
		before := slices.Clone(mine)
		mine[0] = netip.MustParseAddr("203.0.113.1")
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, before, b.p.resolver.Node().Addrs)
		b.SetService("a", svc("10.0.0.1:80"))
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, before, b.p.resolver.Node().Addrs)
	})
}
