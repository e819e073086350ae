package model

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSources(t *testing.T) {
	addr, front := netip.MustParseAddr, func(k FrontendKind, a string, ranges ...string) Frontend {
		f := Frontend{Kind: k, Addr: netip.MustParseAddrPort(a)}
		for _, r := range ranges {
			f.SourceRanges = append(f.SourceRanges, netip.MustParsePrefix(r))
		}
		return f
	}
	of := func(ranges ...string) []netip.Prefix { return front(External, "192.0.2.10:80", ranges...).SourceRanges }
	all := func(f Frontend) *Resolved {
		return &Resolved{Frontends: []Frontend{f, front(External, "192.0.2.11:81"), front(Internal, "10.96.0.1:80"),
			front(NodePort, "0.0.0.0:30010"), front(External, "[2001:db8::10]:80")}}
	}
	for name, c := range map[string]struct {
		front   Frontend
		primary []netip.Addr
		want    []netip.Prefix
	}{
		"everybody":              {front(External, "192.0.2.10:80"), []netip.Addr{addr("198.51.100.10")}, nil},
		"without the node":       {front(External, "192.0.2.10:80", "203.0.113.0/24"), []netip.Addr{addr("198.51.100.10")}, of("203.0.113.0/24")},
		"no primary address":     {front(External, "192.0.2.10:80", "198.51.100.0/24"), nil, of("198.51.100.0/24")},
		"with the node":          {front(External, "192.0.2.10:80", "198.51.100.0/24"), []netip.Addr{addr("198.51.100.10")}, of("192.0.2.10/31", "198.51.100.0/24")},
		"any primary address":    {front(External, "192.0.2.10:80", "198.51.100.0/24"), []netip.Addr{addr("2001:db8::1"), addr("203.0.113.1"), addr("198.51.100.10")}, of("192.0.2.10/31", "198.51.100.0/24")},
		"of an internal address": {front(Internal, "10.96.0.2:80", "198.51.100.10/32"), []netip.Addr{addr("198.51.100.10")}, of("192.0.2.11/32", "198.51.100.10/32")},
		"of its own family":      {front(External, "[2001:db8::11]:80", "2001:db8:b::/64"), []netip.Addr{addr("2001:db8:b::10")}, of("2001:db8::10/127", "2001:db8:b::/64")},
	} {
		t.Run(name, func(t *testing.T) {
			given := all(c.front)
			require.Equal(t, c.want, given.Sources(c.front, c.primary))
			require.Equal(t, all(c.front), given, "nothing is written")
		})
	}
}
