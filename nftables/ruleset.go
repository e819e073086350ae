package nftables

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/nft"
	"github.com/headgate/headgate/model"
)

// A ruleset makes the rules of one family's table. A new connection takes this way; an established one meets none of
// them, since the kernel asks chains of type nat about the first packet alone:
//
//	prerouting, output ─ dispatch ─┬─ check-source            restricted frontends: drop who may not come in
//	                               ├─ vmap @services ─┬─ internal-lb-3 ─ mark-internal, lb-3 ─ draw-3 ─ dnat to @endpoints
//	                               │                  ├─ external-lb-3 ─ mark-external, lb-3
//	                               │                  ├─ external-local ─ vmap @shortcut-services or @local-services
//	                               │                  └─ refuse, drop
//	                               ├─ refuse                  other ports of an internal frontend's address
//	                               ├─ dispatch-node-ports ─ vmap @node-ports ─ as above
//	                               └─ drop                    addresses of the service ranges that nobody owns
//	input, postrouting ─ record-affinity                     where a service has affinity
//	postrouting ─ masquerade                                  as the label says, or hairpin
type ruleset struct {
	nft.Rules
	allowOtherPorts bool
}

// sets are the sets that the table has, by nft.SetID.
var sets = nft.BaseSets()

// rules returns the ruleset of a family on a node.
func (c *Config) rules(node model.Node, fam model.Family) *ruleset {
	return &ruleset{allowOtherPorts: c.AllowOtherPorts, Rules: nft.Rules{Sets: sets, Node: node, Family: fam,
		Settings: c.settings(), DropInvalid: c.DropInvalid}}
}

// Frame returns the chains that are there whatever the services, those that others lead to first.
func (r *ruleset) Frame() []nft.Chain {
	fromNode := nft.LocalAddr(nft.FIBSaddr, true)
	base := func(name string, hook uint32, priority int32, rules ...nft.Rule) nft.Chain {
		return nft.Chain{Name: name, Hook: &nft.Hook{Kind: "nat", Num: hook, Priority: priority}, Rules: rules}
	}
	chains := []nft.Chain{
		r.Refuse(),
		r.MarkInternal(),
		r.MarkExternal(),
		r.BySource(nft.ExternalLocalChain, fromNode, nft.ShortcutServices, nft.LocalServices),
		r.BySource(nft.NodePortLocalChain, fromNode, nft.ShortcutNodePorts, nft.LocalNodePorts),
		r.CheckSource(nft.CheckSourceChain, nft.Allowed),
		r.CheckSource(nft.CheckSourceNPChain, nft.AllowedNodePorts),
		{Name: nft.NodePortChain, Rules: []nft.Rule{nft.On(r.In(nft.RestrictedNodePorts), nft.Jump(nft.CheckSourceNPChain)), r.VMap(nft.NodePorts)}},
		{Name: nft.DispatchChain, Rules: r.dispatch()},
		base(nft.NATPrerouting, unix.NF_INET_PRE_ROUTING, -100, nft.Goto(nft.DispatchChain)),
		base(nft.NATOutput, unix.NF_INET_LOCAL_OUT, -100, nft.Goto(nft.DispatchChain)),
		base(nft.NATPostrouting, unix.NF_INET_POST_ROUTING, 100, r.Masquerade(nft.Translated())...),
	}
	if r.ServesLoopback() {
		chains = append(chains, r.GuardLoopback())
	}
	if r.DropInvalid {
		chains = append(chains, r.ForwardInvalid())
	}
	return chains
}

func (r *ruleset) dispatch() []nft.Rule {
	rules := []nft.Rule{
		nft.On(r.In(nft.Restricted), nft.Jump(nft.CheckSourceChain)),
		r.VMap(nft.Services),
	}
	if !r.allowOtherPorts {
		rules = append(rules, nft.On(r.In(nft.ClusterIPs), nft.Goto(nft.RefuseChain)))
	}
	for _, match := range r.nodePortAddrs() {
		rules = append(rules, nft.On(match, nft.LocalAddr(nft.FIBDaddr, true), nft.Goto(nft.NodePortChain)))
	}
	return append(rules, r.ServiceRanges()...)
}

// nodePortAddrs returns matches that together recognise destinations on which node ports answer, if they are the node's.
func (r *ruleset) nodePortAddrs() [][]nft.Expression {
	prefixes, limited := r.Node.NodePortPrefixes(r.Family)
	var out [][]nft.Expression
	notLoopback := r.Within(nft.Daddr, r.Loopback(), false)
	for _, p := range model.MergePrefixes(prefixes) {
		out = append(out, slices.Concat(notLoopback, r.Within(nft.Daddr, p, true)))
	}
	if !limited {
		out = append(out, notLoopback)
	}
	if r.ServesLoopback() {
		out = append(out, r.Within(nft.Daddr, r.Loopback(), true))
	}
	return out
}

// Lists says which of a service's lists of endpoints its frontends of the family use.
func (r *ruleset) Lists(res *model.Resolved) (used [2]bool) {
	for _, f := range res.Frontends {
		if f.Family() != r.Family {
			continue
		}
		used[nft.ListOf(res.Service.Policy(f.Kind))] = true
		if f.Kind != model.Internal {
			used[nft.ClusterList] = true
		}
	}
	return used
}

// Render makes f what a service puts into the table; nothing for nil.
func (r *ruleset) Render(f *nft.Form, res *model.Resolved, lay nft.Layouts) {
	r.Rules.Render(f, res, lay, r.frontend)
}

// frontend puts a frontend into the form: where it leads to, and the slots behind it.
func (r *ruleset) frontend(to *nft.Renderer, f model.Frontend) {
	policy := to.Res.Service.Policy(f.Kind)
	verdict, _ := to.Res.Selections[r.Family].Serving(policy)
	at := nft.PlacesOf(f)
	used := [2]bool{}
	used[nft.ListOf(policy)] = true
	switch {
	case verdict == model.Rejected:
		to.Name(at.Services, f, nft.RefuseChain)
	case f.Kind == model.Internal && verdict == model.Dropped:
		to.Name(at.Services, f, nft.DropVerdict)
	case f.Kind == model.Internal:
		to.Name(at.Services, f, to.Through(f, nft.ByInternal, nft.ListOf(policy)))
	case policy == model.Cluster:
		to.Name(at.Services, f, to.Through(f, nft.ByExternal, nft.ClusterList))
	default:
		to.Name(at.Services, f, at.BySource)
		to.Lead(at.Shortcut, f, to.Through(f, nft.Plain, nft.ClusterList))
		if verdict == model.Balanced {
			to.Lead(at.Local, f, to.Through(f, nft.Plain, nft.LocalList))
		}
		used = [2]bool{true, true}
	}
	if verdict != model.Rejected {
		to.Record(f, used)
	}
	to.Own(f)
}
