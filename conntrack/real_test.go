package conntrack

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// The tests in this file send real packets: a client keeps its source port, so that all it sends is one flow; the
// stock nft translates. What each flow meets afterwards is asked of the servers, not of the table.

// everywhere is a UDP service on a virtual address, an external one and a node port, in both families.
func everywhere() model.Service {
	s := service(at(vip, 53), at(vip6, 53))
	s.Frontends = append(s.Frontends, model.Frontend{Kind: model.External, Addr: at(ext, 530)}, nodePort(30053))
	return s
}

// on returns a stage that balances everywhere over endpoints, with all rules in place and nothing owed.
func on(t *testing.T, cfg Config, eps ...netip.AddrPort) *stage {
	t.Helper()
	s := newStage(t, cfg)
	s.tracker.SetService("dns", everywhere())
	s.tracker.SetEndpoints("dns", endpoints(eps...))
	s.sync()
	require.Zero(t, settle(t, s.cleaner))
	return s
}

// talkEverywhere opens a flow over each kind of frontend and returns their names.
func (s *stage) talkEverywhere(answer string) []string {
	s.t.Helper()
	require.Equal(s.t, answer, s.talk("external", outside, at(ext, 530)))
	require.Equal(s.t, answer, s.talk("node itself", node, at(vip, 53)))
	require.Equal(s.t, answer, s.talk("node port", outside, at(node, 30053)))
	require.Equal(s.t, answer, s.talk("second node port", outside, at(node2, 30053)))
	require.Equal(s.t, answer, s.talk("vip", pod, at(vip, 53)))
	return []string{"external", "node itself", "node port", "second node port", "vip"}
}

func (s *stage) requireAll(names []string, answer string) {
	s.t.Helper()
	for _, name := range names {
		require.Equal(s.t, answer, s.again(name), name)
	}
}

func TestRealEndpointRemoved(t *testing.T) {
	s := on(t, Config{}, at(podA, 5353))
	names := s.talkEverywhere("10.128.0.11:5353")
	s.tracker.SetEndpoints("dns", endpoints(at(podB, 5353)))
	s.apply()
	s.requireAll(names, "10.128.0.11:5353") // the rules alone change nothing for them
	require.Equal(t, len(names), settle(t, s.cleaner))
	require.Empty(t, s.names())
	s.requireAll(names, "10.128.0.12:5353")
}

func TestRealTargetPortChanged(t *testing.T) {
	s := on(t, Config{}, at(podA, 5353))
	names := s.talkEverywhere("10.128.0.11:5353")
	s.tracker.SetEndpoints("dns", endpoints(at(podA, 5354)))
	s.apply()
	require.Equal(t, len(names), settle(t, s.cleaner))
	s.requireAll(names, "10.128.0.11:5354")
}

func TestRealLastEndpointGone(t *testing.T) {
	s := on(t, Config{}, at(podA, 5353))
	names := s.talkEverywhere("10.128.0.11:5353")
	s.tracker.SetEndpoints("dns", nil)
	s.apply()
	require.Equal(t, len(names), settle(t, s.cleaner))
	a, err := s.flows["vip"].Ping(s.ctx, 200*time.Millisecond)
	require.NoError(t, err)
	require.NotEqual(t, lab.Answered, a.Verdict)
}

func TestRealServiceDeleted(t *testing.T) {
	s := on(t, Config{}, at(podA, 5353))
	names := s.talkEverywhere("10.128.0.11:5353")
	s.tracker.DeleteService("dns")
	s.apply()
	require.Equal(t, len(names), settle(t, s.cleaner))
	require.Empty(t, s.names())
}

// TestRealFirstEndpoint has clients that talk to the addresses of a service before it has endpoints: they reach
// whoever is there, and go on doing so until their flows are forgotten.
func TestRealFirstEndpoint(t *testing.T) {
	s := on(t, Config{})
	for _, p := range []netip.AddrPort{at(vip, 53), at(ext, 530), at(node, 30053)} {
		lab.Serve(t, s.topo, lab.UDP, p)
		require.Equal(t, p.String(), s.talk(p.String(), outside, p))
	}
	require.Equal(t, "198.51.100.10:30053", s.again("198.51.100.10:30053"))
	s.tracker.SetEndpoints("dns", endpoints(at(podA, 5353)))
	s.apply()
	require.Equal(t, "172.20.9.1:53", s.again("172.20.9.1:53"))
	require.Equal(t, 3, settle(t, s.cleaner))
	for name := range s.flows {
		require.Equal(t, "10.128.0.11:5353", s.again(name), name)
	}
}

