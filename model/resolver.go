package model

import (
	"errors"
	"slices"
	"strings"
)

// Resolved is one service in the form in which a backend programs it: checked, normalised, with the frontends that it
// holds and the endpoints that serve on this node.
type Resolved struct {
	Name ServiceName
	// Service is what was asked for, all frontends included, in normal form: addresses without zones, node ports as
	// 0.0.0.0 or ::, source ranges masked, merged and of the frontend's family. If nobody may come in by a frontend,
	// its one range is 0.0.0.0/32 or ::/128.
	Service Service
	// Frontends are those of the service's frontends that no other service holds.
	Frontends []Frontend
	// Endpoints are all endpoints in normal form, sorted by address and port, each once, with a Weight of at least 1.
	Endpoints []Endpoint
	// Selections holds, by Family, the endpoints that serve.
	Selections [2]Selection
}

// Key returns the key of one of r's frontends.
func (r *Resolved) Key(f Frontend) FrontendKey {
	return FrontendKey{Protocol: r.Service.Protocol, Addr: f.Addr}
}

// same reports whether two forms of a service need the same rules.
func (r *Resolved) same(o *Resolved) bool {
	return r == o || r != nil && o != nil && r.Service.Equal(o.Service) && slices.EqualFunc(r.Frontends, o.Frontends, Frontend.Equal) &&
		EqualEndpoints(r.Endpoints, o.Endpoints) && r.Selections[IPv4].same(o.Selections[IPv4]) && r.Selections[IPv6].same(o.Selections[IPv6])
}

func (s Selection) same(o Selection) bool {
	return EqualEndpoints(s.Cluster, o.Cluster) && EqualEndpoints(s.Local, o.Local)
}

// A ResolvedChange is one service whose programmed form changes. Before is nil where it is new, After where it goes.
type ResolvedChange struct {
	Name          ServiceName
	Before, After *Resolved
}

// A Resolver stands at the door of every backend. It checks and normalises services, refuses those that the backend
// cannot do, decides who holds a frontend that several services claim, selects the endpoints, and remembers what is
// programmed, so that a backend has only to turn one form of a service into another.
//
// A backend calls Resolve, programs the [Delta], and then calls Commit. If the kernel refuses one service, it calls
// Resolve again with that service among the refused. The zero Resolver is not usable; a Resolver is not safe for
// concurrent use.
type Resolver struct {
	features FeatureSet
	node     Node
	forms    map[ServiceName]*Resolved
	// owners says who holds a frontend, waiting who else claims it, sorted; only contested frontends are in waiting.
	owners  map[FrontendKey]ServiceName
	waiting map[FrontendKey][]ServiceName
}

// NewResolver returns a Resolver that holds nothing.
func NewResolver(f FeatureSet) *Resolver {
	return &Resolver{features: f, forms: map[ServiceName]*Resolved{}, owners: map[FrontendKey]ServiceName{}, waiting: map[FrontendKey][]ServiceName{}}
}

// Node returns the node of the last committed Delta.
func (r *Resolver) Node() Node { return r.node }

// Len returns how many services the last committed Delta left.
func (r *Resolver) Len() int { return len(r.forms) }

// Form returns the committed form of a service; nil if there is none.
func (r *Resolver) Form(name ServiceName) *Resolved { return r.forms[name] }

// Holder returns the service that holds a frontend.
func (r *Resolver) Holder(key FrontendKey) (name ServiceName, ok bool) {
	name, ok = r.owners[key]
	return name, ok
}

// Forms returns every committed form, sorted by name.
func (r *Resolver) Forms() []*Resolved {
	out := make([]*Resolved, 0, len(r.forms))
	for _, f := range r.forms {
		out = append(out, f)
	}
	sortForms(out)
	return out
}

// FormsAfter returns every form that there is once d is committed, sorted by name.
func (r *Resolver) FormsAfter(d *Delta) []*Resolved {
	changed := make(map[ServiceName]bool, len(d.Changes))
	out := make([]*Resolved, 0, len(r.forms)+len(d.Changes))
	for _, c := range d.Changes {
		changed[c.Name] = true
		if c.After != nil {
			out = append(out, c.After)
		}
	}
	for name, f := range r.forms {
		if !changed[name] {
			out = append(out, f)
		}
	}
	sortForms(out)
	return out
}

func sortForms(forms []*Resolved) {
	slices.SortFunc(forms, func(a, b *Resolved) int { return strings.Compare(string(a.Name), string(b.Name)) })
}

