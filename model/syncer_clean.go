package model

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// A Cleaner forgets the connections that a change made stale. It is told of every attempt to program, and what it has
// to look at because of them it owes until it has been done. *conntrack.Cleaner is one. It is safe for concurrent use.
type Cleaner interface {
	// Syncing says that a Sync of want is about to begin, Applying that an Apply of diff is. What they point to is not
	// written until Programmed has been called.
	Syncing(want State)
	// Applying is told before an Apply.
	Applying(diff Diff)
	// Programmed says what the call that was announced last returned.
	Programmed(res Result, err error)
	// Due returns when Clean has something to do; false if it has not, or not before something has been programmed.
	Due() (at time.Time, owed bool)
	// Clean does what is due. What it could not do stays owed.
	Clean(ctx context.Context) (Result, error)
}

// cleanGap is the least time from one cleaning to the next: what has to wait for the programming that is under way is
// due all the time.
const cleanGap = 20 * time.Millisecond

// rouseCleaner makes the cleaning look for something to do.
func (s *Syncer) rouseCleaner() {
	select {
	case s.cleanWake <- struct{}{}:
	default:
	}
}

// cleanAlways cleans whatever is due, beside programming, which does not wait for it, until ctx is over.
func (s *Syncer) cleanAlways(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	failures := 0
	var notBefore time.Time
	for ctx.Err() == nil {
		var due <-chan time.Time
		if at, owed := s.cfg.Cleaner.Due(); owed {
			now := time.Now()
			if notBefore.After(at) {
				at = notBefore
			}
			if !at.After(now) {
				err := s.cleanOnce(ctx)
				ended := time.Now()
				notBefore = ended.Add(max(cleanGap, ended.Sub(now)))
				failures++
				if err == nil {
					failures = 0
				} else if wait := ended.Add(s.cfg.Retry.wait(failures, s.random())); wait.After(notBefore) {
					notBefore = wait
				}
				continue
			}
			timer.Reset(at.Sub(now))
			due = timer.C
		}
		select {
		case <-s.cleanWake:
		case <-due:
		case <-ctx.Done():
		}
	}
}

// cleanOnce cleans once, and reports that.
func (s *Syncer) cleanOnce(ctx context.Context) error {
	r := CleanReport{Began: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	r.Result, r.Err = s.cfg.Cleaner.Clean(ctx)
	r.Took = time.Since(r.Began)
	if errors.Is(r.Err, context.Canceled) && ctx.Err() != nil {
		return r.Err // we are stopping, and look once more
	}
	s.mu.Lock()
	s.cleanErr = r.Err
	s.mu.Unlock()
	level, message := slog.LevelDebug, "forgot stale connections"
	attrs := []slog.Attr{slog.Int("connections", r.Result.Deleted), slog.Duration("took", r.Took)}
	if r.Err != nil {
		level, message = slog.LevelWarn, "cannot forget stale connections yet"
		attrs = append(attrs, slog.Any("err", r.Err))
	}
	s.log.LogAttrs(ctx, level, message, attrs...)
	s.cfg.Observer.Cleaned(r)
	return r.Err
}

// cleanLast does what is due when Run ends: nobody would do it later.
func (s *Syncer) cleanLast(ctx context.Context) {
	if at, owed := s.cfg.Cleaner.Due(); owed && !at.After(time.Now()) && ctx.Err() == nil {
		_ = s.cleanOnce(ctx) // which has told of it
	}
}