func TestRealTwoAddressesOneBackend(t *testing.T) {
	s := on(t, Config{}, at(podA, 5353))
	s.tracker.SetService("dns2", service(at(vip2, 53)))
	s.tracker.SetEndpoints("dns2", endpoints(at(podA, 5353)))
	s.apply()
	require.Zero(t, settle(t, s.cleaner))
	s.talk("moves", pod, at(vip, 53))
	s.talk("stays", pod, at(vip2, 53))
	s.tracker.SetEndpoints("dns", endpoints(at(podB, 5353)))
	s.apply()
	require.Equal(t, 1, settle(t, s.cleaner))
	require.Equal(t, []string{"stays"}, s.names())
	require.Equal(t, "10.128.0.12:5353", s.again("moves"))
	require.Equal(t, "10.128.0.11:5353", s.again("stays"))
}

// TestRealRestart has another process's Cleaner find the table as it is.
func TestRealRestart(t *testing.T) {
	s := on(t, Config{}, at(podA, 5353), at(podB, 5353))
	for _, name := range []string{"1", "2", "3", "4", "5", "6"} {
		s.talk(name, pod, at(vip, 53))
		s.talk(name+"n", outside, at(node, 30053))
	}
	before := table(t, s.topo.Node)
	s.cleaner = newCleaner(t, s.topo.Node, Config{})
	s.sync()
	require.Zero(t, settle(t, s.cleaner))
	after := table(t, s.topo.Node)
	require.Len(t, after, len(before))

	toA := 0
	for _, e := range after {
		if e.from == at(podA, 5353) {
			toA++
		}
	}
	s.cleaner = newCleaner(t, s.topo.Node, Config{})
	s.tracker.SetEndpoints("dns", endpoints(at(podB, 5353)))
	s.sync() // the endpoint went while nobody watched
	require.Equal(t, toA, settle(t, s.cleaner))
	for name := range s.flows {
		require.Equal(t, "10.128.0.12:5353", s.again(name), name)
	}
}

// TestRealProgrammingFailed has the programmer fail between two states: cleaning waits, and then covers both changes.
func TestRealProgrammingFailed(t *testing.T) {
	s := on(t, Config{}, at(podA, 5353))
	s.talk("vip", pod, at(vip, 53))
	s.tracker.SetEndpoints("dns", endpoints(at(podB, 5353)))
	s.cleaner.Applying(s.tracker.Diff())
	s.cleaner.Programmed(model.Result{}, errors.New("no"))
	_, owed := s.cleaner.Due()
	require.False(t, owed)
	require.Zero(t, settle(t, s.cleaner))
	require.Equal(t, "10.128.0.11:5353", s.again("vip"))

	s.sync()
	require.Equal(t, 1, settle(t, s.cleaner))
	require.Equal(t, "10.128.0.12:5353", s.again("vip"))
}

func TestRealNothingStale(t *testing.T) {
	s := on(t, Config{}, at(podA, 5353))
	names := s.talkEverywhere("10.128.0.11:5353")
	svc := everywhere()
	svc.Affinity, svc.ExternalTraffic = time.Minute, model.Local
	s.tracker.SetService("dns", svc)
	s.tracker.SetEndpoints("dns", []model.Endpoint{{Addr: at(podA, 5353), State: model.Draining, Weight: 9}, {Addr: at(podB, 5353)}})
	s.apply()
	require.Zero(t, settle(t, s.cleaner))
	s.requireAll(names, "10.128.0.11:5353")
}

func TestRealIPv6(t *testing.T) {
	s := on(t, Config{}, at(podA, 5353), at(podA6, 5353), at(podB6, 5353))
	require.Equal(t, "10.128.0.11:5353", s.talk("four", pod, at(vip, 53)))
	var gone, kept []string
	for _, name := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
		to := at(vip6, 53)
		if len(gone) > 0 {
			to = at(node6, 30053)
		}
		if s.talk(name, pod6, to) == at(podA6, 5353).String() {
			gone = append(gone, name)
		} else {
			kept = append(kept, name)
		}
	}
	s.tracker.SetEndpoints("dns", endpoints(at(podA, 5353), at(podB6, 5353)))
	s.apply()
	require.Equal(t, len(gone), settle(t, s.cleaner))
	require.Equal(t, append(kept, "four"), s.names())
	s.requireAll(append(gone, kept...), at(podB6, 5353).String())
	require.Equal(t, "10.128.0.11:5353", s.again("four"))
}

