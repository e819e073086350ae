package nftables

import (
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/headgate/headgate/model"
)

// A form is all that one service puts into one family's table.
type form struct {
	elements []element
	runs     []run
	// shared are elements that other services may put there as well: they are counted.
	shared []sharedKey
	routes []route     // of shared chains
	chains []chainSpec // of its own
	maps   []clientMap // of its own
}

// A clientMap is a map of a service's clients, and the endpoint addresses that it may lead to.
type clientMap struct {
	setSpec
	addrs []netip.Addr
}

// A run is the slots of one list behind one frontend.
type run struct {
	set    setID
	addr   netip.Addr
	proto  model.Protocol
	port   uint16
	list   list
	layout layout
}

// element returns the element of one slot.
func (r run) element(slot int) element {
	return element{
		elementKey: elementKey{set: r.set, addr: r.addr, proto: r.proto, port: r.port, slot: uint32(slot) + r.list.offset()},
		to:         r.layout[slot],
	}
}

// layouts are the layouts of a service's two lists in one family.
type layouts [2]layout

// lay returns the layouts for a service's lists in one family, starting from the old ones. The lists that no frontend
// uses stay empty. The error wraps model.ErrNotSupported.
func lay(res *model.Resolved, fam model.Family, old layouts) (next layouts, err error) {
	sel := res.Selections[fam]
	eps := [2][]model.Endpoint{cluster: sel.Cluster, local: sel.Local}
	for l, used := range usedLists(res, fam) {
		if !used || len(eps[l]) == 0 {
			continue
		}
		switch res.Service.Balance {
		case model.SourceHash, model.Maglev:
			next[l], err = hashed(eps[l])
		case model.RoundRobin:
			next[l] = inTurn(old[l], eps[l])
		default:
			next[l] = spread(old[l], eps[l])
		}
		if err != nil {
			return next, err
		}
	}
	return next, nil
}

// usedLists says which lists the frontends of one family use.
func usedLists(res *model.Resolved, fam model.Family) (used [2]bool) {
	for _, f := range res.Frontends {
		if f.Family() != fam {
			continue
		}
		policy := res.Service.Policy(f.Kind)
		used[policy] = true // the lists are numbered like the policies
		if f.Kind != model.Internal {
			used[cluster] = true
		}
	}
	return used
}

// An affinityPort is one of a service's maps of clients: for the endpoints with this port.
type affinityPort struct {
	name string
	port uint16
}

// A renderer renders one service into one family's table.
type renderer struct {
	ruleset
	res   *model.Resolved
	lay   layouts
	id    string
	note  string
	pins  [2][]affinityPort
	form  *form
	order []string // names of chains that are in the form
}

// reset empties a form and keeps its memory.
func (f *form) reset() {
	*f = form{elements: f.elements[:0], runs: f.runs[:0], shared: f.shared[:0], routes: f.routes[:0]}
}

// render makes f what a service puts into the table of the ruleset's family; nothing for nil.
func (rs ruleset) render(f *form, res *model.Resolved, lay layouts) {
	f.reset()
	if res == nil || !slices.ContainsFunc(res.Frontends, func(f model.Frontend) bool { return f.Family() == rs.family }) {
		return
	}
	r := renderer{ruleset: rs, res: res, lay: lay, note: comment(res.Name), form: f}
	if res.Service.Affinity > 0 || res.Service.Balance == model.RoundRobin {
		r.id = identifier(res.Name)
	}
	if res.Service.Affinity > 0 {
		r.affinityMaps()
	}
	for _, f := range res.Frontends {
		if f.Family() == rs.family {
			r.frontend(f)
			r.restrict(f)
		}
	}
	r.endpoints()
}

