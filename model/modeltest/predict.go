package modeltest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/headgate/headgate/model"
)

// Predict says what must become of a packet where the given services are programmed: the rules of this field, told
// from the services and not from what a backend makes of them. The world is one whose node has the addresses in
// node.Addrs. Packets that the node sends with an internal or external address of its services as the source are
// predicted too.
//
// Services are given as a [model.Resolver] leaves them, which see for conflicts and rejections.
func Predict(node model.Node, services []*model.Resolved, p Packet) Want {
	o := oracle{node: node, services: services, p: p, family: model.FamilyOf(p.To.Addr())}
	return o.fate()
}

// PredictState is [Predict] for a state that is the first to be programmed, by a backend that can do everything.
// It panics if the node makes no sense.
func PredictState(s model.State, p Packet) Want {
	r := model.NewResolver(allFeatures("predicted"))
	d, err := r.ResolveState(s, nil)
	if err != nil {
		panic(fmt.Sprintf("modeltest: %v", err))
	}
	return Predict(s.Node, r.FormsAfter(d), p)
}

// allFeatures is the FeatureSet of a backend that can do everything.
func allFeatures(name string) model.FeatureSet {
	return model.FeatureSet{
		Backend: name, HashPort: true,
		Balances: []model.Balance{model.Random, model.RoundRobin, model.LeastConn, model.SourceHash, model.Maglev},
	}
}

type oracle struct {
	node     model.Node
	services []*model.Resolved
	p        Packet
	family   model.Family
}

func (o *oracle) fate() Want {
	if o.p.To.Addr().IsLoopback() && !o.ownPacket() {
		return Want{Verdict: Dropped}
	}
	svc, f, ok := o.frontend()
	if !ok {
		return o.unclaimed()
	}
	if !o.mayEnter(svc, f) {
		return Want{Verdict: Dropped}
	}
	sel := svc.Selections[o.family]
	policy, masquerade := svc.Service.Policy(f.Kind), o.hidesInternal()
	if f.Kind != model.Internal {
		masquerade = policy == model.Cluster
		if policy == model.Local && (o.internalSource() || o.nodeSource()) {
			policy, masquerade = model.Cluster, !o.internalSource()
		}
	}
	verdict, eps := sel.Serving(policy)
	switch verdict {
	case model.Rejected:
		return Want{Verdict: Refused}
	case model.Dropped:
		return Want{Verdict: Dropped}
	}
	keep := o.node.KeepClientAddress && !o.node.MasqueradeAll && f.Kind != model.Internal && !o.p.From.IsLoopback()
	return o.spread(svc.Service, eps, func(e model.Endpoint) bool {
		atNode := !o.ownPacket() && slices.Contains(o.node.Addrs, e.Addr.Addr())
		return masquerade && !atNode && !(keep && e.Local && svc.Service.ExternalTraffic == model.Cluster)
	})
}

// spread makes a Want of the endpoints that serve. Whether the client is hidden must not depend on the endpoint;
// where it does, Masqueraded holds what is said of the first.
func (o *oracle) spread(s model.Service, eps []model.Endpoint, hidden func(model.Endpoint) bool) Want {
	w := Want{Verdict: Translated, Masqueraded: hidden(eps[0])}
	for _, e := range eps {
		w.Endpoints = append(w.Endpoints, e.Addr)
		if hidden(e) != w.Masqueraded {
			w.Mixed = append(w.Mixed, e.Addr)
		}
	}
	hash := (s.Balance == model.SourceHash || s.Balance == model.Maglev) && !s.HashPort
	w.One = len(eps) > 1 && (s.Affinity > 0 || hash)
	w.Some = len(eps) > 1 && s.Balance == model.LeastConn
	return w
}

// frontend finds the frontend that a packet is for: an explicit one, else a node port.
func (o *oracle) frontend() (*model.Resolved, model.Frontend, bool) {
	if o.p.ICMP {
		return nil, model.Frontend{}, false
	}
	wanted := []netip.AddrPort{o.p.To}
	if o.servesNodePorts() {
		wanted = append(wanted, netip.AddrPortFrom(o.family.Unspecified(), o.p.To.Port()))
	}
	for _, to := range wanted {
		for _, s := range o.services {
			for _, f := range s.Frontends {
				if s.Service.Protocol == o.p.Proto && f.Addr == to {
					return s, f, true
				}
			}
		}
	}
	return nil, model.Frontend{}, false
}

// servesNodePorts reports whether the packet's destination is an address on which node ports answer.
func (o *oracle) servesNodePorts() bool {
	to := o.p.To.Addr()
	if to.IsLoopback() {
		return o.node.NodePorts.Loopback && o.family == model.IPv4 && o.ownPacket()
	}
	return slices.Contains(o.node.NodePortAddrs(o.family), to)
}

// unclaimed is the fate of a packet that no frontend is for.
func (o *oracle) unclaimed() Want {
	to := o.p.To.Addr()
	owned := false
	for _, s := range o.services {
		for _, f := range s.Frontends {
			if f.Addr.Addr() != to {
				continue
			}
			if f.Kind == model.Internal {
				return Want{Verdict: Refused}
			}
			owned = true
		}
	}
	inRange := slices.ContainsFunc(o.node.ServiceRanges, func(p netip.Prefix) bool { return p.Contains(to) })
	if inRange && !owned {
		return Want{Verdict: Dropped}
	}
	return Want{Verdict: Untouched}
}

// mayEnter reports whether a frontend's source ranges let the packet in.
func (o *oracle) mayEnter(svc *model.Resolved, f model.Frontend) bool {
	holds := func(a netip.Addr) bool {
		return slices.ContainsFunc(f.SourceRanges, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	if !f.Restricted() || holds(o.p.From) {
		return true
	}
	if !slices.ContainsFunc(o.node.Primary, holds) {
		return false
	}
	return slices.ContainsFunc(svc.Frontends, func(g model.Frontend) bool {
		return g.Kind == model.External && g.Addr.Addr() == o.p.From
	})
}

// ownPacket reports whether the node itself sends the packet.
func (o *oracle) ownPacket() bool { return o.p.Kind == FromNode || o.p.Kind == FromVIP }

func (o *oracle) nodeSource() bool {
	return o.p.From.IsLoopback() || slices.Contains(o.node.Addrs, o.p.From)
}

func (o *oracle) internalSource() bool { return o.node.Detector.Internal(o.p.From, o.p.iface()) }

// hidesInternal reports whether the client of an internal frontend is masqueraded.
func (o *oracle) hidesInternal() bool {
	return o.node.MasqueradeAll || o.p.Kind == FromVIP || o.node.Detector.Detects(o.family) && !o.internalSource()
}

// iface returns the interface that the packet comes in on.
func (p Packet) iface() string {
	switch {
	case p.Iface != "":
		return p.Iface
	case p.Kind == FromPod:
		return "veth-pod"
	case p.Kind == FromRemotePod || p.Kind == FromOutside:
		return "uplink"
	}
	return ""
}
