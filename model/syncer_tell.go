package model

import (
	"context"
	"log/slog"
)

// tell logs and reports what one Sync or Apply did.
func (s *Syncer) tell(ctx context.Context, r SyncReport, n news) {
	attrs := []slog.Attr{
		slog.String("backend", r.Backend), slog.String("reason", string(r.Reason)), slog.Bool("full", r.Full),
		slog.Int("services", r.Changes), slog.Duration("took", r.Took),
	}
	level, message := slog.LevelDebug, "programmed"
	switch {
	case n.stopping:
		message = "stopped in the middle of programming"
	case r.Err != nil:
		level, message = slog.LevelWarn, "cannot program"
		attrs = append(attrs, slog.Any("err", r.Err), slog.Duration("retry_in", n.retry.Sub(r.Began.Add(r.Took))))
	default:
		if r.Reason == ReasonStart || r.Reason == ReasonDrift || r.Reason == ReasonSwitch || n.recovered > 0 {
			level = slog.LevelInfo
		}
		attrs = append(attrs, slog.Int("added", r.Result.Added), slog.Int("changed", r.Result.Changed), slog.Int("deleted", r.Result.Deleted),
			slog.Duration("latency", r.Latency))
		if n.recovered > 0 {
			attrs = append(attrs, slog.Int("failures", n.recovered))
		}
	}
	s.log.LogAttrs(ctx, level, message, attrs...)
	s.tellRefused(ctx, n.refused)
	for _, w := range n.warnings {
		s.log.LogAttrs(ctx, slog.LevelWarn, w, slog.String("backend", r.Backend))
	}
	s.cfg.Observer.Synced(r)
}

// tellRefused logs the services that are refused, wholly or in part, since now; if they are many, only some of them.
func (s *Syncer) tellRefused(ctx context.Context, names []ServiceName) {
	const most = 20
	for i, name := range names {
		if i == most {
			s.log.LogAttrs(ctx, slog.LevelWarn, "further services are not programmed as wanted", slog.Int("services", len(names)-most))
			return
		}
		st := s.Status(name)
		if st.Err == nil {
			continue
		}
		s.log.LogAttrs(ctx, slog.LevelWarn, "service is not programmed as wanted", slog.String("service", string(name)),
			slog.String("phase", st.Phase.String()), slog.Any("err", st.Err))
	}
}