// affinityMaps puts the service's maps of clients into the form: one for each list and endpoint port.
func (r *renderer) affinityMaps() {
	for l, lay := range r.lay {
		prefix := affinityMapPrefix
		if list(l) == local {
			prefix += "local-"
		}
		for _, p := range ports(lay) {
			name := prefix + r.id + "-" + strconv.Itoa(int(p))
			r.pins[l] = append(r.pins[l], affinityPort{name: name, port: p})
			timeout := r.res.Service.Affinity.Truncate(time.Millisecond)
			m := clientMap{setSpec: affinityMapSpec(name, timeout, uint32(r.cfg.AffinitySize))}
			for _, s := range lay.taken() {
				if s.Port() == p {
					m.addrs = append(m.addrs, s.Addr())
				}
			}
			r.form.maps = append(r.form.maps, m)
		}
	}
}

// ports returns the ports of the endpoints in a layout, sorted.
func ports(l layout) []uint16 {
	var out []uint16
	for _, s := range l.taken() {
		if !slices.Contains(out, s.Port()) {
			out = append(out, s.Port())
		}
	}
	slices.Sort(out)
	return out
}

// frontend puts a frontend into the form: where it leads to, and the slots behind it.
func (r *renderer) frontend(f model.Frontend) {
	policy := r.res.Service.Policy(f.Kind)
	verdict, _ := r.res.Selections[r.family].Serving(policy)
	maps := [...]setID{services, shortcutServices, localServices}
	bySource := externalLocal
	if f.Kind == model.NodePort {
		maps = [...]setID{nodePorts, shortcutNodePorts, localNodePorts}
		bySource = nodePortLocal
	}
	switch {
	case verdict == model.Rejected:
		r.lead(maps[0], f, refuseChain, r.note)
	case f.Kind == model.Internal && verdict == model.Dropped:
		r.lead(maps[0], f, dropVerdict, r.note)
	case f.Kind == model.Internal:
		r.lead(maps[0], f, r.through(f, internal, list(policy)), r.note)
	case policy == model.Cluster:
		r.lead(maps[0], f, r.through(f, external, cluster), r.note)
	default:
		r.lead(maps[0], f, bySource, r.note)
		r.lead(maps[1], f, r.through(f, plain, cluster), "")
		if verdict == model.Balanced {
			r.lead(maps[2], f, r.through(f, plain, local), "")
		}
	}
	if r.res.Service.Affinity > 0 && verdict != model.Rejected {
		r.recordFor(f, policy)
	}
	if f.Kind != model.NodePort {
		r.own(f)
	}
}

// key returns the key that stands for a frontend in a set.
func (r *renderer) key(set setID, f model.Frontend) elementKey {
	k := elementKey{set: set, proto: r.res.Service.Protocol, port: f.Addr.Port()}
	if f.Kind != model.NodePort {
		k.addr = f.Addr.Addr()
	}
	return k
}

// lead makes a verdict map lead a frontend to a chain.
func (r *renderer) lead(set setID, f model.Frontend, chain, note string) {
	r.form.elements = append(r.form.elements, element{elementKey: r.key(set, f), chain: chain, comment: note})
}

// through puts the chain that balances a frontend over a list, and the slots that it draws from, into the form, and
// returns the chain's name.
func (r *renderer) through(f model.Frontend, c class, l list) string {
	svc := r.res.Service
	rt := route{class: c, nodePort: f.Kind == model.NodePort, list: l, balance: svc.Balance, slots: len(r.lay[l])}
	rt.hashPort = svc.HashPort && (svc.Balance == model.SourceHash || svc.Balance == model.Maglev)
	if r.id != "" {
		rt.own = &ownRoute{service: r.res.Name, id: r.id, protocol: svc.Protocol, maps: r.pins[l]}
		r.chain(r.chainSpec(rt))
		if next, ok := rt.needs(); ok {
			r.form.routes = append(r.form.routes, next)
		}
	} else {
		r.form.routes = append(r.form.routes, rt)
	}
	k := r.key(endpoints, f)
	if f.Kind == model.NodePort {
		k.set = nodePortEndpoints
	}
	r.form.runs = append(r.form.runs, run{set: k.set, addr: k.addr, proto: k.proto, port: k.port, list: l, layout: r.lay[l]})
	return rt.chain()
}

