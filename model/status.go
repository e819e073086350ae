package model

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A Phase says how far a service has come. The zero Phase is Absent.
type Phase uint8

// The phases of a service.
const (
	// PhaseAbsent: no such service is wanted, and nothing is left of one.
	PhaseAbsent Phase = iota
	// PhasePending: it was added, changed or deleted, and that is not programmed yet.
	PhasePending
	// PhaseProgrammed: the kernel holds what is wanted.
	PhaseProgrammed
	// PhaseConflicting: the kernel holds what is wanted, without the frontends that other services hold.
	PhaseConflicting
	// PhaseRejected: it cannot be programmed as it is wanted.
	PhaseRejected
	// PhaseDraining: it was deleted, and what its open connections need is still there.
	PhaseDraining
)

var phaseNames = [...]string{PhaseAbsent: "absent", PhasePending: "pending", PhaseProgrammed: "programmed",
	PhaseConflicting: "conflicting", PhaseRejected: "rejected", PhaseDraining: "draining"}

func (p Phase) String() string { return nameOf(phaseNames[:], p, "phase") }

// A Status is how one service stands with the kernel.
type Status struct {
	Phase Phase
	// Since is when it came into this phase, and for a pending one when it was first changed. Zero if absent.
	Since time.Time
	// Err says why it is rejected or conflicting, which endpoints of a programmed one were left out, or why a pending
	// one could not be programmed so far. It wraps a [*ServiceError] if it is about this service alone.
	Err error
	// Conflicts names the frontends that it does without, and who holds them.
	Conflicts []ConflictError
	// InForce says that the kernel holds the service: in the form that is wanted if it is programmed or conflicting,
	// else in an earlier one.
	InForce bool
	// Retry is when a rejected one is tried again. Zero: when it changes, or with the next full Sync.
	Retry time.Time
	// Drains is what is there only for connections that are open, of the service or of some of its endpoints.
	Drains []Drain
}

func (s Status) String() string {
	var b strings.Builder
	b.WriteString(s.Phase.String())
	if !s.Since.IsZero() {
		fmt.Fprintf(&b, " since %s", s.Since.Format(time.RFC3339))
	}
	if s.Err != nil {
		fmt.Fprintf(&b, ": %v", s.Err)
	}
	return b.String()
}

// A Drain is something that takes no new connections and is there only for those that are open.
type Drain struct {
	Service ServiceName
	// Endpoint is who has the connections. The zero AddrPort stands for the service's frontends.
	Endpoint netip.AddrPort
	// Connections is how many there are.
	Connections int
	// Until is when they are cut. Zero: never.
	Until time.Time
}

// Status says how a service stands. It costs a look-up.
func (s *Syncer) Status(name ServiceName) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status(name)
}

func (s *Syncer) status(name ServiceName) Status {
	var st Status
	if r := s.book.records[name]; r != nil {
		st = Status{Phase: r.phase, Since: r.since, Err: r.err, Conflicts: slices.Clone(r.conflicts), InForce: r.inForce, Retry: r.retry}
	}
	if d, ok := s.book.drains[name]; ok {
		st.Drains = slices.Clone(d.all)
		if st.Phase == PhaseAbsent {
			st.Phase, st.Since = PhaseDraining, d.since
		}
	}
	if g := s.ledger.lags[name]; g != nil {
		if s.plan.err != nil {
			st.Err = s.plan.err
		}
		st.Phase, st.Since, st.Retry = PhasePending, g.since, time.Time{}
	}
	return st
}

// Watch yields services whose status has changed, with the status that they have now: first all that there are, then
// as they change, until ctx is over or Run has ended. Changes that come faster than they are taken are merged, so that
// the latest is always seen, and nothing and nobody waits for who iterates. Only Phase, Err, Conflicts, InForce, Retry
// and the presence of Drains are watched, not their details.
func (s *Syncer) Watch(ctx context.Context) iter.Seq2[ServiceName, Status] {
	return func(yield func(ServiceName, Status) bool) {
		w := s.join()
		defer s.leave(w)
		for last := false; ; {
			for _, name := range s.take(w) {
				if ctx.Err() != nil || !yield(name, s.Status(name)) {
					return
				}
			}
			if last {
				return
			}
			select {
			case <-w.wake:
			case <-ctx.Done():
				return
			case <-s.ended:
				last = true
			}
		}
	}
}

