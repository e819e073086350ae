package model

import (
	"slices"
	"strings"
	"sync"
)

// A Tracker gathers what should be balanced and yields what changed since it was last asked, at a cost that follows
// the changes and not what it holds. Changes that cancel each other yield nothing. It is safe for concurrent use.
// The zero Tracker is empty and ready to use.
type Tracker struct {
	// mu guards all fields. What services, endpoints and pending point to is never written once stored, so that it
	// can be handed out without a copy.
	mu        sync.Mutex
	node      Node
	services  ServiceMap
	endpoints EndpointMap
	// pending holds, for each service that changed, what it was when the tracker was last asked: nil, nothing.
	pending map[ServiceName]*Entry
	// nodeBefore is what the node was when the tracker was last asked; nil while it has not been changed.
	nodeBefore *Node
}

// NewTracker returns a Tracker that holds a node and no services.
func NewTracker(node Node) *Tracker { return &Tracker{node: node.clone()} }

// SetNode replaces the node.
func (t *Tracker) SetNode(node Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setNode(node)
}

func (t *Tracker) setNode(node Node) {
	if t.node.Equal(node) {
		return
	}
	if t.nodeBefore == nil {
		before := t.node
		t.nodeBefore = &before
	}
	t.node = node.clone()
	if t.node.Equal(*t.nodeBefore) {
		t.nodeBefore = nil
	}
}

// SetService adds or replaces a service. Its endpoints stay.
func (t *Tracker) SetService(name ServiceName, s Service) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setService(name, s)
}

func (t *Tracker) setService(name ServiceName, s Service) {
	if old, ok := t.services[name]; ok && old.Equal(s) {
		return
	}
	t.touch(name)
	if t.services == nil {
		t.services = ServiceMap{}
	}
	t.services[name] = s.clone()
	t.settle(name)
}

// DeleteService deletes a service. Its endpoints stay, should it come back.
func (t *Tracker) DeleteService(name ServiceName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deleteService(name)
}

func (t *Tracker) deleteService(name ServiceName) {
	if _, ok := t.services[name]; !ok {
		return
	}
	t.touch(name)
	delete(t.services, name)
	t.settle(name)
}

// SetEndpoints replaces the endpoints of a service, which need not be there yet. No endpoints delete the list.
func (t *Tracker) SetEndpoints(name ServiceName, eps []Endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setEndpoints(name, eps)
}

func (t *Tracker) setEndpoints(name ServiceName, eps []Endpoint) {
	if EqualEndpoints(t.endpoints[name], eps) {
		return
	}
	t.touch(name)
	if t.endpoints == nil {
		t.endpoints = EndpointMap{}
	}
	if len(eps) == 0 {
		delete(t.endpoints, name)
	} else {
		t.endpoints[name] = cloneEndpoints(eps)
	}
	t.settle(name)
}

// Replace makes the tracker hold s and nothing else: what s does not name is deleted.
func (t *Tracker) Replace(s State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setNode(s.Node)
	for name := range t.services {
		if _, ok := s.Services[name]; !ok {
			t.deleteService(name)
		}
	}
	for name := range t.endpoints {
		if _, ok := s.Endpoints[name]; !ok {
			t.setEndpoints(name, nil)
		}
	}
	for name, eps := range s.Endpoints {
		t.setEndpoints(name, eps)
	}
	for name, svc := range s.Services {
		t.setService(name, svc)
	}
}

// Pending returns how many services have changed since the tracker was last asked, the node counting as one.
func (t *Tracker) Pending() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.pending)
	if t.nodeBefore != nil {
		n++
	}
	return n
}

// Diff returns what has changed since the last call of Diff or State, for [Programmer.Apply].
func (t *Tracker) Diff() Diff {
	t.mu.Lock()
	defer t.mu.Unlock()
	var d Diff
	if t.nodeBefore != nil {
		node := t.node
		d.Node = &node
	}
	if len(t.pending) > 0 {
		d.Changes = make([]Change, 0, len(t.pending))
	}
	for name, before := range t.pending {
		d.Changes = append(d.Changes, Change{Name: name, Before: before, After: t.entry(name)})
	}
	slices.SortFunc(d.Changes, func(a, b Change) int { return strings.Compare(string(a.Name), string(b.Name)) })
	t.settled()
	return d
}

// State returns all that the tracker holds, for [Programmer.Sync]; the next Diff starts from it. What it points to is
// shared: read it, don't write it.
func (t *Tracker) State() State {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := State{Node: t.node, Services: make(ServiceMap, len(t.services)), Endpoints: make(EndpointMap, len(t.endpoints))}
	for name, svc := range t.services {
		s.Services[name] = svc
	}
	for name, eps := range t.endpoints {
		s.Endpoints[name] = eps
	}
	t.settled()
	return s
}

// entry returns what a service is now; nil if there is none.
func (t *Tracker) entry(name ServiceName) *Entry {
	s, ok := t.services[name]
	if !ok {
		return nil
	}
	return &Entry{Service: s, Endpoints: t.endpoints[name]}
}

// touch notes what a service is before it is changed.
func (t *Tracker) touch(name ServiceName) {
	if _, ok := t.pending[name]; ok {
		return
	}
	if t.pending == nil {
		t.pending = map[ServiceName]*Entry{}
	}
	t.pending[name] = t.entry(name)
}

// settle forgets a pending change that led back to where it began.
func (t *Tracker) settle(name ServiceName) {
	before := t.pending[name]
	service, there := t.services[name]
	if before == nil && !there ||
		before != nil && there && before.Service.Equal(service) && EqualEndpoints(before.Endpoints, t.endpoints[name]) {
		delete(t.pending, name)
	}
}

// settled forgets all pending changes: they have been handed out. The map goes too, for one that has once been large
// takes as long to look through for ever.
func (t *Tracker) settled() {
	t.pending = nil
	t.nodeBefore = nil
}
