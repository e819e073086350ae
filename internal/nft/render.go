package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/headgate/headgate/model"
)

// A Form is all that one service puts into one family's table.
type Form struct {
	elements []Element
	runs     []run
	// shared are elements that other services may put there as well: they are counted.
	shared []SharedKey
	routes []Route     // of shared chains
	own    []Route     // of its own
	chains []Chain     // of its own
	maps   []clientMap // of its own
	// records says that the endpoints of its clients are remembered.
	records bool
	work    Renderer // makes the form
}

// reset empties a form and keeps its memory.
func (f *Form) reset() {
	*f = Form{elements: f.elements[:0], runs: f.runs[:0], shared: f.shared[:0], routes: f.routes[:0], own: f.own[:0],
		work: Renderer{order: f.work.order[:0]}}
}

// A clientMap is a map of a service's clients, and the endpoint addresses that it may lead to.
type clientMap struct {
	Set
	addrs []netip.Addr
}

// A run is the slots of one list behind one frontend.
type run struct {
	set    SetID
	addr   netip.Addr
	proto  model.Protocol
	port   uint16
	list   List
	layout Layout
}

// element returns the element of one slot.
func (r run) element(slot int) Element {
	return Element{
		ElementKey: ElementKey{Set: r.set, Addr: r.addr, Proto: r.proto, Port: r.port, Slot: uint32(slot) + r.list.offset()},
		To:         r.layout[slot],
	}
}

// Layouts are the layouts of a service's two lists in one family.
type Layouts [2]Layout

