package conntrack

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/headgate/headgate/model"
)

// A task is what has to be looked at. What is stale there, [record.judge] decides when a flow is seen.
type task struct {
	// full compares every frontend with the table.
	full bool
	// frontends are those to which every flow is looked at.
	frontends map[model.FrontendKey]struct{}
	// fresh are frontends whose service had no endpoints and has some now: flows to them may be untranslated.
	fresh map[model.FrontendKey]struct{}
	// gone are endpoints that ceased to serve, pairs those that did so for one frontend alone, reached the frontends at
	// which either did.
	gone    map[endpoint]struct{}
	pairs   map[pair]struct{}
	reached map[model.FrontendKey]struct{}
	// addrs are addresses of the node that came or went, loopback says that node ports on 127.0.0.0/8 did.
	addrs    map[netip.Addr]struct{}
	loopback bool
}

// An endpoint is one address and port in one protocol.
type endpoint struct {
	proto model.Protocol
	addr  netip.AddrPort
}

// A pair is a frontend and an endpoint.
type pair struct {
	frontend model.FrontendKey
	endpoint netip.AddrPort
}

func newTask() *task {
	return &task{
		frontends: map[model.FrontendKey]struct{}{}, fresh: map[model.FrontendKey]struct{}{},
		gone: map[endpoint]struct{}{}, pairs: map[pair]struct{}{}, reached: map[model.FrontendKey]struct{}{},
		addrs: map[netip.Addr]struct{}{},
	}
}

func (t *task) empty() bool {
	return !t.full && len(t.frontends)+len(t.fresh)+len(t.gone)+len(t.pairs)+len(t.addrs) == 0
}

// maxDetails is how much a task may remember before it becomes a comparison of everything: where cleaning cannot be
// done for long, what is owed does not grow with the changes.
const maxDetails = 1000

// add adds what o has to look at.
func (t *task) add(o *task) {
	t.full, t.loopback = t.full || o.full, t.loopback || o.loopback
	maps.Copy(t.frontends, o.frontends)
	maps.Copy(t.fresh, o.fresh)
	maps.Copy(t.gone, o.gone)
	maps.Copy(t.pairs, o.pairs)
	maps.Copy(t.reached, o.reached)
	maps.Copy(t.addrs, o.addrs)
	if len(t.fresh)+len(t.gone)+len(t.pairs)+len(t.reached) > maxDetails {
		t.full = true
	}
	if t.full { // which has all that is a frontend still; what was one is among frontends
		clear(t.fresh)
		clear(t.gone)
		clear(t.pairs)
		clear(t.reached)
	}
}

// lists reports whether a frontend is among those that have to be looked at, be it there or gone.
func (t *task) lists(key model.FrontendKey) bool {
	_, whole := t.frontends[key]
	_, fresh := t.fresh[key]
	_, reached := t.reached[key]
	return whole || fresh || reached
}

// formerly reports whether node ports began or ceased to answer on an address.
func (t *task) formerly(a netip.Addr) bool {
	_, ok := t.addrs[a]
	return ok || t.loopback && a.Is4() && a.IsLoopback()
}

// change adds what one change of a service may have made stale. A full task has all frontends that are there anyway,
// and takes only those that are not.
func (t *task) change(r *record, c model.ResolvedChange) {
	before, after := r.keys(c.Before), r.keys(c.After)
	var kept [len(model.Families)][]model.FrontendKey
	for key := range before {
		if _, still := after[key]; still {
			f := model.FamilyOf(key.Addr.Addr())
			kept[f] = append(kept[f], key)
		} else {
			t.frontends[key] = struct{}{}
		}
	}
	if t.full {
		return
	}
	for key := range after {
		if _, had := before[key]; !had && hasEndpoints(c.After, model.FamilyOf(key.Addr.Addr())) {
			t.frontends[key] = struct{}{} // whatever led elsewhere; without endpoints there is nothing to lead to
		}
	}
	for _, f := range model.Families {
		if len(kept[f]) > 0 {
			t.endpointsChanged(kept[f], f, c)
		}
	}
}

