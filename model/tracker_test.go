package model_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
func pfx(s string) netip.Prefix  { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr   { return netip.MustParseAddr(s) }

// svc returns a service with internal frontends at the given addresses.
func svc(at ...string) model.Service {
	var s model.Service
	for _, a := range at {
		s.Frontends = append(s.Frontends, model.Frontend{Addr: ap(a)})
	}
	return s
}

func eps(at ...string) []model.Endpoint {
	var out []model.Endpoint
	for _, a := range at {
		out = append(out, model.Endpoint{Addr: ap(a)})
	}
	return out
}

func changed(d model.Diff) []model.ServiceName {
	var names []model.ServiceName
	for _, c := range d.Changes {
		names = append(names, c.Name)
	}
	return names
}

func TestZeroTracker(t *testing.T) {
	var tr model.Tracker
	require.True(t, tr.Diff().Empty())
	require.Zero(t, tr.Pending())
	tr.SetEndpoints("a", eps("10.0.0.1:80"))
	tr.SetService("a", svc("172.20.0.1:80"))
	d := tr.Diff()
	require.Equal(t, []model.ServiceName{"a"}, changed(d))
	require.Nil(t, d.Changes[0].Before)
	require.Equal(t, &model.Entry{Service: svc("172.20.0.1:80"), Endpoints: eps("10.0.0.1:80")}, d.Changes[0].After)
	require.Nil(t, d.Node)
	require.True(t, tr.Diff().Empty(), "a diff is handed out once")
}

// Whatever leads back to where it began is no change, in whatever order it happened.
func TestTrackerCancelsOut(t *testing.T) {
	base := func() *model.Tracker {
		tr := model.NewTracker(model.Node{Name: "n"})
		tr.SetService("held", svc("172.20.0.1:80"))
		tr.SetEndpoints("held", eps("10.0.0.1:80"))
		tr.SetService("bare", svc("172.20.0.2:80"))
		tr.SetEndpoints("orphan", eps("10.0.0.9:80"))
		tr.Diff()
		return tr
	}
	for name, do := range map[string]func(*model.Tracker){
		"add then delete": func(tr *model.Tracker) { tr.SetService("new", svc()); tr.DeleteService("new") },
		"delete then add": func(tr *model.Tracker) { tr.DeleteService("held"); tr.SetService("held", svc("172.20.0.1:80")) },
		"change and back": func(tr *model.Tracker) {
			tr.SetService("held", svc("172.20.0.7:80"))
			tr.SetService("held", svc("172.20.0.1:80"))
		},
		"endpoints and back": func(tr *model.Tracker) { tr.SetEndpoints("held", nil); tr.SetEndpoints("held", eps("10.0.0.1:80")) },
		"endpoints of nobody": func(tr *model.Tracker) {
			tr.SetEndpoints("orphan", eps("10.0.0.8:80"))
			tr.SetEndpoints("nobody", eps("10.0.0.8:80"))
		},
		"endpoints while deleted": func(tr *model.Tracker) {
			tr.DeleteService("held")
			tr.SetEndpoints("held", eps("10.0.0.2:80"))
			tr.SetEndpoints("held", eps("10.0.0.1:80"))
			tr.SetService("held", svc("172.20.0.1:80"))
		},
		"delete what is not there": func(tr *model.Tracker) { tr.DeleteService("nobody"); tr.SetEndpoints("nobody", nil) },
		"the same again": func(tr *model.Tracker) {
			tr.SetService("held", svc("172.20.0.1:80"))
			tr.SetEndpoints("held", eps("10.0.0.1:80"))
			tr.SetEndpoints("bare", nil)
			tr.SetEndpoints("bare", []model.Endpoint{})
		},
		"node and back": func(tr *model.Tracker) { tr.SetNode(model.Node{Name: "m"}); tr.SetNode(model.Node{Name: "n"}) },
		"replace by the same": func(tr *model.Tracker) {
			tr.Replace(tr.State())
		},
		"replace and back": func(tr *model.Tracker) {
			s := tr.State()
			tr.Replace(model.State{Node: model.Node{Name: "m"}})
			tr.Replace(s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr := base()
			do(tr)
			require.Zero(t, tr.Pending())
			require.True(t, tr.Diff().Empty())
		})
	}
}

func TestTrackerDiff(t *testing.T) {
	tr := model.NewTracker(model.Node{Name: "n"})
	for _, name := range []model.ServiceName{"c", "a", "b", "gone"} {
		tr.SetService(name, svc("172.20.0.1:80"))
	}
	require.Equal(t, 4, tr.Pending())
	require.Equal(t, []model.ServiceName{"a", "b", "c", "gone"}, changed(tr.Diff()), "sorted")

	tr.SetNode(model.Node{Name: "m"})
	tr.SetEndpoints("b", eps("10.0.0.1:80"))
	tr.SetEndpoints("b", eps("10.0.0.2:80"))
	tr.DeleteService("gone")
	require.Equal(t, 3, tr.Pending(), "the node counts as one")
	d := tr.Diff()
	require.Equal(t, "m", d.Node.Name)
	require.Equal(t, []model.ServiceName{"b", "gone"}, changed(d))
	require.Equal(t, model.Change{Name: "b", Before: &model.Entry{Service: svc("172.20.0.1:80")},
		After: &model.Entry{Service: svc("172.20.0.1:80"), Endpoints: eps("10.0.0.2:80")}}, d.Changes[0], "before is what was handed out last")
	require.Nil(t, d.Changes[1].After)
	require.NotNil(t, d.Changes[1].Before)

	tr.SetService("gone", svc("172.20.0.1:80"))
	require.Nil(t, tr.Diff().Changes[0].Before, "what was deleted is new when it comes back")
}

func TestTrackerStateStartsAnew(t *testing.T) {
	tr := model.NewTracker(model.Node{Name: "n"})
	tr.SetService("a", svc("172.20.0.1:80"))
	tr.SetEndpoints("a", eps("10.0.0.1:80"))
	tr.SetNode(model.Node{Name: "m"})
	s := tr.State()
	require.Equal(t, model.State{Node: model.Node{Name: "m"}, Services: model.ServiceMap{"a": svc("172.20.0.1:80")},
		Endpoints: model.EndpointMap{"a": eps("10.0.0.1:80")}}, s)
	require.True(t, tr.Diff().Empty(), "State hands out all that was pending")
	tr.DeleteService("a")
	require.Contains(t, s.Services, model.ServiceName("a"), "a State does not change under its holder")
}

func TestTrackerReplace(t *testing.T) {
	tr := model.NewTracker(model.Node{})
	tr.SetService("gone", svc("172.20.0.1:80"))
	tr.SetService("kept", svc("172.20.0.2:80"))
	tr.SetEndpoints("kept", eps("10.0.0.1:80", "10.0.0.2:80"))
	tr.SetService("bare", svc("172.20.0.3:80"))
	tr.SetEndpoints("bare", eps("10.0.0.1:80"))
	tr.SetEndpoints("nobody", eps("10.0.0.1:80"))
	tr.Diff()
	tr.Replace(model.State{
		Services:  model.ServiceMap{"kept": svc("172.20.0.2:80"), "bare": svc("172.20.0.3:80"), "new": svc("172.20.0.4:80")},
		Endpoints: model.EndpointMap{"kept": eps("10.0.0.1:80")},
	})
	d := tr.Diff()
	require.Equal(t, []model.ServiceName{"bare", "gone", "kept", "new"}, changed(d))
	require.Nil(t, d.Changes[0].After.Endpoints, "endpoints that are not named go")
	require.Nil(t, d.Changes[1].After)
	require.Len(t, d.Changes[2].After.Endpoints, 1)
	tr.SetService("nobody", svc())
	require.Nil(t, tr.Diff().Changes[0].After.Endpoints, "so do those of a service that is not there")
}

// What was passed in may be scribbled over; what was handed out does not change any more.
func TestTrackerCopies(t *testing.T) {
	node := model.Node{Addrs: []netip.Addr{addr("10.0.0.1")}, Detector: model.LocalDetector{Interfaces: []string{"veth"}}}
	tr := model.NewTracker(node)
	s := svc("172.20.0.1:80")
	s.Frontends[0].SourceRanges = []netip.Prefix{pfx("10.0.0.0/8")}
	es := []model.Endpoint{{Addr: ap("10.0.0.1:80"), Zones: []string{"z"}, Nodes: []string{"n"}}}
	tr.SetService("a", s)
	tr.SetEndpoints("a", es)
	other := node
	other.Primary = []netip.Addr{addr("10.0.0.1")}
	tr.SetNode(other)
	s.Frontends[0].SourceRanges[0] = pfx("1.1.1.1/32")
	s.Frontends[0].Addr = ap("1.1.1.1:1")
	es[0].Zones[0], es[0].Nodes[0] = "scribbled", "scribbled"
	es[0].Addr = ap("1.1.1.1:1")
	node.Addrs[0], node.Detector.Interfaces[0], other.Primary[0] = addr("1.1.1.1"), "scribbled", addr("1.1.1.1")

	d := tr.Diff()
	after := d.Changes[0].After
	require.Equal(t, ap("172.20.0.1:80"), after.Service.Frontends[0].Addr)
	require.Equal(t, pfx("10.0.0.0/8"), after.Service.Frontends[0].SourceRanges[0])
	require.Equal(t, model.Endpoint{Addr: ap("10.0.0.1:80"), Zones: []string{"z"}, Nodes: []string{"n"}}, after.Endpoints[0])
	require.Equal(t, []netip.Addr{addr("10.0.0.1")}, d.Node.Addrs)
	require.Equal(t, []netip.Addr{addr("10.0.0.1")}, d.Node.Primary)
	require.Equal(t, []string{"veth"}, d.Node.Detector.Interfaces)

	tr.SetEndpoints("a", eps("10.0.0.2:80"))
	tr.SetService("a", svc("172.20.0.2:80"))
	tr.SetNode(model.Node{})
	require.Equal(t, ap("10.0.0.1:80"), after.Endpoints[0].Addr)
	require.Equal(t, ap("172.20.0.1:80"), after.Service.Frontends[0].Addr)
	require.Equal(t, []netip.Addr{addr("10.0.0.1")}, d.Node.Addrs)
}

// Goroutines that each own a service, and one that takes what is pending: what was taken, one after the other, leads to
// what the tracker holds.
func TestTrackerConcurrently(t *testing.T) {
	tr := model.NewTracker(model.Node{})
	var writers, taker sync.WaitGroup
	for g := range 8 {
		writers.Go(func() {
			chance := rand.New(rand.NewPCG(uint64(g), 1))
			name := model.ServiceName(fmt.Sprintf("s%d", g))
			for range 500 {
				switch chance.IntN(5) {
				case 0:
					tr.DeleteService(name)
				case 1:
					tr.SetEndpoints(name, nil)
				case 2:
					tr.SetNode(model.Node{Zone: fmt.Sprint(chance.IntN(3))})
				case 3:
					tr.SetEndpoints(name, eps(fmt.Sprintf("10.0.0.%d:80", 1+chance.IntN(3))))
				default:
					tr.SetService(name, svc(fmt.Sprintf("172.20.0.%d:80", 1+chance.IntN(3))))
				}
			}
		})
	}
	stop := make(chan struct{})
	held := map[model.ServiceName]*model.Entry{}
	node := model.Node{}
	take := func() {
		d := tr.Diff()
		if d.Node != nil {
			node = *d.Node
		}
		for _, c := range d.Changes {
			if b := held[c.Name]; (b == nil) != (c.Before == nil) || b != nil && (!b.Service.Equal(c.Before.Service) || !model.EqualEndpoints(b.Endpoints, c.Before.Endpoints)) {
				t.Errorf("%s: the change starts from %+v, but what was handed out is %+v", c.Name, c.Before, b)
			}
			held[c.Name] = c.After
		}
		tr.Pending()
	}
	taker.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				take()
			}
		}
	})
	writers.Wait()
	close(stop)
	taker.Wait()
	take()
	s := tr.State()
	require.True(t, node.Equal(s.Node))
	for name, e := range held {
		if e == nil {
			require.NotContains(t, s.Services, name)
			continue
		}
		require.Equal(t, s.Services[name], e.Service)
		require.True(t, model.EqualEndpoints(s.Endpoints[name], e.Endpoints))
	}
}

