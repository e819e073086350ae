package lab

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The next hops of every link of the kit. They are the other end of a veth pair whose hardware address
// is known, so nothing waits for ARP or neighbour discovery.
var (
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

// Netlink is a route netlink handle of the namespace. The NetNS closes it.
func (n *NetNS) Netlink() (*netlink.Handle, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.links != nil {
		return n.links, nil
	}
	err := n.run(func() (err error) {
		n.links, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: netlink: %w", n.name, err)
	}
	n.onClose(n.links.Close)
	return n.links, nil
}

func (n *NetNS) linkUp(name string) error {
	_, err := n.withLink(name, func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetUp(l) })
	return err
}

func (n *NetNS) withLink(name string, f func(*netlink.Handle, netlink.Link) error) (netlink.Link, error) {
	h, err := n.Netlink()
	if err != nil {
		return nil, err
	}
	l, err := h.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: link %s: %w", n.name, name, err)
	}
	if err := f(h, l); err != nil {
		return nil, fmt.Errorf("network namespace %s: link %s: %w", n.name, name, err)
	}
	return l, nil
}

// AddAddr gives an interface of the namespace an address, usable at once. A bare address becomes a /32 or /128.
func (n *NetNS) AddAddr(link string, a netip.Addr) error {
	_, err := n.withLink(link, func(h *netlink.Handle, l netlink.Link) error { return h.AddrAdd(l, linkAddr(a)) })
	return err
}

// DelAddr takes an address away again.
func (n *NetNS) DelAddr(link string, a netip.Addr) error {
	_, err := n.withLink(link, func(h *netlink.Handle, l netlink.Link) error { return h.AddrDel(l, linkAddr(a)) })
	return err
}

func linkAddr(a netip.Addr) *netlink.Addr {
	addr := &netlink.Addr{IPNet: hostNet(a)}
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return addr
}

func hostNet(a netip.Addr) *net.IPNet { return ipNet(netip.PrefixFrom(a, a.BitLen())) }

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// A veth is one pair between two namespaces. Its ends know each other's hardware address.
type veth struct {
	node, host         *NetNS
	nodeLink, hostLink string
	number             int // distinguishes hardware addresses within a topology
	nodeIndex          int
	hostIndex          int
}

func (v *veth) nodeMAC() net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x4c, 0, byte(v.number >> 8), byte(v.number), 1}
}

func (v *veth) hostMAC() net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x4c, 0, byte(v.number >> 8), byte(v.number), 2}
}

// plug makes the pair and brings both ends up.
func (v *veth) plug() error {
	h, err := v.node.Netlink()
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = v.nodeLink, v.nodeMAC()
	pair := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         v.hostLink,
		PeerHardwareAddr: v.hostMAC(),
		PeerNamespace:    netlink.NsFd(v.host.fd),
	}
	if err := h.LinkAdd(pair); err != nil {
		return fmt.Errorf("link %s of %s to %s: %w", v.nodeLink, v.node.name, v.host.name, err)
	}
	up := func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetUp(l) }
	l, err := v.node.withLink(v.nodeLink, up)
	if err != nil {
		return err
	}
	v.nodeIndex = l.Attrs().Index
	if l, err = v.host.withLink(v.hostLink, up); err != nil {
		return err
	}
	v.hostIndex = l.Attrs().Index
	return nil
}

// fromHost routes prefixes of the host's side to the node.
func (v *veth) fromHost(prefixes []netip.Prefix) error {
	return routeVia(v.host, v.hostIndex, v.nodeMAC(), prefixes, nil)
}

// toHost routes addresses of the node's side to the host.
func (v *veth) toHost(addrs []netip.Addr) error {
	h, err := v.node.Netlink()
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if err := h.NeighSet(neighbour(v.nodeIndex, a, v.hostMAC())); err != nil {
			return fmt.Errorf("neighbour %s of %s: %w", a, v.node.name, err)
		}
		r := &netlink.Route{LinkIndex: v.nodeIndex, Dst: hostNet(a)}
		if a.Is4() {
			r.Scope = netlink.SCOPE_LINK
		}
		if err := h.RouteReplace(r); err != nil {
			return fmt.Errorf("route to %s in %s: %w", a, v.node.name, err)
		}
	}
	return nil
}

// routeVia routes prefixes through the gateway at the other end of a link. sources, where given, says
// which source address the namespace's own packets get, by family.
func routeVia(n *NetNS, index int, gatewayMAC net.HardwareAddr, prefixes []netip.Prefix, sources map[bool]netip.Addr) error {
	h, err := n.Netlink()
	if err != nil {
		return err
	}
	known := map[bool]bool{}
	for _, p := range prefixes {
		v6 := p.Addr().Is6()
		gw := gateway4
		if v6 {
			gw = gateway6
		}
		if !known[v6] {
			known[v6] = true
			if err := h.NeighSet(neighbour(index, gw, gatewayMAC)); err != nil {
				return fmt.Errorf("neighbour %s of %s: %w", gw, n.name, err)
			}
		}
		r := &netlink.Route{LinkIndex: index, Dst: ipNet(p.Masked()), Gw: gw.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
		if src, ok := sources[v6]; ok {
			r.Src = src.AsSlice()
		}
		if err := h.RouteReplace(r); err != nil {
			return fmt.Errorf("route to %s in %s: %w", p, n.name, err)
		}
	}
	return nil
}

func neighbour(index int, a netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: index, IP: a.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT, Type: unix.RTN_UNICAST}
}

// blackhole swallows in silence whatever the namespace does not know.
func (n *NetNS) blackhole() error {
	h, err := n.Netlink()
	if err != nil {
		return err
	}
	for _, p := range everything {
		if err := h.RouteReplace(&netlink.Route{Dst: ipNet(p), Type: unix.RTN_BLACKHOLE}); err != nil {
			return fmt.Errorf("blackhole in %s: %w", n.name, err)
		}
	}
	return nil
}

// everything is the default route of both families.
var everything = []netip.Prefix{
	netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	netip.PrefixFrom(netip.IPv6Unspecified(), 0),
}
