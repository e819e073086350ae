package model

import "slices"

// A Selection is who serves: the endpoints of one family of one service, chosen for one node.
// The lists are sorted as the endpoints given were, and shared: read them, don't write them.
type Selection struct {
	// Cluster serves where the policy is Cluster, and internal and node sources of external frontends where it is Local.
	Cluster []Endpoint
	// Local serves where the policy is Local.
	Local []Endpoint
}

// A Verdict is what becomes of a new connection. The zero Verdict is Rejected.
type Verdict uint8

// The verdicts.
const (
	// Rejected is refused at once, since no endpoint anywhere can serve.
	Rejected Verdict = iota
	// Dropped is discarded in silence, since endpoints elsewhere can serve but none here: a load balancer shall look elsewhere.
	Dropped
	// Balanced goes to an endpoint.
	Balanced
)

var verdictNames = [...]string{Rejected: "rejected", Dropped: "dropped", Balanced: "balanced"}

func (v Verdict) String() string { return nameOf(verdictNames[:], v, "verdict") }

// Serving returns the verdict on new connections under a policy and, if it is Balanced, the endpoints that serve them.
// For [ExternalTraffic] Local it speaks of outside sources; internal and node sources are served as with Cluster.
//
// [ExternalTraffic]: Service
func (s Selection) Serving(p TrafficPolicy) (Verdict, []Endpoint) {
	switch {
	case p == Cluster && len(s.Cluster) > 0:
		return Balanced, s.Cluster
	case p == Local && len(s.Local) > 0:
		return Balanced, s.Local
	case len(s.Cluster) > 0:
		return Dropped, nil
	default:
		return Rejected, nil
	}
}

// LocalReady counts the distinct addresses of Ready endpoints on this node: what a health answer for an external load
// balancer is built from. Draining endpoints do not count, though they may still serve.
func (s Selection) LocalReady() int {
	n := 0
	for i, e := range s.Local {
		seen := slices.ContainsFunc(s.Local[:i], func(o Endpoint) bool { return o.Addr.Addr() == e.Addr.Addr() })
		if e.State == Ready && !seen {
			n++
		}
	}
	return n
}

// Select chooses the endpoints of one family that serve a service on a node.
//
// Cluster holds the Ready endpoints: if every one has node hints and one of them names this node, those that name it;
// else if every one has zone hints and one names this node's zone, those that name it; else all. Where none is Ready
// it holds all Draining ones, whatever their hints.
// Local holds the Ready endpoints on this node or, where none is, the Draining ones; hints do not matter.
func Select(endpoints []Endpoint, node Node, family Family) Selection {
	eps := filter(endpoints, func(e *Endpoint) bool { return FamilyOf(e.Addr.Addr()) == family })
	ready := inState(eps, Ready)
	cluster := preferred(ready, node)
	if len(ready) == 0 {
		cluster = inState(eps, Draining)
	}
	here := filter(eps, func(e *Endpoint) bool { return e.Local })
	local := inState(here, Ready)
	if len(local) == 0 {
		local = inState(here, Draining)
	}
	return Selection{Cluster: cluster, Local: local}
}

func inState(eps []Endpoint, s EndpointState) []Endpoint {
	return filter(eps, func(e *Endpoint) bool { return e.State == s })
}

// preferred narrows ready endpoints by their topology hints.
func preferred(ready []Endpoint, node Node) []Endpoint {
	byHint := func(hints func(*Endpoint) []string, here string) []Endpoint {
		if here == "" || slices.ContainsFunc(ready, func(e Endpoint) bool { return len(hints(&e)) == 0 }) {
			return nil
		}
		return filter(ready, func(e *Endpoint) bool { return slices.Contains(hints(e), here) })
	}
	if same := byHint(func(e *Endpoint) []string { return e.Nodes }, node.Name); len(same) > 0 {
		return same
	}
	if same := byHint(func(e *Endpoint) []string { return e.Zones }, node.Zone); len(same) > 0 {
		return same
	}
	return ready
}

// filter returns the endpoints that keep holds for. If those are one run of eps, the result is that run, not a copy.
func filter(eps []Endpoint, keep func(*Endpoint) bool) []Endpoint {
	first, last, n := -1, -1, 0
	for i := range eps {
		if keep(&eps[i]) {
			if first < 0 {
				first = i
			}
			last = i
			n++
		}
	}
	if n == 0 {
		return nil
	}
	run := eps[first : last+1 : last+1]
	if n == len(run) {
		return run
	}
	out := make([]Endpoint, 0, n)
	for i := range run {
		if keep(&run[i]) {
			out = append(out, run[i])
		}
	}
	return out
}
