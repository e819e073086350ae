package model

import "time"

// A ledger knows what is wanted, and which changes of it are programmed and which are not yet.
// It is guarded by the mu of its Syncer.
type ledger struct {
	tracker Tracker
	// made counts the changes that were asked for; done is the last of them by which everything is programmed.
	made, done uint64
	last       time.Time // when the last one was made
	lags       map[ServiceName]*lag
	node       *lag // that of the node
}

// A lag is something whose wanted form is not programmed.
type lag struct {
	// since is when it was changed first; again is when it was first changed after it had been handed out, zero if it
	// was not.
	since, again time.Time
	// handed says that it was handed out, to an attempt that is under way or has failed.
	handed bool
}

// step returns the lag that is left after a change, and whether there is one now that was not before, or the other way
// round. Pending says that what is wanted differs from what was handed out last.
func (g *lag) step(pending bool, now time.Time) (next *lag, turned bool) {
	switch {
	case g == nil && pending:
		return &lag{since: now}, true
	case g == nil:
		return nil, false
	case !g.handed && !pending:
		return nil, true // it is again what is programmed
	case !pending:
		g.again = time.Time{}
	case g.handed && g.again.IsZero():
		g.again = now
	}
	return g, false
}

// confirmed returns the lag that is left after what was handed out has been programmed.
func (g *lag) confirmed() *lag {
	switch {
	case !g.handed:
		return g
	case g.again.IsZero():
		return nil
	}
	return &lag{since: g.again}
}

// noteService notes that a service was changed, or may have been, and reports whether its status did.
func (l *ledger) noteService(name ServiceName, now time.Time) bool {
	next, turned := l.lags[name].step(l.tracker.isPending(name), now)
	if !turned {
		return false
	}
	if next == nil {
		delete(l.lags, name)
	} else {
		l.lags[name] = next
	}
	return true
}

// noteNode notes that the node was changed, or may have been.
func (l *ledger) noteNode(now time.Time) {
	l.node, _ = l.node.step(l.tracker.nodePending(), now)
}

// noteAll notes that anything may have been changed, and returns the services whose status did.
func (l *ledger) noteAll(now time.Time) []ServiceName {
	l.noteNode(now)
	var turned []ServiceName
	note := func(name ServiceName) {
		if l.noteService(name, now) {
			turned = append(turned, name)
		}
	}
	for name := range l.lags {
		note(name)
	}
	for _, name := range l.tracker.pendingNames() {
		note(name)
	}
	return turned
}

// count counts a change that was asked for.
func (l *ledger) count(now time.Time) {
	l.made++
	l.last = now
}

// hand notes that everything pending is handed out, and returns the number of the last change in it.
func (l *ledger) hand() uint64 {
	for _, g := range l.lags {
		g.handed, g.again = true, time.Time{}
	}
	if l.node != nil {
		l.node.handed, l.node.again = true, time.Time{}
	}
	return l.made
}

// confirm notes that services are programmed as they were handed out, and returns how long they had waited.
func (l *ledger) confirm(names []ServiceName, now time.Time) (waited []time.Duration) {
	for _, name := range names {
		g := l.lags[name]
		if g == nil {
			continue
		}
		if g.handed {
			waited = append(waited, now.Sub(g.since))
		}
		if next := g.confirmed(); next == nil {
			delete(l.lags, name)
		} else {
			l.lags[name] = next
		}
	}
	if len(l.lags) == 0 {
		l.lags = map[ServiceName]*lag{} // to go through one that was large takes long
	}
	return waited
}

// confirmNode does the same for the node.
func (l *ledger) confirmNode(now time.Time) (waited []time.Duration) {
	if l.node == nil {
		return nil
	}
	if l.node.handed {
		waited = append(waited, now.Sub(l.node.since))
	}
	l.node = l.node.confirmed()
	return waited
}

// pending returns how many services have changes that are not programmed, the node counting as one.
func (l *ledger) pending() int {
	n := len(l.lags)
	if l.node != nil {
		n++
	}
	return n
}

// oldest returns when the oldest change that is not programmed was made; zero if all are.
func (l *ledger) oldest() time.Time {
	var first time.Time
	look := func(g *lag) {
		if g != nil && (first.IsZero() || g.since.Before(first)) {
			first = g.since
		}
	}
	look(l.node)
	for _, g := range l.lags {
		look(g)
	}
	return first
}

// isPending reports whether a service changed since the tracker was last asked.
func (t *Tracker) isPending(name ServiceName) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.pending[name]
	return ok
}

// nodePending reports whether the node changed since the tracker was last asked.
func (t *Tracker) nodePending() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nodeBefore != nil
}

// pendingNames returns the services that changed since the tracker was last asked, in no order.
func (t *Tracker) pendingNames() []ServiceName {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := make([]ServiceName, 0, len(t.pending))
	for name := range t.pending {
		names = append(names, name)
	}
	return names
}

// lookup returns what a service is wanted to be; nil if it is not wanted.
func (t *Tracker) lookup(name ServiceName) *Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.entry(name)
}

// size returns how many services are wanted.
func (t *Tracker) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.services)
}
