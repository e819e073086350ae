package iptables

import (
	"net/netip"
	"slices"

	"github.com/headgate/headgate/model"
)

// pieces are all rules that one service has in one family: chains of its own, and entries of the trees.
type pieces struct {
	chains []chain
	// entries go to the trees; in others and endpoints several services may share one.
	entries [numTrees][]entry
}

// The trees of a family.
const (
	byAddress     = iota // nat: explicit frontends
	byPort               // nat: node ports
	wallByAddress        // filter: explicit frontends that are rejected, dropped or restricted
	wallByPort           // filter: node ports likewise
	others               // filter: internal addresses, for their other ports
	exempt               // filter: external addresses in the ranges that virtual addresses are taken from
	hairpin              // nat: addresses of endpoints, for those who reach themselves
	invalid              // filter: addresses of endpoints, for packets that connection tracking finds invalid
	numTrees
)

// A writer writes the pieces of one service.
//
//	nat     tree ─┬─ restricted? ── F ─┐
//	              └────────────────────┴─ I or E ─ marks ─┬─ S cluster ─ DNAT
//	                                                      └─ L local ─── DNAT
//	filter  tree ─── restricted? ── W ─── REJECT or DROP
type writer struct {
	*env
	r   *model.Resolved
	sel model.Selection
	out *pieces
	// users counts how many chains lead to each balancing chain. One with a single user is written into that one.
	users map[byte]int
}

// pieces returns all rules of a service.
func (e *env) pieces(r *model.Resolved) *pieces {
	out := &pieces{}
	if r == nil {
		return out
	}
	w := &writer{env: e, r: r, sel: r.Selections[e.family], out: out, users: map[byte]int{}}
	var internal, external bool
	for _, f := range r.Frontends {
		if f.Family() == e.family {
			internal = internal || f.Kind == model.Internal
			external = external || f.Kind != model.Internal
		}
	}
	if !internal && !external {
		return out
	}
	w.count(internal, external)
	if internal {
		w.internalEntry()
	}
	if external {
		w.externalEntry()
	}
	w.shared()
	for _, f := range r.Frontends {
		if f.Family() == e.family {
			w.frontend(f)
		}
	}
	w.endpoints()
	return out
}

// balances reports whether an entry for frontends of the kind exists: whether anybody at all gets to an endpoint.
func (w *writer) balances(kind model.FrontendKind) bool {
	verdict, _ := w.sel.Serving(w.r.Service.Policy(kind))
	return verdict == model.Balanced || kind != model.Internal && len(w.sel.Cluster) > 0
}

// clusterKind is the balancing chain of external frontends with the policy Cluster.
func (w *writer) clusterKind() byte {
	if w.keepClient && slices.ContainsFunc(w.sel.Cluster, func(e model.Endpoint) bool { return e.Local }) {
		return kindKeep
	}
	return kindCluster
}

func (w *writer) count(internal, external bool) {
	if internal && w.balances(model.Internal) {
		w.users[w.policyKind(w.r.Service.InternalTraffic)]++
	}
	switch {
	case !external || !w.balances(model.External):
	case w.r.Service.ExternalTraffic == model.Cluster:
		w.users[w.clusterKind()]++
	default:
		w.users[kindCluster] += 2 // each short cut is a rule that leads there
		w.users[kindLocal]++
	}
}

func (w *writer) policyKind(p model.TrafficPolicy) byte {
	if p == model.Local {
		return kindLocal
	}
	return kindCluster
}

func (w *writer) chainName(kind byte, parts ...string) string {
	return w.names.hashed(kind, append([]string{w.family.String(), string(w.r.Name)}, parts...)...)
}

func (w *writer) chain(kind byte) *chain { return &chain{table: nat, name: w.chainName(kind)} }

func (w *writer) keep(c *chain) { w.out.chains = append(w.out.chains, *c) }

// key returns the tree and key of a frontend's wall.
func (w *writer) key(f model.Frontend) (wall int, key string) {
	wall = wallByAddress
	if f.Kind == model.NodePort {
		wall = wallByPort
	}
	return wall, w.layout(wall).key(f.Addr, w.r.Service.Protocol)
}

// internalEntry writes the chain of all internal frontends.
func (w *writer) internalEntry() {
	if !w.balances(model.Internal) {
		return
	}
	c := w.chain(kindInternal)
	c.add(w.r.Name, jumpTo(w.names.fixed(chainInternal)))
	w.balance(c, w.policyKind(w.r.Service.InternalTraffic))
	w.keep(c)
}

