package ipvs

import (
	"net/netip"
	"slices"
	"time"

	"github.com/headgate/headgate/model"
)

// A plan is the way from what is recorded to what is wanted, for some virtual services. There is no transaction over
// them, so that order matters: what comes before what goes, and the table beside them knows of a virtual service before
// it is made until after it is gone.
type plan struct {
	rec  *record
	now  time.Time
	dead time.Duration // the deadline of what drains; negative, none

	// virtual makes and changes virtual services, comes real servers; leaves takes real servers out of service. They are
	// sent in this order, each when the kernel has taken those before: a real server must not end up with a virtual
	// service that somebody else has.
	virtual, comes, leaves []op
	// owners has the virtual services that come, or that another service has now.
	owners map[virtualKey]model.ServiceName
	// routes makes addresses local; routesGo are those that may have to go.
	routes   []op
	routesGo map[netip.Addr]bool
	// count has the virtual services whose connections decide what else goes.
	count []virtualKey
	// patient says that a virtual service waits for connections that are not open, too, and for those of UDP.
	patient bool
}

func newPlan(rec *record, now time.Time, deadline time.Duration) *plan {
	return &plan{rec: rec, now: now, dead: deadline, routesGo: map[netip.Addr]bool{}, owners: map[virtualKey]model.ServiceName{}}
}

// deadline returns when what leaves now has to be gone; zero, never.
func (p *plan) deadline() time.Time {
	if p.dead < 0 {
		return time.Time{}
	}
	return p.now.Add(p.dead)
}

// change plans the way of one virtual service to what is wanted of it.
func (p *plan) change(k virtualKey, want *demand) {
	have := p.rec.virtual[k]
	switch {
	case p.rec.foreign[k] || have == nil && want == nil:
	case want == nil:
		p.gone(k, have)
	default:
		p.serve(k, have, want)
	}
}

// gone plans the end of a virtual service. No new connection comes its way any more, as the table sees to: so what is
// counted then decides.
func (p *plan) gone(k virtualKey, have *virtual) {
	if !have.leaving {
		have.leaving, have.until = true, p.deadline()
		p.rec.note(k)
	}
	p.count = append(p.count, k)
	p.routesGo[k.at.Addr()] = true
}

// serve plans a virtual service.
func (p *plan) serve(k virtualKey, have *virtual, want *demand) {
	o := op{key: k, owner: want.owner.Name, spec: want.spec}
	var servers []server
	switch {
	case have == nil:
		o.kind = addVirtual
		p.virtual = append(p.virtual, o)
		p.owners[k] = o.owner
	default:
		servers = have.servers
		if have.owner != o.owner {
			p.owners[k] = o.owner
		}
		have.owner, have.leaving, have.kept, have.until = want.owner.Name, false, false, time.Time{}
		if have.spec != want.spec {
			o.kind = editVirtual
			p.virtual = append(p.virtual, o)
		}
	}
	counted := false
	merge(servers, want.servers, func(is, shall *server) {
		o := op{key: k, owner: want.owner.Name}
		switch {
		case is == nil:
			o.kind, o.server, o.weight = addServer, shall.at, shall.weight
			p.comes = append(p.comes, o)
		case shall == nil:
			counted = p.leave(o, is, want) || counted
		case is.weight != shall.weight || is.odd || is.leaving:
			o.kind, o.server, o.weight = editServer, shall.at, shall.weight
			p.comes = append(p.comes, o)
		}
	})
	if counted {
		p.count = append(p.count, k)
	}
	p.rec.note(k)
}

// leave plans that a server gets no new connections, and goes when it has none. Those of UDP are gone at once: nobody
// can tell when they end. It reports whether its connections are to be counted.
func (p *plan) leave(o op, is *server, want *demand) bool {
	o.server = is.at
	if o.key.proto == model.UDP {
		o.kind = delServer
		p.leaves = append(p.leaves, o)
		return false
	}
	o.kind, o.leaving = editServer, true
	listed := slices.ContainsFunc(want.owner.Endpoints, func(e model.Endpoint) bool { return e.Addr == is.at })
	switch {
	case listed:
	case is.leaving && !is.until.IsZero():
		o.until = is.until
	default:
		o.until = p.deadline()
	}
	switch {
	case is.weight != 0 || is.odd:
		p.leaves = append(p.leaves, o)
	default: // as after a restart
		is.leaving, is.until = true, o.until
	}
	return true
}

