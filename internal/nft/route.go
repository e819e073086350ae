package nft

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// A Class says what is decided about a connection before its endpoint is drawn.
type Class uint8

// The classes.
const (
	Plain      Class = iota // all is decided
	ByInternal              // whether it is masqueraded depends on its source
	ByExternal              // it is masqueraded
)

// A List says which of a service's two lists of endpoints serves. In the slot maps, those of LocalList are numbered from
// localOffset on.
type List uint8

// The lists.
const (
	ClusterList List = iota // endpoints of the whole cluster
	LocalList               // those on this node
)

// ListOf returns the list that a policy chooses from.
func ListOf(p model.TrafficPolicy) List {
	if p == model.Local {
		return LocalList
	}
	return ClusterList
}

const localOffset = 100000 // more slots than a list of a service with both can have

func (l List) offset() uint32 { return uint32(l) * localOffset }

// A Route is one way of balancing a new connection. Each is a chain; services with nothing of their own share it.
type Route struct {
	class    Class
	nodePort bool
	list     List
	balance  model.Balance
	hashPort bool
	slots    int
	// draw says that the chain does no more than to draw once.
	draw bool
	// own is the service that the route belongs to, if it needs a chain of its own: for a counter (RoundRobin) or for
	// affinity. Otherwise it is nil.
	own *ownRoute
}

// An ownRoute is what a service's own chain needs.
type ownRoute struct {
	service  model.ServiceName
	id       string
	protocol model.Protocol
	maps     []affinityPort // of the route's list
}

// chain returns the name of the route's chain.
func (r Route) chain() string {
	name := make([]byte, 0, 32)
	switch r.class {
	case ByInternal:
		name = append(name, "internal-"...)
	case ByExternal:
		name = append(name, "external-"...)
	}
	if r.nodePort {
		name = append(name, "node-port-"...)
	}
	if r.list == LocalList {
		name = append(name, "local-"...)
	}
	if r.own != nil {
		return string(append(append(name, "to-"...), r.own.id...))
	}
	switch {
	case r.draw:
		name = append(name, "draw-"...)
	case r.balance == model.Maglev:
		name = append(name, "hash-"...)
	default:
		name = append(name, "lb-"...)
	}
	if r.hashPort {
		name = append(name, "port-"...)
	}
	return string(strconv.AppendInt(name, int64(r.slots), 10))
}

// bare is the route that a route leads to once its class is settled; it has no service of its own.
func (r Route) bare() Route {
	r.class, r.own = Plain, nil
	return r
}

// inTurn reports whether the route's own chain draws by the service's own counter.
func (r Route) inTurn() bool { return r.own != nil && r.balance == model.RoundRobin }

// leads reports whether the route's chain decides something and leads on to the bare route.
func (r Route) leads() bool { return !r.inTurn() && (r.class != Plain || r.own != nil) }

// redraws reports whether the route's chain draws by chance until it hits a slot that is taken.
func (r Route) redraws() bool { return r.balance == model.Random && r.slots > 1 && !r.draw }

// first is the route to the endpoint in slot 0.
func (r Route) first() Route {
	r.balance, r.hashPort, r.slots = model.Random, false, 1
	return r
}

// once is the route that draws once, and lets whoever has drawn in vain return.
func (r Route) once() Route {
	r.draw = true
	return r
}

// needs calls f with the other shared routes that the route's chain leads to.
func (r Route) needs(f func(Route)) {
	switch {
	case r.leads():
		f(r.bare())
	case r.inTurn() || r.draw || r.slots == 1:
	default:
		if r.redraws() {
			f(r.once())
		}
		f(r.first())
	}
}

// slotSet is the map that has the route's slots.
func (r Route) slotSet() SetID {
	at := places(r.nodePort)
	if r.inTurn() {
		return at.Turns + SetID(fnv([]byte(r.own.service), 0)%turnShards)
	}
	return at.Endpoints
}

