package model

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A schedule says what is to be done next, and when. It is guarded by the mu of its Syncer.
type schedule struct {
	ready      bool // what is wanted is complete
	addrsKnown bool // the node's addresses have been told, or will not be for now
	synced     bool // a Sync has succeeded
	// full is why a Sync is due; empty while none is.
	full Reason
	// asked counts the calls of Resync, answered says how many of them are done. Hurry is set if one came after the
	// last attempt.
	asked, answered uint64
	hurry           bool

	failures  int       // in a row
	err       error     // of the last attempt
	notBefore time.Time // when the next attempt is to be made, after a failure
	drifts    uint64
	pace      pace

	// nextFull, nextCheck and nextDrain are when that is due by its period; zero, never.
	nextFull, nextCheck, nextDrain time.Time

	lastSync, lastFull, lastCheck time.Time
}

// A job is something to do with the Programmer. Its error ends Run.
type job func(ctx context.Context) error

// next returns what is to be done now or, if there is nothing, when to ask again at the latest: zero, when woken.
func (s *Syncer) next(now time.Time) (do job, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.plan
	if !p.ready || !p.addrsKnown {
		return nil, time.Time{}
	}
	if p.full != "" {
		switch {
		case p.hurry || !p.notBefore.After(now):
			return s.syncAll, time.Time{}
		case len(s.leaving) == 0 || p.nextDrain.IsZero(): // nothing else may be touched
		case !p.nextDrain.After(now):
			return s.drain, time.Time{}
		case p.nextDrain.Before(p.notBefore):
			return nil, p.nextDrain
		}
		return nil, p.notBefore
	}
	consider := func(j job, due time.Time) {
		switch {
		case due.IsZero() || do != nil:
		case !due.After(now):
			do = j
		case at.IsZero() || due.Before(at):
			at = due
		}
	}
	soonest := func(t time.Time) time.Time { // a pace may be of the distant past, which is not never
		if t.Before(now) {
			return now
		}
		return t
	}
	if s.ledger.pending() > 0 {
		consider(s.applyChanges, soonest(p.pace.next()))
	}
	if t, any := s.book.nextRetry(s.ledger.lags); any {
		consider(s.applyRetries, t)
	}
	consider(s.check, p.nextCheck)
	consider(s.syncPeriodically, p.nextFull)
	consider(s.drain, p.nextDrain)
	return do, at
}

// Run programs what is wanted until ctx is over; then it lets the call that is under way finish ([SyncerConfig.StopGrace])
// and returns nil. The rules stay in the kernel, consistent. It may be called once; a further call
// returns an error at once. It returns earlier, with an error that wraps [ErrClosed], if the Programmer was closed.
func (s *Syncer) Run(ctx context.Context) error {
	s.mu.Lock()
	again := s.used
	s.used, s.running = true, s.running || !again
	s.mu.Unlock()
	if again {
		return errors.New("syncer: Run was called before")
	}
	s.cfg.Observer.Started(s)

	work, cancel := linger(ctx, s.cfg.StopGrace)
	defer cancel()
	aside, stop := context.WithCancel(ctx) // what goes on beside the loop
	defer stop()
	var all sync.WaitGroup
	if s.cfg.Nodes != nil {
		all.Go(func() { s.watchNodes(aside) })
	}
	if s.cfg.Cleaner != nil {
		all.Go(func() { s.cleanAlways(aside) })
	}
	err := s.loop(ctx, work)
	stop()
	all.Wait()
	if s.cfg.Cleaner != nil {
		s.cleanLast(work)
	}
	s.mu.Lock()
	s.running = false
	close(s.ended)
	s.mu.Unlock()
	return err
}

// linger returns a context that is over so long after ctx is.
func linger(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-work.Done():
		}
	})
	return work, func() {
		stop()
		cancel()
	}
}

// loop does one thing after the other until ctx is over.
func (s *Syncer) loop(ctx, work context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		do, at := s.next(time.Now())
		if do != nil {
			if err := s.inTurn(ctx, work, do); err != nil {
				return err
			}
			continue
		}
		var due <-chan time.Time
		if !at.IsZero() {
			timer.Reset(time.Until(at))
			due = timer.C
		}
		select {
		case <-s.wake:
		case <-due:
		case <-ctx.Done():
		}
	}
	return nil
}

// inTurn does a job when nobody else calls the Programmer.
func (s *Syncer) inTurn(ctx, work context.Context, do job) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-s.turn }()
	op, cancel := context.WithTimeout(work, s.cfg.Timeout)
	defer cancel()
	if err := do(op); errors.Is(err, ErrClosed) {
		return fmt.Errorf("syncer: %w", err)
	}
	return nil
}

// about returns a time about d from now, by chance, so that many nodes do not do the same at the same time; zero if d
// is negative.
func (s *Syncer) about(now time.Time, d time.Duration) time.Time {
	if d < 0 {
		return time.Time{}
	}
	return now.Add(d - d/10 + time.Duration(s.random()*float64(d/5)))
}
