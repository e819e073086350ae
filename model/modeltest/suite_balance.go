package modeltest

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// How connections are spread. What is left to chance is given room for it: five standard deviations.
var balanceChecks = []check{
	{"random-is-even", randomIsEven},
	{"random-by-weight", randomByWeight},
	{"round-robin-takes-turns", roundRobinTurns},
	{"round-robin-by-weight", roundRobinByWeight},
	{"source-hash-is-the-same-on-every-node", hashSame},
	{"source-hash-spreads", hashSpreads},
	{"maglev-moves-few", maglevMovesFew},
	{"removed-endpoint-gets-nothing-more", removedGetsNothing},
}

const vip = "172.20.0.80:80"

func balanced(s model.Service, eps ...model.Endpoint) model.State {
	s.Frontends = at(internal(vip))
	return stateOf(StageNode(), service("default/lb:http", s, eps...))
}

func count(eps []netip.AddrPort) map[netip.AddrPort]int {
	m := map[netip.AddrPort]int{}
	for _, e := range eps {
		m[e]++
	}
	return m
}

func randomIsEven(t *testing.T, h *harness) {
	h.can(t, model.Service{})
	r := h.rig(t, StageNode())
	r.sync(t, balanced(model.Service{}, epA, epB, epC))
	n := r.pick(180, 1800)
	got := count(r.sends(t, pod.to(vip), n))
	for _, e := range []model.Endpoint{epA, epB, epC} {
		require.InDelta(t, n/3, got[e.Addr], fiveSigma(n, 1.0/3), "%v", got)
	}
}

func randomByWeight(t *testing.T, h *harness) {
	h.can(t, model.Service{})
	r := h.rig(t, StageNode())
	r.sync(t, balanced(model.Service{}, weighing(1, epA), weighing(3, epB)))
	n := r.pick(200, 2000)
	got := count(r.sends(t, pod.to(vip), n))
	require.InDelta(t, n*3/4, got[epB.Addr], fiveSigma(n, 0.75), "%v", got)
	require.Positive(t, got[epA.Addr])
}

// fiveSigma is five standard deviations of how often something of chance p happens in n trials.
func fiveSigma(n int, p float64) float64 {
	v, root := float64(n)*p*(1-p), 1.0
	for range 40 {
		root = (root + v/root) / 2
	}
	return 5 * root
}

func roundRobinTurns(t *testing.T, h *harness) {
	s := model.Service{Balance: model.RoundRobin}
	h.can(t, s)
	r := h.rig(t, StageNode())
	r.sync(t, balanced(s, epA, epB, epC))
	got := r.sends(t, pod.to(vip), 12)
	require.Len(t, count(got), 3)
	for i := 3; i < len(got); i++ {
		require.Equal(t, got[i-3], got[i], "not in turn: %v", got)
	}
	r.to(t, balanced(s, epA, epB, epC), balanced(s, epA, epC))
	got = r.sends(t, pod.to(vip), 12)
	require.Equal(t, map[netip.AddrPort]int{epA.Addr: 6, epC.Addr: 6}, count(got))
}

func roundRobinByWeight(t *testing.T, h *harness) {
	s := model.Service{Balance: model.RoundRobin}
	h.can(t, s)
	r := h.rig(t, StageNode())
	r.sync(t, balanced(s, weighing(2, epA), weighing(6, epB)))
	got := count(r.sends(t, pod.to(vip), 32))
	require.Equal(t, map[netip.AddrPort]int{epA.Addr: 8, epB.Addr: 24}, got, "the share of each round is exact")
}

// keyed returns a flow with a source port of its own, which stands for a client where ports are hashed.
func keyed(i int) flow {
	f := pod.to(vip)
	f.p.FromPort = uint16(41000 + i)
	f.p.Name = fmt.Sprintf("%s from port %d", f.p.Name, f.p.FromPort)
	return f
}

