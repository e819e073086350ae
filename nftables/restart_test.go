package nftables_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/internal/nlink"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/headgate/headgate/nftables"
)

// A work counts what batches ask of the kernel: messages by type, and rules by what is looked up in them.
type work struct {
	messages map[int]int
	rules    []string
}

func (w *work) note(batch []byte) {
	for len(batch) > 0 {
		size := nlink.MessageLen(batch)
		typ := int(binary.NativeEndian.Uint16(batch[4:])) & 0xff
		w.messages[typ]++
		if typ == unix.NFT_MSG_NEWRULE {
			w.rules = append(w.rules, string(batch[:size]))
		}
		batch = batch[size:]
	}
}

// uses counts the rules that look something up in a map.
func (w *work) uses(name string) (n int) {
	for _, r := range w.rules {
		if strings.Contains(r, "lookup\x00") && strings.Contains(r, name+"\x00") {
			n++
		}
	}
	return n
}

// newWorking returns a Programmer in a namespace whose work is counted from each call of the function on.
func newWorking(t *testing.T, ns *lab.NetNS) (p *nftables.Programmer, reset func() *work) {
	w := &work{messages: map[int]int{}}
	p, err := nftables.New(context.Background(), nftables.Config{NetNS: ns.FD(), Trace: func(b []byte) { w.note(b) }})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p, func() *work {
		w = &work{messages: map[int]int{}}
		return w
	}
}

// variety is a state in which services of every sort have chains, maps and slots.
func variety() model.State {
	return modeltest.Big(40, 5, func(s *model.Service, i int) {
		switch i % 4 {
		case 1:
			s.Balance = model.RoundRobin
		case 2:
			s.Balance = model.Maglev
		case 3:
			s.Affinity = 10800e9
		}
	})
}

// After a restart, rules that are right stay: nothing is written but elements, and counters and handles live on.
func TestRestartLeavesRules(t *testing.T) {
	lab.NeedRoot(t)
	ctx := context.Background()
	ns := lab.StartNetNS(t, "restart")
	p, _ := newWorking(t, ns)
	_, err := p.Sync(ctx, variety())
	require.NoError(t, err)
	listing := func() string {
		out, err := run(ns.FD(), "", "nft", "-a", "-s", "-t", "list", "ruleset")
		require.NoError(t, err)
		return out
	}
	before := listing()

	p, reset := newWorking(t, ns)
	w := reset()
	_, err = p.Sync(ctx, variety())
	require.NoError(t, err)
	require.Equal(t, before, listing())
	require.Positive(t, w.messages[unix.NFT_MSG_NEWSETELEM])
	for _, typ := range []int{unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE, unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET} {
		require.Zero(t, w.messages[typ], "messages of type %d", typ)
	}
	require.NoError(t, p.Check(ctx))

	// What is there still counts as ours: somebody who takes a rule away is noticed.
	_, err = run(ns.FD(), "flush chain ip headgate draw-6", "nft", "-f", "-")
	require.NoError(t, err)
	require.ErrorIs(t, p.Check(ctx), model.ErrDrift)
	w = reset()
	_, err = p.Sync(ctx, variety())
	require.NoError(t, err)
	require.Equal(t, 1, w.messages[unix.NFT_MSG_NEWRULE])
	require.NoError(t, p.Check(ctx))
}

// What nft has printed and loaded again is not known for ours any more, and is written anew.
func TestRestartOntoWhatNftLoaded(t *testing.T) {
	lab.NeedRoot(t)
	ctx := context.Background()
	ns := lab.StartNetNS(t, "reload")
	p, _ := newWorking(t, ns)
	_, err := p.Sync(ctx, variety())
	require.NoError(t, err)
	before := holds(t, ns)
	printed, err := run(ns.FD(), "", "nft", "list", "ruleset")
	require.NoError(t, err)
	_, err = run(ns.FD(), "flush ruleset\n"+printed, "nft", "-f", "-")
	require.NoError(t, err)
	require.ErrorIs(t, p.Check(ctx), model.ErrDrift)
	p, reset := newWorking(t, ns)
	w := reset()
	_, err = p.Sync(ctx, variety())
	require.NoError(t, err)
	require.Greater(t, w.messages[unix.NFT_MSG_NEWRULE], 100)
	require.Equal(t, before, holds(t, ns))
	require.NoError(t, p.Check(ctx))
}

// The kernel walks through a whole map for each new rule that uses it. So a service that needs chains which are not there
// yet brings one such rule for each, not one for every time that its endpoints are drawn, and one that is served in turn
// none for the map of all the others.
func TestNewChainsUseBigMapsOnce(t *testing.T) {
	lab.NeedRoot(t)
	ctx := context.Background()
	tracker := model.NewTracker(model.Node{Name: "node"})
	tracker.Replace(modeltest.Big(100, 10))
	p, reset := newWorking(t, lab.StartNetNS(t, "chains"))
	_, err := p.Sync(ctx, tracker.State())
	require.NoError(t, err)
	tracker.Diff()
	for i, c := range []struct {
		balance          model.Balance
		endpoints, rules int
	}{
		{model.Random, 40, 1},
		{model.Random, 41, 0},
		{model.Maglev, 5, 1},
		{model.RoundRobin, 5, 0},
	} {
		name, addr := model.ServiceName(fmt.Sprint("new-", i)), netip.AddrFrom4([4]byte{10, 250, 0, byte(i)})
		tracker.SetService(name, model.Service{Frontends: []model.Frontend{{Addr: netip.AddrPortFrom(addr, 80)}}, Balance: c.balance})
		var endpoints []model.Endpoint
		for j := range c.endpoints {
			endpoints = append(endpoints, model.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 251, byte(i), byte(j)}), 8080)})
		}
		tracker.SetEndpoints(name, endpoints)
		w := reset()
		res, err := p.Apply(ctx, tracker.Diff())
		require.NoError(t, err)
		require.NoError(t, res.Err())
		require.Equal(t, c.rules, w.uses("endpoints"), "%s over %d", c.balance, c.endpoints)
	}
}

// Every new connection passes the chains that record affinity, so they are there only if a service has it.
func TestAffinityChainsComeWithAffinity(t *testing.T) {
	lab.NeedRoot(t)
	ctx := context.Background()
	tracker := model.NewTracker(model.Node{Name: "node"})
	tracker.Replace(modeltest.Big(3, 2))
	ns := lab.StartNetNS(t, "recording")
	p, reset := newWorking(t, ns)
	recording := func() bool { return strings.Contains(strings.Join(holds(t, ns), "\n"), "nat-record") }
	_, err := p.Sync(ctx, tracker.State())
	require.NoError(t, err)
	require.False(t, recording())
	for i := range 2 {
		svc := tracker.State().Services[modeltest.BigName(i)]
		svc.Affinity = time.Hour
		tracker.SetService(modeltest.BigName(i), svc)
		w := reset()
		_, err = p.Apply(ctx, tracker.Diff())
		require.NoError(t, err)
		require.True(t, recording())
		require.Equal(t, []int{3 * 2, 0}[i], w.uses("affinity"), "service %d", i)
	}
	require.NoError(t, p.Check(ctx))
	_, err = p.Sync(ctx, modeltest.Big(3, 2))
	require.NoError(t, err)
	require.False(t, recording())
	require.NoError(t, p.Check(ctx))
}
