package iptables

import (
	"net/netip"

	"github.com/headgate/headgate/model"
)

// A layout says what the digits of a tree's keys stand for.
type layout struct {
	family model.Family
	// addr is the match for the address with which keys begin, "-d " or "-s "; empty if they have none.
	addr string
	// ports says that a protocol (one digit) and a destination port (eight) follow.
	ports bool
}

const (
	protoDigits = 1
	portDigits  = 16 / digitBits
)

// addrDigits is how many digits of a key are the address.
func (l layout) addrDigits() int {
	if l.addr == "" {
		return 0
	}
	return l.family.Bits() / digitBits
}

// key returns the key of an address, protocol and port, of those that the layout has.
func (l layout) key(a netip.AddrPort, p model.Protocol) string {
	b := make([]byte, 0, l.addrDigits()+protoDigits+portDigits)
	if l.addr != "" {
		b = appendAddr(b, a.Addr(), l.addrDigits())
	}
	if l.ports {
		b = append(b, byte(p))
		for shift := 16 - digitBits; shift >= 0; shift -= digitBits {
			b = append(b, byte(a.Port()>>shift)&(fanOut-1))
		}
	}
	return string(b)
}

func appendAddr(b []byte, a netip.Addr, digits int) []byte {
	raw := a.AsSlice()
	for i := range digits {
		b = append(b, raw[i/4]>>(6-2*(i%4))&(fanOut-1))
	}
	return b
}

// match returns the matches for packets whose key begins with to, given that it is known to begin with from.
func (l layout) match(from, to string) string {
	nAddr := l.addrDigits()
	var addr, rest string
	if n := min(len(to), nAddr); n > len(from) {
		addr = matchPrefix(l.addr, l.prefix(to[:n]))
	}
	switch {
	case len(to) > nAddr+protoDigits && len(to) > len(from):
		lo, hi := portRange(to[nAddr+protoDigits:])
		rest = matchPorts(model.Protocol(to[nAddr]), lo, hi)
	case len(to) > nAddr && len(from) <= nAddr:
		rest = matchProto(model.Protocol(to[nAddr]))
	}
	return words(addr, rest)
}

// prefix returns the address prefix that digits stand for.
func (l layout) prefix(digits string) netip.Prefix {
	raw := make([]byte, l.family.Bits()/8)
	for i := range len(digits) {
		raw[i/4] |= digits[i] << (6 - 2*(i%4))
	}
	a, _ := netip.AddrFromSlice(raw)
	return netip.PrefixFrom(a, len(digits)*digitBits)
}

// portRange returns the ports that begin with digits.
func portRange(digits string) (lo, hi uint16) {
	for i := range len(digits) {
		lo |= uint16(digits[i]) << (16 - digitBits*(i+1))
	}
	return lo, lo | uint16(1<<(16-digitBits*len(digits))-1)
}
