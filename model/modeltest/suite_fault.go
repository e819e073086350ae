package modeltest

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// One bad service stops nobody else, and what somebody else breaks is noticed and repaired.
var faultChecks = []check{
	{"bad-service", badService},
	{"unsupported-service", unsupportedService},
	{"bad-endpoint", badEndpoint},
	{"conflict", conflict},
	{"conflict-in-one-family", conflictInOneFamily},
	{"explicit-frontend-and-node-port", explicitAndNodePort},
	{"odd-names", oddNames},
	{"refused-by-the-kernel", refusedByTheKernel},
	{"refused-by-the-kernel-from-the-start", refusedFromTheStart},
	{"damage", damage},
}

// badServices are services that make no sense, each for another reason.
func badServices() map[string]model.Service {
	f := at(internal("172.20.0.66:80"))
	front := func(f model.Frontend) model.Service { return model.Service{Frontends: at(f)} }
	withRange := func(p netip.Prefix) model.Service {
		return front(model.Frontend{Kind: model.External, Addr: ap("192.0.2.66:80"), SourceRanges: []netip.Prefix{p}})
	}
	return map[string]model.Service{
		"protocol":                      {Protocol: 3, Frontends: f},
		"balance":                       {Balance: 99, Frontends: f},
		"internal-policy":               {InternalTraffic: 2, Frontends: f},
		"external-policy":               {ExternalTraffic: 200, Frontends: f},
		"affinity-negative":             {Affinity: -time.Second, Frontends: f},
		"affinity-too-short":            {Affinity: time.Millisecond, Frontends: f},
		"affinity-too-long":             {Affinity: math.MaxInt64, Frontends: f},
		"no-address":                    front(model.Frontend{Addr: netip.AddrPortFrom(netip.Addr{}, 80)}),
		"no-port":                       front(model.Frontend{Addr: ap("172.20.0.66:0")}),
		"kind":                          front(model.Frontend{Kind: 7, Addr: ap("172.20.0.66:80")}),
		"unspecified-address":           front(internal("0.0.0.0:80")),
		"loopback-address":              front(internal("127.0.0.1:80")),
		"loopback-address-ipv6":         front(external("[::1]:80")),
		"multicast-address":             front(internal("224.0.0.1:80")),
		"multicast-address-ipv6":        front(internal("[ff02::1]:80")),
		"broadcast-address":             front(internal("255.255.255.255:80")),
		"address-with-zone":             front(model.Frontend{Addr: netip.AddrPortFrom(addr("fe80::1").WithZone("eth0"), 80)}),
		"node-port-with-address":        front(model.Frontend{Kind: model.NodePort, Addr: ap("198.51.100.10:30066")}),
		"node-port-0":                   front(nodePort(0)),
		"range-invalid":                 withRange(netip.Prefix{}),
		"range-too-long":                withRange(netip.PrefixFrom(addr("10.0.0.0"), 33)),
		"range-negative":                withRange(netip.PrefixFrom(addr("10.0.0.0"), -1)),
		"range-of-mapped-addresses":     withRange(netip.PrefixFrom(addr("::ffff:10.0.0.0"), 64)),
		"frontend-twice-with-two-kinds": {Frontends: at(internal("172.20.0.66:80"), external("172.20.0.66:80"))},
		"one-frontend-of-many":          {Frontends: at(internal("172.20.0.66:80"), internal("172.20.0.67:0"))},
	}
}

// A service that makes no sense is rejected by name, wherever it stands among the others, keeps the form that it last
// had, and recovers.
func badService(t *testing.T, h *harness) {
	bad := badServices()
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		t.Run(name, func(t *testing.T) {
			isolates(t, h, bad[name], model.ErrInvalid)
		})
	}
}

