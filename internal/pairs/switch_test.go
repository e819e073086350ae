package pairs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

// A street is a node with a pod and a client outside, and three servers on it. The servers have a way back to pods and
// to the node alone, so that a client outside that is not masqueraded gets no answer.
type street struct {
	*lab.Topology
	state model.State
}

var (
	virtual = netip.MustParseAddrPort("10.96.0.1:80")
	public  = netip.MustParseAddrPort("198.51.100.80:80")
	pod     = netip.MustParseAddr("10.244.0.100")
	outside = netip.MustParseAddr("203.0.113.5")
)

// aWhile is long enough for some connections.
var aWhile = map[bool]time.Duration{false: 50 * time.Millisecond, true: time.Second}[emulated]

func newStreet(t *testing.T) *street {
	t.Helper()
	pods, node := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParseAddr("192.0.2.1")
	hosts := []lab.Host{
		{Name: "pod", Addrs: []netip.Addr{pod}},
		{Name: "outside", Place: lab.Far, Addrs: []netip.Addr{outside}},
	}
	var eps []model.Endpoint
	for i := range 3 {
		addr := netip.AddrFrom4([4]byte{10, 244, 0, byte(1 + i)})
		hosts = append(hosts, lab.Host{Name: fmt.Sprint("server-", i), Addrs: []netip.Addr{addr}, Reach: []netip.Prefix{pods, netip.PrefixFrom(node, 32)}})
		eps = append(eps, model.Endpoint{Addr: netip.AddrPortFrom(addr, 8080), Local: true})
	}
	s := &street{Topology: lab.Start(t, lab.Spec{Node: []netip.Addr{node}, Hosts: hosts})}
	for _, e := range eps {
		lab.Serve(t, s.Topology, lab.TCP, e.Addr)
	}
	s.state = model.State{
		Node: model.Node{Name: "node", Addrs: []netip.Addr{node}, Primary: []netip.Addr{node}, Detector: model.LocalDetector{Prefixes: []netip.Prefix{pods}}},
		Services: model.ServiceMap{
			"default/web": {Frontends: []model.Frontend{{Addr: virtual}, {Kind: model.External, Addr: public}}},
			// What it refuses must not spread to others.
			"default/empty": {Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.2:80")}}},
		},
		Endpoints: model.EndpointMap{"default/web": eps},
	}
	return s
}

// under makes a change while connections from the pod and from outside stay open and new ones keep arriving, and
// requires that none of them notices.
func (s *street) under(t *testing.T, change func(ctx context.Context) error) {
	t.Helper()
	load := func(from netip.Addr, to netip.AddrPort) lab.Load {
		l := lab.Load{Query: lab.Query{Proto: lab.TCP, Source: netip.AddrPortFrom(from, 0), To: to}, Workers: 2, Flows: 3}
		if emulated {
			l.Slow, l.Pause, l.Workers, l.Rate, l.Flows = 20*time.Second, 100*time.Millisecond, 1, 10, 1
		}
		return l
	}
	var inner lab.Report
	outer, err := s.Load(t.Context(), load(outside, public), func(ctx context.Context) (err error) {
		inner, err = s.Load(ctx, load(pod, virtual), func(ctx context.Context) error {
			err := change(ctx)
			time.Sleep(aWhile) // some connections more
			return err
		})
		return err
	})
	require.NoError(t, err)
	for who, r := range map[string]lab.Report{"the client outside": outer, "the pod": inner} {
		require.NoError(t, r.Err(), who)
		require.Greater(t, r.Asked, 3, "%s sent hardly anything", who)
		require.Positive(t, r.Pings, "%s had no open connection", who)
	}
	for peer := range outer.ByPeer {
		require.Equal(t, netip.MustParseAddr("192.0.2.1"), peer, "the client outside is masqueraded")
	}
	for peer := range inner.ByPeer {
		require.Equal(t, pod, peer, "the pod is not")
	}
	t.Logf("%d and %d connections, %d and %d answers on open ones in %v, the slowest %v", outer.Asked, inner.Asked, outer.Pings, inner.Pings, inner.Took, max(inner.Slowest, outer.Slowest))
}

// A node is moved from each backend to each other: first in vain, and then for good.
func TestSwitch(t *testing.T) {
	eachPair(t, func(t *testing.T, from, to backend) {
		s := newStreet(t)
		old, new := from.open(t, s.Node), to.open(t, s.Node)
		_, err := old.Sync(t.Context(), s.state)
		require.NoError(t, err)
		require.NotEmpty(t, from.left(t, s.Node))
		require.Empty(t, to.left(t, s.Node))
		s.switchInVain(t, from, to, old, new)
		s.switchForGood(t, from, to, old, new)
		s.under(t, func(context.Context) error { return nil })
	})
}

// A doubter is a Programmer whose Check is never content.
type doubter struct{ model.Programmer }

var errDoubt = errors.New("somehow it does not look right")

func (doubter) Check(context.Context) error { return errDoubt }

// switchInVain switches to a backend that fails when it is already in force: the old one still is, nothing of the new one
// stays, and nobody noticed.
func (s *street) switchInVain(t *testing.T, from, to backend, old, new model.Programmer) {
	t.Helper()
	before := from.left(t, s.Node)
	s.under(t, func(ctx context.Context) error {
		sw, err := model.Switch(ctx, old, doubter{new}, s.state)
		if !errors.Is(err, errDoubt) || sw.Active {
			return fmt.Errorf("active: %v: %w", sw.Active, err)
		}
		return nil
	})
	require.Empty(t, to.left(t, s.Node))
	require.Equal(t, before, from.left(t, s.Node))
	require.NoError(t, old.Check(t.Context()))
	res, err := old.Apply(t.Context(), model.Diff{})
	require.NoError(t, err)
	require.Zero(t, res.Written())
}

// switchForGood switches: no connection is lost or reset, and nothing of the old one stays.
func (s *street) switchForGood(t *testing.T, from, to backend, old, new model.Programmer) {
	t.Helper()
	var sw model.Switched
	s.under(t, func(ctx context.Context) (err error) {
		sw, err = model.Switch(ctx, old, new, s.state)
		return err
	})
	require.True(t, sw.Active)
	_, drains := old.(model.Drainer)
	require.Equal(t, drains, len(sw.Remains) > 0, "what open connections need: %v", sw.Remains)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, sw.Drained(ctx), "now that the connections have ended")
	require.Empty(t, from.left(t, s.Node))
	require.NotEmpty(t, to.left(t, s.Node))
	require.NoError(t, new.Check(t.Context()))
}
