package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/headgate/headgate/internal/nft"
	"github.com/headgate/headgate/model"
)

// Drain removes real servers and virtual services that drain and have no connections any more, or whose time is over,
// and returns what remains. Somebody should call it every second or so while something does. See [model.Drainer].
func (p *Programmer) Drain(ctx context.Context) ([]model.Drain, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, model.ErrClosed
	case p.record == nil || len(p.record.draining) == 0:
		return nil, nil
	}
	return p.drain(ctx)
}

func (p *Programmer) drain(ctx context.Context) ([]model.Drain, error) {
	next := newPlan(p.record, p.now(), p.cfg.DrainDeadline)
	next.patient = p.left
	for k := range p.record.draining {
		next.count = append(next.count, k)
		next.routesGo[k.at.Addr()] = true
	}
	var res model.Result
	counted, err := p.finish(ctx, next, p.node, &res)
	if err != nil {
		return nil, p.fail(err)
	}
	if p.left && len(p.record.virtual) == 0 {
		return nil, p.cleanup(ctx)
	}
	return p.record.drains(counted), nil
}

// drains lists what drains, with the connections that were counted.
func (r *record) drains(counted map[virtualKey][]foundServer) (out []model.Drain) {
	for k := range r.draining {
		v := r.virtual[k]
		all := 0
		for _, f := range counted[k] {
			all += f.active + f.inactive
			i, ok := v.find(f.at)
			if !v.leaving && ok && v.servers[i].leaving {
				out = append(out, model.Drain{Service: v.owner, Endpoint: f.at, Connections: f.active + f.inactive, Until: v.servers[i].until})
			}
		}
		if v.leaving {
			out = append(out, model.Drain{Service: v.owner, Connections: all, Until: v.until})
		}
	}
	slices.SortFunc(out, func(a, b model.Drain) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), a.Endpoint.Compare(b.Endpoint))
	})
	return out
}

// Retire leaves new connections to another backend, which is in charge already, and keeps what the open ones need: the
// virtual services with real servers of weight 0, and the routes to them. It returns what remains. Afterwards Drain
// removes that, and in the end the table. See [model.Drainer].
func (p *Programmer) Retire(ctx context.Context) ([]model.Drain, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, model.ErrClosed
	}
	if err := p.retire(ctx); err != nil {
		return nil, p.fail(fmt.Errorf("leaving: %w", err))
	}
	return p.drain(ctx)
}

func (p *Programmer) retire(ctx context.Context) (err error) {
	if p.record == nil {
		if p.record, err = p.adopt(ctx); err != nil && !errors.Is(err, errNoModule) {
			return err
		}
	}
	p.left = true
	p.resolver.Reset()
	next := newPlan(p.record, p.now(), p.cfg.DrainDeadline)
	for k, v := range p.record.virtual {
		next.gone(k, v)
	}
	var res model.Result
	none := &view{}
	more, err := p.table.Sync(ctx, nft.Input{Node: p.node, Extra: func(t *nft.Plan) { p.record.list(t, next, none, true) }}, &res)
	return errors.Join(append(errorsOf(more), err)...)
}