func isolates(t *testing.T, h *harness, bad model.Service, want error) {
	const name = "default/m:bad"
	good := model.Service{Frontends: at(internal("172.20.0.60:80"))}
	flows := append(append(toWeb(), toAPI()...), pod.to("172.20.0.60:80"), pod.to("172.20.0.66:80"), outside.to("192.0.2.66:80"))
	with := func(s model.Service, ep model.Endpoint, others ...part) model.State {
		return stateOf(StageNode(), append(others, service(name, s, ep))...)
	}
	rejects := func(res model.Result) {
		t.Helper()
		require.Equal(t, []model.ServiceName{name}, names(res.Rejected))
		require.ErrorIs(t, res.Rejected[0], want)
		require.ErrorIs(t, res.Err(), want)
		require.Contains(t, res.Rejected[0].Error(), name)
	}
	r := h.rig(t, StageNode())
	first := with(bad, epB, web(epA), api(epC))
	rejects(r.sync(t, first))
	r.predicted(t, flows...)

	// It becomes good, then bad again while others change: its last good form stays in force.
	second := with(good, epB, web(epA), api(epC))
	require.Empty(t, r.to(t, first, second).Rejected)
	r.predicted(t, flows...)
	third := with(bad, epC, web(epB), api(epA))
	rejects(r.to(t, second, third))
	r.meets(t, pod.to("172.20.0.60:80").reaches("10.128.0.12:8080"))
	r.predicted(t, flows...)
	rejects(r.sync(t, third))
	r.meets(t, pod.to("172.20.0.60:80").reaches("10.128.0.12:8080"))

	fourth := with(good, epC, web(epB))
	require.Empty(t, r.to(t, third, fourth).Rejected)
	r.meets(t, pod.to("172.20.0.60:80").reaches("10.128.1.21:8080"))
	r.predicted(t, flows...)
	fifth := with(bad, epC, web(epB))
	rejects(r.to(t, fourth, fifth))
	r.to(t, fifth, stateOf(StageNode(), web(epB)))
	r.predicted(t, flows...)
	require.NoError(t, r.p.Check(r.ctx))
}

// What the backend cannot do is refused per service, never silently approximated.
func unsupportedService(t *testing.T, h *harness) {
	f := at(internal("172.20.0.66:80"))
	tried := false
	try := func(name string, s model.Service) {
		if h.features.Check(s) == nil {
			return
		}
		tried = true
		t.Run(name, func(t *testing.T) { isolates(t, h, s, model.ErrNotSupported) })
	}
	for _, b := range []model.Balance{model.Random, model.RoundRobin, model.LeastConn, model.SourceHash, model.Maglev} {
		try(b.String(), model.Service{Balance: b, Frontends: f})
		try(b.String()+"-port", model.Service{Balance: b, HashPort: true, Frontends: f})
	}
	try("affinity-floor", model.Service{Affinity: time.Second, Frontends: f})
	if !tried {
		t.Skipf("%s can do everything", h.target.Name)
	}
}

// An endpoint that makes no sense is left out; the service goes on with the others.
func badEndpoint(t *testing.T, h *harness) {
	bad := map[string]model.Endpoint{
		"no-address":  {},
		"no-port":     here("10.128.0.13:0"),
		"unspecified": here("0.0.0.0:80"),
		"loopback":    here("127.0.0.1:80"),
		"multicast":   there("224.0.0.1:80"),
		"zone":        {Addr: netip.AddrPortFrom(addr("fe80::1").WithZone("eth0"), 80)},
		"state":       {Addr: ap("10.128.0.13:80"), State: 9},
	}
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		t.Run(name, func(t *testing.T) {
			r := h.rig(t, StageNode())
			s := stateOf(StageNode(), web(epA, bad[name], epB), api(epC))
			res := r.sync(t, s)
			require.Len(t, res.Rejected, 1)
			require.ErrorIs(t, res.Rejected[0], model.ErrInvalid)
			r.meets(t, pod.to("172.20.0.10:80").reaches("10.128.0.11:8080", "10.128.0.12:8080"))
			next := stateOf(StageNode(), web(bad[name]), api(epC))
			r.to(t, s, next)
			r.meets(t, pod.to("172.20.0.10:80").refused())
			r.to(t, next, stateOf(StageNode(), web(epC), api(epC)))
			r.predicted(t, append(toWeb(), toAPI()...)...)
		})
	}
}