// Route returns the route's chain.
func (rs *Rules) Route(r Route) Chain {
	c := Chain{Name: r.chain()}
	switch r.class {
	case ByInternal:
		c.Rules = append(c.Rules, Jump(MarkInternalChain))
	case ByExternal:
		c.Rules = append(c.Rules, Jump(MarkExternalChain))
	}
	if r.own != nil {
		for _, m := range r.own.maps {
			c.Rules = append(c.Rules, rs.pinned(r.own.protocol, m))
		}
	}
	if r.leads() {
		c.Rules = append(c.Rules, Goto(r.bare().chain()))
		return c
	}
	if r.redraws() {
		// One rule, called again and again, not as many: for each that uses a map the kernel walks through the whole map.
		for range min(draws, r.slots) {
			c.Rules = append(c.Rules, Jump(r.once().chain()))
		}
	} else {
		c.Rules = append(c.Rules, rs.draw(r))
	}
	// Nobody passes untranslated: neither who has drawn in vain, nor who is here by an answer that is out of date.
	switch {
	case r.draw:
	case r.slots == 1:
		c.Rules = append(c.Rules, Drop())
	case r.inTurn():
		r.slots = 1
		c.Rules = append(c.Rules, rs.draw(r), Drop())
	default:
		c.Rules = append(c.Rules, Goto(r.first().chain()))
	}
	return c
}

// draw translates the destination to the endpoint in a slot.
func (rs *Rules) draw(r Route) Rule {
	set := &rs.Sets[r.slotSet()]
	key := set.Key
	e, reg := rs.Load(key[:len(key)-1]...)
	modulus, offset := uint32(r.slots), r.list.offset()
	switch r.balance {
	case model.Maglev:
		from := reg + 1
		size := Saddr.Size(rs.Family)
		e = append(e, rs.Address(Saddr, size, from))
		if r.hashPort {
			e = append(e, Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2, from+size/4))
			size += 4
		}
		e = append(e, Jhash(from, size, modulus, rs.HashSeed, offset, reg))
	case model.RoundRobin:
		e = append(e, Numgen(unix.NFT_NG_INCREMENTAL, modulus, offset, reg))
	default:
		e = append(e, Numgen(unix.NFT_NG_RANDOM, modulus, offset, reg))
	}
	return append(e, Lookup(set.Name, Reg0), DNAT(NFProto(rs.Family), Reg0, Reg0+Daddr.Size(rs.Family)/4))
}

// pinned translates the destination to the endpoint that the client had before.
func (rs *Rules) pinned(p model.Protocol, m affinityPort) Rule {
	size := Saddr.Size(rs.Family)
	return On(ProtocolIs(p), []Expression{
		rs.Address(Saddr, size, Reg0),
		Lookup(m.name, Reg0),
		Immediate(Reg0+size/4, Port16(m.port)),
		DNAT(NFProto(rs.Family), Reg0, Reg0+size/4),
	})
}

// recorder returns the chain that remembers which endpoint a client of a service got. Which list it came from shows in
// the label, where a frontend may use either.
func (rs *Rules) recorder(name string, lists [2][]affinityPort) Chain {
	c := Chain{Name: name}
	if len(lists[ClusterList]) > 0 && len(lists[LocalList]) > 0 {
		both := append(HasLabel(rs.BalancedLabel), HasLabel(rs.MasqueradeLabel)...)
		for _, m := range lists[LocalList] {
			c.Rules = append(c.Rules, On(both, rs.remember(m), Return()))
		}
		c.Rules = append(c.Rules, On(both, Return()))
		lists[LocalList] = nil
	}
	for _, maps := range lists {
		for _, m := range maps {
			c.Rules = append(c.Rules, rs.remember(m))
		}
	}
	return c
}

func (rs *Rules) remember(m affinityPort) []Expression {
	client := uint32(CTSrcIP)
	if rs.Family == model.IPv6 {
		client = CTSrcIP6
	}
	size := Saddr.Size(rs.Family)
	return []Expression{
		Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, Reg0),
		Compare(unix.NFT_CMP_EQ, Port16(m.port)),
		CT(client, DirOriginal, Reg0),
		rs.Address(Daddr, size, Reg0+size/4),
		Update(m.name, Reg0, Reg0+size/4),
	}
}
