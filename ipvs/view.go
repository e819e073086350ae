package ipvs

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/headgate/headgate/model"
)

// A view is what is wanted, seen from virtual services: who serves at which.
type view struct {
	cfg  *Config
	node model.Node
	// forms has the services that this attempt is about; nil for those that go. The others are in the resolver.
	forms    map[model.ServiceName]*model.Resolved
	resolver *model.Resolver
	// holders says who holds the frontends that change hands; "" for nobody.
	holders map[model.FrontendKey]model.ServiceName
	// nodePorts are the addresses on which node ports answer.
	nodePorts [2][]netip.Addr
	// memo is the last demand that was computed.
	memo memo
}

// A memo remembers a demand: most services have the same one at several frontends.
type memo struct {
	res    *model.Resolved
	family model.Family
	local  bool
	demand *demand
}

// A demand is what a virtual service shall be.
type demand struct {
	spec    virtualSpec
	servers []server // sorted
	owner   *model.Resolved
}

// newView returns the view of a delta. Earlier attempts were about the services in touched as well.
func newView(cfg *Config, r *model.Resolver, d *model.Delta, touched map[model.ServiceName]bool) *view {
	v := &view{cfg: cfg, node: d.Node, resolver: r, forms: make(map[model.ServiceName]*model.Resolved, len(d.Changes)),
		holders: make(map[model.FrontendKey]model.ServiceName, len(d.Changes))}
	for name := range touched {
		v.forms[name] = r.Form(name)
	}
	for _, c := range d.Changes {
		v.forms[c.Name] = c.After
		v.release(c.Before)
	}
	for _, form := range v.forms {
		if form != nil {
			for _, f := range form.Frontends {
				v.holders[form.Key(f)] = form.Name
			}
		}
	}
	for _, fam := range model.Families {
		v.nodePorts[fam] = d.Node.NodePortAddrs(fam)
	}
	return v
}

func (v *view) release(form *model.Resolved) {
	if form != nil {
		for _, f := range form.Frontends {
			v.holders[form.Key(f)] = ""
		}
	}
}

// holder returns the service that holds a frontend, and the frontend.
func (v *view) holder(key model.FrontendKey) (*model.Resolved, model.Frontend) {
	name, ok := v.holders[key]
	if !ok {
		name, _ = v.resolver.Holder(key)
	}
	form, ok := v.forms[name]
	if !ok {
		form = v.resolver.Form(name)
	}
	if form == nil {
		return nil, model.Frontend{}
	}
	i := slices.IndexFunc(form.Frontends, func(f model.Frontend) bool { return f.Addr == key.Addr })
	if i < 0 || form.Service.Protocol != key.Protocol {
		return nil, model.Frontend{}
	}
	return form, form.Frontends[i]
}

// want returns what shall be at a virtual service; nil for nothing. An explicit frontend comes before a node port.
func (v *view) want(k virtualKey) *demand {
	form, f := v.holder(model.FrontendKey{Protocol: k.proto, Addr: k.at})
	if form == nil && slices.Contains(v.nodePorts[k.family()], k.at.Addr()) {
		form, f = v.holder(model.FrontendKey{Protocol: k.proto, Addr: netip.AddrPortFrom(k.family().Unspecified(), k.at.Port())})
	}
	if form == nil {
		return nil
	}
	return v.demand(form, k.family(), form.Service.Policy(f.Kind) == model.Local)
}

// demand returns what a service wants of virtual services over one of its lists.
func (v *view) demand(res *model.Resolved, fam model.Family, local bool) *demand {
	if m := &v.memo; m.res == res && m.family == fam && m.local == local {
		return m.demand
	}
	eps := res.Selections[fam].Cluster
	if local {
		eps = res.Selections[fam].Local
	}
	weights := weightsOf(res.Service.Balance, eps)
	d := &demand{owner: res, servers: make([]server, len(eps))}
	equal := true
	for i, e := range eps {
		d.servers[i] = server{at: e.Addr, weight: weights[i]}
		equal = equal && weights[i] == weights[0]
	}
	d.spec = v.spec(&res.Service, fam, equal)
	v.memo = memo{res, fam, local, d}
	return d
}

