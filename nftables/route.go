package nftables

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// A class says what is decided about a connection before its endpoint is drawn.
type class uint8

const (
	plain    class = iota // all is decided
	internal              // whether it is masqueraded depends on its source
	external              // it is masqueraded
)

// A list says which of a service's two lists of endpoints serves. In the slot maps, those of local are numbered from
// localOffset on.
type list uint8

const (
	cluster list = iota
	local
)

const localOffset = 100000 // more than a list can have slots

func (l list) offset() uint32 { return uint32(l) * localOffset }

// A route is one way of balancing a new connection. Each is a chain; services with nothing of their own share it.
type route struct {
	class    class
	nodePort bool
	list     list
	balance  model.Balance
	hashPort bool
	slots    int
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
func (r route) chain() string {
	name := make([]byte, 0, 32)
	switch r.class {
	case internal:
		name = append(name, "internal-"...)
	case external:
		name = append(name, "external-"...)
	}
	if r.nodePort {
		name = append(name, "node-port-"...)
	}
	if r.list == local {
		name = append(name, "local-"...)
	}
	if r.own != nil {
		return string(append(append(name, "to-"...), r.own.id...))
	}
	switch r.balance {
	case model.SourceHash, model.Maglev:
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
func (r route) bare() route {
	r.class, r.own = plain, nil
	return r
}

// needs returns the other shared route that the route's chain leads to, if any.
func (r route) needs() (route, bool) {
	if r.own == nil {
		return r.bare(), r.class != plain
	}
	return r.bare(), r.balance != model.RoundRobin
}

// chainSpec returns the route's chain.
func (rs ruleset) chainSpec(r route) chainSpec {
	c := chainSpec{name: r.chain()}
	switch r.class {
	case internal:
		c.rules = append(c.rules, jump(internalSource))
	case external:
		c.rules = append(c.rules, jump(externalSource))
	}
	if r.own != nil {
		for _, m := range r.own.maps {
			c.rules = append(c.rules, rs.pinned(r.own.protocol, m))
		}
	}
	if next, ok := r.needs(); ok {
		c.rules = append(c.rules, gotoChain(next.chain()))
		return c
	}
	c.rules = append(c.rules, rs.draw(r))
	if r.balance == model.Random {
		for range min(draws, r.slots) - 1 {
			c.rules = append(c.rules, rs.draw(r))
		}
	}
	// Nobody passes untranslated: neither who has drawn in vain, nor who is here by an answer that is out of date.
	if r.slots > 1 {
		first := r
		first.balance, first.slots = model.Random, 1
		c.rules = append(c.rules, rs.draw(first))
	}
	c.rules = append(c.rules, drop())
	return c
}

// draw translates the destination to the endpoint in a slot.
func (rs ruleset) draw(r route) rule {
	set := endpoints
	if r.nodePort {
		set = nodePortEndpoints
	}
	key := staticSet(set).key
	e, reg := rs.load(key[:len(key)-1]...)
	modulus, offset := uint32(r.slots), r.list.offset()
	switch r.balance {
	case model.SourceHash, model.Maglev:
		from := reg + 1
		size := saddr.size(rs.family)
		e = append(e, rs.address(saddr, size, from))
		if r.hashPort {
			e = append(e, payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2, from+size/4))
			size += 4
		}
		e = append(e, jhash(from, size, modulus, rs.cfg.HashSeed, offset, reg))
	case model.RoundRobin:
		e = append(e, numgen(unix.NFT_NG_INCREMENTAL, modulus, offset, reg))
	default:
		e = append(e, numgen(unix.NFT_NG_RANDOM, modulus, offset, reg))
	}
	return append(e, lookup(setNames[set], reg0), dnat(nfproto(rs.family), reg0, reg0+daddr.size(rs.family)/4))
}

// pinned translates the destination to the endpoint that the client had before.
func (rs ruleset) pinned(p model.Protocol, m affinityPort) rule {
	size := saddr.size(rs.family)
	return on(protocolIs(p), []expression{
		rs.address(saddr, size, reg0),
		lookup(m.name, reg0),
		immediate(reg0+size/4, port16(m.port)),
		dnat(nfproto(rs.family), reg0, reg0+size/4),
	})
}

// recorder returns the chain that remembers which endpoint a client of a service got. Which list it came from shows in
// the label, where a frontend may use either.
func (rs ruleset) recorder(name string, lists [2][]affinityPort) chainSpec {
	c := chainSpec{name: name}
	if len(lists[cluster]) > 0 && len(lists[local]) > 0 {
		both := append(hasLabel(rs.cfg.BalancedLabel), hasLabel(rs.cfg.MasqueradeLabel)...)
		for _, m := range lists[local] {
			c.rules = append(c.rules, on(both, rs.remember(m), back()))
		}
		c.rules = append(c.rules, on(both, back()))
		lists[local] = nil
	}
	for _, maps := range lists {
		for _, m := range maps {
			c.rules = append(c.rules, rs.remember(m))
		}
	}
	return c
}

func (rs ruleset) remember(m affinityPort) []expression {
	client := uint32(ctSrcIP)
	if rs.family == model.IPv6 {
		client = ctSrcIP6
	}
	size := saddr.size(rs.family)
	return []expression{
		payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, reg0),
		compare(unix.NFT_CMP_EQ, port16(m.port)),
		ct(client, dirOriginal, reg0),
		rs.address(daddr, size, reg0+size/4),
		update(m.name, reg0, reg0+size/4),
	}
}
