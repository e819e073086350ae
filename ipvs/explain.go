package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/nft"
	"github.com/headgate/headgate/model"
)

// Explain says what becomes of a new connection: the way through the table, in the words of nft, and then the virtual
// service, in those of ipvsadm. It knows of the differences in [Programmer.Features]. See [model.Explainer].
func (p *Programmer) Explain(_ context.Context, q model.Query) (model.Explanation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return model.Explanation{}, model.ErrClosed
	case p.record == nil || p.left:
		return model.Explanation{}, model.ErrNotSynced
	case !q.To.IsValid():
		return model.Explanation{}, fmt.Errorf("ipvs: explain: no destination: %w", model.ErrInvalid)
	}
	fam := model.FamilyOf(q.To.Addr())
	x := explainer{rec: p.record, node: &p.node, q: q, key: virtualKey{proto: q.Protocol, at: q.To},
		rules: p.cfg.rules(p.node, fam).(*ruleset), table: nft.Word(fam) + " " + p.cfg.Table}
	x.Explanation = p.resolver.Explain(q, x.isNode)
	x.form = p.resolver.Form(x.Service)
	x.written, _ = p.table.Written(x.Service, fam)
	x.differ()
	x.walk()
	return x.Explanation, nil
}

// An explainer explains one connection.
type explainer struct {
	model.Explanation
	rec   *record
	node  *model.Node
	rules *ruleset
	table string // as nft names it, with its family
	q     model.Query
	key   virtualKey
	form  *model.Resolved // of the service, if any
	// written is what the table holds for it.
	written nft.Form
}

// isNode reports whether an address is the node's.
func (x *explainer) isNode(a netip.Addr) bool {
	_, has := x.rec.hosts[a]
	return has || slices.Contains(x.node.Addrs, a)
}

// differ puts right what every backend answers where this one does otherwise.
func (x *explainer) differ() {
	to := x.q.To.Addr()
	nodePort := x.Frontend.Kind == model.NodePort
	if x.form != nil && nodePort && !to.IsLoopback() && !slices.Contains(x.rec.nodePorts[x.key.family()], to) {
		x.form = nil
		x.Explanation = model.Explanation{Backend: x.Backend, Query: x.q, Fate: model.FateUntouched,
			Why: fmt.Sprintf("node ports do not answer at %s, which the node is not known to have", to)}
	}
	_, routed := x.rec.routes[to]
	switch v := x.rec.virtual[x.key]; {
	case x.form != nil && x.Fate == model.FateBalanced && x.policy() == model.Local && x.rules.noShortCut && !to.IsLoopback():
		x.onlyHere()
	case x.form == nil && routed:
		x.Fate, x.Why = model.FateRefused, fmt.Sprintf("%s is local to the node, and no service is at this port and protocol", to)
	case x.form == nil && v != nil:
		x.Fate, x.Why = model.FateRefused, "what is left of a service drains"
	}
}

func (x *explainer) policy() model.TrafficPolicy {
	if x.Frontend.Kind == model.Internal {
		return model.Cluster // its own policy knows no short cut
	}
	return x.form.Service.ExternalTraffic
}

// onlyHere answers where there is no short cut: the endpoints on this node, whoever asks.
func (x *explainer) onlyHere() {
	verdict, local := x.form.Selections[x.key.family()].Serving(model.Local)
	x.Endpoints = nil
	if verdict == model.Dropped {
		x.Fate, x.Why = model.FateDropped, "the policy is Local, there is no short cut, and no endpoint on this node can serve"
		return
	}
	for _, e := range local {
		x.Endpoints = append(x.Endpoints, model.Target{Endpoint: e, Masqueraded: e.Addr.Addr() == x.q.From})
	}
	x.Why = fmt.Sprintf("%s over %d of %d endpoints, policy %s", x.form.Service.Balance, len(local), len(x.form.Endpoints), model.Local)
}

func (x *explainer) hop(where, rule string, args ...any) {
	x.Path = append(x.Path, model.Hop{Where: where, Rule: fmt.Sprintf(rule, args...)})
}

// chain adds a hop inside a chain of the table, element one about an element of a set or map.
func (x *explainer) chain(name, rule string, args ...any) {
	x.hop(x.table+" chain "+name, rule, args...)
}

func (x *explainer) element(e nft.Element) {
	of, kind := sets()[e.Set], "set"
	if of.Map {
		kind = "map"
	}
	x.hop(x.table+" "+kind+" "+of.Name, "%s", of.Words(e))
}

// own adds a hop about the service's own element in a set or map, and returns it.
func (x *explainer) own(id nft.SetID) nft.Element {
	k := x.elementKey(id)
	if x.Frontend.Kind == model.NodePort {
		k.Addr = netip.Addr{}
	}
	e, _ := x.written.Element(k)
	x.element(e)
	return e
}

func (x *explainer) elementKey(id nft.SetID) nft.ElementKey {
	return nft.ElementKey{Set: id, Addr: x.q.To.Addr(), Proto: x.q.Protocol, Port: x.q.To.Port()}
}

