package model

import (
	"net/netip"
	"slices"
)

// Sources returns who may come in by one of r's frontends, as the fewest prefixes, sorted; none means everybody. These
// are the frontend's source ranges and, if they hold one of the node's primary addresses, the external addresses of the
// service: what the node sends to its own service may come back with such an address as its source.
func (r *Resolved) Sources(f Frontend, primary []netip.Addr) []netip.Prefix {
	if !slices.ContainsFunc(primary, func(a netip.Addr) bool { return containsAddr(f.SourceRanges, a) }) {
		return f.SourceRanges
	}
	all := slices.Clone(f.SourceRanges)
	for _, o := range r.Frontends {
		if o.Kind == External && o.Family() == f.Family() {
			all = append(all, netip.PrefixFrom(o.Addr.Addr(), f.Family().Bits()))
		}
	}
	return MergePrefixes(all)
}

// containsAddr reports whether an address is in one of the prefixes.
func containsAddr(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// MergePrefixes returns the fewest prefixes of one family that cover the same addresses as those given, which must be
// valid and of one family: sorted, disjoint, and no two of them siblings.
func MergePrefixes(prefixes []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		sorted[i] = p.Masked()
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var out []netip.Prefix
	for _, p := range sorted {
		if n := len(out); n > 0 && out[n-1].Contains(p.Addr()) && out[n-1].Bits() <= p.Bits() {
			continue
		}
		out = append(out, p)
		for n := len(out); n > 1 && siblings(out[n-2], out[n-1]); n = len(out) {
			out[n-2] = netip.PrefixFrom(out[n-2].Addr(), out[n-2].Bits()-1)
			out = out[:n-1]
		}
	}
	return out
}

// siblings reports whether a and b are the lower and the upper half of one prefix.
func siblings(a, b netip.Prefix) bool {
	if a.Bits() != b.Bits() || a.Bits() == 0 {
		return false
	}
	parent := netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked()
	return parent.Addr() == a.Addr() && parent.Contains(b.Addr())
}
