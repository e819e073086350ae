package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/nft"
	"github.com/headgate/headgate/model"
)

// A work is one Sync or Apply.
type work struct {
	p   *Programmer
	res model.Result
	// fresh says that the table is to be written anew, whatever is in it.
	fresh bool
	// all says that it is about everything, and not about what changes alone.
	all bool
	// names are the services, keys the virtual services that any attempt was about.
	names map[model.ServiceName]bool
	keys  map[virtualKey]bool
}

// attempt programs until the kernel takes it, leaving out the services that cannot be programmed. What an attempt did
// for a service that it could not finish is undone by the next one, as the record says what the kernel holds.
func (w *work) attempt(ctx context.Context, resolve func(map[model.ServiceName]error) (*model.Delta, error)) (model.Result, error) {
	p := w.p
	refused := map[model.ServiceName]error{}
	w.names, w.keys = map[model.ServiceName]bool{}, map[virtualKey]bool{}
	for {
		start := time.Now()
		delta, err := resolve(refused)
		if err != nil {
			return w.res, p.fail(err)
		}
		v := newView(&p.cfg, p.resolver, delta, w.names)
		if err := w.lookAgain(ctx, v); err != nil {
			return w.res, p.fail(err)
		}
		more := w.check(v, refused)
		w.res.AddStep("plan", start)
		if len(more) == 0 {
			if more, err = w.program(ctx, v, delta); err != nil {
				return w.res, p.fail(err)
			}
		}
		if len(more) == 0 {
			p.resolver.Commit(delta)
			p.node = delta.Node
			if p.node.NodePorts.Loopback && (w.all || delta.NodeChanged) { // only now: what keeps other hosts from loopback is in place
				if err := p.setSysctls(&p.node); err != nil {
					return w.res, p.fail(err)
				}
			}
			if w.all {
				p.verified = p.now()
			}
			w.res.Rejected, w.res.Promoted = delta.Rejected, delta.Promoted
			return w.res, nil
		}
		if refused, err = p.resolver.LeaveOut(refused, more, w.all); err != nil {
			return w.res, p.fail(err)
		}
	}
}

// lookAgain forgets those virtual services of others, where one of ours is wanted, that are gone by now. A full Sync has
// just seen all that there are.
func (w *work) lookAgain(ctx context.Context, v *view) error {
	rec := w.p.record
	if w.all || len(rec.foreign) == 0 {
		return nil
	}
	var taken []virtualKey
	for _, form := range v.forms {
		keys(form, &v.nodePorts, func(k virtualKey) {
			if rec.foreign[k] {
				taken = append(taken, k)
			}
		})
	}
	if len(taken) == 0 {
		return nil
	}
	there, err := w.p.kernel.exist(ctx, taken)
	for _, k := range taken {
		if err == nil && !there[k] {
			delete(rec.foreign, k)
		}
	}
	return err
}

// check refuses the services that need not be tried.
func (w *work) check(v *view, refused map[model.ServiceName]error) map[model.ServiceName]error {
	more := map[model.ServiceName]error{}
	for name, form := range v.forms {
		if form == nil || refused[name] != nil {
			continue
		}
		if err := v.check(form, w.p.record, w.p.quiescent); err != nil {
			more[name] = err
		}
	}
	return more
}

// program makes the kernel hold what is wanted, step by step. It returns the services that the kernel refused; then it
// is not done.
func (w *work) program(ctx context.Context, v *view, delta *model.Delta) (map[model.ServiceName]error, error) {
	p, rec := w.p, w.p.record
	start := time.Now()
	w.touch(v, delta)
	if err := w.look(ctx, v); err != nil {
		return nil, err
	}
	next := newPlan(rec, p.now(), p.cfg.DrainDeadline)
	if w.all {
		next.sweep()
	}
	for k := range w.keys {
		next.change(k, v.want(k))
	}
	next.route(v, w.keys)
	w.res.AddStep("plan", start)

	start = time.Now()
	defer func() { w.res.AddStep("commit", start) }()
	if more, err := w.taken(ctx, next); err != nil || len(more) > 0 {
		return more, err
	}
	if more, err := w.writeTable(ctx, v, delta, next); err != nil || len(more) > 0 {
		return more, err
	}
	for _, ops := range [][]op{next.virtual, next.comes, next.leaves, next.routes} {
		if more, err := p.do(ctx, ops, &w.res); err != nil || len(more) > 0 {
			return more, err
		}
	}
	_, err := p.finish(ctx, next, v.node, &w.res)
	return nil, err
}