func (r *rig) spread(t *testing.T, n int) map[int]netip.AddrPort {
	t.Helper()
	m := map[int]netip.AddrPort{}
	for i := range n {
		m[i] = r.sends(t, keyed(i), 1)[0]
	}
	return m
}

// Two nodes that know of the same endpoints, in whatever order they were told, agree about every client.
func hashSame(t *testing.T, h *harness) {
	for _, b := range []model.Balance{model.SourceHash, model.Maglev} {
		t.Run(b.String(), func(t *testing.T) {
			s := model.Service{Balance: b, HashPort: h.features.HashPort}
			h.can(t, s)
			one, two := h.rig(t, StageNode()), h.rig(t, StageNode())
			one.sync(t, balanced(s, epA, epB, epC))
			two.sync(t, balanced(s, epC))
			two.to(t, balanced(s, epC), balanced(s, epC, epB))
			two.to(t, balanced(s, epC, epB), balanced(s, epC, epB, epA))
			n := one.pick(12, 200)
			require.Equal(t, one.spread(t, n), two.spread(t, n))
			for _, c := range []client{pod, outside, otherOutside, theNode} {
				f := c.to(vip)
				f.p.FromPort = 42000
				require.Equal(t, one.sends(t, f, 1), two.sends(t, f, 1), c.name)
			}
		})
	}
}

func hashSpreads(t *testing.T, h *harness) {
	s := model.Service{Balance: model.SourceHash, HashPort: true}
	h.can(t, s)
	r := h.rig(t, StageNode())
	r.sync(t, balanced(s, epA, epB, epC))
	n := r.pick(90, 1800)
	got := map[netip.AddrPort]int{}
	for _, e := range r.spread(t, n) {
		got[e]++
	}
	for _, e := range []model.Endpoint{epA, epB, epC} {
		require.InDelta(t, n/3, got[e.Addr], fiveSigma(n, 1.0/3), "%v", got)
	}
}

// When an endpoint goes, its clients are spread over the others and few of the others' clients move.
func maglevMovesFew(t *testing.T, h *harness) {
	s := model.Service{Balance: model.Maglev, HashPort: true}
	h.can(t, s)
	r := h.rig(t, StageNode())
	epD := there("10.128.2.31:8080")
	full, less := balanced(s, epA, epB, epC, epD), balanced(s, epA, epB, epD)
	r.sync(t, full)
	n := r.pick(80, 1000)
	before := r.spread(t, n)
	r.to(t, full, less)
	after := r.spread(t, n)
	moved, others := 0, 0
	for i, e := range before {
		require.NotEqual(t, epC.Addr, after[i], "the endpoint that went still serves")
		if e != epC.Addr {
			others++
			if after[i] != e {
				moved++
			}
		}
	}
	require.Positive(t, others)
	require.LessOrEqual(t, moved, others/5, "of %d clients of the other endpoints %d moved", others, moved)
	r.to(t, less, full)
	require.Equal(t, before, r.spread(t, n), "with the same endpoints again everybody is where they were")
}

// From the moment of the change an endpoint that was removed or drains gets no new connection.
func removedGetsNothing(t *testing.T, h *harness) {
	for _, b := range h.features.Balances {
		t.Run(b.String(), func(t *testing.T) {
			r := h.rig(t, StageNode())
			s := model.Service{Balance: b, HashPort: h.features.HashPort}
			h.can(t, s)
			from := balanced(s, epA, epB, epC)
			r.sync(t, from)
			for _, eps := range [][]model.Endpoint{{epA, epC}, {epC, epB}, {draining(epC), epB}, {epA, notReady(epB)}, {epA, epB, epC}} {
				to := balanced(s, eps...)
				r.to(t, from, to)
				from = to
				usable := model.Select(eps, StageNode(), model.IPv4).Cluster
				for _, e := range r.sends(t, pod.to(vip), r.pick(12, 60)) {
					require.True(t, isAny(Outcome{Verdict: Translated, Endpoint: e}, usable), "%s still gets connections", e)
				}
			}
		})
	}
}
