package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/headgate/headgate/model"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"
)

// A flow is what of an entry in the table decides about it, and the attributes that name it to the kernel. Those point
// into the buffer that it was received in.
type flow struct {
	family model.Family
	proto  uint8
	// client and to are source and destination of the original direction, from and seen those of replies: the
	// endpoint, and the client as the endpoint sees it.
	client, to, from, seen netip.AddrPort
	zone                   uint16 // of the original direction

	reply, id, zoneAttr []byte // CTA_TUPLE_REPLY, CTA_ID, CTA_ZONE whole; the last may be missing
}

// translated reports whether replies come from elsewhere than the flow went to.
func (f *flow) translated() bool { return f.from != f.to }

// complete reports whether the flow is named well enough to be deleted, and nothing but it.
func (f *flow) complete() bool {
	return f.proto != 0 && f.from.IsValid() && f.seen.IsValid() && f.from.Port() != 0 && f.seen.Port() != 0 &&
		len(f.reply) > 0 && len(f.id) > 0
}

func (f *flow) String() string {
	return fmt.Sprintf("%s %s to %s answered by %s", protocolName(f.proto), f.client, f.to, f.from)
}

func protocolName(number uint8) string {
	for _, p := range model.Protocols {
		if p.Number() == number {
			return p.String()
		}
	}
	return fmt.Sprintf("protocol %d", number)
}

// decode reads an entry, a message without its netlink header. It returns false for what is no flow between ports.
// Attributes that it does not know, or that have an unusual shape, are passed over.
func (f *flow) decode(msg []byte) bool {
	*f = flow{}
	if len(msg) < nfHeaderLen {
		return false
	}
	switch netfilter.ProtoFamily(msg[0]) {
	case netfilter.ProtoIPv4:
		f.family = model.IPv4
	case netfilter.ProtoIPv6:
		f.family = model.IPv6
	default:
		return false
	}
	var orig, reply tuple
	for a, rest := nextAttribute(msg[nfHeaderLen:]); a.whole != nil; a, rest = nextAttribute(rest) {
		switch a.typ {
		case ctaTupleOrig:
			orig.decode(a.data)
		case ctaTupleReply:
			f.reply = a.whole
			reply.decode(a.data)
		case ctaID:
			f.id = a.whole
		case ctaZone:
			if len(a.data) >= 2 {
				f.zoneAttr, f.zone = a.whole, binary.BigEndian.Uint16(a.data)
			}
		}
	}
	f.proto, f.client, f.to, f.from, f.seen = orig.proto, orig.src, orig.dst, reply.src, reply.dst
	if orig.zone != 0 {
		f.zone = orig.zone
	}
	return orig.valid() && reply.valid() && orig.proto == reply.proto
}

// A tuple is one direction of a flow.
type tuple struct {
	proto    uint8
	src, dst netip.AddrPort
	zone     uint16 // where it is of this direction alone
}

func (t *tuple) valid() bool { return t.proto != 0 && t.src.IsValid() && t.dst.IsValid() }

func (t *tuple) decode(b []byte) {
	var src, dst netip.Addr
	var sport, dport uint16
	for a, rest := nextAttribute(b); a.whole != nil; a, rest = nextAttribute(rest) {
		switch a.typ {
		case ctaTupleIP:
			src, dst = decodeAddresses(a.data)
		case ctaTupleProto:
			t.proto, sport, dport = decodePorts(a.data)
		case ctaTupleZone:
			if len(a.data) >= 2 {
				t.zone = binary.BigEndian.Uint16(a.data)
			}
		}
	}
	t.src, t.dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
}

func decodeAddresses(b []byte) (src, dst netip.Addr) {
	for a, rest := nextAttribute(b); a.whole != nil; a, rest = nextAttribute(rest) {
		switch {
		case a.typ == ctaIPv4Src && len(a.data) == 4:
			src = netip.AddrFrom4([4]byte(a.data))
		case a.typ == ctaIPv4Dst && len(a.data) == 4:
			dst = netip.AddrFrom4([4]byte(a.data))
		case a.typ == ctaIPv6Src && len(a.data) == 16:
			src = netip.AddrFrom16([16]byte(a.data))
		case a.typ == ctaIPv6Dst && len(a.data) == 16:
			dst = netip.AddrFrom16([16]byte(a.data))
		}
	}
	return src, dst
}

func decodePorts(b []byte) (proto uint8, src, dst uint16) {
	for a, rest := nextAttribute(b); a.whole != nil; a, rest = nextAttribute(rest) {
		switch {
		case a.typ == ctaProtoNum && len(a.data) >= 1:
			proto = a.data[0]
		case a.typ == ctaProtoSrcPort && len(a.data) >= 2:
			src = binary.BigEndian.Uint16(a.data)
		case a.typ == ctaProtoDstPort && len(a.data) >= 2:
			dst = binary.BigEndian.Uint16(a.data)
		}
	}
	return proto, src, dst
}

// An attribute is one netlink attribute: its type without flags, its payload, and all of it, padding included.
type attribute struct {
	typ         uint16
	data, whole []byte
}

const (
	attrHeaderLen = unix.NLA_HDRLEN
	attrTypeMask  = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
)

// nextAttribute returns the first attribute in b and what follows it; one whose whole is nil if there is none that fits.
func nextAttribute(b []byte) (a attribute, rest []byte) {
	if len(b) < attrHeaderLen {
		return attribute{}, nil
	}
	n := int(binary.NativeEndian.Uint16(b))
	if n < attrHeaderLen || n > len(b) {
		return attribute{}, nil
	}
	padded := min(align(n), len(b))
	return attribute{binary.NativeEndian.Uint16(b[2:]) & attrTypeMask, b[attrHeaderLen:n], b[:padded]}, b[padded:]
}

// align rounds up to netlink's alignment.
func align(n int) int { return (n + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1) }

// uint32 returns a number in network byte order; 0 for anything else.
func (a attribute) uint32() uint32 {
	if len(a.data) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(a.data)
}