// DiffStates of two states leads from the one to the other, in whatever way they differ.
func TestDiffStates(t *testing.T) {
	a := model.State{Node: model.Node{Name: "a"}, Services: model.ServiceMap{"x": svc("172.20.0.1:80"), "y": svc("172.20.0.2:80")},
		Endpoints: model.EndpointMap{"x": eps("10.0.0.1:80"), "nobody": eps("10.0.0.1:80")}}
	b := model.State{Node: model.Node{Name: "b"}, Services: model.ServiceMap{"y": svc("172.20.0.2:80"), "z": svc("172.20.0.3:80")},
		Endpoints: model.EndpointMap{"y": eps("10.0.0.2:80")}}
	require.True(t, model.DiffStates(a, a).Empty())
	d := model.DiffStates(a, b)
	require.Equal(t, "b", d.Node.Name)
	require.Equal(t, []model.ServiceName{"x", "y", "z"}, changed(d))
	require.Nil(t, d.Changes[0].After)
	require.Nil(t, d.Changes[2].Before)
	require.False(t, d.Empty())
	require.True(t, model.Diff{}.Empty())
	require.False(t, model.Diff{Node: &model.Node{}}.Empty())
}

func TestEqual(t *testing.T) {
	full := func() model.Service {
		return model.Service{Protocol: model.UDP, Balance: model.Maglev, HashPort: true, Affinity: time.Second, InternalTraffic: model.Local, ExternalTraffic: model.Local,
			Frontends: []model.Frontend{{Kind: model.External, Addr: ap("192.0.2.1:80"), SourceRanges: []netip.Prefix{pfx("10.0.0.0/8"), pfx("11.0.0.0/8")}}, {Addr: ap("172.20.0.1:80")}}}
	}
	require.True(t, full().Equal(full()))
	for name, change := range map[string]func(*model.Service){
		"protocol": func(s *model.Service) { s.Protocol = model.TCP }, "balance": func(s *model.Service) { s.Balance = model.Random },
		"hash port": func(s *model.Service) { s.HashPort = false }, "affinity": func(s *model.Service) { s.Affinity++ },
		"internal": func(s *model.Service) { s.InternalTraffic = model.Cluster }, "external": func(s *model.Service) { s.ExternalTraffic = model.Cluster },
		"order": func(s *model.Service) { slices.Reverse(s.Frontends) }, "fewer": func(s *model.Service) { s.Frontends = s.Frontends[:1] },
		"kind": func(s *model.Service) { s.Frontends[0].Kind = model.Internal }, "address": func(s *model.Service) { s.Frontends[0].Addr = ap("192.0.2.2:80") },
		"ranges": func(s *model.Service) { s.Frontends[0].SourceRanges = nil }, "order of ranges": func(s *model.Service) { slices.Reverse(s.Frontends[0].SourceRanges) },
	} {
		s := full()
		change(&s)
		require.False(t, s.Equal(full()), name)
		require.False(t, full().Equal(s), name)
	}
	ep := func() model.Endpoint {
		return model.Endpoint{Addr: ap("10.0.0.1:80"), State: model.Draining, Local: true, Zones: []string{"a", "b"}, Nodes: []string{"c"}, Weight: 2}
	}
	require.True(t, ep().Equal(ep()))
	for name, change := range map[string]func(*model.Endpoint){
		"address": func(e *model.Endpoint) { e.Addr = ap("10.0.0.1:81") }, "state": func(e *model.Endpoint) { e.State = model.Ready }, "local": func(e *model.Endpoint) { e.Local = false },
		"zones": func(e *model.Endpoint) { e.Zones = nil }, "nodes": func(e *model.Endpoint) { e.Nodes = []string{"d"} }, "weight": func(e *model.Endpoint) { e.Weight = 1 },
	} {
		e := ep()
		change(&e)
		require.False(t, e.Equal(ep()), name)
		require.False(t, model.EqualEndpoints([]model.Endpoint{e}, []model.Endpoint{ep()}), name)
	}
	require.True(t, model.EqualEndpoints(nil, []model.Endpoint{}))
	require.False(t, model.EqualEndpoints(nil, []model.Endpoint{ep()}))
}