// address adds a hop about an element that is an address.
func (x *explainer) address(id nft.SetID) {
	x.element(nft.Element{ElementKey: nft.ElementKey{Set: id, Addr: x.q.To.Addr()}})
}

// walk tells the way.
func (x *explainer) walk() {
	hook := nft.NATPrerouting
	if x.sent() {
		hook = nft.NATOutput
	}
	x.chain(hook, "goto %s", nft.DispatchChain)
	_, routed := x.rec.routes[x.q.To.Addr()]
	switch {
	case x.form != nil:
		x.claimed()
	case x.Fate == model.FateRefused && routed:
		x.address(virtualIPs)
		x.refuse()
	case x.Fate == model.FateRefused:
		x.element(nft.Element{ElementKey: x.elementKey(virtualServices)})
		x.refuse()
	case x.Fate == model.FateDropped:
		x.chain(nft.DispatchChain, "drop")
	}
}

// sent reports whether the node itself sends the packet.
func (x *explainer) sent() bool {
	return x.q.Interface == "" && (!x.q.From.IsValid() || x.q.From.IsLoopback() || x.isNode(x.q.From) || x.rec.at[x.q.From] > 0)
}

func (x *explainer) refuse() { x.chain(nft.RefuseChain, "reject") }

// claimed tells the way to a frontend.
func (x *explainer) claimed() {
	w, at := x.rules.way(x.form, x.Frontend), nft.PlacesOf(x.Frontend)
	nodePort := x.Frontend.Kind == model.NodePort
	loopback := nodePort && x.q.To.Addr().IsLoopback()
	switch {
	case loopback:
		x.chain(nft.DispatchChain, "goto %s", loopbackChain)
	case nodePort:
		x.address(nodePortIPs)
	}
	switch {
	case x.Fate == model.FateDropped && w.first != nft.DropVerdict && !x.lacksLocal(w):
		x.outOfRange(at)
	case loopback && w.short:
		x.translated(at)
	default:
		x.own(at.Services)
		x.decided(w, at)
	}
}

// decided tells the way from the map of services on.
func (x *explainer) decided(w way, at nft.Places) {
	switch {
	case x.Fate == model.FateRefused:
		x.refuse()
	case x.Fate == model.FateDropped && w.bySource():
		x.chain(w.first, "drop")
	case x.Fate == model.FateDropped:
	case !w.bySource():
		x.chain(w.first, "goto %s", byIPVS)
		x.balanced()
	case x.takesShortCut():
		x.chain(w.first, "vmap @%s", sets()[at.Shortcut].Name)
		x.translated(at)
	default:
		x.own(at.Local)
		x.balanced()
	}
}

// outOfRange tells of a client that is in none of the frontend's source ranges.
func (x *explainer) outOfRange(at nft.Places) {
	x.own(at.Restricted)
	x.chain(at.CheckSource, "drop")
}

// lacksLocal reports whether it is for want of a local endpoint that the packet is dropped.
func (x *explainer) lacksLocal(w way) bool {
	verdict, _ := x.form.Selections[x.key.family()].Serving(x.form.Service.Policy(x.Frontend.Kind))
	return w.bySource() && verdict == model.Dropped && !x.takesShortCut()
}

// takesShortCut reports whether the client is one that all endpoints shall serve, whatever the external policy.
func (x *explainer) takesShortCut() bool {
	from := x.q.From
	return x.node.Detector.Internal(from, x.q.Interface) || !from.IsValid() || from.IsLoopback() || x.isNode(from)
}

// translated tells the end of a way that the table balances itself.
func (x *explainer) translated(at nft.Places) {
	e := x.own(at.Shortcut)
	steps, slots := x.rules.Way(&x.written, e.Chain, e.ElementKey)
	for _, s := range steps {
		x.chain(s.Chain, "%s", s.Rule)
	}
	for _, slot := range slots {
		x.element(slot)
	}
	x.masqueraded()
}

// balanced tells the end of a way that IPVS balances.
func (x *explainer) balanced() {
	x.chain(byIPVS, "fib daddr type local accept")
	v := x.rec.virtual[x.key]
	if v == nil {
		return
	}
	scheduler := v.spec.scheduler
	if v.spec.flags&flagPersistent != 0 {
		scheduler += fmt.Sprintf(" persistent %d", v.spec.timeout)
	}
	for _, t := range x.Endpoints {
		if i, ok := v.find(t.Endpoint.Addr); ok {
			x.hop(fmt.Sprintf("ipvsadm %s %s %s", strings.ToUpper(x.key.proto.String()), x.key.at, scheduler), "-> %s Masq %d", v.servers[i].at, v.servers[i].weight)
		}
	}
	x.masqueraded()
}

// masqueraded tells where the client is hidden, if it is.
func (x *explainer) masqueraded() {
	if slices.ContainsFunc(x.Endpoints, func(t model.Target) bool { return t.Masqueraded }) {
		x.chain(nft.NATPostrouting, "masquerade fully-random")
	}
}