// Who has a frontend keeps it; a free one goes to the first by name; who had to wait takes over, and is named.
func conflict(t *testing.T, h *harness) {
	claim := func(name model.ServiceName, ep model.Endpoint, own string) part {
		return service(name, model.Service{Frontends: at(external("192.0.2.10:80"), internal(own))}, ep)
	}
	a, b, c := claim("a", epA, "172.20.0.1:80"), claim("b", epB, "172.20.0.2:80"), claim("c", epC, "172.20.0.3:80")
	own := []flow{pod.to("172.20.0.1:80"), pod.to("172.20.0.2:80"), pod.to("172.20.0.3:80")}
	r := h.rig(t, StageNode())
	held := func(by model.Endpoint) {
		t.Helper()
		r.meets(t, outside.to("192.0.2.10:80").hidden(by.Addr.String()))
		r.predicted(t, own...)
		require.NoError(t, r.p.Check(r.ctx))
	}
	rejected := func(res model.Result, want ...model.ServiceName) {
		t.Helper()
		require.Equal(t, want, names(res.Rejected))
		for _, e := range res.Rejected {
			require.ErrorIs(t, e, model.ErrConflict)
		}
	}
	s1 := stateOf(StageNode(), b, c)
	rejected(r.sync(t, s1), "c")
	held(epB)
	s2 := stateOf(StageNode(), a, b, c)
	rejected(r.to(t, s1, s2), "a")
	held(epB) // though a comes first by name
	rejected(r.sync(t, s2), "a", "c")
	held(epB) // and a full Sync does not take it away
	s3 := stateOf(StageNode(), a, c)
	res := r.to(t, s2, s3)
	require.Equal(t, []model.ServiceName{"a"}, res.Promoted)
	held(epA)
	s4 := stateOf(StageNode(), c)
	res = r.to(t, s3, s4)
	require.Equal(t, []model.ServiceName{"c"}, res.Promoted)
	require.Empty(t, res.Rejected)
	held(epC)
	s5 := stateOf(StageNode())
	r.to(t, s4, s5)
	r.predicted(t, append(own, outside.to("192.0.2.10:80"))...)
	rejected(r.to(t, s5, s2), "b", "c")
	held(epA) // nobody had it: the first by name

	// The holder moves elsewhere without going.
	s6 := stateOf(StageNode(), service("a", model.Service{Frontends: at(external("192.0.2.11:80"), internal("172.20.0.1:80"))}, epA), b, c)
	res = r.to(t, s2, s6)
	require.Equal(t, []model.ServiceName{"b"}, res.Promoted)
	held(epB)
	r.meets(t, outside.to("192.0.2.11:80").hidden(epA.Addr.String()))
	// The holder no longer speaks that protocol.
	s7 := stateOf(StageNode(), service("a", model.Service{}, epA), service("b", model.Service{Protocol: model.UDP, Frontends: at(external("192.0.2.10:80"))}, epB), c)
	res = r.to(t, s6, s7)
	require.Equal(t, []model.ServiceName{"c"}, res.Promoted)
	held(epC)
}

// A node port without a family claims both; losing one leaves the other.
func conflictInOneFamily(t *testing.T, h *harness) {
	six := here("[fd10:128:0:a::11]:8080")
	four := service("a", model.Service{Frontends: at(model.Frontend{Kind: model.NodePort, Addr: ap("0.0.0.0:30010")})}, epA)
	both := service("b", model.Service{Frontends: at(nodePort(30010))}, epB, six)
	r := h.rig(t, StageNode())
	s := stateOf(StageNode(), four, both)
	res := r.sync(t, s)
	require.Equal(t, []model.ServiceName{"b"}, names(res.Rejected))
	r.meets(t, outside.to("198.51.100.10:30010").hidden(epA.Addr.String()), outside.to("[2001:db8:a::10]:30010").hidden(six.Addr.String()))
	res = r.to(t, s, stateOf(StageNode(), both))
	require.Equal(t, []model.ServiceName{"b"}, res.Promoted)
	r.meets(t, outside.to("198.51.100.10:30010").hidden(epB.Addr.String()), outside.to("[2001:db8:a::10]:30010").hidden(six.Addr.String()))
	require.NoError(t, r.p.Check(r.ctx))
}