// Lay returns the layouts for those of a service's lists in one family that are used, starting from the old ones. The
// others stay empty. The error wraps [model.ErrNotSupported].
func Lay(res *model.Resolved, fam model.Family, used [2]bool, old Layouts) (next Layouts, err error) {
	sel := res.Selections[fam]
	eps := [2][]model.Endpoint{ClusterList: sel.Cluster, LocalList: sel.Local}
	for l := range eps {
		if !used[l] || len(eps[l]) == 0 {
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
	if n := len(next[ClusterList]); n > localOffset && len(next[LocalList]) > 0 {
		return next, fmt.Errorf("policy Local with %d slots, more than %d: %w", n, localOffset, model.ErrNotSupported)
	}
	return next, nil
}

// Rounded reports whether weights in the lists that are used cannot be had exactly.
func Rounded(res *model.Resolved, fam model.Family, used [2]bool) bool {
	sel := res.Selections[fam]
	hashed := res.Service.Balance == model.SourceHash || res.Service.Balance == model.Maglev
	return !hashed && (used[ClusterList] && rounded(sel.Cluster) || used[LocalList] && rounded(sel.Local))
}

// An affinityPort is one of a service's maps of clients: for the endpoints with this port.
type affinityPort struct {
	name string
	port uint16
}

// A Renderer renders one service into one family's table.
type Renderer struct {
	*Rules
	Res   *model.Resolved
	lay   Layouts
	id    string
	note  string
	pins  [2][]affinityPort
	form  *Form
	order []string // names of chains that are in the form
}

// Render makes f what a service puts into the table of the family; nothing for nil. It calls frontend for each of the
// service's frontends.
func (r *Rules) Render(f *Form, res *model.Resolved, lay Layouts, frontend func(r *Renderer, f model.Frontend)) {
	f.reset()
	if res == nil || !slices.ContainsFunc(res.Frontends, func(f model.Frontend) bool { return f.Family() == r.Family }) {
		return
	}
	n := &f.work
	*n = Renderer{Rules: r, Res: res, lay: lay, note: Comment(res.Name), form: f, order: n.order[:0]}
	if res.Service.Affinity > 0 || res.Service.Balance == model.RoundRobin {
		n.id = identifier(res.Name)
	}
	if res.Service.Affinity > 0 {
		n.affinityMaps()
	}
	for _, f := range res.Frontends {
		if f.Family() == r.Family {
			frontend(n, f)
			n.restrict(f)
		}
	}
	n.endpoints()
}

// affinityMaps puts the service's maps of clients into the form: one for each list and endpoint port. The service's
// name is in the comment.
func (r *Renderer) affinityMaps() {
	for l, lay := range r.lay {
		prefix := clientsPrefix
		if List(l) == LocalList {
			prefix = localClientsPrefix
		}
		for _, p := range ports(lay) {
			name := prefix + shortID(r.Res.Name) + "-" + strconv.Itoa(int(p))
			r.pins[l] = append(r.pins[l], affinityPort{name: name, port: p})
			timeout := r.Res.Service.Affinity.Truncate(time.Millisecond)
			m := clientMap{Set: clientMapSet(name, timeout, uint32(r.AffinitySize))}
			m.Comment = r.note
			for _, s := range lay.taken() {
				if s.Port() == p {
					m.addrs = append(m.addrs, s.Addr())
				}
			}
			slices.SortFunc(m.addrs, netip.Addr.Compare)
			m.addrs = slices.Compact(m.addrs) // an endpoint may have many slots
			r.form.maps = append(r.form.maps, m)
		}
	}
}

// ports returns the ports of the endpoints in a layout, sorted.
func ports(l Layout) []uint16 {
	var out []uint16
	for _, s := range l.taken() {
		if !slices.Contains(out, s.Port()) {
			out = append(out, s.Port())
		}
	}
	slices.Sort(out)
	return out
}

// key returns the key that stands for a frontend in a set.
func (r *Renderer) key(set SetID, f model.Frontend) ElementKey {
	k := ElementKey{Set: set, Proto: r.Res.Service.Protocol, Port: f.Addr.Port()}
	if f.Kind != model.NodePort {
		k.Addr = f.Addr.Addr()
	}
	return k
}

// Lead makes a verdict map lead a frontend to a chain, or with [DropVerdict] to nowhere.
func (r *Renderer) Lead(set SetID, f model.Frontend, chain string) {
	r.form.elements = append(r.form.elements, Element{ElementKey: r.key(set, f), Chain: chain})
}

// Name is Lead with the service's name as the comment.
func (r *Renderer) Name(set SetID, f model.Frontend, chain string) {
	r.form.elements = append(r.form.elements, Element{ElementKey: r.key(set, f), Chain: chain, Comment: r.note})
}

// Through puts the chain that balances a frontend over a list, and the slots that it draws from, into the form, and
// returns the chain's name.
func (r *Renderer) Through(f model.Frontend, c Class, l List) string {
	svc := r.Res.Service
	rt := Route{class: c, nodePort: f.Kind == model.NodePort, list: l, balance: svc.Balance, slots: len(r.lay[l])}
	switch rt.balance {
	case model.LeastConn:
		rt.balance = model.Random // nobody counts connections here
	case model.SourceHash, model.Maglev:
		rt.balance, rt.hashPort = model.Maglev, svc.HashPort // their slots are told apart, not their rules
	}
	if r.id != "" {
		rt.own = &ownRoute{service: r.Res.Name, id: r.id, protocol: svc.Protocol, maps: r.pins[l]}
		r.chain(r.Route(rt))
		r.form.own = append(r.form.own, rt)
		rt.needs(func(next Route) { r.form.routes = append(r.form.routes, next) })
	} else {
		r.form.routes = append(r.form.routes, rt)
	}
	k := r.key(rt.slotSet(), f)
	r.form.runs = append(r.form.runs, run{set: k.Set, addr: k.Addr, proto: k.Proto, port: k.Port, list: l, layout: r.lay[l]})
	return rt.chain()
}

// chain puts a chain of the service's own into the form, once.
func (r *Renderer) chain(c Chain) {
	if !slices.Contains(r.order, c.Name) {
		r.order = append(r.order, c.Name)
		r.form.chains = append(r.form.chains, c)
	}
}

// Record makes the endpoints of connections to a frontend be remembered, whichever of the used lists they are from.
func (r *Renderer) Record(f model.Frontend, used [2]bool) {
	var pins [2][]affinityPort
	for l := range used {
		if used[l] {
			pins[l] = r.pins[l]
		}
	}
	if len(pins[ClusterList])+len(pins[LocalList]) == 0 {
		return
	}
	name := recordPrefix
	switch {
	case !used[LocalList]:
	case !used[ClusterList]:
		name += "local-"
	default:
		name += "either-"
	}
	name += r.id
	r.form.records = true
	r.chain(r.recorder(name, pins))
	if f.Kind != model.NodePort {
		r.Lead(Affinity, f, name)
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
			k := ElementKey{Set: NodePortAffinity, Addr: s.Addr(), Proto: r.Res.Service.Protocol, Port: f.Addr.Port(), Real: s}
			r.form.elements = append(r.form.elements, Element{ElementKey: k, Chain: name})
		}
	}
}

// Share puts an element into the form that other services may need, too.
func (r *Renderer) Share(k SharedKey) { r.form.shared = append(r.form.shared, k) }

// Own claims the address of a frontend that has one.
func (r *Renderer) Own(f model.Frontend) {
	a := f.Addr.Addr()
	switch {
	case f.Kind == model.NodePort:
	case f.Kind == model.Internal:
		r.Share(SharedKey{Set: ClusterIPs, Addr: a})
	case slices.ContainsFunc(r.Node.ServiceRanges, func(p netip.Prefix) bool { return p.Contains(a) }):
		r.Share(SharedKey{Set: OwnedIPs, Addr: a})
	}
}

// restrict puts the source ranges of a frontend into the form.
func (r *Renderer) restrict(f model.Frontend) {
	if !f.Restricted() {
		return
	}
	at := PlacesOf(f)
	r.form.elements = append(r.form.elements, Element{ElementKey: r.key(at.Restricted, f)})
	for _, p := range r.Res.Sources(f, r.Node.Primary) {
		k := r.key(at.Allowed, f)
		k.Source = p
		r.form.elements = append(r.form.elements, Element{ElementKey: k})
	}
}

// endpoints puts into the form what concerns the endpoints whatever the frontend.
func (r *Renderer) endpoints() {
	for _, e := range r.Res.Endpoints {
		if model.FamilyOf(e.Addr.Addr()) != r.Family {
			continue
		}
		// Without a name for the node nobody has said which endpoints are on it.
		if e.Local || r.Node.Name == "" {
			r.Share(SharedKey{Set: Hairpin, Addr: e.Addr.Addr()})
		}
		if e.Local && r.KeepsClients() {
			r.Share(SharedKey{Set: LocalEndpoints, Addr: e.Addr.Addr()})
		}
		if r.DropInvalid {
			r.Share(SharedKey{Set: Repliers, Addr: e.Addr.Addr(), Proto: r.Res.Service.Protocol, Port: e.Addr.Port()})
		}
	}
}
