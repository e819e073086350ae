package conntrack

import (
	"net/netip"
	"slices"

	"github.com/headgate/headgate/model"
)

// A verdict is what is to be done with a flow.
type verdict uint8

const (
	// keep it: it is right, or not ours.
	keep verdict = iota
	// forget it: it is stale.
	forget
	// wait: what would decide is being programmed.
	wait
)

// A judge decides about flows. It is a pure function of what is recorded, of the task, and of the flow.
type judge struct {
	*record
	task    *task
	zones   []uint16 // Config.Zones
	orphans bool     // Config.Orphans
}

// of returns the verdict on a flow. If it is wait, key is the frontend to come back to.
func (j judge) of(f *flow) (v verdict, key model.FrontendKey) {
	proto, ok := j.protocol(f)
	if !ok || !j.inZone(f) {
		return keep, key
	}
	key = model.FrontendKey{Protocol: proto, Addr: f.to}
	form, listed, busy := j.holder(key), j.task.lists(key), j.isBusy(key)
	owned, former := j.ownsNodePort(f.to.Addr()), j.task.formerly(f.to.Addr())
	if form == nil && (owned || former) {
		port := model.FrontendKey{Protocol: proto, Addr: netip.AddrPortFrom(f.family.Unspecified(), f.to.Port())}
		held := j.holder(port)
		listed = listed || j.task.lists(port) || former && held != nil
		if owned {
			form = held
		}
		if j.isBusy(port) {
			key, busy = port, true
		}
	}
	switch {
	case !j.stale(f, form, listed):
		return keep, key
	case busy:
		return wait, key
	default:
		return forget, key
	}
}

// stale reports whether a flow is stale: one to a frontend of a service or, where form is nil, to an address and port
// that is no frontend (any more).
func (j judge) stale(f *flow, form *model.Resolved, listed bool) bool {
	switch {
	case form == nil:
		return f.translated() && (listed || j.orphaned(f))
	case !listed && !j.task.full, isEndpoint(form, f.from):
		return false
	default:
		return f.translated() || hasEndpoints(form, f.family)
	}
}

// orphaned reports whether a flow leads where only a frontend can be.
func (j judge) orphaned(f *flow) bool {
	in := func(p netip.Prefix) bool { return p.Contains(f.to.Addr()) }
	return j.orphans && j.task.full && slices.ContainsFunc(j.node.ServiceRanges, in)
}

// protocol returns the protocol of a flow if such flows are cleaned.
func (j judge) protocol(f *flow) (model.Protocol, bool) {
	for _, p := range j.protocols {
		if p.Number() == f.proto {
			return p, true
		}
	}
	return 0, false
}

// inZone reports whether a flow is in a zone of the balanced traffic.
func (j judge) inZone(f *flow) bool {
	if len(j.zones) == 0 {
		return f.zone == 0 || f.translated()
	}
	return slices.Contains(j.zones, f.zone)
}
