package conntrack

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/headgate/headgate/model"
)

// A record is what the kernel holds as far as anybody has told: services, endpoints, the node, and what is being
// programmed at the moment. It is not safe for concurrent use.
type record struct {
	protocols []model.Protocol
	resolver  *model.Resolver
	node      model.Node
	// addrs are the addresses on which node ports answer. If known is false they are those of some time ago, and the
	// kernel has to be asked.
	addrs     map[netip.Addr]struct{}
	known     bool
	addrsEver bool // addrs has been known
	// nodePorts are the node ports among the frontends; counts is how many frontends there are by protocol and family.
	nodePorts map[model.FrontendKey]struct{}
	counts    [len(model.Protocols)][len(model.Families)]int

	// pending is what is being programmed, nil if nothing is. busy are the frontends that it touches.
	pending *attempt
	busy    map[model.FrontendKey]struct{}
	// blind says that nobody knows what the kernel holds: a Sync is under way, or the last attempt failed. Nothing is
	// judged then. attempted are the frontends of attempts that failed, until one succeeds.
	blind     bool
	attempted map[model.FrontendKey]struct{}
}

// An attempt is one Sync or Apply that was begun.
type attempt struct {
	sync  bool
	state model.State
	diff  model.Diff
	delta *model.Delta
}

func newRecord(protocols []model.Protocol) *record {
	// A Cleaner refuses nothing by itself: what the backend refuses it is told.
	able := model.FeatureSet{Backend: "conntrack", HashPort: true,
		Balances: []model.Balance{model.Random, model.RoundRobin, model.LeastConn, model.SourceHash, model.Maglev}}
	return &record{
		protocols: protocols,
		resolver:  model.NewResolver(able),
		nodePorts: map[model.FrontendKey]struct{}{},
		attempted: map[model.FrontendKey]struct{}{},
		blind:     true,
	}
}

// tracks reports whether flows of a protocol are cleaned.
func (r *record) tracks(p model.Protocol) bool { return slices.Contains(r.protocols, p) }

// concerns reports whether a service is, or was, one whose flows are cleaned.
func (r *record) concerns(name model.ServiceName, p model.Protocol) bool {
	return r.tracks(p) || r.resolver.Form(name) != nil
}

// begin notes an attempt. One that was begun before, and of which nobody told the outcome, counts as failed.
func (r *record) begin(a attempt) {
	r.abandon()
	var err error
	if a.delta, err = r.resolve(a, nil); err != nil {
		r.blind = true // what it did cannot be known, and the backend refuses it likewise
		return
	}
	r.pending = &a
	if a.sync {
		r.blind = true
		return
	}
	r.busy = map[model.FrontendKey]struct{}{}
	for _, c := range a.delta.Changes {
		r.touch(c, r.busy)
	}
	if a.diff.Node != nil {
		for key := range r.nodePorts {
			r.busy[key] = struct{}{}
		}
	}
}

// touch adds the frontends of both sides of a change to keys.
func (r *record) touch(c model.ResolvedChange, keys map[model.FrontendKey]struct{}) {
	for _, form := range [...]*model.Resolved{c.Before, c.After} {
		if form != nil && r.tracks(form.Service.Protocol) {
			for _, f := range form.Frontends {
				keys[form.Key(f)] = struct{}{}
			}
		}
	}
}

// resolve resolves the services that concern us of an attempt.
func (r *record) resolve(a attempt, refused map[model.ServiceName]error) (*model.Delta, error) {
	if !a.sync {
		diff := model.Diff{Changes: make([]model.Change, 0, len(a.diff.Changes))}
		for _, c := range a.diff.Changes {
			if c.After == nil || r.concerns(c.Name, c.After.Service.Protocol) {
				diff.Changes = append(diff.Changes, c)
			}
		}
		return r.resolver.Resolve(diff, refused)
	}
	state := model.State{Services: model.ServiceMap{}, Endpoints: a.state.Endpoints}
	for name, s := range a.state.Services {
		if r.concerns(name, s.Protocol) {
			state.Services[name] = s
		}
	}
	return r.resolver.ResolveState(state, refused)
}

// abandon notes that an attempt may have been programmed, in part or whole, and nobody knows.
func (r *record) abandon() {
	if r.pending == nil {
		return
	}
	for _, c := range r.pending.delta.Changes {
		r.touch(c, r.attempted)
	}
	r.pending, r.busy, r.blind = nil, nil, true
}

