package lab

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A tracked is what connection tracking made of a flow: whom the packet goes to, and as whom.
type tracked struct{ endpoint, peer netip.AddrPort }

// track looks a flow up in the namespace's connection tracking. active is false when nothing at all is
// tracked there, or the kernel cannot tell.
func (n *NetNS) track(p Protocol, src, dst netip.AddrPort) (flow *tracked, active bool) {
	var h *netlink.Handle
	err := n.run(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return nil, false
	}
	defer h.Close()
	family := netlink.InetFamily(domain(dst.Addr()))
	flows, err := h.ConntrackTableList(netlink.ConntrackTable, family)
	if err != nil {
		return nil, false
	}
	for _, f := range flows {
		if int(f.Forward.Protocol) != p.number(dst.Addr().Is6()) {
			continue
		}
		from, to := tupleEnd(f.Forward.SrcIP, f.Forward.SrcPort), tupleEnd(f.Forward.DstIP, f.Forward.DstPort)
		if from.Addr() != src.Addr() || to.Addr() != dst.Addr() || p != ICMP && (from != src || to != dst) {
			continue
		}
		flow = &tracked{endpoint: tupleEnd(f.Reverse.SrcIP, f.Reverse.SrcPort), peer: tupleEnd(f.Reverse.DstIP, f.Reverse.DstPort)}
	}
	return flow, len(flows) > 0
}

func tupleEnd(ip net.IP, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}