// A Delta is what one Resolve found: what a backend shall program. It changes nothing until it is committed.
type Delta struct {
	// Node is the node for which After is selected. NodeChanged says that it differs from the one before.
	Node        Node
	NodeChanged bool
	// Changes has each service whose form changes, sorted by name.
	Changes []ResolvedChange
	// Rejected and Promoted are those of the [Result].
	Rejected []*ServiceError
	Promoted []ServiceName

	backend  string
	refused  map[ServiceName]error
	owners   map[FrontendKey]ServiceName   // who holds a frontend now
	released map[FrontendKey]struct{}      // frontends that nobody holds any more
	waiting  map[FrontendKey][]ServiceName // empty deletes
}

// ResolveState resolves a whole state against the committed one. Refused services are treated like invalid ones.
func (r *Resolver) ResolveState(want State, refused map[ServiceName]error) (*Delta, error) {
	d := Diff{Node: &want.Node, Changes: make([]Change, 0, len(want.Services))}
	for name, svc := range want.Services {
		d.Changes = append(d.Changes, Change{Name: name, After: &Entry{Service: svc, Endpoints: want.Endpoints[name]}})
	}
	for name := range r.forms {
		if _, ok := want.Services[name]; !ok {
			d.Changes = append(d.Changes, Change{Name: name})
		}
	}
	return r.Resolve(d, refused)
}

// Resolve resolves a diff against the committed state. Refused services keep their committed form as it is, whether the
// diff names them or they would only be selected anew or take over a frontend. The error is that of [Node.Validate].
func (r *Resolver) Resolve(diff Diff, refused map[ServiceName]error) (*Delta, error) {
	d := &Delta{Node: r.node, backend: r.features.Backend, refused: refused, owners: map[FrontendKey]ServiceName{},
		released: map[FrontendKey]struct{}{}, waiting: map[FrontendKey][]ServiceName{}}
	if diff.Node != nil {
		if err := diff.Node.Validate(); err != nil {
			return nil, err
		}
		d.NodeChanged = !diff.Node.Equal(r.node)
		d.Node = diff.Node.clone()
	}
	next := make(map[ServiceName]*Resolved, len(diff.Changes))
	for _, c := range diff.Changes {
		next[c.Name] = r.admit(d, c)
	}
	if d.NodeChanged {
		for name, f := range r.forms {
			if _, ok := next[name]; ok {
				continue
			}
			if refused[name] != nil {
				next[name] = r.keep(d, name)
			} else {
				next[name] = f.reselected(d.Node)
			}
		}
	}
	r.claim(d, next)
	for name, after := range next {
		before := r.forms[name]
		if after != nil {
			after.hold(func(f Frontend) bool { return r.isOwnerIn(d, after.Key(f), name) })
		}
		if !after.same(before) {
			d.Changes = append(d.Changes, ResolvedChange{Name: name, Before: before, After: after})
		}
	}
	slices.SortFunc(d.Changes, func(a, b ResolvedChange) int { return strings.Compare(string(a.Name), string(b.Name)) })
	d.Rejected = oneEach(d.Rejected)
	slices.Sort(d.Promoted)
	d.Promoted = slices.Compact(d.Promoted)
	return d, nil
}

// oneEach sorts errors by service, and joins those of one service to one, in the step that came first.
func oneEach(errs []*ServiceError) []*ServiceError {
	slices.SortStableFunc(errs, func(a, b *ServiceError) int { return strings.Compare(string(a.Service), string(b.Service)) })
	out := errs[:0]
	for _, e := range errs {
		if n := len(out); n > 0 && out[n-1].Service == e.Service {
			out[n-1].Err = errors.Join(out[n-1].Err, e.Err)
		} else {
			out = append(out, e)
		}
	}
	return out
}

// Commit makes a Delta the committed state. It must be the last one that Resolve or ResolveState returned.
func (r *Resolver) Commit(d *Delta) {
	r.node = d.Node
	for _, c := range d.Changes {
		if c.After == nil {
			delete(r.forms, c.Name)
		} else {
			r.forms[c.Name] = c.After
		}
	}
	if len(r.owners) == 0 {
		r.owners = d.owners
	}
	for key, name := range d.owners {
		r.owners[key] = name
	}
	for key := range d.released {
		delete(r.owners, key)
	}
	for key, names := range d.waiting {
		if len(names) == 0 {
			delete(r.waiting, key)
		} else {
			r.waiting[key] = names
		}
	}
}