// touch notes which services and virtual services this attempt is about.
func (w *work) touch(v *view, delta *model.Delta) {
	touch := func(k virtualKey) { w.keys[k] = true }
	rec := w.p.record
	about := func(form *model.Resolved) {
		keys(form, &v.nodePorts, touch)
		if !slices.EqualFunc(v.nodePorts[:], rec.nodePorts[:], slices.Equal[[]netip.Addr]) {
			keys(form, &rec.nodePorts, touch)
		}
	}
	for name, form := range v.forms {
		w.names[name] = true
		about(form)
		about(w.p.resolver.Form(name))
	}
	if w.all || delta.NodeChanged {
		for _, form := range w.p.resolver.FormsAfter(delta) {
			about(form)
		}
		for k := range rec.virtual {
			touch(k)
		}
	}
}

// look reads the addresses of the node's interfaces, if it matters.
func (w *work) look(ctx context.Context, v *view) (err error) {
	rec := w.p.record
	matters := rec.hosts == nil || !v.node.Equal(w.p.node)
	for k := range w.keys {
		_, there := rec.routes[k.at.Addr()]
		matters = matters || !there && !slices.Contains(v.node.Addrs, k.at.Addr())
	}
	if matters {
		rec.hosts, rec.source, err = w.p.kernel.addrs(ctx)
	}
	return err
}

