package peers

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Protocol is what a question is asked over. ICMP stands for ICMPv6 too.
type Protocol string

// The protocols.
const (
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	SCTP Protocol = "sctp"
	ICMP Protocol = "icmp"
)

// number is the protocol's number in the header of a family.
func (p Protocol) number(v6 bool) uint8 {
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
	return 0
}

func protocolOf(number uint8, v6 bool) Protocol {
	for _, p := range [...]Protocol{TCP, UDP, SCTP, ICMP} {
		if p.number(v6) == number {
			return p
		}
	}
	return ""
}

// A part is what a packet means in an exchange.
type part uint8

const (
	other    part = iota // nothing of ours, or nothing that matters
	question             // SYN, datagram, INIT, echo request
	answer               // SYN and ACK, datagram, INIT ACK, echo reply
	confirm              // a bare ACK
	data                 // what a client says over an open connection
	dataBack             // and what the endpoint says to it
	refusal              // RST or ABORT
	report               // an ICMP error: destination unreachable
)

var partNames = [...]string{"other", "question", "answer", "confirm", "data", "data back", "refusal", "report"}

func (p part) String() string { return partNames[p] }

// A packet is one IP packet of an exchange. What address translation leaves alone, the initial sequence number or what
// corresponds to it, carries the token that names the exchange.
type packet struct {
	proto    Protocol
	part     part
	src, dst netip.AddrPort // port 0 for ICMP
	token    uint32
	seq, ack uint32 // of TCP
	size     uint32 // of TCP data that came in
	id       uint16 // of an echo
	// code is that of a report.
	code uint8
	// about is what a report is about: a packet in which token may be missing.
	about *packet
}

func (p packet) v6() bool { return p.dst.Addr().Is6() }

func (p packet) String() string {
	s := fmt.Sprintf("%s > %s %s %s", p.src, p.dst, p.proto, p.part)
	if p.about != nil {
		s += fmt.Sprintf(" (code %d) about %s", p.code, *p.about)
	}
	return s
}

// answered returns what the endpoint that a question or data reached sends back.
func (p packet) answered() packet {
	a := packet{proto: p.proto, part: answer, src: p.dst, dst: p.src, token: p.token, id: p.id, seq: serverToken(p.token), ack: p.token + 1}
	if p.part == data {
		a.part, a.seq, a.ack = dataBack, p.ack, p.seq+p.size
	}
	return a
}

// next returns what a client sends once p, which came for it, has arrived.
func (p packet) next(what part) packet {
	n := packet{proto: p.proto, part: what, src: p.dst, dst: p.src, token: p.token, seq: p.ack, ack: p.seq + 1}
	if p.part == dataBack {
		n.ack = p.seq + p.size
	}
	return n
}

// serverToken is what an endpoint has where the client has its token.
func serverToken(token uint32) uint32 { return ^token }

// encode is the packet on the wire.
func (p packet) encode() []byte {
	var b []byte
	switch p.proto {
	case TCP:
		b = p.encodeTCP()
	case UDP:
		b = p.encodeUDP()
	case SCTP:
		b = p.encodeSCTP()
	default:
		b = p.encodeEcho()
	}
	number := p.proto.number(p.v6())
	putChecksum(number, p.src.Addr(), p.dst.Addr(), b)
	return append(ipHeader(p.src.Addr(), p.dst.Addr(), number, len(b)), b...)
}

func ipHeader(src, dst netip.Addr, number uint8, length int) []byte {
	if dst.Is6() {
		h := make([]byte, 8, 40+length)
		h[0] = 6 << 4
		binary.BigEndian.PutUint16(h[4:], uint16(length))
		h[6], h[7] = number, 64
		return append(append(h, src.AsSlice()...), dst.AsSlice()...)
	}
	h := make([]byte, 12, 20+length)
	h[0] = 4<<4 | 5
	binary.BigEndian.PutUint16(h[2:], uint16(20+length))
	h[6], h[8], h[9] = 1<<6, 64, number // don't fragment
	h = append(append(h, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(h[10:], ^sum(0, h))
	return h
}

// A rawPacket is an IP packet taken apart as far as its addresses.
type rawPacket struct {
	number   uint8
	src, dst netip.Addr
	payload  []byte
}

// splitIP takes off the IP header. Fragments and extension headers are none of ours. A quoted packet may be cut off.
func splitIP(b []byte, quoted bool) (rawPacket, bool) {
	if len(b) >= 20 && b[0]>>4 == 4 {
		header, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
		if header < 20 || len(b) < header || total < header || binary.BigEndian.Uint16(b[6:])&0x3fff != 0 {
			return rawPacket{}, false
		}
		if !quoted && len(b) < total {
			return rawPacket{}, false
		}
		return rawPacket{
			number: b[9], src: netip.AddrFrom4([4]byte(b[12:16])), dst: netip.AddrFrom4([4]byte(b[16:20])),
			payload: b[header:min(total, len(b))],
		}, true
	}
	if len(b) >= 40 && b[0]>>4 == 6 {
		total := 40 + int(binary.BigEndian.Uint16(b[4:]))
		if !quoted && len(b) < total {
			return rawPacket{}, false
		}
		return rawPacket{
			number: b[6], src: netip.AddrFrom16([16]byte(b[8:24])), dst: netip.AddrFrom16([16]byte(b[24:40])),
			payload: b[40:min(total, len(b))],
		}, true
	}
	return rawPacket{}, false
}

// decode reads what follows the IP header. What is none of ours comes out as other.
func (r rawPacket) decode() packet {
	p := packet{proto: protocolOf(r.number, r.dst.Is6())}
	p.src, p.dst = netip.AddrPortFrom(r.src, 0), netip.AddrPortFrom(r.dst, 0)
	if p.proto == ICMP {
		p.decodeICMP(r.payload)
		return p
	}
	if p.proto == "" || len(r.payload) < 8 {
		return p
	}
	p.src = netip.AddrPortFrom(r.src, binary.BigEndian.Uint16(r.payload))
	p.dst = netip.AddrPortFrom(r.dst, binary.BigEndian.Uint16(r.payload[2:]))
	switch p.proto {
	case TCP:
		p.decodeTCP(r.payload)
	case UDP:
		p.decodeUDP(r.payload)
	case SCTP:
		p.decodeSCTP(r.payload)
	}
	return p
}