// chain puts a chain of the service's own into the form, once.
func (r *renderer) chain(c chainSpec) {
	if !slices.Contains(r.order, c.name) {
		r.order = append(r.order, c.name)
		r.form.chains = append(r.form.chains, c)
	}
}

// recordFor makes the endpoints of connections to a frontend be remembered.
func (r *renderer) recordFor(f model.Frontend, policy model.TrafficPolicy) {
	pins := [2][]affinityPort{}
	name := recordPrefix
	switch {
	case policy == model.Cluster:
		pins[cluster] = r.pins[cluster]
	case f.Kind == model.Internal:
		name += "local-"
		pins[local] = r.pins[local]
	default:
		name += "either-"
		pins = r.pins
	}
	if len(pins[cluster])+len(pins[local]) == 0 {
		return
	}
	name += r.id
	r.chain(r.recorder(name, pins))
	if f.Kind != model.NodePort {
		r.lead(affinity, f, name, "")
		return
	}
	var seen []netip.AddrPort
	for l := range pins {
		if len(pins[l]) == 0 {
			continue
		}
		for _, s := range r.lay[l].taken() {
			if slices.Contains(seen, s) {
				continue
			}
			seen = append(seen, s)
			k := elementKey{set: nodePortAffinity, addr: s.Addr(), proto: r.res.Service.Protocol, port: f.Addr.Port(), real: s.Port()}
			r.form.elements = append(r.form.elements, element{elementKey: k, chain: name})
		}
	}
}

// own claims the address of a frontend.
func (r *renderer) own(f model.Frontend) {
	a := f.Addr.Addr()
	switch {
	case f.Kind == model.Internal:
		r.form.shared = append(r.form.shared, sharedKey{set: clusterIPs, addr: a})
	case slices.ContainsFunc(r.node.ServiceRanges, func(p netip.Prefix) bool { return p.Contains(a) }):
		r.form.shared = append(r.form.shared, sharedKey{set: ownedIPs, addr: a})
	}
}

// restrict puts the source ranges of a frontend into the form.
func (r *renderer) restrict(f model.Frontend) {
	if !f.Restricted() {
		return
	}
	exact, ranges := restricted, allowed
	if f.Kind == model.NodePort {
		exact, ranges = restrictedNodePorts, allowedNodePorts
	}
	r.form.elements = append(r.form.elements, element{elementKey: r.key(exact, f)})
	for _, p := range r.ranges(f) {
		k := r.key(ranges, f)
		k.source = p
		r.form.elements = append(r.form.elements, element{elementKey: k})
	}
}

// ranges returns the source ranges of a frontend. If the node's primary address may come in, so may the service's own
// external addresses: what they send to each other is a client of the node that came back.
func (r *renderer) ranges(f model.Frontend) []netip.Prefix {
	within := func(a netip.Addr) bool {
		return slices.ContainsFunc(f.SourceRanges, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	if !slices.ContainsFunc(r.node.Primary, within) {
		return f.SourceRanges
	}
	out := slices.Clone(f.SourceRanges)
	for _, o := range r.res.Frontends {
		if o.Kind == model.External && o.Family() == r.family {
			out = append(out, netip.PrefixFrom(o.Addr.Addr(), r.family.Bits()))
		}
	}
	return model.MergePrefixes(out)
}

// endpoints puts into the form what concerns the endpoints whatever the frontend.
func (r *renderer) endpoints() {
	for _, e := range r.res.Endpoints {
		if model.FamilyOf(e.Addr.Addr()) != r.family {
			continue
		}
		// Without a name for the node nobody has said which endpoints are on it.
		if e.Local || r.node.Name == "" {
			r.form.shared = append(r.form.shared, sharedKey{set: hairpin, addr: e.Addr.Addr()})
		}
		if e.Local && r.keepsClients() {
			r.form.shared = append(r.form.shared, sharedKey{set: localEndpoints, addr: e.Addr.Addr()})
		}
		if r.cfg.DropInvalid {
			r.form.shared = append(r.form.shared, sharedKey{set: repliers, addr: e.Addr.Addr(), proto: r.res.Service.Protocol, port: e.Addr.Port()})
		}
	}
}
