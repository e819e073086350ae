package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A Node describes the machine whose kernel is programmed, and how traffic of all services is treated on it.
// The zero Node is usable: no zone, no internal sources, node ports on every address but loopback.
// All of it may change at run time, see [Diff].
type Node struct {
	// Name and Zone are matched against the topology hints of endpoints. Empty matches no hint.
	Name, Zone string
	// Addrs are the addresses of the node's interfaces, loopback left out. Backends that can ask the kernel itself
	// whether an address is the node's (nftables, iptables) do that; the others serve node ports on these.
	Addrs []netip.Addr
	// Primary are the node's main addresses, one a family: where node ports answer with [NodePortScope.Primary],
	// and whose presence in a frontend's source ranges lets in what an address of the same service sends to itself.
	Primary []netip.Addr
	// Detector recognises internal sources. The zero LocalDetector recognises none.
	Detector LocalDetector
	// NodePorts says on which addresses node ports answer.
	NodePorts NodePortScope
	// ServiceRanges are the ranges that virtual addresses are taken from: packets to an address in them that no service
	// owns are dropped instead of leaving the node. Empty drops nothing.
	ServiceRanges []netip.Prefix
	// MasqueradeAll hides every client behind the node's address, except where External Local keeps it.
	// KeepClientAddress means nothing beside it.
	MasqueradeAll bool
	// KeepClientAddress does without masquerading, for external frontends and node ports with policy Cluster, where
	// the chosen endpoint is on this node. Replies must come back through this node.
	KeepClientAddress bool
}

// Equal reports whether n and o are the same, lists in the same order.
func (n Node) Equal(o Node) bool {
	return n.Name == o.Name && n.Zone == o.Zone && n.MasqueradeAll == o.MasqueradeAll && n.KeepClientAddress == o.KeepClientAddress &&
		slices.Equal(n.Addrs, o.Addrs) && slices.Equal(n.Primary, o.Primary) &&
		slices.Equal(n.ServiceRanges, o.ServiceRanges) && n.Detector.Equal(o.Detector) && n.NodePorts.Equal(o.NodePorts)
}

// Validate returns nil if n makes sense, else an error that wraps [ErrInvalid]: an address or prefix that is not valid,
// has a zone or is an IPv4 one written as IPv6; or an interface name that is empty or longer than the kernel's 15 bytes.
func (n Node) Validate() error {
	for _, a := range slices.Concat(n.Addrs, n.Primary) {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
			return fmt.Errorf("node: address %v: %w", a, ErrInvalid)
		}
	}
	for _, p := range slices.Concat(n.Detector.Prefixes, n.NodePorts.Prefixes, n.ServiceRanges) {
		if !p.IsValid() || p.Addr().Is4In6() {
			return fmt.Errorf("node: prefix %v: %w", p, ErrInvalid)
		}
	}
	for _, i := range n.Detector.Interfaces {
		if i == "" || len(i) > 15 || strings.ContainsAny(i, "\x00/ \t\n\"") {
			return fmt.Errorf("node: interface name %q: %w", i, ErrInvalid)
		}
	}
	return nil
}

// clone returns a copy that shares no memory with n.
func (n Node) clone() Node {
	n.Addrs, n.Primary, n.ServiceRanges = slices.Clone(n.Addrs), slices.Clone(n.Primary), slices.Clone(n.ServiceRanges)
	n.Detector.Prefixes, n.Detector.Interfaces = slices.Clone(n.Detector.Prefixes), slices.Clone(n.Detector.Interfaces)
	n.NodePorts.Prefixes = slices.Clone(n.NodePorts.Prefixes)
	return n
}

// A LocalDetector recognises packets of internal sources, pods say, by source address or by the interface that they
// come in on. With both given, either suffices. A packet of the node itself has no such interface.
type LocalDetector struct {
	Prefixes []netip.Prefix
	// Interfaces are prefixes of interface names: "veth" matches veth0 and vethabc.
	Interfaces []string
}

// Equal reports whether d and o are the same, lists in the same order.
func (d LocalDetector) Equal(o LocalDetector) bool {
	return slices.Equal(d.Prefixes, o.Prefixes) && slices.Equal(d.Interfaces, o.Interfaces)
}

// Detects reports whether d can recognise sources of the family at all.
func (d LocalDetector) Detects(f Family) bool {
	return len(d.Interfaces) > 0 || slices.ContainsFunc(d.Prefixes, func(p netip.Prefix) bool { return FamilyOf(p.Addr()) == f })
}

// Internal reports whether d recognises a packet from src that came in on the named interface, empty for the node itself.
func (d LocalDetector) Internal(src netip.Addr, iface string) bool {
	return containsAddr(d.Prefixes, src) ||
		iface != "" && slices.ContainsFunc(d.Interfaces, func(p string) bool { return strings.HasPrefix(iface, p) })
}

// A NodePortScope says on which of the node's addresses node ports answer. The zero NodePortScope is all of them
// except loopback.
type NodePortScope struct {
	// Prefixes limits node ports to the node's addresses in them. A family with no prefix here is not limited, unless
	// Primary is set; a prefix of length 0 means every address of its family.
	Prefixes []netip.Prefix
	// Primary limits node ports to [Node.Primary], and to those in Prefixes. A family with neither has no node ports.
	Primary bool
	// Loopback lets IPv4 node ports answer to processes of the node on 127.0.0.0/8 as well. It needs the sysctl
	// net.ipv4.conf.all.route_localnet, which backends set only when their Config says so; packets from other hosts
	// to 127.0.0.0/8 are then dropped. There is no such thing in IPv6.
	Loopback bool
}

// Equal reports whether s and o are the same, prefixes in the same order.
func (s NodePortScope) Equal(o NodePortScope) bool {
	return s.Primary == o.Primary && s.Loopback == o.Loopback && slices.Equal(s.Prefixes, o.Prefixes)
}

// NodePortPrefixes returns the prefixes of one family in which an address of the node, loopback apart, serves node
// ports, and whether there is such a limit. With a limit and no prefixes the family has no node ports.
func (n Node) NodePortPrefixes(f Family) (prefixes []netip.Prefix, limited bool) {
	for _, p := range n.NodePorts.Prefixes {
		if FamilyOf(p.Addr()) != f {
			continue
		}
		if p.Bits() == 0 {
			return nil, false
		}
		prefixes = append(prefixes, p.Masked())
	}
	if n.NodePorts.Primary {
		for _, a := range n.Primary {
			if FamilyOf(a) == f {
				prefixes = append(prefixes, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	return prefixes, n.NodePorts.Primary || len(prefixes) > 0
}

// NodePortAddrs returns those of n.Addrs of one family on which node ports answer.
func (n Node) NodePortAddrs(f Family) []netip.Addr {
	prefixes, limited := n.NodePortPrefixes(f)
	var addrs []netip.Addr
	for _, a := range n.Addrs {
		if FamilyOf(a) == f && !a.IsLoopback() && (!limited || containsAddr(prefixes, a)) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}