// TestRealZone has all traffic in a zone of its own.
func TestRealZone(t *testing.T) {
	s := newStage(t, Config{})
	s.nft("table inet zone { chain pre { type filter hook prerouting priority -300; ct zone set 7; }; chain out { type filter hook output priority -300; ct zone set 7; }; }")
	s.tracker.SetService("dns", everywhere())
	s.tracker.SetEndpoints("dns", endpoints(at(podA, 5353)))
	s.sync()
	names := s.talkEverywhere("10.128.0.11:5353")
	for _, e := range table(t, s.topo.Node) {
		require.EqualValues(t, 7, e.zone)
	}
	s.tracker.SetEndpoints("dns", endpoints(at(podB, 5353)))
	s.apply()
	require.Equal(t, len(names), settle(t, s.cleaner))
	s.requireAll(names, "10.128.0.12:5353")
}

// TestRealStrangers has somebody else translate what looks much like ours.
func TestRealStrangers(t *testing.T) {
	s := newStage(t, Config{})
	s.extra = "chain others { type nat hook prerouting priority -110; ip daddr 172.20.9.1 udp dport 54 dnat ip to 10.128.0.11:5353; ip daddr 172.20.9.9 udp dport 53 dnat ip to 10.128.0.11:5353; }\n"
	s.tracker.SetService("dns", everywhere())
	s.tracker.SetEndpoints("dns", endpoints(at(podA, 5353)))
	s.sync()
	s.talk("other port", pod, at(vip, 54))
	s.talk("other address", pod, at(addr("172.20.9.9"), 53))
	lab.Serve(t, s.topo, lab.UDP, at(podB, 30053))
	s.talk("same port elsewhere", pod, at(podB, 30053))
	s.talk("directly", pod, at(podA, 5353))
	mine := s.talkEverywhere("10.128.0.11:5353")
	s.tracker.DeleteService("dns")
	s.apply()
	require.Equal(t, len(mine), settle(t, s.cleaner))
	require.Equal(t, []string{"directly", "other address", "other port", "same port elsewhere"}, s.names())
}

// TestRealSCTP has an association stay with its endpoint, and move when asked to be forgotten.
func TestRealSCTP(t *testing.T) {
	s := newStage(t, Config{Protocols: []model.Protocol{model.UDP, model.SCTP}})
	for _, p := range []netip.Addr{podA, podB} {
		lab.Serve(t, s.topo, lab.SCTP, at(p, 5353))
	}
	svc := service(at(vip, 53))
	svc.Protocol = model.SCTP
	s.tracker.SetService("diameter", svc)
	s.tracker.SetEndpoints("diameter", endpoints(at(podA, 5353)))
	s.sync()
	require.Equal(t, "10.128.0.11:5353", s.talkOver(lab.SCTP, "old", pod, at(vip, 53)))
	s.tracker.SetEndpoints("diameter", endpoints(at(podB, 5353)))
	s.apply()
	require.Equal(t, 1, settle(t, s.cleaner))
	require.Empty(t, s.names())
	require.Equal(t, "10.128.0.12:5353", s.talkOver(lab.SCTP, "new", pod, at(vip, 53)))
}

// TestRealTCPStays: a connection to an endpoint that is gone is not cut.
func TestRealTCPStays(t *testing.T) {
	s := newStage(t, Config{})
	lab.Serve(t, s.topo, lab.TCP, at(podA, 5353))
	svc := service(at(vip, 53))
	svc.Protocol = model.TCP
	s.tracker.SetService("web", svc)
	s.tracker.SetEndpoints("web", endpoints(at(podA, 5353)))
	s.sync()
	require.Equal(t, "10.128.0.11:5353", s.talkOver(lab.TCP, "open", pod, at(vip, 53)))
	s.tracker.DeleteService("web")
	s.apply()
	require.Zero(t, settle(t, s.cleaner))
	require.Equal(t, "10.128.0.11:5353", s.again("open"))
}