// An explicit frontend at a node address hides another service's node port there, in any order, and only while it lasts.
func explicitAndNodePort(t *testing.T, h *harness) {
	explicit := service("explicit", model.Service{Frontends: at(external("198.51.100.10:30010"))}, epB)
	hidden := service("explicit", model.Service{Frontends: at(external("198.51.100.10:30010", "203.0.113.0/25"))}, epB)
	np := service("np", model.Service{Frontends: at(nodePort(30010))}, epA)
	flows := []flow{outside.to("198.51.100.10:30010"), outside.to("198.51.101.10:30010"), theNode.to("198.51.100.10:30010"), pod.to("198.51.100.10:30010"), otherOutside.to("198.51.100.10:30010")}
	states := []model.State{stateOf(StageNode(), np), stateOf(StageNode(), np, explicit), stateOf(StageNode(), np, hidden), stateOf(StageNode(), explicit),
		stateOf(StageNode(), np, explicit), stateOf(StageNode(), np), stateOf(StageNode())}
	r := h.rig(t, StageNode())
	r.sync(t, stateOf(StageNode()))
	from := stateOf(StageNode())
	for _, s := range states {
		require.Empty(t, r.to(t, from, s).Rejected, "these are not in conflict")
		r.predicted(t, flows...)
		from = s
	}
	require.NoError(t, r.p.Check(r.ctx))
}

// Names that no tool can write as they are, are programmed like any other, told apart, changed and deleted.
func oddNames(t *testing.T, h *harness) {
	all := OddNames()
	claim := func(i int, ep model.Endpoint) part {
		return service(all[i], model.Service{Affinity: max(time.Minute, h.features.AffinityFloor),
			Frontends: at(internal(fmt.Sprintf("172.20.4.%d:80", i+1)), external(fmt.Sprintf("192.0.2.%d:80", i+150), "203.0.113.0/24"), nodePort(uint16(30400+i)))}, ep)
	}
	every := func(ep model.Endpoint) model.State {
		s := stateOf(StageNode())
		for i := range all {
			claim(i, ep)(&s)
		}
		return s
	}
	var flows []flow
	for i := range all {
		flows = append(flows, pod.to(fmt.Sprintf("172.20.4.%d:80", i+1)), outside.to(fmt.Sprintf("192.0.2.%d:80", i+150)))
	}
	r := h.rig(t, StageNode())
	s := every(epA)
	require.Empty(t, r.sync(t, s).Rejected)
	r.predicted(t, flows...)
	next := every(epB)
	r.to(t, s, next)
	r.predicted(t, flows...)
	for i := range all {
		fewer := stateOf(StageNode())
		for j := i + 1; j < len(all); j++ {
			claim(j, epB)(&fewer)
		}
		r.to(t, next, fewer)
		next = fewer
		require.NoError(t, r.p.Check(r.ctx), "%q", all[i])
	}
	r.predicted(t, flows...)
	r.restart(t)
	require.Empty(t, r.sync(t, s).Rejected)
	r.predicted(t, flows...)
}

// A service that the kernel refuses is rejected by name in the step "commit"; the rest is committed.
func refusedByTheKernel(t *testing.T, h *harness) {
	if h.target.Refuse == nil {
		t.Skip("the target has no hook Refuse")
	}
	flows := append(toWeb(), toAPI()...)
	r := h.rig(t, StageNode())
	s1 := stateOf(StageNode(), web(epA), api(epA))
	r.sync(t, s1)
	cause := error(syscall.EINVAL)
	h.target.Refuse(t, r.w, "default/api:http", cause)
	s2 := stateOf(StageNode(), web(epB), api(epB))
	refusedIn := func(res model.Result, err error) {
		t.Helper()
		require.NoError(t, err)
		require.Equal(t, []model.ServiceName{"default/api:http"}, names(res.Rejected))
		require.ErrorIs(t, res.Rejected[0], cause)
		require.Equal(t, "commit", res.Rejected[0].Op)
	}
	refusedIn(r.p.Apply(r.ctx, model.DiffStates(s1, s2)))
	r.meets(t, pod.to("172.20.0.10:80").reaches("10.128.0.12:8080"), pod.to("172.20.0.11:80").reaches("10.128.0.11:8080"))
	refusedIn(r.p.Sync(r.ctx, s2))
	r.meets(t, pod.to("172.20.0.10:80").reaches("10.128.0.12:8080"), pod.to("172.20.0.11:80").reaches("10.128.0.11:8080"))
	h.target.Refuse(t, r.w, "default/api:http", nil)
	r.sync(t, s2)
	r.predicted(t, flows...)
	require.NoError(t, r.p.Check(r.ctx))
}

