package conntrack

import (
	"context"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Sizes of struct ifaddrmsg.
const ifAddrLen = unix.SizeofIfAddrmsg

// nodeAddrs asks the kernel for the addresses of the namespace's interfaces, loopback addresses included.
func nodeAddrs(ctx context.Context, route *conn) ([]netip.Addr, error) {
	m := netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETADDR, Flags: netlink.Request | netlink.Dump},
		Data:   make([]byte, ifAddrLen), // family AF_UNSPEC: all
	}
	seen := map[netip.Addr]struct{}{}
	err := route.list(ctx, m, func(msgs [][]byte) error {
		for _, msg := range msgs {
			if a, ok := ifaceAddr(msg); ok {
				seen[a] = struct{}{}
			}
		}
		return nil
	})
	addrs := make([]netip.Addr, 0, len(seen))
	for a := range seen {
		addrs = append(addrs, a)
	}
	return addrs, err
}

// ifaceAddr reads an RTM_NEWADDR message. On a point-to-point link the local address is another than the peer's, and
// only the former is ours.
func ifaceAddr(msg []byte) (addr netip.Addr, ok bool) {
	if len(msg) < ifAddrLen {
		return addr, false
	}
	for a, rest := nextAttribute(msg[ifAddrLen:]); a.whole != nil; a, rest = nextAttribute(rest) {
		switch a.typ {
		case unix.IFA_LOCAL:
			if local, ok := netip.AddrFromSlice(a.data); ok {
				return local, true
			}
		case unix.IFA_ADDRESS:
			addr, ok = netip.AddrFromSlice(a.data)
		}
	}
	return addr, ok
}
