package modeltest

import (
	"net/netip"
	"slices"

	"github.com/headgate/headgate/model"
)

// A ConntrackCase is a change of the services and what connection tracking holds when it comes: which flows are stale
// then, and must be forgotten. It is for the tests of package conntrack.
type ConntrackCase struct {
	ID, Doc string
	Family  model.Family
	// Before is a state in which the flows came about, After what is programmed now.
	Before, After model.State
	Flows         []ConntrackFlow
}

// A ConntrackFlow is one entry of the table.
type ConntrackFlow struct {
	ID       string
	Protocol model.Protocol
	// From and To are the original source and destination, Endpoint is the reply's source: To, if nobody translated it.
	From, To, Endpoint netip.AddrPort
	// Forgotten says whether it must go. Where headgate means to do otherwise than the vectors, a [VectorDifference]
	// tells why.
	Forgotten bool
}

// ConntrackCases returns every such case, always in the same order. The result is the caller's own.
func ConntrackCases() []ConntrackCase {
	cases := rawConntrackCases()
	for i := range cases {
		c := &cases[i]
		flows := slices.Clone(c.Flows)
		for j, f := range c.Flows {
			about := func(d VectorDifference) bool { return d.flow != nil && d.flow(*c, f) }
			if slices.ContainsFunc(vectorDifferences[:], about) {
				flows[j].Forgotten = !f.Forgotten
			}
		}
		c.Flows = flows
	}
	return cases
}

// rawConntrackCases returns the cases as the vectors have them.
func rawConntrackCases() []ConntrackCase {
	file := loadVectors()
	node := file.Vectors[0].Node.model() // the cases name none
	var out []ConntrackCase
	for _, c := range file.ConntrackCleanup {
		k := ConntrackCase{
			ID: c.ID, Doc: c.Description, Family: c.Family.model(),
			After: model.State{Node: node, Services: servicesOf(c.Services), Endpoints: endpointsOf(c.Endpoints)},
		}
		for _, e := range c.Entries {
			k.Flows = append(k.Flows, ConntrackFlow{
				ID: e.ID, Protocol: e.Proto.model(),
				From:      netip.AddrPortFrom(e.OrigSrc, e.OrigSrcPort),
				To:        netip.AddrPortFrom(e.OrigDst, e.OrigDstPort),
				Endpoint:  netip.AddrPortFrom(e.ReplySrc, e.ReplySrcPort),
				Forgotten: slices.Contains(c.ExpectDeleted, e.ID),
			})
		}
		k.Before = k.earlier(servicesOf(c.Removed))
		out = append(out, k)
	}
	return out
}

// earlier makes up the state in which the flows came about. Services that have been removed were there instead of those
// that are now, since they may have had the same frontends.
func (c ConntrackCase) earlier(removed model.ServiceMap) model.State {
	s := model.State{Node: c.After.Node, Services: removed, Endpoints: model.EndpointMap{}}
	if len(removed) == 0 {
		s.Services = c.After.Services
	}
	for name, svc := range s.Services {
		var eps []model.Endpoint
		for _, e := range c.After.Endpoints[name] {
			e.State = model.Ready
			eps = append(eps, e)
		}
		for _, f := range c.Flows {
			known := func(e model.Endpoint) bool { return e.Addr == f.Endpoint }
			if claims(c.After.Node, svc, f) && !serves(c.After, f) && !slices.ContainsFunc(eps, known) {
				eps = append(eps, model.Endpoint{Addr: f.Endpoint})
			}
		}
		if len(eps) > 0 {
			s.Endpoints[name] = eps
		}
	}
	return s
}

// claims reports whether a flow goes to one of a service's frontends.
func claims(node model.Node, s model.Service, f ConntrackFlow) bool {
	return s.Protocol == f.Protocol && slices.ContainsFunc(s.Frontends, func(g model.Frontend) bool {
		if g.Kind == model.NodePort {
			return g.Addr.Port() == f.To.Port() && slices.Contains(node.Addrs, f.To.Addr()) && g.Family() == model.FamilyOf(f.To.Addr())
		}
		return g.Addr == f.To
	})
}

// serves reports whether a flow goes from a frontend to an endpoint that serves it.
func serves(s model.State, f ConntrackFlow) bool {
	for name, svc := range s.Services {
		serving := func(e model.Endpoint) bool { return e.Addr == f.Endpoint && e.State != model.NotReady }
		if claims(s.Node, svc, f) && slices.ContainsFunc(s.Endpoints[name], serving) {
			return true
		}
	}
	return false
}

// isStale reports whether a flow goes to a frontend that there is or was, and not to an endpoint that serves it.
func (c ConntrackCase) isStale(f ConntrackFlow) bool {
	ours := false
	for _, s := range [...]model.State{c.Before, c.After} {
		for _, svc := range s.Services {
			ours = ours || claims(s.Node, svc, f)
		}
	}
	return ours && !serves(c.After, f)
}

// isNodePort reports whether a flow goes to the number of a node port, wherever that is.
func (c ConntrackCase) isNodePort(f ConntrackFlow) bool {
	for _, s := range [...]model.State{c.Before, c.After} {
		for _, svc := range s.Services {
			is := func(g model.Frontend) bool { return g.Kind == model.NodePort && g.Addr.Port() == f.To.Port() }
			if svc.Protocol == f.Protocol && slices.ContainsFunc(svc.Frontends, is) {
				return true
			}
		}
	}
	return false
}

// A TerminationCase is a virtual server of IPVS and what becomes of its real servers when some of them are no longer
// wanted. It is for the tests of package ipvs, and says what users of another program are used to, no more.
type TerminationCase struct {
	ID, Doc  string
	Protocol model.Protocol
	Before   []Destination
	// Wanted are the endpoints that the service has now. Gone says that the service itself is gone.
	Wanted []netip.AddrPort
	Gone   bool
	// After is what is there after one Sync or, if Periodic, after a look at what drains.
	After    []Destination
	Periodic bool
	// DrainingBefore and Draining wait for the end of their connections, before and after.
	DrainingBefore, Draining []netip.AddrPort
	// FirstSync says that the process has just started: it knows of nothing that drains.
	FirstSync bool
}

// A Destination is a real server with its connections.
type Destination struct {
	Addr     netip.AddrPort `json:"addr"`
	Weight   int            `json:"weight"`
	Active   int            `json:"active"`   // open connections
	Inactive int            `json:"inactive"` // those that are ending, or were never open
}

// TerminationCases returns every such case, always in the same order. The result is the caller's own.
func TerminationCases() []TerminationCase {
	var out []TerminationCase
	for _, c := range loadVectors().Termination {
		k := TerminationCase{
			ID: c.ID, Doc: c.Description, Protocol: c.Proto.model(),
			Before: c.DestinationsBefore, After: c.DestinationsAfterSync, Gone: c.WantedBackends == nil,
			DrainingBefore: c.DrainingBefore, Draining: c.Draining,
			FirstSync: c.FirstSync, Periodic: c.At == "periodic check",
		}
		if !k.Gone {
			k.Wanted = *c.WantedBackends
		}
		out = append(out, k)
	}
	return out
}
