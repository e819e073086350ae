package model

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// An Explainer is a Programmer that can say what becomes of a new connection, for the person on call. It answers from
// what it has programmed: Check says whether the kernel still holds that.
type Explainer interface {
	Programmer
	// Explain returns [Resolver.Explain] of what is programmed, as far as this backend does the same, and in Path the
	// way through its own rules. Before the first Sync it returns ErrNotSynced.
	Explain(ctx context.Context, q Query) (Explanation, error)
}

// A Query asks about the first packet of a new connection.
type Query struct {
	Protocol Protocol
	To       netip.AddrPort
	// From is the client's address. The zero Addr is the node's own, of the family of To.
	From netip.Addr
	// Interface is where the packet comes in. Empty: the node itself sends it if From is its own address, loopback or
	// one of a frontend; else it comes in on an interface that no detector names.
	Interface string
}

func (q Query) String() string {
	from := "the node"
	if q.From.IsValid() {
		from = q.From.String()
	}
	if q.Interface != "" {
		from += " (" + q.Interface + ")"
	}
	return fmt.Sprintf("%s %s from %s", q.Protocol, q.To, from)
}

// A Fate is what becomes of a new connection. The zero Fate is Untouched.
type Fate uint8

// The fates.
const (
	FateUntouched Fate = iota // it is none of our business, and goes where the node's routing sends it
	FateRefused               // it is refused at once
	FateDropped               // it is discarded in silence
	FateBalanced              // it goes to an endpoint
)

var fateNames = [...]string{FateUntouched: "untouched", FateRefused: "refused", FateDropped: "dropped", FateBalanced: "balanced"}

func (f Fate) String() string { return nameOf(fateNames[:], f, "fate") }

// An Explanation is the answer to a Query.
type Explanation struct {
	Backend string
	Query   Query
	Fate    Fate
	// Why is what decided it, in a few words.
	Why string
	// Service and Frontend are who claims the packet; a Frontend without a valid address: nobody.
	Service  ServiceName
	Frontend Frontend
	// Endpoints are those that it may go to, if it is balanced.
	Endpoints []Target
	// Path is the way through the backend's rules, in the words of its stock tool; it begins where the packet does.
	Path []Hop
}

// A Target is an endpoint that a connection may go to.
type Target struct {
	Endpoint Endpoint
	// Masqueraded says that it sees an address of the node instead of the client's.
	Masqueraded bool
}

// A Hop is one step on a packet's way through the rules.
type Hop struct {
	// Where is the place, as the stock tool names it: "ip headgate chain services", say.
	Where string
	// Rule is what decides there, as the stock tool prints it.
	Rule string
}

// String returns the explanation as lines of text.
func (e Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s: %s", e.Query, e.Fate, e.Why)
	if e.Frontend.Addr.IsValid() {
		fmt.Fprintf(&b, "\n  service %s, %s", e.Service, e.Frontend)
	}
	for _, t := range e.Endpoints {
		sees := "sees the client"
		if t.Masqueraded {
			sees = "sees the node"
		}
		fmt.Fprintf(&b, "\n  endpoint %s, %s", t.Endpoint.Addr, sees)
	}
	for _, h := range e.Path {
		fmt.Fprintf(&b, "\n  %s: %s", h.Where, h.Rule)
	}
	return b.String()
}

// Explain says what becomes of a new connection where the committed forms are programmed: what every backend answers,
// but for the Differences that it names. Own reports whether an address is the node's; nil looks into [Node.Addrs].
// It looks at every service.
func (r *Resolver) Explain(q Query, own func(netip.Addr) bool) Explanation {
	if own == nil {
		own = func(a netip.Addr) bool { return slices.Contains(r.node.Addrs, a) }
	}
	a := &asked{Resolver: r, q: q, family: FamilyOf(q.To.Addr()), own: own, e: Explanation{Backend: r.features.Backend, Query: q}}
	a.from = q.From
	if !a.from.IsValid() {
		a.from = a.nodeAddr()
	}
	a.answer()
	return a.e
}

// An asked is a Query that is being answered.
type asked struct {
	*Resolver
	q      Query
	from   netip.Addr
	family Family
	own    func(netip.Addr) bool
	e      Explanation
}

// nodeAddr is an address that the node would send from.
func (a *asked) nodeAddr() netip.Addr {
	for _, addr := range slices.Concat(a.node.Primary, a.node.Addrs) {
		if FamilyOf(addr) == a.family {
			return addr
		}
	}
	return a.family.Unspecified()
}

func (a *asked) fate(f Fate, format string, args ...any) {
	a.e.Fate, a.e.Why = f, fmt.Sprintf(format, args...)
}