// endpointsChanged adds what the endpoints of one family that a service lost or won mean for frontends that it keeps.
func (t *task) endpointsChanged(kept []model.FrontendKey, f model.Family, c model.ResolvedChange) {
	gone := lost(c.Before, c.After, f)
	switch {
	case len(gone) == 0:
	case len(gone) == 1 && len(kept) == 1: // the kernel then looks at one direction of most flows, and not at two
		t.pairs[pair{kept[0], gone[0]}] = struct{}{}
		t.reached[kept[0]] = struct{}{}
	case len(gone) <= len(kept):
		for _, ep := range gone {
			t.gone[endpoint{c.Before.Service.Protocol, ep}] = struct{}{}
		}
		for _, key := range kept {
			t.reached[key] = struct{}{}
		}
	default:
		for _, key := range kept {
			t.frontends[key] = struct{}{}
		}
	}
	if !hasEndpoints(c.Before, f) && hasEndpoints(c.After, f) {
		for _, key := range kept {
			t.fresh[key] = struct{}{}
		}
	}
}

// lost returns the endpoints of a family that served before and do not serve after.
func lost(before, after *model.Resolved, f model.Family) []netip.AddrPort {
	var gone []netip.AddrPort
	for _, e := range before.Endpoints {
		if serves(e) && model.FamilyOf(e.Addr.Addr()) == f && !isEndpoint(after, e.Addr) {
			gone = append(gone, e.Addr)
		}
	}
	return gone
}

// keys returns the frontends of a form whose flows are cleaned.
func (r *record) keys(form *model.Resolved) map[model.FrontendKey]struct{} {
	if form == nil || !r.tracks(form.Service.Protocol) {
		return nil
	}
	keys := make(map[model.FrontendKey]struct{}, len(form.Frontends))
	for _, f := range form.Frontends {
		keys[form.Key(f)] = struct{}{}
	}
	return keys
}

// maxLooks is how many requests look for the flows of one protocol and family; beyond that, one for all of them is
// cheaper. The kernel walks the whole table for each request, which costs a half to an eighth of sending us one
// protocol's flows: measured with 250,000 flows, a tenth of them and all of them UDP.
const maxLooks = 4

// looks returns the filters with which the kernel is asked to find what a task is about, in a fixed order.
func (r *record) looks(t *task, orphans bool) ([]filter, error) {
	var all []filter
	for _, p := range r.protocols {
		for _, f := range model.Families {
			some, err := r.looksAt(t, p, f, orphans)
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
	}
	return all, nil
}

// looksAt returns the filters for one protocol and family.
func (r *record) looksAt(t *task, p model.Protocol, f model.Family, orphans bool) ([]filter, error) {
	l := lookout{proto: p, family: f}
	inFamily := func(n netip.Prefix) bool { return model.FamilyOf(n.Addr()) == f }
	if t.full && (r.counts[p][f] > 0 || orphans && slices.ContainsFunc(r.node.ServiceRanges, inFamily)) {
		return l.everything()
	}
	for key := range t.frontends {
		l.add(key.Protocol, key.Addr.Addr(), func() (filter, error) { return toFrontend(key) })
	}
	for key := range t.fresh {
		if _, whole := t.frontends[key]; !whole {
			l.add(key.Protocol, key.Addr.Addr(), func() (filter, error) { return untranslated(key) })
		}
	}
	for ep := range t.gone {
		l.add(ep.proto, ep.addr.Addr(), func() (filter, error) { return fromEndpoint(ep.proto, ep.addr) })
	}
	for p := range t.pairs {
		l.add(p.frontend.Protocol, p.endpoint.Addr(), func() (filter, error) { return between(p.frontend, p.endpoint) })
	}
	for a := range t.addrs {
		l.add(p, a, func() (filter, error) { return toAddr(p, a) })
	}
	if l.err == nil && len(l.filters) > maxLooks {
		return l.everything()
	}
	slices.SortFunc(l.filters, compareFilters)
	return l.filters, l.err
}

// A lookout gathers filters for one protocol and family. Beyond maxLooks it stops: they will not be used.
type lookout struct {
	proto   model.Protocol
	family  model.Family
	filters []filter
	err     error
}

func (l *lookout) everything() ([]filter, error) {
	f, err := ofProtocol(l.proto, l.family)
	return []filter{f}, err
}

func (l *lookout) add(p model.Protocol, a netip.Addr, build func() (filter, error)) {
	if p != l.proto || model.FamilyOf(a) != l.family || l.err != nil || len(l.filters) > maxLooks {
		return
	}
	f, err := build()
	if f = f.sent(); err == nil && !slices.Contains(l.filters, f) {
		l.filters = append(l.filters, f)
	}
	l.err = err
}

func compareFilters(a, b filter) int {
	if c := netip.AddrPortFrom(a.dst, a.dport).Compare(netip.AddrPortFrom(b.dst, b.dport)); c != 0 {
		return c
	}
	return netip.AddrPortFrom(a.src, a.sport).Compare(netip.AddrPortFrom(b.src, b.sport))
}