// A watcher is one iteration of Watch. It is guarded by the mu of its Syncer.
type watcher struct {
	dirty map[ServiceName]struct{} // whose status changed since it was taken
	wake  chan struct{}
}

func (s *Syncer) join() *watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &watcher{dirty: map[ServiceName]struct{}{}, wake: make(chan struct{}, 1)}
	for name := range s.book.records {
		w.dirty[name] = struct{}{}
	}
	for name := range s.book.drains {
		w.dirty[name] = struct{}{}
	}
	for name := range s.ledger.lags {
		w.dirty[name] = struct{}{}
	}
	s.watchers[w] = struct{}{}
	return w
}

func (s *Syncer) leave(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers, w)
}

// take returns the services whose status changed, sorted.
func (s *Syncer) take(w *watcher) []ServiceName {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]ServiceName, 0, len(w.dirty))
	for name := range w.dirty {
		names = append(names, name)
	}
	clear(w.dirty)
	slices.Sort(names)
	return names
}

// notify tells all watchers of services whose status changed. The caller holds mu.
func (s *Syncer) notify(names ...ServiceName) {
	if len(names) == 0 {
		return
	}
	for w := range s.watchers {
		for _, name := range names {
			w.dirty[name] = struct{}{}
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// An Overview is how a Syncer is doing on the whole: what a health answer and gauges are made of.
type Overview struct {
	Backend string
	// Running says that Run is at work. Ready says that the state is complete, so that it may program. Synced says
	// that it has programmed all of it at least once.
	Running, Ready, Synced bool
	// Services counts those that are wanted. Pending counts those with changes that are not programmed, the node
	// counting as one. Rejected and Conflicting count those in these phases, Draining all that drains.
	Services, Pending, Rejected, Conflicting, Draining int
	// PendingSince is when the oldest change that is not programmed was made; zero if there is none.
	PendingSince time.Time
	// Changes counts the calls that asked for a change, LastChange is the time of the last one.
	Changes    uint64
	LastChange time.Time
	// LastSync is when something was last programmed, LastFull when everything was, LastCheck when the kernel was last
	// found to hold it.
	LastSync, LastFull, LastCheck time.Time
	// Failures counts the failed attempts since the last good one, Err is the error of the last one and nil after a
	// good one, Retry is when it is repeated.
	Failures int
	Err      error
	Retry    time.Time
	// Drifts counts how often the kernel was found not to hold what was written.
	Drifts uint64
	// CleanErr is why the last attempt to forget stale connections failed; nil after a good one.
	CleanErr error
}

// Behind returns for how long the oldest change has been waiting to be programmed; 0 if none is. A health answer is
// usually built on that: a node on which it grows without end should get no new traffic.
func (o Overview) Behind(now time.Time) time.Duration {
	if o.PendingSince.IsZero() {
		return 0
	}
	return max(now.Sub(o.PendingSince), 0)
}

// Overview says how the Syncer is doing.
func (s *Syncer) Overview() Overview {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.plan
	o := Overview{
		Backend: s.backend, Running: s.running, Ready: p.ready, Synced: p.synced,
		Services: s.ledger.tracker.size(), Pending: s.ledger.pending(), PendingSince: s.ledger.oldest(),
		Rejected: s.book.counts[PhaseRejected], Conflicting: s.book.counts[PhaseConflicting],
		Changes: s.ledger.made, LastChange: s.ledger.last,
		LastSync: p.lastSync, LastFull: p.lastFull, LastCheck: p.lastCheck,
		Failures: p.failures, Err: p.err, Drifts: p.drifts, CleanErr: s.cleanErr,
	}
	if p.failures > 0 {
		o.Retry = p.notBefore
	}
	for _, d := range s.book.drains {
		o.Draining += len(d.all)
	}
	return o
}