// outcome notes what came of the attempt and returns what has to be looked at; nil for nothing.
func (r *record) outcome(res model.Result, err error) *task {
	a := r.pending
	switch {
	case a == nil:
		return nil
	case errors.Is(err, model.ErrNotSynced), errors.Is(err, model.ErrClosed):
		if a.sync {
			r.abandon() // a Sync that was refused leaves us as little wiser as one that failed
		}
		r.pending, r.busy = nil, nil // nothing was done
		return nil
	case err != nil, r.blind && !a.sync: // an Apply cannot succeed where nothing was synced
		r.abandon()
		return nil
	}
	delta := a.delta
	if refused := refusedBy(res); len(refused) > 0 {
		if delta, err = r.resolve(*a, refused); err != nil {
			r.abandon()
			return nil
		}
	}
	t := newTask()
	t.full = a.sync
	for _, c := range delta.Changes {
		r.count(c.Before, -1)
		t.change(r, c)
	}
	for _, c := range delta.Changes { // now that all have let go: what one lost another may have won
		r.count(c.After, +1)
	}
	r.resolver.Commit(delta)
	for key := range r.attempted {
		t.frontends[key] = struct{}{}
	}
	if a.sync {
		r.setNode(a.state.Node, t)
	} else if a.diff.Node != nil {
		r.setNode(*a.diff.Node, t)
	}
	r.pending, r.busy, r.blind = nil, nil, false
	clear(r.attempted)
	return t
}

// refusedBy returns the services that a backend left in their last form. Those that make no sense are not among them:
// the resolver here refuses them too, as it settles conflicts in the same way.
func refusedBy(res model.Result) map[model.ServiceName]error {
	refused := map[model.ServiceName]error{}
	for _, e := range res.Rejected {
		if e.Op == "plan" || e.Op == "commit" || e.Op == "validate" && errors.Is(e.Err, model.ErrNotSupported) {
			refused[e.Service] = e.Err
		}
	}
	return refused
}

// count adds the frontends of a form to the counts, or with n of -1 takes them away.
func (r *record) count(form *model.Resolved, n int) {
	if form == nil {
		return
	}
	for _, f := range form.Frontends {
		key := form.Key(f)
		r.counts[key.Protocol][f.Family()] += n
		if !key.Addr.Addr().IsUnspecified() {
			continue
		}
		if n > 0 {
			r.nodePorts[key] = struct{}{}
		} else {
			delete(r.nodePorts, key)
		}
	}
}

// setNode replaces the node. Addresses that came or went are to be looked at.
func (r *record) setNode(node model.Node, t *task) {
	if r.node.NodePorts.Loopback != node.NodePorts.Loopback {
		t.loopback = true
		for key := range r.nodePorts {
			t.frontends[key] = struct{}{}
		}
	}
	r.node = node
	r.known = len(node.Addrs) > 0
	if r.known {
		r.setAddrs(node.Addrs, t)
	}
}

// setAddrs says which addresses the node has.
func (r *record) setAddrs(all []netip.Addr, t *task) {
	node := r.node
	node.Addrs = all
	now := map[netip.Addr]struct{}{}
	for _, f := range model.Families {
		for _, a := range node.NodePortAddrs(f) {
			now[a] = struct{}{}
		}
	}
	if r.addrsEver && len(r.nodePorts) > 0 {
		for a := range maps.Keys(r.addrs) {
			if _, still := now[a]; !still {
				t.addrs[a] = struct{}{}
			}
		}
		for a := range now {
			if _, before := r.addrs[a]; !before {
				t.addrs[a] = struct{}{}
			}
		}
	}
	r.addrs, r.addrsEver = now, true
}

// mustAskAddrs reports whether the kernel has to be asked for the node's addresses.
func (r *record) mustAskAddrs() bool { return !r.known && (len(r.nodePorts) > 0 || len(r.addrs) > 0) }

// ownsNodePort reports whether node ports answer on an address.
func (r *record) ownsNodePort(a netip.Addr) bool {
	_, ok := r.addrs[a]
	return ok || r.node.NodePorts.Loopback && a.Is4() && a.IsLoopback()
}

// isBusy reports whether a frontend is touched by what is being programmed.
func (r *record) isBusy(key model.FrontendKey) bool {
	_, ok := r.busy[key]
	return ok
}

// holder returns the form of the service that holds a frontend, nil if none does.
func (r *record) holder(key model.FrontendKey) *model.Resolved {
	name, ok := r.resolver.Holder(key)
	if !ok {
		return nil
	}
	return r.resolver.Form(name)
}

// serves reports whether an endpoint may have the flows of a service: it is Ready or Draining.
func serves(e model.Endpoint) bool { return e.State != model.NotReady }

// isEndpoint reports whether an address and port is an endpoint of the service that may have its flows.
func isEndpoint(form *model.Resolved, at netip.AddrPort) bool {
	i, ok := slices.BinarySearchFunc(form.Endpoints, at, func(e model.Endpoint, at netip.AddrPort) int { return e.Addr.Compare(at) })
	return ok && serves(form.Endpoints[i])
}

// hasEndpoints reports whether any endpoint of a family may have flows of a service.
func hasEndpoints(form *model.Resolved, f model.Family) bool {
	return slices.ContainsFunc(form.Endpoints, func(e model.Endpoint) bool { return serves(e) && model.FamilyOf(e.Addr.Addr()) == f })
}
