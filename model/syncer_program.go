package model

import (
	"context"
	"slices"
	"time"
)

// A batch is what one Sync or Apply shall program.
type batch struct {
	reason Reason
	full   bool
	state  State // if full
	diff   Diff  // if not
	// made is the number of the last change that is programmed when it is; 0 if that says nothing of changes.
	made uint64
	// asked is how many calls of Resync it answers.
	asked uint64
}

// names returns the services that a batch is about.
func (b *batch) names() []ServiceName {
	var names []ServiceName
	if b.full {
		names = make([]ServiceName, 0, len(b.state.Services))
		for name := range b.state.Services {
			names = append(names, name)
		}
		return names
	}
	names = make([]ServiceName, len(b.diff.Changes))
	for i, c := range b.diff.Changes {
		names[i] = c.Name
	}
	return names
}

// entry returns what the i-th of the names shall be; nil if it shall not be.
func (b *batch) entry(i int, name ServiceName) *Entry {
	if !b.full {
		return b.diff.Changes[i].After
	}
	return &Entry{Service: b.state.Services[name], Endpoints: b.state.Endpoints[name]}
}

// everything returns a batch of all that is wanted.
func (s *Syncer) everything() batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := batch{reason: s.plan.full, full: true, asked: s.plan.asked, made: s.ledger.hand()}
	b.state = s.ledger.tracker.State()
	s.plan.hurry = false
	return b
}

// changes returns batches of what has changed: what the services do that are in quarantine comes last, and apart.
func (s *Syncer) changes() []batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	made := s.ledger.hand()
	diff := s.ledger.tracker.Diff()
	sick := func(c Change) bool {
		_, is := s.book.sick[c.Name]
		return is && c.After != nil
	}
	if len(s.book.sick) == 0 || !slices.ContainsFunc(diff.Changes, sick) {
		return []batch{{reason: ReasonChange, diff: diff, made: made}}
	}
	well, ill := Diff{Node: diff.Node}, Diff{}
	for _, c := range diff.Changes {
		if sick(c) {
			ill.Changes = append(ill.Changes, c)
		} else {
			well.Changes = append(well.Changes, c)
		}
	}
	var all []batch
	if !well.Empty() {
		all = append(all, batch{reason: ReasonChange, diff: well})
	}
	return append(all, batch{reason: ReasonService, diff: ill, made: made})
}

// retries returns a batch of the services that are to be tried again.
func (s *Syncer) retries() batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := batch{reason: ReasonService}
	for _, name := range s.book.retries(s.ledger.lags, time.Now()) {
		e := s.ledger.tracker.lookup(name)
		b.diff.Changes = append(b.diff.Changes, Change{Name: name, Before: e, After: e})
	}
	return b
}

func (s *Syncer) syncPeriodically(ctx context.Context) error {
	s.mu.Lock()
	s.plan.full = ReasonPeriod
	s.mu.Unlock()
	return s.syncAll(ctx)
}

// syncAll programs everything.
func (s *Syncer) syncAll(ctx context.Context) error { return s.program(ctx, s.everything()) }

// applyChanges programs what has changed.
func (s *Syncer) applyChanges(ctx context.Context) error {
	for _, b := range s.changes() {
		if err := s.program(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// applyRetries tries the services again that were refused by themselves.
func (s *Syncer) applyRetries(ctx context.Context) error {
	b := s.retries()
	if b.diff.Empty() {
		return nil
	}
	return s.program(ctx, b)
}

// program programs a batch, and takes note of what came of it.
func (s *Syncer) program(ctx context.Context, b batch) error {
	p := s.Programmer()
	r := SyncReport{Backend: s.backend, Full: b.full, Reason: b.reason, Began: time.Now(), Changes: len(b.diff.Changes) + len(b.state.Services)}
	c := s.cfg.Cleaner
	switch {
	case b.full:
		if c != nil {
			c.Syncing(b.state)
		}
		r.Result, r.Err = p.Sync(ctx, b.state)
	case b.diff.Empty(): // changes that cancelled each other
	default:
		if c != nil {
			c.Applying(b.diff)
		}
		r.Result, r.Err = p.Apply(ctx, b.diff)
	}
	if c != nil && (b.full || !b.diff.Empty()) {
		c.Programmed(r.Result, r.Err)
		s.rouseCleaner()
	}
	ended := time.Now()
	r.Took = ended.Sub(r.Began)
	var n news
	if r.Err == nil {
		r.Latencies, n = s.succeeded(b, r.Result, r.Began, ended)
		if len(r.Latencies) > 0 {
			r.Latency = slices.Max(r.Latencies)
		}
	} else {
		n = s.failed(ctx, b, r.Err, r.Began, ended)
	}
	s.tell(ctx, r, n)
	return r.Err
}