// taken refuses services that want a virtual service which somebody else has: before the table lists it as ours. A full
// Sync has seen all that there are.
func (w *work) taken(ctx context.Context, next *plan) (refused map[model.ServiceName]error, err error) {
	var keys []virtualKey
	for _, o := range next.virtual {
		if o.kind == addVirtual && !w.all {
			keys = append(keys, o.key)
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	there, err := w.p.kernel.exist(ctx, keys)
	refused = map[model.ServiceName]error{}
	for _, k := range keys {
		if there[k] {
			w.p.record.foreign[k] = true
			refused[next.owners[k]] = conflict(k)
		}
	}
	return refused, err
}

// writeTable writes what must be in the table before virtual services and routes are made, and while they go.
func (w *work) writeTable(ctx context.Context, v *view, delta *model.Delta, next *plan) (map[model.ServiceName]error, error) {
	p := w.p
	in := nft.Input{Node: delta.Node, Extra: func(t *nft.Plan) { w.list(t, next, v) }}
	for _, name := range slices.Sorted(maps.Keys(v.forms)) {
		in.Changes = append(in.Changes, model.ResolvedChange{Name: name, After: v.forms[name]})
	}
	if w.fresh {
		in.Forms = p.resolver.FormsAfter(delta)
	}
	write := p.table.Apply
	if w.fresh {
		write = p.table.Sync
	}
	more, err := write(ctx, in, &w.res)
	if err == nil && len(more) == 0 {
		w.fresh = false
		p.record.nodePorts = v.nodePorts
	}
	return more, err
}

// list plans the elements that say what is ours: all of them into a table written anew, else those that are new, and
// not those that an earlier attempt has put there in vain.
func (w *work) list(t *nft.Plan, next *plan, v *view) {
	r := w.p.record
	for k := range w.keys {
		vip := nft.ElementKey{Set: virtualIPs, Addr: k.at.Addr()}
		if _, comes := next.owners[k]; r.virtual[k] == nil && !comes {
			t.Remove(k.family(), k.element(virtualServices))
		}
		if _, there := r.routes[vip.Addr]; !there {
			t.Remove(k.family(), vip)
		}
	}
	r.list(t, next, v, w.fresh)
}

// list is list without the looking back.
func (r *record) list(t *nft.Plan, next *plan, v *view, fresh bool) {
	put := func(k virtualKey, owner model.ServiceName) {
		t.Put(k.family(), nft.Element{ElementKey: k.element(virtualServices), Comment: nft.Comment(owner)})
	}
	vip := func(a netip.Addr) {
		t.Put(model.FamilyOf(a), nft.Element{ElementKey: nft.ElementKey{Set: virtualIPs, Addr: a}})
	}
	for k, owner := range next.owners {
		if !fresh || r.virtual[k] == nil {
			put(k, owner)
		}
	}
	for _, o := range next.routes {
		vip(o.vip)
	}
	if fresh {
		for k, have := range r.virtual {
			put(k, have.owner)
			r.listDraining(t, next.now, k, have)
		}
		for a := range r.routes {
			vip(a)
		}
	}
	for _, fam := range model.Families {
		if !fresh && slices.Equal(r.nodePorts[fam], v.nodePorts[fam]) {
			continue
		}
		for _, a := range r.nodePorts[fam] {
			if !fresh && !slices.Contains(v.nodePorts[fam], a) {
				t.Remove(fam, nft.ElementKey{Set: nodePortIPs, Addr: a})
			}
		}
		for _, a := range v.nodePorts[fam] {
			t.Put(fam, nft.Element{ElementKey: nft.ElementKey{Set: nodePortIPs, Addr: a}})
		}
	}
}

// listDraining plans the elements that say until when something of a virtual service drains.
func (r *record) listDraining(t *nft.Plan, now time.Time, k virtualKey, v *virtual) {
	put := func(at netip.AddrPort, until time.Time) {
		e := nft.Element{ElementKey: k.element(drainingServers), Timeout: until.Sub(now).Round(time.Second), Comment: nft.Comment(v.owner)}
		if at.IsValid() {
			e.Real = at
		}
		if !until.IsZero() && e.Timeout > 0 && !t.Has(k.family(), e.ElementKey) {
			t.Put(k.family(), e)
		}
	}
	if v.leaving {
		put(netip.AddrPort{}, v.until)
		return
	}
	for _, s := range v.servers {
		if s.leaving {
			put(s.at, s.until)
		}
	}
}

// do sends requests and notes what the kernel did. It returns the services to which it refused something.
func (p *Programmer) do(ctx context.Context, ops []op, res *model.Result) (refused map[model.ServiceName]error, err error) {
	if len(ops) == 0 {
		return nil, nil
	}
	failed, did, err := p.kernel.burst(ctx, ops)
	res.Transactions += did.pieces
	res.Bytes += did.bytes
	if err != nil {
		return nil, err
	}
	refused = map[model.ServiceName]error{}
	for i := range ops {
		o := &ops[i]
		cause := failed[i]
		if cause == nil {
			p.record.done(o)
			count(res, o.kind)
			continue
		}
		what, err := judge(o, cause)
		switch {
		case what == nothing:
			p.record.done(o)
			continue
		case what == alien:
			p.record.foreign[o.key] = true
			refused[o.owner] = conflict(o.key)
		case what == blame && o.owner != "":
			refused[o.owner] = err
		default:
			return nil, err
		}
	}
	return refused, nil
}

func count(res *model.Result, k opKind) {
	switch {
	case k.adds():
		res.Added++
	case k.deletes():
		res.Deleted++
	default:
		res.Changed++
	}
}

// finish counts the connections of what is to go, and removes what has none: real servers, virtual services, then routes
// and last what the table says of them. It returns what it counted.
func (p *Programmer) finish(ctx context.Context, next *plan, node model.Node, res *model.Result) (counted map[virtualKey][]foundServer, err error) {
	var ops []op
	var doubtful []virtualKey
	counted, err = p.kernel.servers(ctx, slices.DeleteFunc(slices.Clone(next.count), func(k virtualKey) bool { return !next.counts(k) }))
	if err != nil {
		return nil, err
	}
	was := make(map[virtualKey]virtual, len(next.count))
	for _, k := range next.count {
		if v := p.record.virtual[k]; v != nil {
			was[k] = virtual{owner: v.owner, servers: slices.Clone(v.servers)}
		}
		if next.doubts(k, counted[k]) {
			doubtful = append(doubtful, k)
		}
	}
	none, err := p.idle(ctx, doubtful)
	if err != nil {
		return nil, err
	}
	for _, k := range next.count {
		ops = append(ops, next.drained(k, counted[k], none[k])...)
	}
	if err := p.must(ctx, ops, res); err != nil {
		return nil, err
	}
	routes := next.routesEnd(node)
	if err := p.must(ctx, routes, res); err != nil {
		return nil, err
	}
	if len(was) == 0 && len(routes) == 0 {
		return counted, nil
	}
	more, err := p.table.Apply(ctx, nft.Input{Node: node, Extra: func(t *nft.Plan) {
		for k, v := range was {
			p.record.unlist(t, next.now, k, &v)
		}
		for _, o := range routes {
			t.Remove(model.FamilyOf(o.vip), nft.ElementKey{Set: virtualIPs, Addr: o.vip})
		}
	}}, res)
	return counted, errors.Join(append(slices.Collect(maps.Values(more)), err)...)
}

// idle returns which of some virtual services have no open connection.
func (p *Programmer) idle(ctx context.Context, keys []virtualKey) (none map[virtualKey]bool, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	counts, more, err := p.kernel.open(ctx, keys)
	none = make(map[virtualKey]bool, len(keys))
	for _, k := range keys {
		none[k] = counts[k] == 0 && !more
	}
	return none, err
}

// must sends requests that nobody is to blame for.
func (p *Programmer) must(ctx context.Context, ops []op, res *model.Result) error {
	refused, err := p.do(ctx, ops, res)
	return errors.Join(append(errorsOf(refused), err)...)
}

// unlist plans that the table says of a virtual service what there is of it now; was is how it was before.
func (r *record) unlist(t *nft.Plan, now time.Time, k virtualKey, was *virtual) {
	is := r.virtual[k]
	gone := k.element(drainingServers)
	if is == nil {
		t.Remove(k.family(), k.element(virtualServices))
	}
	if is == nil || !is.leaving {
		t.Remove(k.family(), gone)
	}
	for _, s := range was.servers {
		gone.Real = s.at
		if is == nil || is.leaving {
			t.Remove(k.family(), gone)
		} else if i, ok := is.find(s.at); !ok || !is.servers[i].leaving || is.servers[i].until.IsZero() {
			t.Remove(k.family(), gone)
		}
	}
	if is != nil {
		r.listDraining(t, now, k, is)
	}
}
