package model

import (
	"context"
	"errors"
	"log/slog"
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
