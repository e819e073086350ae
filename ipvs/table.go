package ipvs

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/nft"
	"github.com/headgate/headgate/model"
)

// The table beside the virtual services decides, before IPVS sees a new connection, who may come in, who is masqueraded
// and what is refused, and balances by itself what IPVS cannot: the short cut of external policy Local, and node ports
// on loopback. A new connection takes this way; an established one meets none of it, since the kernel asks chains of
// type nat about the first packet alone:
//
//	prerouting, output ─ dispatch ─┬─ check-source             restricted frontends: drop who may not come in
//	                               ├─ vmap @services ─┬─ internal-by-ipvs ─ mark-internal ─ by-ipvs ─ accept: IPVS balances it
//	                               │                  ├─ external-by-ipvs ─ mark-external ─ by-ipvs
//	                               │                  ├─ external-local ─ vmap @shortcut-services: dnat here
//	                               │                  │                 or vmap @local-services ─ by-ipvs
//	                               │                  └─ refuse, drop
//	                               ├─ refuse                   other ports of @virtual-ips
//	                               ├─ dispatch-node-ports      @node-port-ips: vmap @node-ports ─ as above
//	                               ├─ refuse                   @virtual-services: what drains, or is coming or going
//	                               └─ drop                     addresses of the service ranges that nobody owns
//	postrouting ─ masquerade                                   as the label says, or hairpin
//
// So IPVS never balances a connection that dispatch has not decided about: @virtual-services has every virtual service
// of ours, from before it is made until after it is gone, and is the record of which are ours.

// Sets of this backend's own.
const (
	virtualServices = nft.Further + iota // address, protocol and port of every virtual service of ours
	virtualIPs                           // addresses that we have made local
	nodePortIPs                          // addresses of the node on which node ports answer
	drainingServers                      // real servers that drain, with their time; address 0 stands for the virtual service
)

// sets returns the shapes of the sets that the table has.
func sets() []nft.Set {
	frontend := []nft.Field{nft.Daddr, nft.L4Proto, nft.Dport}
	return append(nft.BaseSets(),
		nft.Set{Name: virtualServicesSet, Typed: true, Key: frontend},
		nft.Set{Name: vipsSet, Typed: true, Key: []nft.Field{nft.Daddr}},
		nft.Set{Name: nodeAddrsSet, Typed: true, Key: []nft.Field{nft.Daddr}},
		nft.Set{Name: drainingSet, Typed: true, Expires: true, Key: append(slices.Clone(frontend), nft.RealAddr, nft.RealPort)})
}

// A ruleset makes the rules of one family's table.
type ruleset struct {
	nft.Rules
	noShortCut bool
}

// rules returns the ruleset of a family on a node.
func (c *Config) rules(node model.Node, fam model.Family) nft.Ruleset {
	return &ruleset{noShortCut: c.NoShortCut, Rules: nft.Rules{Sets: sets(), Node: node, Family: fam,
		Settings: c.settings()}}
}

// base returns a base chain.
func base(name, kind string, hook uint32, priority int32, rules ...nft.Rule) nft.Chain {
	return nft.Chain{Name: name, Hook: &nft.Hook{Kind: kind, Num: hook, Priority: priority}, Rules: rules}
}

// Frame returns the chains that are there whatever the services, those that others lead to first.
func (r *ruleset) Frame() []nft.Chain {
	// A virtual address is local, but no client of the node.
	fromNode := append(nft.LocalAddr(nft.FIBSaddr, true), r.SourceIn(virtualIPs, false)...)
	through := func(name, mark string) nft.Chain {
		return nft.Chain{Name: name, Rules: []nft.Rule{nft.On(nft.Jump(mark)), nft.On(nft.Goto(byIPVS))}}
	}
	chains := []nft.Chain{
		r.Refuse(),
		r.MarkInternal(),
		r.MarkExternal(),
		// What is not routed to us yet, or not any more, must not leave the node unbalanced.
		{Name: byIPVS, Rules: []nft.Rule{nft.On(nft.LocalAddr(nft.FIBDaddr, true), nft.Accept()), nft.Drop()}},
		through(internalByIPVS, nft.MarkInternalChain),
		through(externalByIPVS, nft.MarkExternalChain),
		{Name: localByIPVS, Rules: []nft.Rule{nft.On(r.KeepClient(), nft.Goto(byIPVS))}},
		r.BySource(nft.ExternalLocalChain, fromNode, nft.ShortcutServices, nft.LocalServices),
		r.BySource(nft.NodePortLocalChain, fromNode, nft.ShortcutNodePorts, nft.LocalNodePorts),
		r.CheckSource(nft.CheckSourceChain, nft.Allowed),
		r.CheckSource(nft.CheckSourceNPChain, nft.AllowedNodePorts),
		{Name: nft.NodePortChain, Rules: []nft.Rule{nft.On(r.In(nft.RestrictedNodePorts), nft.Jump(nft.CheckSourceNPChain)), r.VMap(nft.NodePorts)}},
	}
	if r.ServesLoopback() {
		chains = append(chains, r.GuardLoopback(), nft.Chain{Name: loopbackChain, Rules: []nft.Rule{
			nft.On(r.In(nft.RestrictedNodePorts), nft.Jump(nft.CheckSourceNPChain)),
			nft.On(r.HideClient(), r.VMap(nft.ShortcutNodePorts)),
			r.VMap(nft.NodePorts)}})
	}
	chains = append(chains,
		nft.Chain{Name: nft.DispatchChain, Rules: r.dispatch()},
		// Another backend that is in charge still, or again, goes first: dispatch drops what is not routed to us yet.
		base(nft.NATPrerouting, "nat", unix.NF_INET_PRE_ROUTING, -99, nft.Goto(nft.DispatchChain)),
		base(nft.NATOutput, "nat", unix.NF_INET_LOCAL_OUT, -99, nft.Goto(nft.DispatchChain)),
		// Connections of IPVS do not count as translated.
		base(nft.NATPostrouting, "nat", unix.NF_INET_POST_ROUTING, 100, r.Masquerade(nil)...))
	return append(chains, r.RecordAffinity()...)
}

