package model

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"
)

// check asks whether the kernel still holds what was written.
func (s *Syncer) check(ctx context.Context) error {
	p := s.Programmer()
	r := CheckReport{Backend: s.backend, Began: time.Now()}
	r.Err = p.Check(ctx)
	ended := time.Now()
	r.Took = ended.Sub(r.Began)
	s.mu.Lock()
	plan := &s.plan
	plan.nextCheck = s.about(ended, s.cfg.CheckPeriod)
	switch {
	case r.Err == nil:
		plan.lastCheck = ended
	case errors.Is(r.Err, ErrDrift):
		plan.drifts++
		plan.full = ReasonDrift
	case errors.Is(r.Err, ErrNotSynced):
		plan.full = ReasonRetry
	}
	s.mu.Unlock()
	s.cfg.Observer.Checked(r)
	switch {
	case r.Err == nil:
	case errors.Is(r.Err, ErrDrift):
		s.log.LogAttrs(ctx, slog.LevelWarn, "somebody else changed the kernel: repairing", slog.String("backend", r.Backend), slog.Any("err", r.Err))
	default:
		s.log.LogAttrs(ctx, slog.LevelWarn, "cannot check the kernel", slog.String("backend", r.Backend), slog.Any("err", r.Err))
	}
	return r.Err
}

// drain removes what no connection needs any more, also with backends that were left.
func (s *Syncer) drain(ctx context.Context) error {
	s.mu.Lock()
	drainers, left := slices.Clone(s.leaving), len(s.leaving)
	if d, ok := s.programmer.(Drainer); ok {
		drainers = append(drainers, d)
	}
	s.mu.Unlock()
	var all []Drain
	var leaving []Drainer
	failed := false
	for i, d := range drainers {
		remains, err := d.Drain(ctx)
		all = append(all, remains...)
		if err != nil && !errors.Is(err, ErrClosed) {
			failed = true
			s.log.LogAttrs(ctx, slog.LevelWarn, "cannot drain", slog.String("backend", d.Features().Backend), slog.Any("err", err))
		} else if len(remains) == 0 {
			continue
		}
		if i < left {
			leaving = append(leaving, d)
		}
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving, s.plan.nextDrain = leaving, time.Time{}
	if failed || len(all) > 0 {
		s.plan.nextDrain = now.Add(s.cfg.DrainPeriod)
	}
	if !failed {
		s.notify(s.book.drain(all, now)...)
	}
	return nil
}
