package ipvs

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/nft"
)

// An evidence is how virtual services of ours are told from those of others: the table lists them, or their flags have
// the mark, or this process made them. Somebody who edits one takes the mark off, and who flushes the table the list; of
// one that has lost both nobody can tell after a restart, so it is somebody else's.
type evidence struct {
	listed map[virtualKey]bool
	// until has when something has to be gone: real servers, and with address 0 virtual services.
	until map[nft.ElementKey]time.Time
}

// evidence reads what the table says.
func (p *Programmer) evidence(ctx context.Context) (e evidence, err error) {
	e = evidence{listed: map[virtualKey]bool{}, until: map[nft.ElementKey]time.Time{}}
	found, err := p.table.Elements(ctx, virtualServices, drainingServers)
	for _, f := range found {
		switch k := keyOf(f); f.Set {
		case virtualServices:
			e.listed[k] = true
		case drainingServers:
			e.until[f.ElementKey] = p.now().Add(f.Timeout)
		}
	}
	return e, err
}

// adopt reads what the kernel holds of ours. Without the module, of which the error is errNoModule, that is the routes
// alone.
func (p *Programmer) adopt(ctx context.Context) (*record, error) {
	known := p.record
	if known == nil {
		known = p.last
	}
	found, missing := p.kernel.services(ctx)
	if missing != nil && !errors.Is(missing, errNoModule) {
		return nil, missing
	}
	rec := newRecord()
	var err error
	if rec.routes, err = p.kernel.routes(ctx); err != nil || missing != nil {
		return rec, cmp.Or(err, missing)
	}
	ev, err := p.evidence(ctx)
	if err != nil {
		return nil, err
	}
	mark := ownerFlags(p.cfg.RouteProtocol)
	for k, spec := range found {
		made := known != nil && known.virtual[k] != nil
		if !made && !ev.listed[k] && spec.flags>>ownerShift != mark>>ownerShift {
			rec.foreign[k] = true
			continue
		}
		v := &virtual{spec: spec}
		if made {
			v.owner = known.virtual[k].owner
		}
		rec.add(k, v)
	}
	return rec, p.take(ctx, rec, ev)
}

// take reads the real servers of virtual services of ours.
func (p *Programmer) take(ctx context.Context, rec *record, ev evidence) error {
	keys := slices.Collect(maps.Keys(rec.virtual))
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
