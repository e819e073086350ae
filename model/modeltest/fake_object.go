package modeltest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/model"
)

// What a table of the pretended kernel can hold. Keys are unique in their table.
//
//	frontend ── refers to ──▶ group ◀── belongs to ── member
//	   ▲
//	   └── belongs to ── range
type (
	// A nodeKey has the settings of the table: a *model.Node.
	nodeKey struct{}
	// A groupKey is one family of one service: a groupValue.
	groupKey struct {
		service model.ServiceName
		family  model.Family
	}
	// A memberKey is an endpoint in one of the two lists of a group: a memberValue.
	memberKey struct {
		group groupKey
		list  model.TrafficPolicy // the list that serves under this policy
		addr  netip.AddrPort
	}
	// A frontKey is a frontend: a frontValue.
	frontKey struct{ model.FrontendKey }
	// A rangeKey is a source range of a frontend: a nothing.
	rangeKey struct {
		front  frontKey
		prefix netip.Prefix
	}
	// A strangerKey is something that means nothing here: a string.
	strangerKey struct{ name string }

	groupValue struct {
		balance  model.Balance
		hashPort bool
		affinity time.Duration
	}
	memberValue struct {
		weight uint16
		local  bool
	}
	frontValue struct {
		group      groupKey
		kind       model.FrontendKind
		policy     model.TrafficPolicy
		restricted bool
	}
	nothing struct{}
)

func (nodeKey) String() string       { return "node" }
func (k strangerKey) String() string { return k.name }
func (k groupKey) String() string    { return fmt.Sprintf("group %q %s", string(k.service), k.family) }
func (k frontKey) String() string    { return "frontend " + k.FrontendKey.String() }
func (k rangeKey) String() string    { return fmt.Sprintf("range %s %s", k.front.FrontendKey, k.prefix) }

func (k memberKey) String() string {
	return fmt.Sprintf("member %q %s %s", string(k.group.service), k.list, k.addr)
}

// A table is what one owner has in the pretended kernel.
type table struct {
	node      *model.Node // nil until it is set
	groups    map[groupKey]*group
	fronts    map[frontKey]*front
	strangers map[string]string
	// owned counts, by address, the frontends there, and those of them that are internal.
	owned map[netip.Addr][2]int
}

type group struct {
	groupValue
	key     groupKey
	members [2][]member // by policy, each sorted by address
	fronts  int         // how many frontends refer to it
	// What the kernel remembers by itself: whose turn it is, who is pinned where, who has how many connections.
	turns [2]int
	pins  map[netip.Addr]pin
	conns map[netip.AddrPort]int
}

type member struct {
	addr netip.AddrPort
	memberValue
}

// A pin keeps a client on an endpoint.
type pin struct {
	addr  netip.AddrPort
	until time.Time
}

type front struct {
	frontValue
	ranges []netip.Prefix // sorted and disjoint
}

func newTable() *table {
	return &table{groups: map[groupKey]*group{}, fronts: map[frontKey]*front{}, strangers: map[string]string{}, owned: map[netip.Addr][2]int{}}
}

func (t *table) empty() bool {
	return t.node == nil && len(t.groups) == 0 && len(t.fronts) == 0 && len(t.strangers) == 0
}

// find returns where in a list an endpoint is, or belongs.
func (g *group) find(list model.TrafficPolicy, a netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(g.members[list], a, func(m member, a netip.AddrPort) int { return m.addr.Compare(a) })
}

// each calls f with everything that the table holds.
func (t *table) each(f func(key, value any)) {
	if t.node != nil {
		f(nodeKey{}, t.node)
	}
	for k, g := range t.groups {
		f(k, g.groupValue)
		for list, ms := range g.members {
			for _, m := range ms {
				f(memberKey{k, model.TrafficPolicy(list), m.addr}, m.memberValue)
			}
		}
	}
	for k, fr := range t.fronts {
		f(k, fr.frontValue)
		for _, p := range fr.ranges {
			f(rangeKey{k, p}, nothing{})
		}
	}
	for name, v := range t.strangers {
		f(strangerKey{name}, v)
	}
}

// sameValue reports whether two values of one key are the same.
func sameValue(a, b any) bool {
	if n, ok := a.(*model.Node); ok {
		m, ok := b.(*model.Node)
		return ok && n.Equal(*m)
	}
	return a == b
}

// text writes a value for people to read.
func text(v any) string {
	switch v := v.(type) {
	case *model.Node:
		return strings.TrimPrefix(fmt.Sprintf("%+v", *v), "&")
	case groupValue:
		s := v.balance.String()
		if v.hashPort {
			s += " with port"
		}
		if v.affinity > 0 {
			s += fmt.Sprintf(", affinity %v", v.affinity)
		}
		return s
	case memberValue:
		if v.local {
			return fmt.Sprintf("weight %d, here", v.weight)
		}
		return fmt.Sprintf("weight %d", v.weight)
	case frontValue:
		s := fmt.Sprintf("%s, %s, to %q", v.kind, v.policy, string(v.group.service))
		if v.restricted {
			s += ", restricted"
		}
		return s
	case string:
		return v
	}
	return ""
}