func (a *asked) answer() {
	to := a.q.To.Addr()
	if to.IsLoopback() && !a.sent() {
		a.fate(FateDropped, "only the node itself may send to loopback")
		return
	}
	form, front, ok := a.claim()
	if !ok {
		a.unclaimed()
		return
	}
	a.e.Service, a.e.Frontend = form.Name, front
	if !a.mayEnter(form, front) {
		a.fate(FateDropped, "%s is in none of the frontend's source ranges", a.from)
		return
	}
	policy, hide := a.terms(form, front)
	verdict, endpoints := form.Selections[a.family].Serving(policy)
	switch verdict {
	case Rejected:
		a.fate(FateRefused, "the service has no endpoint that could serve")
	case Dropped:
		a.fate(FateDropped, "the policy is Local and no endpoint on this node can serve, but others elsewhere can")
	case Balanced:
		a.fate(FateBalanced, "%s over %d of %d endpoints, policy %s", form.Service.Balance, len(endpoints), len(form.Endpoints), policy)
		for _, e := range endpoints {
			a.e.Endpoints = append(a.e.Endpoints, Target{e, a.hidden(form, front, e, hide)})
		}
	}
}

// sent reports whether the node itself sends the packet.
func (a *asked) sent() bool {
	return a.q.Interface == "" && (!a.q.From.IsValid() || a.ofNode() || a.ofFrontend(a.from, func(Frontend) bool { return true }))
}

// ofNode reports whether the packet comes from the node's own address.
func (a *asked) ofNode() bool { return !a.q.From.IsValid() || a.from.IsLoopback() || a.own(a.from) }

// ofFrontend reports whether an address is one of a frontend that is held.
func (a *asked) ofFrontend(addr netip.Addr, is func(Frontend) bool) bool {
	for _, form := range a.forms {
		if slices.ContainsFunc(form.Frontends, func(f Frontend) bool { return f.Addr.Addr() == addr && is(f) }) {
			return true
		}
	}
	return false
}

// claim finds the frontend that the packet is for: one of its very address, else a node port.
func (a *asked) claim() (*Resolved, Frontend, bool) {
	wanted := []netip.AddrPort{a.q.To}
	if a.nodePorts() {
		wanted = append(wanted, netip.AddrPortFrom(a.family.Unspecified(), a.q.To.Port()))
	}
	for _, addr := range wanted {
		name, ok := a.Holder(FrontendKey{Protocol: a.q.Protocol, Addr: addr})
		if !ok {
			continue
		}
		form := a.Form(name)
		for _, f := range form.Frontends {
			if f.Addr == addr {
				return form, f, true
			}
		}
	}
	return nil, Frontend{}, false
}

// nodePorts reports whether node ports answer at the packet's destination.
func (a *asked) nodePorts() bool {
	to := a.q.To.Addr()
	switch {
	case to.IsUnspecified():
		return false
	case to.IsLoopback():
		return a.node.NodePorts.Loopback && a.family == IPv4 && a.sent()
	case !a.own(to):
		return false
	}
	prefixes, limited := a.node.NodePortPrefixes(a.family)
	return !limited || containsAddr(prefixes, to)
}

// unclaimed answers for a packet that no frontend is for.
func (a *asked) unclaimed() {
	to := a.q.To.Addr()
	switch {
	case a.ofFrontend(to, func(f Frontend) bool { return f.Kind == Internal }):
		a.fate(FateRefused, "%s is a virtual address, and no service is at this port and protocol", to)
	case containsAddr(a.node.ServiceRanges, to) && !a.ofFrontend(to, func(Frontend) bool { return true }):
		a.fate(FateDropped, "%s is in a service range, and no service is there", to)
	default:
		a.fate(FateUntouched, "no service is there")
	}
}

// mayEnter reports whether the packet's source may come in by the frontend.
func (a *asked) mayEnter(form *Resolved, front Frontend) bool {
	return !front.Restricted() || containsAddr(form.Sources(front, a.node.Primary), a.from)
}

// terms returns the policy by which the packet is balanced, and whether the client is hidden as a rule.
func (a *asked) terms(form *Resolved, front Frontend) (policy TrafficPolicy, hide bool) {
	policy = form.Service.Policy(front.Kind)
	internal := a.node.Detector.Internal(a.from, a.q.Interface)
	switch {
	case front.Kind == Internal:
		looped := a.sent() && !a.ofNode()
		return policy, a.node.MasqueradeAll || looped || a.node.Detector.Detects(a.family) && !internal
	case policy == Cluster:
		return policy, true
	case internal: // the short cut
		return Cluster, false
	case a.ofNode():
		return Cluster, true
	}
	return Local, false
}

// hidden reports whether an endpoint sees the node's address instead of the client's.
func (a *asked) hidden(form *Resolved, front Frontend, e Endpoint, hide bool) bool {
	node := a.node
	switch {
	case e.Addr.Addr() == a.from, a.from.IsLoopback():
		return true
	case !a.sent() && a.own(e.Addr.Addr()): // it does not leave the node
		return false
	case node.KeepClientAddress && !node.MasqueradeAll && front.Kind != Internal && form.Service.ExternalTraffic == Cluster && e.Local:
		return false
	}
	return hide
}
