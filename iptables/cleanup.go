package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/headgate/headgate/model"
)

// Cleanup removes our chains and jumps from every table of both families and both variants, as far as the host has
// them, and nothing else. A chain of ours that somebody else's rule leads to is emptied, and the error names it.
// If SetSysctls is set and node ports answered on loopback, net.ipv4.conf.all.route_localnet becomes 0.
func (p *Programmer) Cleanup(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.begin(ctx, false); err != nil {
		return err
	}
	p.resolver.Reset()
	p.checks = checks{}
	f := &finder{cfg: p.cfg, ns: p.ns}
	var errs []error
	for _, v := range []Variant{p.variant, p.variant.other()} {
		for _, fam := range model.Families {
			if fam == model.IPv6 && !hasIPv6(p.ns) {
				continue
			}
			t, err := f.tools(ctx, fam, v)
			if err != nil {
				continue // the host does not have them, so there is nothing
			}
			if err := p.cleanup(ctx, t); err != nil {
				errs = append(errs, fmt.Errorf("iptables: %s: %w", fam, err))
			}
		}
	}
	for _, s := range p.sides {
		s.now, s.marks = programmed{}, marks{}
	}
	return errors.Join(errs...)
}

// cleanup removes everything ours from one family of one variant. The walls go last.
func (p *Programmer) cleanup(ctx context.Context, t *tools) error {
	there, err := t.tablesThere()
	if err != nil {
		return err
	}
	var stages []stage
	var kept []string
	for _, tbl := range tables {
		if !slices.Contains(there, tbl) {
			continue
		}
		have, err := t.read(ctx, tbl, p.names, allJumps(t.family, p.names))
		if err != nil {
			return err
		}
		if s := converge(p.names, tbl, nil, nil, have); !s.empty() {
			stages = append(stages, s)
			kept = append(kept, s.kept...)
		}
	}
	if err := p.unrouteFor(t.family, stages); err != nil {
		return err
	}
	script := newScript(stages)
	if p.cfg.Trace != nil && script.transactions > 0 {
		p.cfg.Trace(t.family, script.text)
	}
	if err := t.commit(ctx, script); err != nil {
		return err
	}
	if len(kept) > 0 {
		return fmt.Errorf("rules of others lead to %s: %w", few(kept), model.ErrBusy)
	}
	return nil
}

// tablesThere returns the tables that can have chains of ours.
func (t *tools) tablesThere() ([]table, error) {
	names, err := t.instantiated()
	return slices.DeleteFunc(slices.Clone(tables[:]), func(tbl table) bool { return !slices.Contains(names, tbl.String()) }), err
}

// allJumps returns every jump that any Config can have made.
func allJumps(f model.Family, n names) []jump {
	e := &env{family: f, names: n, loopback: f == model.IPv4, settings: settings{dropInvalid: true}}
	return e.jumps()
}

// leaveOther removes what an earlier Programmer left in the other variant, now that this one serves.
func (w *work) leaveOther() error {
	if w.leftover == nil || !w.leftover.ours {
		return nil
	}
	for _, t := range w.leftover.tools {
		if t == nil {
			continue
		}
		if err := w.cleanup(w.ctx, t); err != nil {
			return fmt.Errorf("iptables-%s: %w", t.variant, err)
		}
	}
	w.leftover = nil
	w.res.Warnings = append(w.res.Warnings, fmt.Sprintf("rules of ours were in iptables-%s; they are removed", w.variant.other()))
	return nil
}