func (r *ruleset) dispatch() []nft.Rule {
	rules := []nft.Rule{
		nft.On(r.In(nft.Restricted), nft.Jump(nft.CheckSourceChain)),
		r.VMap(nft.Services),
		nft.On(r.In(virtualIPs), nft.Goto(nft.RefuseChain)),
	}
	if r.ServesLoopback() {
		rules = append(rules, nft.On(r.Within(nft.Daddr, r.Loopback(), true), nft.Goto(loopbackChain)))
	}
	rules = append(rules,
		nft.On(r.In(nodePortIPs), nft.Jump(nft.NodePortChain)),
		nft.On(r.In(virtualServices), nft.Goto(nft.RefuseChain)))
	return append(rules, r.ServiceRanges()...)
}

// shortCut reports whether connections to a frontend may be balanced by the table instead of IPVS.
func (r *ruleset) shortCut(s *model.Service, f model.Frontend) bool {
	return f.Kind != model.Internal && s.ExternalTraffic == model.Local && !r.noShortCut || f.Kind == model.NodePort && r.ServesLoopback()
}

// Lists says which of a service's lists are balanced over here.
func (r *ruleset) Lists(res *model.Resolved) (used [2]bool) {
	used[nft.ClusterList] = slices.ContainsFunc(res.Frontends, func(f model.Frontend) bool {
		return f.Family() == r.Family && r.shortCut(&res.Service, f)
	})
	return used
}

// Render makes f what a service puts into the table; nothing for nil.
func (r *ruleset) Render(f *nft.Form, res *model.Resolved, lay nft.Layouts) {
	r.Rules.Render(f, res, lay, r.frontend)
}

// A way is where new connections to a frontend are led.
type way struct {
	first string // from the map of services: a chain's name or [nft.DropVerdict]
	local bool   // whoever may not take the short cut is led on to IPVS
	short bool   // there is a short cut
}

// bySource reports whether the way depends on who the client is.
func (w way) bySource() bool {
	return w.first == nft.ExternalLocalChain || w.first == nft.NodePortLocalChain
}

// way returns the way of a service's frontend.
func (r *ruleset) way(res *model.Resolved, f model.Frontend) way {
	policy := res.Service.Policy(f.Kind)
	verdict, _ := res.Selections[r.Family].Serving(policy)
	w := way{first: externalByIPVS, short: verdict != model.Rejected && r.shortCut(&res.Service, f)}
	switch external := f.Kind != model.Internal; {
	case verdict == model.Rejected:
		w.first = nft.RefuseChain
	case external && policy == model.Local && !r.noShortCut:
		w.first, w.local = nft.PlacesOf(f).BySource, verdict == model.Balanced
	case verdict == model.Dropped:
		w.first = nft.DropVerdict
	case !external:
		w.first = internalByIPVS
	case policy == model.Local:
		w.first = localByIPVS
	}
	return w
}

// frontend puts a frontend into the form: where it leads to, and what is behind it on the short cut.
func (r *ruleset) frontend(to *nft.Renderer, f model.Frontend) {
	w, at := r.way(to.Res, f), nft.PlacesOf(f)
	to.Name(at.Services, f, w.first)
	if w.local {
		to.Lead(at.Local, f, byIPVS)
	}
	if w.short {
		to.Lead(at.Shortcut, f, to.Through(f, nft.Plain, nft.ClusterList))
		to.Record(f, [2]bool{nft.ClusterList: true})
	}
	to.Own(f)
}

// A retired ruleset leaves new connections to whoever has taken our place. It only keeps what is still local for the
// sake of open connections from being taken for the node itself.
type retired struct{ *ruleset }

// retiredRules returns the ruleset of a family once another backend is in charge.
func (c *Config) retiredRules(node model.Node, fam model.Family) nft.Ruleset {
	return retired{c.rules(node, fam).(*ruleset)}
}

// Frame returns the chains that are there.
func (r retired) Frame() []nft.Chain {
	return []nft.Chain{
		r.Refuse(),
		base(guardChain, "filter", unix.NF_INET_LOCAL_IN, 0, nft.On(nft.StateNew(), r.In(virtualIPs), nft.Goto(nft.RefuseChain))),
	}
}

// element returns the key of an element about a virtual service.
func (k virtualKey) element(set nft.SetID) nft.ElementKey {
	e := nft.ElementKey{Set: set, Addr: k.at.Addr(), Proto: k.proto, Port: k.at.Port()}
	if set == drainingServers {
		e.Real = netip.AddrPortFrom(k.family().Unspecified(), 0)
	}
	return e
}

// keyOf returns what an element is about.
func keyOf(e nft.Element) virtualKey {
	return virtualKey{proto: e.Proto, at: netip.AddrPortFrom(e.Addr, e.Port)}
}
