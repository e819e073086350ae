package model

import (
	"errors"
	"slices"
	"strings"
	"time"
)

// A book records what became of each service when it was last programmed. It is guarded by the mu of its Syncer.
type book struct {
	records map[ServiceName]*record
	counts  [len(phaseNames)]int // of records, by phase
	// sick are the services that were refused by themselves and are worth another try.
	sick   map[ServiceName]struct{}
	drains map[ServiceName]drains
}

// A record is what became of one service: it is programmed, conflicting or rejected.
type record struct {
	phase     Phase
	since     time.Time
	err       error
	conflicts []ConflictError
	inForce   bool
	failures  int       // in a row, of one worth another try
	retry     time.Time // of one worth another try
}

// drains are those of one service.
type drains struct {
	since time.Time
	all   []Drain
}

// An outcome is what a Programmer said of one service: nil, that all is well.
type outcome struct {
	phase     Phase
	err       error
	conflicts []ConflictError
	worth     bool // another try
}

// outcomes sorts what a Result says by service.
func outcomes(res Result) map[ServiceName][]*ServiceError {
	by := make(map[ServiceName][]*ServiceError, len(res.Rejected))
	for _, e := range res.Rejected {
		by[e.Service] = append(by[e.Service], e)
	}
	return by
}

// judge makes one outcome of the errors about a service that is wanted as entry says.
func judge(entry *Entry, features FeatureSet, errs []*ServiceError) outcome {
	o := outcome{phase: PhaseProgrammed}
	all := make([]error, 0, len(errs))
	for _, e := range errs {
		all = append(all, e)
		conflicts := conflictsIn(e)
		o.conflicts = append(o.conflicts, conflicts...)
		switch {
		case len(conflicts) > 0 || errors.Is(e, ErrConflict):
			o.phase = max(o.phase, PhaseConflicting)
		case entry == nil || !leavesOut(entry, features, e):
			o.phase = PhaseRejected
			o.worth = o.worth || !errors.Is(e, ErrInvalid) && !errors.Is(e, ErrNotSupported)
		}
	}
	o.err = errors.Join(all...)
	if len(all) == 1 {
		o.err = all[0]
	}
	return o
}

// leavesOut reports whether an error is about endpoints that are left out of a service which makes sense.
func leavesOut(entry *Entry, features FeatureSet, e *ServiceError) bool {
	if e.Op != "validate" || !errors.Is(e, ErrInvalid) {
		return false
	}
	svc, err := normalise(entry.Service)
	return err == nil && features.Check(svc) == nil
}

// enter records an outcome and reports whether the status changed. Changed says that the service was changed.
func (b *book) enter(name ServiceName, o outcome, changed bool, now time.Time) bool {
	old := b.records[name]
	r := &record{phase: o.phase, since: now, err: o.err, conflicts: o.conflicts, inForce: o.phase != PhaseRejected || old != nil && old.inForce}
	if old != nil && old.phase == r.phase && !(changed && r.phase == PhaseProgrammed) {
		r.since = old.since
	}
	if o.worth {
		r.failures = 1
		if old != nil {
			r.failures += old.failures
		}
	}
	b.put(name, r)
	return old == nil || changed || old.phase != r.phase || text(old.err) != text(r.err)
}

// put replaces the record of a service; nil deletes it.
func (b *book) put(name ServiceName, r *record) {
	if old := b.records[name]; old != nil {
		b.counts[old.phase]--
	}
	delete(b.sick, name)
	if r == nil {
		delete(b.records, name)
		return
	}
	b.records[name] = r
	b.counts[r.phase]++
	if r.failures > 0 {
		b.sick[name] = struct{}{}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// nextRetry returns when the first of the sick is to be tried again; false if there is none, but for those that have
// changed and are tried with that.
func (b *book) nextRetry(changed map[ServiceName]*lag) (at time.Time, any bool) {
	for name := range b.sick {
		if t := b.records[name].retry; changed[name] == nil && (!any || t.Before(at)) {
			at, any = t, true
		}
	}
	return at, any
}

// retries returns those of the sick that are to be tried again, sorted.
func (b *book) retries(changed map[ServiceName]*lag, now time.Time) []ServiceName {
	var due []ServiceName
	for name := range b.sick {
		if changed[name] == nil && !b.records[name].retry.After(now) {
			due = append(due, name)
		}
	}
	slices.Sort(due)
	return due
}

// rehold notes who holds frontends now, and returns the services whose conflicts are with somebody else therefore:
// a Programmer speaks of those alone that win or lose something.
func (b *book) rehold(backend string, held map[FrontendKey]ServiceName) []ServiceName {
	if b.counts[PhaseConflicting] == 0 || len(held) == 0 {
		return nil
	}
	var changed []ServiceName
	for name, r := range b.records {
		if r.phase != PhaseConflicting {
			continue
		}
		conflicts := slices.Clone(r.conflicts)
		for i, c := range conflicts {
			if holder, ok := held[c.Frontend]; ok && holder != name {
				conflicts[i].Holder = holder
			}
		}
		if !slices.Equal(conflicts, r.conflicts) {
			r.conflicts, r.err = conflicts, conflictError(name, backend, conflicts)
			changed = append(changed, name)
		}
	}
	return changed
}

// holds adds the frontends that a service holds, whose record is in the book, to held.
func (b *book) holds(name ServiceName, entry *Entry, held map[FrontendKey]ServiceName) {
	r := b.records[name]
	if entry == nil || r == nil || r.phase == PhaseRejected {
		return
	}
	svc, err := normalise(entry.Service)
	if err != nil {
		return
	}
	for _, f := range svc.Frontends {
		key := FrontendKey{Protocol: svc.Protocol, Addr: f.Addr}
		if !slices.ContainsFunc(r.conflicts, func(c ConflictError) bool { return c.Frontend == key }) {
			held[key] = name
		}
	}
}

// drain records everything that drains, and returns the services of which something does now that did not before, or
// the other way round.
func (b *book) drain(all []Drain, now time.Time) []ServiceName {
	next := map[ServiceName]drains{}
	for _, d := range all {
		of := next[d.Service]
		if of.all = append(of.all, d); of.since.IsZero() {
			of.since = now
			if old, ok := b.drains[d.Service]; ok {
				of.since = old.since
			}
		}
		next[d.Service] = of
	}
	var turned []ServiceName
	for name := range next {
		if _, ok := b.drains[name]; !ok {
			turned = append(turned, name)
		}
	}
	for name := range b.drains {
		if _, ok := next[name]; !ok {
			turned = append(turned, name)
		}
	}
	b.drains = next
	slices.SortFunc(turned, func(a, b ServiceName) int { return strings.Compare(string(a), string(b)) })
	return turned
}