// Reset forgets everything: the kernel holds nothing of ours.
func (r *Resolver) Reset() { *r = *NewResolver(r.features) }

// admit returns the form that a change leads to, all frontends included; what is committed, if it cannot be had.
func (r *Resolver) admit(d *Delta, c Change) *Resolved {
	if c.After == nil {
		return nil
	}
	svc, err := normalise(c.After.Service)
	if err == nil {
		err = r.features.Check(svc)
	}
	if err != nil {
		d.reject(c.Name, "validate", err)
		if d.refused[c.Name] != nil {
			return r.forms[c.Name].unheld()
		}
		return r.forms[c.Name].reselected(d.Node)
	}
	if d.refused[c.Name] != nil {
		return r.keep(d, c.Name)
	}
	eps, err := normaliseEndpoints(c.After.Endpoints)
	if err != nil {
		d.reject(c.Name, "validate", err)
	}
	f := &Resolved{Name: c.Name, Service: svc, Endpoints: eps}
	f.selectFor(d.Node)
	return f
}

// keep rejects a service that the backend or the kernel refused, and returns a copy of its committed form.
func (r *Resolver) keep(d *Delta, name ServiceName) *Resolved {
	op, err := "commit", d.refused[name]
	if errors.Is(err, ErrNotSupported) {
		op = "plan"
	}
	d.reject(name, op, err)
	return r.forms[name].unheld()
}

func (d *Delta) reject(name ServiceName, op string, err error) {
	d.Rejected = append(d.Rejected, &ServiceError{Service: name, Backend: d.backend, Op: op, Err: err})
}

// unheld returns a copy of r that holds no frontends yet.
func (r *Resolved) unheld() *Resolved {
	if r == nil {
		return nil
	}
	n := *r
	n.Frontends = nil
	return &n
}

// reselected returns a copy of r with its endpoints selected for a node, and no frontends held yet.
func (r *Resolved) reselected(node Node) *Resolved {
	n := r.unheld()
	if n != nil {
		n.selectFor(node)
	}
	return n
}

// selectFor selects the endpoints for a node.
func (r *Resolved) selectFor(node Node) {
	for _, f := range Families {
		r.Selections[f] = Select(r.Endpoints, node, f)
	}
}

// hold sets r.Frontends to those that holds reports, sharing memory where that is all.
func (r *Resolved) hold(holds func(Frontend) bool) {
	r.Frontends = r.Service.Frontends
	if !slices.ContainsFunc(r.Frontends, func(f Frontend) bool { return !holds(f) }) {
		return
	}
	r.Frontends = slices.DeleteFunc(slices.Clone(r.Frontends), func(f Frontend) bool { return !holds(f) })
}

// claim decides who holds each frontend that a change releases or claims. A holder keeps what it still wants;
// a free frontend goes to the first by name of all that want it. Services promoted thereby are added to next.
func (r *Resolver) claim(d *Delta, next map[ServiceName]*Resolved) {
	if len(r.owners) == 0 {
		r.claimFirst(d, next)
		r.reportConflicts(d, next)
		return
	}
	touched := map[FrontendKey]struct{}{}
	for name, after := range next {
		before := r.forms[name]
		if before != nil && after != nil && sameKeys(before, after) && !r.orphans(after) {
			continue
		}
		for _, form := range [...]*Resolved{before, after} {
			if form != nil {
				for _, f := range form.Service.Frontends {
					touched[form.Key(f)] = struct{}{}
				}
			}
		}
		if after != nil {
			for _, f := range after.Service.Frontends {
				r.queue(d, after.Key(f), name)
			}
		}
	}
	for key := range touched {
		r.settle(d, key, next)
	}
	r.reportConflicts(d, next)
}

// orphans reports whether somebody should hold a frontend that a service claims and nobody does, since all who claim it
// were refused when it became free.
func (r *Resolver) orphans(f *Resolved) bool {
	return slices.ContainsFunc(f.Service.Frontends, func(fr Frontend) bool {
		_, held := r.owners[f.Key(fr)]
		return !held
	})
}

// claimFirst is claim where nobody holds anything yet, which a first Sync of many services is about.
func (r *Resolver) claimFirst(d *Delta, next map[ServiceName]*Resolved) {
	d.owners = make(map[FrontendKey]ServiceName, len(next))
	for name, form := range next {
		if form == nil {
			continue
		}
		for _, f := range form.Service.Frontends {
			key := form.Key(f)
			switch holder, taken := d.owners[key]; {
			case !taken:
				d.owners[key] = name
			case name < holder:
				d.owners[key] = name
				r.queue(d, key, holder)
			default:
				r.queue(d, key, name)
			}
		}
	}
}

