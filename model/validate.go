package model

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// normalise returns the form of a service in which every backend programs it, or an error that wraps [ErrInvalid].
//
// IPv4 addresses written as IPv6 ones become IPv4. A node port without an address becomes one of each family.
// Frontends named twice in the same form count once. Source ranges are reduced to what they mean: masked, of the
// frontend's family, merged, sorted; none for everybody, and nobody's prefix where no prefix is of the family.
func normalise(s Service) (Service, error) {
	if err := checkService(s); err != nil {
		return s, err
	}
	out := make([]Frontend, 0, len(s.Frontends))
	seen := make(map[netip.AddrPort]int, len(s.Frontends))
	for _, f := range s.Frontends {
		forms, err := normaliseFrontend(f)
		if err != nil {
			return s, fmt.Errorf("%s: %w", f, err)
		}
		for _, f := range forms {
			i, twice := seen[f.Addr]
			switch {
			case !twice:
				seen[f.Addr] = len(out)
				out = append(out, f)
			case !out[i].Equal(f):
				return s, fmt.Errorf("%s: listed twice, as different things: %w", f, ErrInvalid)
			}
		}
	}
	s.Frontends = out
	return s, nil
}

func checkService(s Service) error {
	switch {
	case s.Protocol.Number() == 0:
		return fmt.Errorf("%s: %w", s.Protocol, ErrInvalid)
	case int(s.Balance) >= len(balanceNames):
		return fmt.Errorf("%s: %w", s.Balance, ErrInvalid)
	case int(s.InternalTraffic) >= len(policyNames):
		return fmt.Errorf("internal traffic %s: %w", s.InternalTraffic, ErrInvalid)
	case int(s.ExternalTraffic) >= len(policyNames):
		return fmt.Errorf("external traffic %s: %w", s.ExternalTraffic, ErrInvalid)
	case s.Affinity != 0 && (s.Affinity < time.Second || s.Affinity > MaxAffinity):
		return fmt.Errorf("affinity of %v is not between 1s and %v: %w", s.Affinity, MaxAffinity, ErrInvalid)
	}
	return nil
}

// normaliseFrontend returns a frontend as the one or, for a node port without a family, the two that it means.
func normaliseFrontend(f Frontend) ([]Frontend, error) {
	addr := f.Addr.Addr().Unmap()
	port := f.Addr.Port()
	if port == 0 {
		return nil, fmt.Errorf("port 0: %w", ErrInvalid)
	}
	ranges, err := unmapPrefixes(f.SourceRanges)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	switch {
	case int(f.Kind) >= len(kindNames):
		return nil, fmt.Errorf("no such kind: %w", ErrInvalid)
	case f.Kind != NodePort:
		if err := checkAddr(addr); err != nil {
			return nil, err
		}
		addrs = []netip.Addr{addr}
	case !addr.IsValid():
		addrs = []netip.Addr{IPv4.Unspecified(), IPv6.Unspecified()}
	case addr.IsUnspecified() && addr.Zone() == "":
		addrs = []netip.Addr{addr}
	default:
		return nil, fmt.Errorf("a node port has no address of its own: %w", ErrInvalid)
	}
	out := make([]Frontend, len(addrs))
	for i, a := range addrs {
		out[i] = Frontend{Kind: f.Kind, Addr: netip.AddrPortFrom(a, port), SourceRanges: rangesOf(FamilyOf(a), ranges)}
	}
	return out, nil
}

// checkAddr says why an address cannot be that of a frontend or an endpoint.
func checkAddr(a netip.Addr) error {
	switch {
	case !a.IsValid():
		return fmt.Errorf("no address: %w", ErrInvalid)
	case a.Zone() != "":
		return fmt.Errorf("address with a zone: %w", ErrInvalid)
	case a.IsUnspecified():
		return fmt.Errorf("unspecified address: %w", ErrInvalid)
	case a.IsLoopback():
		return fmt.Errorf("loopback address: %w", ErrInvalid)
	case a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("multicast or broadcast address: %w", ErrInvalid)
	}
	return nil
}

// normaliseEndpoints returns endpoints in the form in which every backend takes them: of usable addresses, sorted by
// address and port, each address and port once, Weight at least 1. Where an endpoint is given twice the more able
// state wins (Ready, Draining, NotReady) and, among equals, the later one. Endpoints that make no sense are left out,
// and the error, which wraps [ErrInvalid], names them.
func normaliseEndpoints(eps []Endpoint) ([]Endpoint, error) {
	out := cloneEndpoints(eps)
	var errs []error
	out = slices.DeleteFunc(out, func(e Endpoint) bool {
		err := checkAddr(e.Addr.Addr().Unmap())
		switch {
		case err != nil:
		case e.Addr.Port() == 0:
			err = fmt.Errorf("port 0: %w", ErrInvalid)
		case int(e.State) >= len(stateNames):
			err = fmt.Errorf("%s: %w", e.State, ErrInvalid)
		default:
			return false
		}
		errs = append(errs, fmt.Errorf("endpoint %s left out: %w", e.Addr, err))
		return true
	})
	for i := range out {
		e := &out[i]
		e.Addr = netip.AddrPortFrom(e.Addr.Addr().Unmap(), e.Addr.Port())
		e.Weight = max(e.Weight, 1)
	}
	byAddr := func(a, b Endpoint) int { return a.Addr.Compare(b.Addr) }
	if !slices.IsSortedFunc(out, byAddr) {
		slices.SortStableFunc(out, byAddr)
	}
	return unique(out), errors.Join(errs...)
}

// unique merges neighbours with the same address and port, in place.
func unique(eps []Endpoint) []Endpoint {
	out := eps[:0]
	for _, e := range eps {
		last := len(out) - 1
		switch {
		case last < 0 || out[last].Addr != e.Addr:
			out = append(out, e)
		case e.State <= out[last].State:
			out[last] = e
		}
	}
	return out
}

// unmapPrefixes checks prefixes and turns those over IPv4 addresses that are written as IPv6 into IPv4 ones.
func unmapPrefixes(prefixes []netip.Prefix) ([]netip.Prefix, error) {
	out := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		if !p.IsValid() || p.Addr().Is4In6() {
			return nil, fmt.Errorf("source range %v: %w", p, ErrInvalid)
		}
		out = append(out, p)
	}
	return out, nil
}

// rangesOf reduces checked source ranges to what they mean for a frontend of the family. The result is disjoint and
// sorted; no ranges means everybody. If nobody may come in, it is the unspecified address alone, which no packet has.
func rangesOf(f Family, ranges []netip.Prefix) []netip.Prefix {
	if len(ranges) == 0 {
		return nil
	}
	var own []netip.Prefix
	for _, p := range ranges {
		if FamilyOf(p.Addr()) == f {
			own = append(own, p.Masked())
		}
	}
	if len(own) == 0 {
		return []netip.Prefix{netip.PrefixFrom(f.Unspecified(), f.Bits())}
	}
	own = MergePrefixes(own)
	if own[0].Bits() == 0 {
		return nil
	}
	return own
}