// spec returns how a service's virtual services are configured.
func (v *view) spec(s *model.Service, fam model.Family, equal bool) virtualSpec {
	spec := virtualSpec{netmask: math.MaxUint32}
	spec.scheduler, spec.flags = scheduler(s, equal)
	spec.flags |= ownerFlags(v.cfg.RouteProtocol)
	if fam == model.IPv6 {
		spec.netmask = 128
	}
	if s.Affinity > 0 {
		spec.flags |= flagPersistent
		spec.timeout = uint32((s.Affinity + time.Second - 1) / time.Second)
	}
	return spec
}

// How many buckets the schedulers sh and mh have, unless the kernel was built otherwise: CONFIG_IP_VS_SH_TAB_BITS,
// CONFIG_IP_VS_MH_TAB_INDEX.
const (
	hashBuckets   = 256
	maglevBuckets = 4093
)

// weightsOf returns the weights that real servers get. The scheduler sh gives a server as many buckets as its weight
// says, whatever is left for the others, so they are reduced to what the buckets can hold: one for each, and of the
// rest a share.
func weightsOf(b model.Balance, eps []model.Endpoint) []uint32 {
	out := make([]uint32, len(eps))
	sum, divisor := uint32(0), uint32(0)
	for i, e := range eps {
		out[i] = uint32(e.Weight)
		sum += out[i]
		for a := out[i]; a != 0; {
			divisor, a = a, divisor%a
		}
	}
	if b != model.SourceHash || divisor == 0 {
		return out
	}
	sum /= divisor
	for i := range out {
		out[i] /= divisor
		if sum > hashBuckets {
			out[i] = 1 + out[i]*(hashBuckets-min(hashBuckets, uint32(len(out))))/sum
		}
	}
	return out
}

// keys calls each with every virtual service that a service's frontends may stand for on a node with the node-port
// addresses given.
func keys(res *model.Resolved, nodePorts *[2][]netip.Addr, each func(virtualKey)) {
	if res == nil {
		return
	}
	for _, f := range res.Frontends {
		k := virtualKey{proto: res.Service.Protocol, at: f.Addr}
		if f.Kind != model.NodePort {
			each(k)
			continue
		}
		for _, a := range nodePorts[f.Family()] {
			k.at = netip.AddrPortFrom(a, f.Addr.Port())
			each(k)
		}
	}
}

// check says why the kernel cannot be asked to serve a form as it is wanted; nil, if it can.
func (v *view) check(res *model.Resolved, r *record, quiescent bool) error {
	s := &res.Service
	switch {
	case s.Affinity > longestAffinity:
		return fmt.Errorf("affinity of %v, more than %v: %w", s.Affinity, longestAffinity, model.ErrNotSupported)
	case s.Affinity > 0 && !quiescent:
		return fmt.Errorf("affinity would lead clients to endpoints that are gone, as %s is 0: %w", sysctlQuiescent, model.ErrNotSupported)
	}
	for _, f := range res.Frontends {
		a := f.Addr.Addr()
		if i := slices.IndexFunc(v.cfg.Hosts, func(p netip.Prefix) bool { return p.Contains(a) }); i >= 0 && f.Kind != model.NodePort {
			return fmt.Errorf("%s: the address is another host's (%s), which this node could not reach any more: %w", f, v.cfg.Hosts[i], model.ErrNotSupported)
		}
		sel := res.Selections[f.Family()]
		n, most := max(len(sel.Cluster), len(sel.Local)), map[model.Balance]int{model.SourceHash: hashBuckets, model.Maglev: maglevBuckets}
		if most := most[s.Balance]; most > 0 && n > most {
			return fmt.Errorf("%s over %d endpoints, more than the kernel has buckets for: %d: %w", s.Balance, n, most, model.ErrNotSupported)
		}
	}
	var err error
	keys(res, &v.nodePorts, func(k virtualKey) {
		if r.foreign[k] && err == nil {
			err = conflict(k)
		}
	})
	return err
}

func conflict(k virtualKey) error {
	return fmt.Errorf("%s %s: %w by a virtual service that is not ours", k.proto, k.at, model.ErrConflict)
}
