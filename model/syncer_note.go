package model

import (
	"context"
	"errors"
	"slices"
	"time"
)

// News is what is worth a line in the log beside a report.
type news struct {
	// recovered is how many attempts had failed before a good one, retry when a failed one is repeated.
	recovered int
	retry     time.Time
	stopping  bool // it failed since we stop
	// refused are the services that were not in this way before; warnings the Result's if they are others than before.
	refused  []ServiceName
	warnings []string
}

// succeeded takes note of a batch that was programmed, and returns how long its changes had waited.
func (s *Syncer) succeeded(b batch, res Result, began, ended time.Time) (waited []time.Duration, n news) {
	s.mu.Lock()
	defer s.mu.Unlock()
	turned := s.record(b, res, ended)
	for _, name := range turned {
		if r := s.book.records[name]; r != nil && r.err != nil {
			n.refused = append(n.refused, name)
		}
	}
	if !slices.Equal(res.Warnings, s.warned) {
		n.warnings, s.warned = res.Warnings, res.Warnings
	}
	confirmed := b.names()
	if b.made > 0 { // it was the last of what had been handed out
		confirmed = keys(s.ledger.lags)
		turned = append(turned, confirmed...)
	}
	waited = s.ledger.confirm(confirmed, ended)
	if b.made > 0 || b.diff.Node != nil {
		waited = append(waited, s.ledger.confirmNode(ended)...)
	}
	p := &s.plan
	p.pace.spend(began, ended)
	n.recovered = p.failures
	p.failures, p.err, p.notBefore, p.lastSync = 0, nil, time.Time{}, ended
	if b.full {
		p.synced, p.lastFull, p.lastCheck, p.full = true, ended, ended, ""
		if p.answered = b.asked; p.asked > p.answered {
			p.full = ReasonAsked
		}
		p.nextFull, p.nextCheck = s.about(ended, s.cfg.ResyncPeriod), s.about(ended, s.cfg.CheckPeriod)
	}
	if _, ok := s.programmer.(Drainer); ok || len(s.leaving) > 0 {
		p.nextDrain = ended
	}
	s.ledger.done = max(s.ledger.done, b.made)
	s.progressed()
	s.settle()
	s.notify(turned...)
	return waited, n
}

// record enters what became of each service in the book, and returns those whose status may have changed.
func (s *Syncer) record(b batch, res Result, now time.Time) (turned []ServiceName) {
	errs := outcomes(res)
	seen := make(map[ServiceName]*Entry, len(errs)+len(b.diff.Changes))
	enter := func(name ServiceName, e *Entry) {
		seen[name] = e
		lag := s.ledger.lags[name]
		old := s.book.records[name]
		changed := lag != nil && lag.handed
		if old != nil && old.phase == PhaseProgrammed && old.err == nil && !changed && len(errs[name]) == 0 {
			return
		}
		if s.book.enter(name, judge(e, s.features, errs[name]), changed, now) {
			turned = append(turned, name)
		}
		if r := s.book.records[name]; r.failures > 0 {
			r.retry = now.Add(s.cfg.ServiceRetry.wait(r.failures, s.random()))
		}
	}
	for i, name := range b.names() {
		if e := b.entry(i, name); e != nil {
			enter(name, e)
		} else {
			seen[name] = nil
			s.book.put(name, nil)
			turned = append(turned, name)
		}
	}
	if b.full {
		for name := range s.book.records {
			if _, wanted := b.state.Services[name]; !wanted {
				s.book.put(name, nil)
				turned = append(turned, name)
			}
		}
	}
	// A Programmer may speak of services that it was not asked about: a frontend or the node's zone concerns them too.
	for _, names := range [][]ServiceName{keys(errs), res.Promoted} {
		for _, name := range names {
			if _, ok := seen[name]; ok {
				continue
			}
			if e := s.ledger.tracker.lookup(name); e != nil {
				enter(name, e)
			}
		}
	}
	if s.book.counts[PhaseConflicting] > 0 {
		held := map[FrontendKey]ServiceName{}
		for name, e := range seen {
			s.book.holds(name, e, held)
		}
		turned = append(turned, s.book.rehold(s.backend, held)...)
	}
	return turned
}

func keys[V any](m map[ServiceName]V) []ServiceName {
	names := make([]ServiceName, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	return names
}

// failed takes note of a batch that was not programmed, or of which nobody knows: everything is to be synced.
func (s *Syncer) failed(ctx context.Context, b batch, err error, began, ended time.Time) (n news) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.plan
	p.pace.spend(began, ended)
	drift := errors.Is(err, ErrDrift)
	if drift {
		p.drifts++
	}
	switch {
	case b.full:
	case drift:
		p.full = ReasonDrift
	default:
		p.full = ReasonRetry
	}
	if n.stopping = errors.Is(err, context.Canceled) && errors.Is(ctx.Err(), context.Canceled); n.stopping {
		return n
	}
	if !b.full && (drift || errors.Is(err, ErrNotSynced)) {
		n.retry = ended // a Sync mends that
		return n
	}
	p.failures++
	p.err = err
	p.notBefore = ended.Add(s.cfg.Retry.wait(p.failures, s.random()))
	n.retry = p.notBefore
	s.notify(keys(s.ledger.lags)...)
	return n
}
