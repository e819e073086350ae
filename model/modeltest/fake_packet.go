package modeltest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/headgate/headgate/model"
)

// A packet's way through the pretended kernel. It knows nothing but the objects in the tables:
//
//	from elsewhere ─▶ ranges ─▶ frontends, node ports ─▶ is it for the node? ─yes─▶ input
//	from the node  ─▶    "           "                             └─no──▶ unclaimed? ─▶ masquerade ─▶ out
type packet struct {
	Packet
	kernel *Kernel
	family model.Family
	own    bool // sent by the node
	port   uint16
}

// Send opens one connection, as p says, and tells what became of it.
func (k *Kernel) Send(p Packet) (Outcome, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	q := packet{Packet: p, kernel: k, family: model.FamilyOf(p.To.Addr()), own: p.Kind == FromNode || p.Kind == FromVIP, port: p.FromPort}
	if err := q.possible(); err != nil {
		return Outcome{}, err
	}
	if q.port == 0 {
		q.port = uint16(32768 + k.chance.IntN(28000))
	}
	return q.route(), nil
}

// possible says why there can be no such packet.
func (q *packet) possible() error {
	ofNode := q.From.IsLoopback() || slices.Contains(q.kernel.addrs, q.From)
	switch {
	case !q.From.IsValid() || !q.To.Addr().IsValid():
		return fmt.Errorf("modeltest: packet %q: an address is missing", q.Name)
	case model.FamilyOf(q.From) != q.family:
		return fmt.Errorf("modeltest: packet %q: two families", q.Name)
	case q.Kind == FromNode && !ofNode:
		return fmt.Errorf("modeltest: packet %q: the node does not have the address %s", q.Name, q.From)
	case !q.own && ofNode:
		return fmt.Errorf("modeltest: packet %q: the address %s is the node's", q.Name, q.From)
	}
	return nil
}

// route looks at every table: any of them may drop, the first that translates does, any may refuse what nobody claims.
func (q *packet) route() Outcome {
	if q.To.Addr().IsLoopback() && !q.own {
		return Outcome{Verdict: Dropped} // the kernel itself: a martian, or against it
	}
	names := slices.Sorted(maps.Keys(q.kernel.tables))
	var claims []claim
	for _, name := range names {
		t := q.kernel.tables[name]
		if f := q.frontend(t); f != nil {
			if f.restricted && !slices.ContainsFunc(f.ranges, q.comesFrom) {
				return Outcome{Verdict: Dropped}
			}
			claims = append(claims, claim{t, f})
		}
	}
	if len(claims) > 0 {
		return claims[0].decide(q)
	}
	for _, name := range names {
		if v := q.unclaimed(q.kernel.tables[name]); v != Untouched {
			return Outcome{Verdict: v}
		}
	}
	return Outcome{Verdict: Untouched, Source: q.From}
}

func (q *packet) comesFrom(p netip.Prefix) bool { return p.Contains(q.From) }

// frontend finds the frontend of a table that the packet is for.
func (q *packet) frontend(t *table) *front {
	if q.ICMP {
		return nil
	}
	key := model.FrontendKey{Protocol: q.Proto, Addr: q.To}
	if f := t.fronts[frontKey{key}]; f != nil {
		return f
	}
	if !q.toNodePorts(t) {
		return nil
	}
	key.Addr = netip.AddrPortFrom(q.family.Unspecified(), q.To.Port())
	return t.fronts[frontKey{key}]
}

// toNodePorts reports whether the packet is for an address of the node on which node ports answer.
func (q *packet) toNodePorts(t *table) bool {
	to := q.To.Addr()
	switch {
	case t.node == nil:
		return false
	case to.IsLoopback():
		return q.own && t.node.NodePorts.Loopback && q.family == model.IPv4
	case !slices.Contains(q.kernel.addrs, to):
		return false
	}
	prefixes, limited := t.node.NodePortPrefixes(q.family)
	return !limited || slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(to) })
}

// unclaimed is what a table does to a packet that no frontend is for.
func (q *packet) unclaimed(t *table) Verdict {
	to := q.To.Addr()
	owned := t.owned[to]
	switch {
	case owned[1] > 0:
		return Refused
	case owned[0] > 0 || t.node == nil:
		return Untouched
	case slices.ContainsFunc(t.node.ServiceRanges, func(p netip.Prefix) bool { return p.Contains(to) }):
		return Dropped
	}
	return Untouched
}

// A claim is a frontend that a packet is for, in its table.
type claim struct {
	t *table
	f *front
}

// decide sends the packet to an endpoint, or says why not.
func (c claim) decide(q *packet) Outcome {
	g := c.t.groups[c.f.group]
	list, hide := c.f.policy, c.hidesInternal(q)
	if c.f.kind != model.Internal {
		hide = list == model.Cluster
		if internal := c.internal(q); list == model.Local && (internal || q.fromNode()) {
			list, hide = model.Cluster, !internal // the short cut
		}
	}
	members := g.members[list]
	switch {
	case len(members) == 0 && len(g.members[model.Cluster]) == 0:
		return Outcome{Verdict: Refused}
	case len(members) == 0:
		return Outcome{Verdict: Dropped}
	}
	m := members[g.choose(q, list)]
	g.conns[m.addr]++
	if c.keeps(q, m) {
		hide = false
	}
	hide = hide || m.addr.Addr() == q.From || q.From.IsLoopback()
	if delivered := !q.own && slices.Contains(q.kernel.addrs, m.addr.Addr()); hide && !delivered {
		return Outcome{Verdict: Translated, Endpoint: m.addr, Source: q.nodeAddr()}
	}
	return Outcome{Verdict: Translated, Endpoint: m.addr, Source: q.From}
}

// settings returns the settings of the claim's table.
func (c claim) settings() model.Node {
	if c.t.node == nil {
		return model.Node{}
	}
	return *c.t.node
}

func (c claim) internal(q *packet) bool { return c.settings().Detector.Internal(q.From, q.iface()) }

// hidesInternal reports whether clients of an internal frontend are masqueraded.
func (c claim) hidesInternal(q *packet) bool {
	n := c.settings()
	return n.MasqueradeAll || q.Kind == FromVIP || n.Detector.Detects(q.family) && !c.internal(q)
}

// keeps reports whether the client's address is kept though the frontend masquerades.
func (c claim) keeps(q *packet, m member) bool {
	n := c.settings()
	return n.KeepClientAddress && !n.MasqueradeAll && m.local && c.f.kind != model.Internal && c.f.policy == model.Cluster
}

// fromNode reports whether the packet has an address of the node as its source.
func (q *packet) fromNode() bool {
	return q.From.IsLoopback() || slices.Contains(q.kernel.addrs, q.From)
}

// nodeAddr is the address of the node that a masqueraded connection shows.
func (q *packet) nodeAddr() netip.Addr {
	for _, a := range q.kernel.addrs {
		if model.FamilyOf(a) == q.family {
			return a
		}
	}
	return q.family.Unspecified()
}
