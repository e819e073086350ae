package conntrack

import (
	"fmt"
	"net/netip"

	"github.com/headgate/headgate/model"
)

// A filter says which flows the kernel shall list: those of one protocol and family, and of those perhaps only the
// ones to an address, to a port, or with replies from an endpoint. Filters are made by the functions below, which
// refuse what would name nothing. The zero filter is invalid, there is none for every protocol, and none ever
// accompanies a deletion.
type filter struct {
	proto  uint8 // as in an IP header; 0 in the zero filter alone
	family model.Family
	// dst and dport are the original destination: an invalid address and port 0 mean any.
	dst   netip.Addr
	dport uint16
	// src and sport are where replies come from; again an invalid address and port 0 mean any.
	src   netip.Addr
	sport uint16
}

// ofProtocol lists every flow of a protocol and family.
func ofProtocol(p model.Protocol, f model.Family) (filter, error) {
	if p.Number() == 0 || int(f) >= len(model.Families) {
		return filter{}, fmt.Errorf("filter for %s in %s: %w", p, f, model.ErrInvalid)
	}
	return filter{proto: p.Number(), family: f}, nil
}

// toFrontend lists the flows to a frontend; for a node port, the flows to that port of whatever address.
func toFrontend(key model.FrontendKey) (filter, error) {
	f, err := ofProtocol(key.Protocol, model.FamilyOf(key.Addr.Addr()))
	switch {
	case err != nil:
		return filter{}, err
	case !key.Addr.Addr().IsValid() || key.Addr.Addr().Is4In6() || key.Addr.Port() == 0:
		return filter{}, fmt.Errorf("filter for frontend %s: %w", key, model.ErrInvalid)
	case !key.Addr.Addr().IsUnspecified():
		f.dst = key.Addr.Addr()
	}
	f.dport = key.Addr.Port()
	return f, nil
}

// untranslated lists the flows to a frontend that nobody translated. A node port has no one address to compare with:
// for it this is toFrontend.
func untranslated(key model.FrontendKey) (filter, error) {
	f, err := toFrontend(key)
	if err == nil && f.dst.IsValid() {
		f.src, f.sport = f.dst, f.dport
	}
	return f, err
}

// fromEndpoint lists the flows whose replies come from an endpoint, whatever their destination was.
func fromEndpoint(p model.Protocol, ep netip.AddrPort) (filter, error) {
	f, err := ofProtocol(p, model.FamilyOf(ep.Addr()))
	if err == nil && (!named(ep.Addr()) || ep.Port() == 0) {
		err = fmt.Errorf("filter for endpoint %s: %w", ep, model.ErrInvalid)
	}
	if err != nil {
		return filter{}, err
	}
	f.src, f.sport = ep.Addr(), ep.Port()
	return f, nil
}

// between lists the flows to a frontend whose replies come from an endpoint.
func between(key model.FrontendKey, ep netip.AddrPort) (filter, error) {
	f, err := toFrontend(key)
	if err != nil {
		return filter{}, err
	}
	from, err := fromEndpoint(key.Protocol, ep)
	if err == nil && from.family != f.family {
		err = fmt.Errorf("filter for frontend %s and endpoint %s: %w", key, ep, model.ErrInvalid)
	}
	if err != nil {
		return filter{}, err
	}
	f.src, f.sport = from.src, from.sport
	return f, nil
}

// toAddr lists the flows to an address, whatever the port.
func toAddr(p model.Protocol, a netip.Addr) (filter, error) {
	f, err := ofProtocol(p, model.FamilyOf(a))
	if err == nil && !named(a) {
		return filter{}, fmt.Errorf("filter for address %s: %w", a, model.ErrInvalid)
	}
	f.dst = a
	return f, err
}

// sent returns what of the filter the kernel is asked for. Of IPv6 addresses it is nothing: kernels list the flows of
// every address but the one asked for (the sense of ipv6_addr_cmp is reversed in ctnetlink_filter_match_tuple of
// Linux 5.8 to, at least, 6.18). What is listed too much is sorted out when it arrives.
func (f filter) sent() filter {
	if f.family == model.IPv6 {
		f.dst, f.src = netip.Addr{}, netip.Addr{}
	}
	return f
}

// named reports whether an address can be that of a packet in its family's own form.
func named(a netip.Addr) bool { return a.IsValid() && !a.IsUnspecified() && !a.Is4In6() }

// matches reports whether the filter lists a flow.
func (f filter) matches(fl *flow) bool {
	return fl.proto == f.proto && fl.family == f.family &&
		(!f.dst.IsValid() || f.dst == fl.to.Addr()) && (f.dport == 0 || f.dport == fl.to.Port()) &&
		(!f.src.IsValid() || f.src == fl.from.Addr()) && (f.sport == 0 || f.sport == fl.from.Port())
}