func TestNodeEqual(t *testing.T) {
	full := func() model.Node {
		return model.Node{Name: "n", Zone: "z", Addrs: []netip.Addr{addr("10.0.0.1")}, Primary: []netip.Addr{addr("10.0.0.1")},
			Detector:      model.LocalDetector{Prefixes: []netip.Prefix{pfx("10.0.0.0/8")}, Interfaces: []string{"veth"}},
			NodePorts:     model.NodePortScope{Prefixes: []netip.Prefix{pfx("10.0.0.0/8")}, Primary: true, Loopback: true},
			ServiceRanges: []netip.Prefix{pfx("172.20.0.0/16")}, MasqueradeAll: true, KeepClientAddress: true}
	}
	require.True(t, full().Equal(full()))
	for name, change := range map[string]func(*model.Node){
		"name": func(n *model.Node) { n.Name = "" }, "zone": func(n *model.Node) { n.Zone = "" }, "addrs": func(n *model.Node) { n.Addrs = nil },
		"primary": func(n *model.Node) { n.Primary[0] = addr("10.0.0.2") }, "detector prefixes": func(n *model.Node) { n.Detector.Prefixes = nil },
		"detector interfaces": func(n *model.Node) { n.Detector.Interfaces[0] = "x" }, "scope prefixes": func(n *model.Node) { n.NodePorts.Prefixes = nil },
		"scope primary": func(n *model.Node) { n.NodePorts.Primary = false }, "scope loopback": func(n *model.Node) { n.NodePorts.Loopback = false },
		"service ranges": func(n *model.Node) { n.ServiceRanges = nil }, "masquerade": func(n *model.Node) { n.MasqueradeAll = false },
		"keep": func(n *model.Node) { n.KeepClientAddress = false },
	} {
		n := full()
		change(&n)
		require.False(t, n.Equal(full()), name)
		require.False(t, full().Equal(n), name)
	}
}
