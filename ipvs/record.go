package ipvs

import (
	"net/netip"
	"slices"
	"time"

	"github.com/headgate/headgate/model"
)

// A virtualKey is what a virtual service answers at.
type virtualKey struct {
	proto model.Protocol
	at    netip.AddrPort
}

func (k virtualKey) family() model.Family { return model.FamilyOf(k.at.Addr()) }

// A virtualSpec is how a virtual service is configured, as a whole: whatever differs is put right.
type virtualSpec struct {
	scheduler string
	flags     uint32 // IP_VS_SVC_F_…, without that which the kernel sets itself, and the mark that it is ours
	timeout   uint32 // of persistence, in seconds
	netmask   uint32 // IPv4: a mask; IPv6: the length of a prefix
	engine    string // of persistence: ours have none
}

// A server is one real server of a virtual service.
type server struct {
	at     netip.AddrPort
	weight uint32
	// odd says that something else than the weight is not as we would write it: forwarding, thresholds, tunnel.
	odd bool
	// leaving says that it gets no new connections, and goes when it has none. until is when it goes in any case; zero,
	// never.
	leaving bool
	until   time.Time
}

// A virtual is one virtual service of ours in the kernel.
type virtual struct {
	spec virtualSpec
	// owner is the service that it is a frontend of, or was.
	owner model.ServiceName
	// servers are sorted by address and port.
	servers []server
	// leaving says that it is no frontend any more, and goes when no connection is open. until is when it goes in any case.
	leaving bool
	until   time.Time
	// kept says that connections have been found open since.
	kept bool
}

// find returns where a server is or would be.
func (v *virtual) find(at netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(v.servers, at, func(s server, at netip.AddrPort) int { return s.at.Compare(at) })
}

// drains reports whether something of it is there only for connections that are open.
func (v *virtual) drains() bool {
	return v.leaving || slices.ContainsFunc(v.servers, func(s server) bool { return s.leaving })
}

// A record is what the kernel holds of ours.
type record struct {
	virtual map[virtualKey]*virtual
	// at counts the virtual services at an address.
	at map[netip.Addr]int
	// routes has the addresses that are made local, and the source address that the node has towards them, if any.
	routes map[netip.Addr]netip.Addr
	// foreign has virtual services of others, as far as they have been seen.
	foreign map[virtualKey]bool
	// draining has the virtual services of which something drains.
	draining map[virtualKey]bool
	// nodePorts are the addresses on which node ports answer.
	nodePorts [2][]netip.Addr
	// hosts are the addresses that the node's interfaces had when they were last asked, and whether they are in use yet.
	hosts map[netip.Addr]bool
	// source is, by family, the one of them that the node sends from by default.
	source [2]netip.Addr
}

func newRecord() *record {
	return &record{virtual: map[virtualKey]*virtual{}, at: map[netip.Addr]int{}, routes: map[netip.Addr]netip.Addr{},
		foreign: map[virtualKey]bool{}, draining: map[virtualKey]bool{}}
}

// add notes a virtual service.
func (r *record) add(k virtualKey, v *virtual) {
	r.virtual[k] = v
	r.at[k.at.Addr()]++
}

// del notes that a virtual service is gone, with its servers.
func (r *record) del(k virtualKey) {
	if r.virtual[k] == nil {
		return
	}
	delete(r.virtual, k)
	delete(r.draining, k)
	if a := k.at.Addr(); r.at[a] > 1 {
		r.at[a]--
	} else {
		delete(r.at, a)
	}
}

// note notes whether something of a virtual service drains.
func (r *record) note(k virtualKey) {
	if v := r.virtual[k]; v != nil && v.drains() {
		r.draining[k] = true
	} else {
		delete(r.draining, k)
	}
}

// done notes that the kernel did what was asked.
func (r *record) done(o *op) {
	v := r.virtual[o.key]
	switch o.kind {
	case addVirtual:
		r.add(o.key, &virtual{spec: o.spec, owner: o.owner})
	case editVirtual:
		v.spec = o.spec
	case delVirtual:
		r.del(o.key)
	case addServer, editServer:
		s := server{at: o.server, weight: o.weight, leaving: o.leaving, until: o.until}
		if i, ok := v.find(o.server); ok {
			v.servers[i] = s
		} else {
			v.servers = slices.Insert(v.servers, i, s)
		}
		r.note(o.key)
	case delServer:
		if i, ok := v.find(o.server); ok {
			v.servers = slices.Delete(v.servers, i, i+1)
		}
		r.note(o.key)
	case addRoute, editRoute:
		r.routes[o.vip] = o.src
	case delRoute:
		delete(r.routes, o.vip)
	}
}