// route plans the routes of the addresses of virtual services: one for each that a frontend names and that is no
// address of the node.
func (p *plan) route(v *view, touched map[virtualKey]bool) {
	seen := map[netip.Addr]bool{}
	src := [2]netip.Addr{p.source(v.node, model.IPv4), p.source(v.node, model.IPv6)}
	for k := range touched {
		a := k.at.Addr()
		was, there := p.rec.routes[a]
		form, _ := v.holder(model.FrontendKey{Protocol: k.proto, Addr: k.at})
		if seen[a] || form == nil && !there {
			continue
		}
		seen[a] = true
		o := op{kind: addRoute, vip: a, src: src[k.family()]}
		if form != nil {
			o.owner = form.Name
		}
		switch {
		case p.isHost(v.node, a):
			p.routesGo[a] = true
		case there && was == o.src:
		case there:
			o.kind = editRoute
			fallthrough
		default:
			p.routes = append(p.routes, o)
		}
	}
}

// routesEnd plans that routes go to which no virtual service is left, or which must not be there.
func (p *plan) routesEnd(node model.Node) (ops []op) {
	for a := range p.routesGo {
		if _, there := p.rec.routes[a]; there && (p.rec.at[a] == 0 || p.isHost(node, a)) {
			ops = append(ops, op{kind: delRoute, vip: a})
		}
	}
	return ops
}

// isHost reports whether an address is the node's anyway.
func (p *plan) isHost(node model.Node, a netip.Addr) bool {
	_, has := p.rec.hosts[a]
	return has || slices.Contains(node.Addrs, a)
}

// sweep plans that what nobody wants any more goes, whatever this is about.
func (p *plan) sweep() {
	for a := range p.rec.routes {
		p.routesGo[a] = true
	}
}

// source returns the address that the node has towards virtual addresses of a family: the one that it sends from by
// default or, where it has no default, its primary one.
func (p *plan) source(node model.Node, fam model.Family) netip.Addr {
	for _, a := range slices.Concat([]netip.Addr{p.rec.source[fam]}, node.Primary, node.Addrs) {
		if model.FamilyOf(a) == fam && p.rec.hosts[a] {
			return a
		}
	}
	return netip.Addr{}
}

// counts reports whether connections have to be counted to know what becomes of a virtual service.
func (p *plan) counts(k virtualKey) bool {
	v := p.rec.virtual[k]
	return v != nil && len(v.servers) > 0 && (!v.leaving || k.proto != model.UDP || p.patient)
}

// doubts reports whether the connections of a virtual service that is to go have to be looked at. Those that the kernel
// counts as active may only have been asked for, and are counted for a minute; those that it does not may be half open.
func (p *plan) doubts(k virtualKey, found []foundServer) bool {
	v := p.rec.virtual[k]
	if v == nil || !v.leaving || p.patient || k.proto == model.UDP {
		return false
	}
	active, inactive := total(found)
	return active > 0 && !v.kept || active == 0 && inactive > 0
}

// total counts the connections of servers.
func total(found []foundServer) (active, inactive int) {
	for _, f := range found {
		active, inactive = active+f.active, inactive+f.inactive
	}
	return active, inactive
}

// drained plans, once the connections of a virtual service are counted, what of it goes and what stays. none says that
// no connection is really open.
func (p *plan) drained(k virtualKey, found []foundServer, none bool) (ops []op) {
	v := p.rec.virtual[k]
	if v == nil {
		return nil
	}
	late := func(until time.Time) bool { return !until.IsZero() && !p.now.Before(until) }
	if v.leaving {
		active, inactive := total(found)
		if active+inactive == 0 || none || k.proto == model.UDP && !p.patient || late(v.until) {
			return []op{{kind: delVirtual, key: k, owner: v.owner}}
		}
		v.kept = true
		for _, s := range v.servers {
			if s.weight != 0 {
				ops = append(ops, op{kind: editServer, key: k, owner: v.owner, server: s.at, leaving: true, until: v.until})
			}
		}
		return ops
	}
	for _, s := range v.servers {
		i := slices.IndexFunc(found, func(f foundServer) bool { return f.at == s.at })
		if s.leaving && (i < 0 || found[i].active+found[i].inactive == 0 || late(s.until)) {
			ops = append(ops, op{kind: delServer, key: k, owner: v.owner, server: s.at})
		}
	}
	return ops
}

// merge walks two sorted lists of servers and calls each with every pair; nil stands for one that is missing.
func merge(is, shall []server, each func(is, shall *server)) {
	for len(is) > 0 || len(shall) > 0 {
		c := 0
		switch {
		case len(is) == 0:
			c = 1
		case len(shall) == 0:
			c = -1
		default:
			c = is[0].at.Compare(shall[0].at)
		}
		switch {
		case c < 0:
			each(&is[0], nil)
			is = is[1:]
		case c > 0:
			each(nil, &shall[0])
			shall = shall[1:]
		default:
			each(&is[0], &shall[0])
			is, shall = is[1:], shall[1:]
		}
	}
}
