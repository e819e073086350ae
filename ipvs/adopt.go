package ipvs

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/nft"
)

// An evidence is how virtual services of ours are told from those of others. The table lists them. What is not listed is
// ours if this process made it, if it has no affinity and has the tag or, where the table is lost, if there is a route of
// ours to its address. One with affinity is otherwise ours if it might be and is just what is wanted.
type evidence struct {
	listed map[virtualKey]bool
	// until has when something has to be gone: real servers, and with address 0 virtual services.
	until map[nft.ElementKey]time.Time
	lost  [2]bool // by family
}

// evidence reads what the table says.
func (p *Programmer) evidence(ctx context.Context) (e evidence, err error) {
	e = evidence{listed: map[virtualKey]bool{}, until: map[nft.ElementKey]time.Time{}}
	found, err := p.table.Elements(ctx, virtualServices, drainingServers)
	e.lost = [2]bool{true, true}
	for _, f := range found {
		switch k := keyOf(f); f.Set {
		case virtualServices:
			e.listed[k] = true
			e.lost[k.family()] = false
		case drainingServers:
			e.until[f.ElementKey] = p.now().Add(f.Timeout)
		}
	}
	return e, err
}

// adopt reads what the kernel holds of ours.
func (p *Programmer) adopt(ctx context.Context) (*record, error) {
	known := p.record
	if known == nil {
		known = p.last
	}
	found, err := p.kernel.services(ctx)
	if err != nil {
		return nil, err
	}
	rec := newRecord()
	if rec.routes, err = p.kernel.routes(ctx); err != nil {
		return nil, err
	}
	ev, err := p.evidence(ctx)
	if err != nil {
		return nil, err
	}
	for k, spec := range found {
		_, routed := rec.routes[k.at.Addr()]
		persistent := spec.flags&flagPersistent != 0
		switch {
		case ev.listed[k], known != nil && known.virtual[k] != nil, !persistent && spec.timeout == tag(p.cfg.RouteProtocol), ev.lost[k.family()] && routed:
			v := &virtual{spec: spec}
			if known != nil && known.virtual[k] != nil {
				v.owner = known.virtual[k].owner
			}
			rec.add(k, v)
		default:
			rec.foreign[k] = true
			if persistent && (ev.lost[k.family()] || routed) {
				rec.doubtful[k] = spec
			}
		}
	}
	return rec, p.take(ctx, rec, slices.Collect(maps.Keys(rec.virtual)), ev)
}

// take reads the real servers of virtual services of ours.
func (p *Programmer) take(ctx context.Context, rec *record, keys []virtualKey, ev evidence) error {
	found, err := p.kernel.servers(ctx, keys)
	if err != nil {
		return err
	}
	for _, k := range keys {
		v, e := rec.virtual[k], k.element(drainingServers)
		v.until, v.leaving = ev.until[e]
		v.kept = v.leaving
		v.servers = make([]server, len(found[k]))
		for i, f := range found[k] {
			v.servers[i] = f.server
			if f.weight == 0 {
				e.Real = f.at
				v.servers[i].leaving, v.servers[i].until = true, ev.until[e]
			}
		}
		slices.SortFunc(v.servers, func(a, b server) int { return a.at.Compare(b.at) })
		rec.note(k)
	}
	return nil
}

// adopt takes the doubtful virtual services that are just what is wanted.
func (w *work) adopt(ctx context.Context, v *view) error {
	rec := w.p.record
	var ours []virtualKey
	for k, spec := range rec.doubtful {
		if want := v.want(k); want != nil && want.spec == spec {
			rec.add(k, &virtual{spec: spec})
			ours = append(ours, k)
			delete(rec.foreign, k)
			delete(rec.doubtful, k)
		}
	}
	return w.p.take(ctx, rec, ours, evidence{})
}
