package lab

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Protocol is what a probe speaks and a server answers.
type Protocol string

// The protocols of the kit. SCTP is spoken over raw sockets, because not every kernel has it; ICMP
// stands for ICMPv6 too and is answered by the kernel.
const (
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	SCTP Protocol = "sctp"
	ICMP Protocol = "icmp"
)

// number is the IP protocol number.
func (p Protocol) number(v6 bool) int {
	switch p {
	case TCP:
		return unix.IPPROTO_TCP
	case UDP:
		return unix.IPPROTO_UDP
	case SCTP:
		return unix.IPPROTO_SCTP
	case ICMP:
		if v6 {
			return unix.IPPROTO_ICMPV6
		}
		return unix.IPPROTO_ICMP
	}
	return -1
}

func (p Protocol) check() error {
	if p.number(false) < 0 {
		return fmt.Errorf("lab: unknown protocol %q", string(p))
	}
	return nil
}

func protocolOf(number int) Protocol {
	switch number {
	case unix.IPPROTO_TCP:
		return TCP
	case unix.IPPROTO_UDP:
		return UDP
	case unix.IPPROTO_SCTP:
		return SCTP
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return ICMP
	}
	return ""
}

func domain(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())}
	}
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port())}
}

func addrPortOf(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

func unspecified(v6 bool) netip.Addr {
	if v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}