// A service that the kernel has never taken is left out until it does.
func refusedFromTheStart(t *testing.T, h *harness) {
	if h.target.Refuse == nil {
		t.Skip("the target has no hook Refuse")
	}
	r := h.rig(t, StageNode())
	s := stateOf(StageNode(), web(epB), api(epB))
	h.target.Refuse(t, r.w, "default/api:http", syscall.EINVAL)
	res, err := r.p.Sync(r.ctx, s)
	require.NoError(t, err)
	require.Equal(t, []model.ServiceName{"default/api:http"}, names(res.Rejected))
	r.meets(t, pod.to("172.20.0.10:80").reaches("10.128.0.12:8080"), pod.to("172.20.0.11:80").dropped().unless(DiffServiceRanges))
	require.NoError(t, r.p.Check(r.ctx))
	h.target.Refuse(t, r.w, "default/api:http", nil)
	// The same service again is a change, for it is not there.
	r.pretend(t, stateOf(StageNode(), web(epB)))
	r.apply(t, model.Diff{Changes: []model.Change{{Name: "default/api:http",
		After: &model.Entry{Service: s.Services["default/api:http"], Endpoints: s.Endpoints["default/api:http"]}}}})
	r.predicted(t, append(toWeb(), toAPI()...)...)
}

// Whatever anybody does to our objects is noticed by Check, and repaired by Sync.
func damage(t *testing.T, h *harness) {
	if len(h.target.Damage) == 0 {
		t.Skip("the target has no hooks in Damage")
	}
	s := stateOf(StageNode(), web(epA, epC), api(epB),
		service("default/aff:http", model.Service{Affinity: time.Hour, Frontends: at(internal("172.20.0.12:80"), external("192.0.2.12:80", "203.0.113.0/25"))}, epA, epB),
		service("default/none:http", model.Service{Frontends: at(internal("172.20.0.13:80"))}))
	flows := slices.Concat(toWeb(), toAPI(), []flow{pod.to("172.20.0.12:80"), outside.to("192.0.2.12:80"), otherOutside.to("192.0.2.12:80"), pod.to("172.20.0.13:80")})
	for _, name := range slices.Sorted(maps.Keys(h.target.Damage)) {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			r := h.rig(t, StageNode())
			r.sync(t, s)
			require.NoError(t, r.p.Check(r.ctx), "before the damage")
			before := r.snapshot(t)
			require.NoError(t, h.target.Damage[name](t, r.w))
			err := r.p.Check(r.ctx)
			require.ErrorIs(t, err, model.ErrDrift, "Check notices")
			require.Greater(t, len(err.Error()), len(model.ErrDrift.Error()), "the error says what differs")
			require.ErrorIs(t, r.p.Check(r.ctx), model.ErrDrift, "Check notices again")
			r.sync(t, s)
			require.NoError(t, r.p.Check(r.ctx), "after the repair")
			r.predicted(t, flows...)
			if before != "" {
				require.Equal(t, before, r.snapshot(t), "the repair restores what was there")
			}
			// A Programmer that knows nothing repairs as well.
			require.NoError(t, h.target.Damage[name](t, r.w))
			r.restart(t)
			r.sync(t, s)
			require.NoError(t, r.p.Check(r.ctx))
			r.predicted(t, flows...)
		})
	}
}