// externalEntry writes the chain of all external frontends and node ports. With the policy Local there are short cuts:
// internal sources and the node itself are served by the whole cluster, the latter masqueraded.
func (w *writer) externalEntry() {
	if !w.balances(model.External) {
		return
	}
	c := w.chain(kindExternal)
	if w.r.Service.ExternalTraffic == model.Cluster {
		c.add(w.r.Name, jumpTo(w.names.fixed(chainExternal)))
		w.balance(c, w.clusterKind())
		w.keep(c)
		return
	}
	cluster := goTo(w.chainName(kindCluster))
	for _, match := range w.internal {
		c.add(w.r.Name, match, cluster)
	}
	c.add(w.r.Name, fromNode, w.settings.mark.set())
	c.add(w.r.Name, fromNode, cluster)
	if len(w.sel.Local) > 0 {
		if remember := w.remember(); remember != "" && w.users[kindLocal] == 1 {
			c.add(w.r.Name, remember)
		}
		w.balance(c, kindLocal)
	} else {
		c.add(w.r.Name, targetAccept) // as in frontend
	}
	w.keep(c)
}

// balance appends what spreads over the endpoints of a kind: the rules themselves, or the way to them.
func (w *writer) balance(c *chain, kind byte) {
	if w.users[kind] == 1 {
		w.fill(c, kind)
		return
	}
	c.add(w.r.Name, goTo(w.chainName(kind)))
}

func (w *writer) fill(c *chain, kind byte) {
	eps := w.sel.Cluster
	if kind == kindLocal {
		eps = w.sel.Local
	}
	b := &balancer{env: w.env, service: w.r, kind: kind}
	if kind == kindKeep {
		b.keptTarget = w.keptTarget
		w.kept()
	}
	b.fill(c, eps)
	w.out.chains = append(w.out.chains, b.chains...)
}

// shared writes the balancing chains that several entries lead to.
func (w *writer) shared() {
	for _, kind := range []byte{kindCluster, kindKeep, kindLocal} {
		if w.users[kind] < 2 || kind == kindLocal && len(w.sel.Local) == 0 {
			continue
		}
		c := w.chain(kind)
		if remember := w.remember(); remember != "" {
			c.add(w.r.Name, remember)
		}
		w.fill(c, kind)
		w.keep(c)
	}
}

// kept writes a chain for each endpoint on this node that shall see who connects: it takes the mark back. The node's own
// connections keep it, since their source may be a virtual or a loopback address.
func (w *writer) kept() {
	for i := range w.sel.Cluster {
		if e := &w.sel.Cluster[i]; e.Local {
			c := &chain{table: nat, name: w.chainName(kindKept, e.Addr.String())}
			c.add(w.r.Name, notFromNode, w.settings.mark.clear())
			c.add(w.r.Name, matchProto(w.r.Service.Protocol), targetEndpoint(e.Addr))
			w.keep(c)
		}
	}
}

func (w *writer) keptTarget(e *model.Endpoint) string {
	if e.Local {
		return goTo(w.chainName(kindKept, e.Addr.String()))
	}
	return ""
}

// endpoints writes the entries of the endpoints' addresses, of which several services may have the same.
func (w *writer) endpoints() {
	trees := w.endpointTrees()
	if len(trees) == 0 {
		return
	}
	seen := map[netip.Addr]bool{}
	for _, eps := range [][]model.Endpoint{w.sel.Cluster, w.sel.Local} {
		for i := range eps {
			a := eps[i].Addr.Addr()
			if seen[a] {
				continue
			}
			seen[a] = true
			for _, t := range trees {
				e := entry{key: w.layout(t).key(netip.AddrPortFrom(a, 0), 0), rest: targetDrop}
				if t == hairpin {
					e.rest = words(matchDst(netip.PrefixFrom(a, a.BitLen())), w.masquerade())
				}
				w.out.entries[t] = append(w.out.entries[t], e)
			}
		}
	}
}

// endpointTrees says which trees over endpoints there are.
func (e *env) endpointTrees() []int {
	var trees []int
	if !e.features.program {
		trees = append(trees, hairpin)
	}
	if e.settings.dropInvalid {
		trees = append(trees, invalid)
	}
	return trees
}