// sameKeys reports whether two forms of a service claim the same frontends.
func sameKeys(a, b *Resolved) bool {
	return a.Service.Protocol == b.Service.Protocol &&
		slices.EqualFunc(a.Service.Frontends, b.Service.Frontends, func(f, g Frontend) bool { return f.Addr == g.Addr })
}

// queue puts a service that is not the holder among those that wait for a frontend.
func (r *Resolver) queue(d *Delta, key FrontendKey, name ServiceName) {
	names := r.waitingIn(d, key)
	if r.isOwnerIn(d, key, name) || slices.Contains(names, name) {
		return
	}
	i, _ := slices.BinarySearch(names, name)
	d.waiting[key] = slices.Insert(slices.Clone(names), i, name)
}

// settle decides who holds one frontend once everybody who claims it is in the queue.
func (r *Resolver) settle(d *Delta, key FrontendKey, next map[ServiceName]*Resolved) {
	wants := func(name ServiceName) bool {
		form, changes := next[name]
		if !changes {
			form = r.forms[name]
		}
		return form != nil && form.Service.Protocol == key.Protocol &&
			slices.ContainsFunc(form.Service.Frontends, func(f Frontend) bool { return f.Addr == key.Addr })
	}
	names := slices.DeleteFunc(slices.Clone(r.waitingIn(d, key)), func(n ServiceName) bool { return !wants(n) })
	if owner, held := r.owners[key]; !held || !wants(owner) {
		if i := slices.IndexFunc(names, func(n ServiceName) bool { return !r.barred(d, n, next) }); i >= 0 {
			owner = names[i]
			names = slices.Delete(names, i, i+1)
			r.promote(d, key, owner, next)
			d.owners[key] = owner
		} else {
			d.released[key] = struct{}{}
		}
	}
	if _, ok := r.waiting[key]; ok || len(names) > 0 {
		d.waiting[key] = names
	} else {
		delete(d.waiting, key)
	}
}

// barred reports whether a service may not take over a frontend, since it was refused; if nobody knows of that yet, it is
// rejected.
func (r *Resolver) barred(d *Delta, name ServiceName, next map[ServiceName]*Resolved) bool {
	if d.refused[name] == nil {
		return false
	}
	if _, ok := next[name]; !ok {
		next[name] = r.keep(d, name)
	}
	return true
}

// promote notes that a service which had waited for a frontend holds it now.
func (r *Resolver) promote(d *Delta, key FrontendKey, name ServiceName, next map[ServiceName]*Resolved) {
	if !slices.Contains(r.waiting[key], name) {
		return // it is new, and did not wait
	}
	d.Promoted = append(d.Promoted, name)
	if _, ok := next[name]; !ok {
		next[name] = r.forms[name].reselected(d.Node)
	}
}

// reportConflicts rejects, by name, the services of this change that do not hold all their frontends.
func (r *Resolver) reportConflicts(d *Delta, next map[ServiceName]*Resolved) {
	if len(d.waiting) == 0 && len(r.waiting) == 0 {
		return
	}
	for name, form := range next {
		if form == nil {
			continue
		}
		var errs []error
		for _, f := range form.Service.Frontends {
			if holder, held := r.ownerIn(d, form.Key(f)); held && holder != name {
				errs = append(errs, &ConflictError{Frontend: form.Key(f), Holder: holder})
			}
		}
		if len(errs) > 0 {
			d.reject(name, "resolve", errors.Join(errs...))
		}
	}
}

// ownerIn returns who holds a frontend once d is committed, if anybody does.
func (r *Resolver) ownerIn(d *Delta, key FrontendKey) (name ServiceName, held bool) {
	if name, held = d.owners[key]; held {
		return name, true
	}
	if _, free := d.released[key]; free {
		return "", false
	}
	name, held = r.owners[key]
	return name, held
}

// isOwnerIn reports whether a service holds a frontend once d is committed.
func (r *Resolver) isOwnerIn(d *Delta, key FrontendKey, name ServiceName) bool {
	owner, held := r.ownerIn(d, key)
	return held && owner == name
}

// waitingIn returns who waits for a frontend once d is committed.
func (r *Resolver) waitingIn(d *Delta, key FrontendKey) []ServiceName {
	if names, ok := d.waiting[key]; ok {
		return names
	}
	return r.waiting[key]
}
