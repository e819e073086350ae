package model

import (
	"context"
	"fmt"
	"time"
)

// Switch makes another Programmer the one that is driven, as the function [Switch] does: with all that is wanted now,
// without losing a connection, and if it fails with the old one in force. Changes that come meanwhile are programmed
// afterwards. Both Programmers stay the caller's: the old one may be closed when nothing is left of it, see
// [Switched.Removed] and [Switched.Drained]; until then, or until it is closed, Run makes it drain, and tries again to
// remove it. It takes no longer than [SyncerConfig.Timeout], and returns an error that wraps [ErrNotSynced] before the
// state is complete.
func (s *Syncer) Switch(ctx context.Context, to Programmer) (Switched, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return Switched{}, fmt.Errorf("switch: %w", context.Cause(ctx))
	}
	defer func() { <-s.turn }()
	s.mu.Lock()
	ready, from := s.plan.ready && s.plan.addrsKnown, s.programmer
	s.mu.Unlock()
	if !ready {
		return Switched{}, fmt.Errorf("switch: what is wanted is not complete yet: %w", ErrNotSynced)
	}
	b := s.everything()
	b.reason = ReasonSwitch
	r := SyncReport{Backend: to.Features().Backend, Full: true, Reason: b.reason, Began: time.Now(), Changes: len(b.state.Services)}
	if s.cfg.Cleaner != nil {
		s.cfg.Cleaner.Syncing(b.state)
	}
	sw, err := Switch(ctx, from, to, b.state)
	r.Result, r.Took = sw.Result, time.Since(r.Began)
	var n news
	if sw.Active {
		s.mu.Lock()
		s.adopt(to)
		if !sw.Removed || len(sw.Remains) > 0 {
			s.leaving = append(s.leaving, departure{from, sw.Removed})
		}
		s.mu.Unlock()
		r.Latencies, n = s.succeeded(b, sw.Result, r.Began, r.Began.Add(r.Took))
		if err != nil && sw.Removed {
			s.syncAgain() // it could not be verified in the end
		}
	} else {
		r.Err = err
		n = s.keep(r.Began.Add(r.Took))
	}
	if s.cfg.Cleaner != nil {
		s.cfg.Cleaner.Programmed(sw.Result, r.Err)
		s.rouseCleaner()
	}
	s.tell(ctx, r, n)
	s.rouse()
	return sw, err
}

// keep takes note of a switch that failed: the old Programmer has yet to be told what the new one was.
func (s *Syncer) keep(now time.Time) news {
	s.syncAgain()
	return news{retry: now}
}

// syncAgain makes a Sync due, if none is.
func (s *Syncer) syncAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plan.full == "" {
		s.plan.full = ReasonRetry
	}
}
