package model

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// A departure is a Programmer that was switched from and of which something is left: what open connections need or,
// where it could not be removed, everything.
type departure struct {
	Programmer
	removed bool
}

// drain removes what no connection needs any more, also of Programmers that were switched from.
func (s *Syncer) drain(ctx context.Context) error {
	s.mu.Lock()
	all, backend := s.leaving, s.backend
	d, drains := s.programmer.(Drainer)
	drains = drains && s.plan.full == "" // else nobody knows what it holds
	s.mu.Unlock()
	var remains []Drain
	var leaving []departure
	var errs []error
	removed := false
	for _, left := range all {
		before := left.removed
		rest, err := left.drain(ctx)
		removed = removed || left.removed && !before
		remains = append(remains, rest...)
		switch {
		case errors.Is(err, ErrClosed): // nobody can any more
		case err != nil:
			errs = append(errs, err)
			fallthrough
		case len(rest) > 0:
			leaving = append(leaving, left)
		}
	}
	if drains {
		rest, err := d.Drain(ctx)
		remains = append(remains, rest...)
		if err != nil && !errors.Is(err, ErrClosed) {
			errs = append(errs, err)
		}
	}
	s.tellDrained(ctx, backend, errors.Join(errs...))
	s.drained(leaving, remains, len(errs) > 0, removed)
	return nil
}

// drain removes what can be removed, and returns what remains.
func (d *departure) drain(ctx context.Context) (rest []Drain, err error) {
	if d.removed {
		if drainer, ok := d.Programmer.(Drainer); ok {
			return drainer.Drain(ctx)
		}
		return nil, nil
	}
	rest, err = leave(ctx, d.Programmer)
	d.removed = err == nil
	return rest, err
}

// drained takes note of what remains. Removed says that a Programmer could be removed, which should be looked after.
func (s *Syncer) drained(leaving []departure, remains []Drain, failed, removed bool) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving, s.plan.nextDrain = leaving, time.Time{}
	if failed || len(remains) > 0 {
		s.plan.nextDrain = now.Add(s.cfg.DrainPeriod)
	}
	if removed && !s.plan.nextCheck.IsZero() {
		s.plan.nextCheck = now
	}
	if !failed {
		s.notify(s.book.drain(remains, now)...)
	}
}

// tellDrained logs why something could not be drained, once as long as it stays the same.
func (s *Syncer) tellDrained(ctx context.Context, backend string, err error) {
	s.mu.Lock()
	level := slog.LevelWarn
	if text(err) == s.drainErr {
		level = slog.LevelDebug
	}
	s.drainErr = text(err)
	s.mu.Unlock()
	if err != nil {
		s.log.LogAttrs(ctx, level, "cannot drain", slog.String("backend", backend), slog.Any("err", err))
	}
}
