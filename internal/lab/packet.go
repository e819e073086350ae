package lab

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"

	"golang.org/x/sys/unix"
)

// TCP flags of a Packet.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
)

// A Packet is what a Sniffer saw of one IP packet, or what Inject shall send.
type Packet struct {
	// Link is the interface of the namespace that it passed, and Out whether it left there.
	Link string
	Out  bool

	Proto    Protocol
	Src, Dst netip.AddrPort // port 0 for ICMP
	// Flags and Seq are those of TCP. Type and Code are those of ICMP.
	Flags, Type, Code uint8
	Seq               uint32
	// Payload is what follows the header: for SCTP the chunks, for an ICMP error the start of the packet
	// that it is about.
	Payload []byte
}

func (p Packet) String() string {
	way := "in"
	if p.Out {
		way = "out"
	}
	s := fmt.Sprintf("%s %s: %s -> %s %s", p.Link, way, p.Src, p.Dst, p.Proto)
	switch p.Proto {
	case TCP:
		for i, f := range []string{"FIN", "SYN", "RST", "PSH", "ACK"} {
			if p.Flags&(1<<i) != 0 {
				s += " " + f
			}
		}
	case ICMP:
		s += fmt.Sprintf(" type %d code %d", p.Type, p.Code)
	}
	return s
}

// fingerprint is what address translation leaves as it is, so that one packet is recognised on both
// sides of it. It is "" for packets that have none, such as pure acknowledgements.
func (p Packet) fingerprint() string {
	switch p.Proto {
	case TCP:
		if p.Flags&(SYN|ACK) == SYN {
			return fmt.Sprintf("syn %d", p.Seq)
		}
	case UDP:
		return "udp " + string(p.Payload)
	case SCTP:
		if c, ok := firstChunk(p.Payload); ok && c.typ == sctpInit && len(c.value) >= 4 {
			return fmt.Sprintf("init %d", binary.BigEndian.Uint32(c.value))
		}
	case ICMP:
		if p.Type == icmpEcho || p.Type == icmp6Echo {
			return "echo " + string(p.Payload)
		}
	}
	return ""
}

// decode reads an IP packet. It reports false for what is none of ours: fragments, extension headers, other
// protocols, truncated packets.
func decode(b []byte) (Packet, bool) {
	if len(b) < 1 {
		return Packet{}, false
	}
	switch b[0] >> 4 {
	case 4:
		header := int(b[0]&0xf) * 4
		if header < 20 || len(b) < header || binary.BigEndian.Uint16(b[6:])&0x3fff != 0 {
			return Packet{}, false
		}
		if total := int(binary.BigEndian.Uint16(b[2:])); total >= header && total < len(b) {
			b = b[:total]
		}
		src, dst := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		return decodeTransport(int(b[9]), src, dst, b[header:])
	case 6:
		if len(b) < 40 {
			return Packet{}, false
		}
		if total := 40 + int(binary.BigEndian.Uint16(b[4:])); total < len(b) {
			b = b[:total]
		}
		src, dst := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		return decodeTransport(int(b[6]), src, dst, b[40:])
	}
	return Packet{}, false
}

func decodeTransport(number int, src, dst netip.Addr, b []byte) (Packet, bool) {
	p := Packet{Proto: protocolOf(number)}
	need := map[Protocol]int{TCP: 20, UDP: 8, SCTP: 12, ICMP: 8}[p.Proto]
	if need == 0 || len(b) < need {
		return Packet{}, false
	}
	var sport, dport uint16
	if p.Proto != ICMP {
		sport, dport = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	}
	p.Src, p.Dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	switch p.Proto {
	case TCP:
		p.Seq, p.Flags = binary.BigEndian.Uint32(b[4:]), b[13]
		need = int(b[12]>>4) * 4
		if need < 20 || len(b) < need {
			return Packet{}, false
		}
	case ICMP:
		p.Type, p.Code = b[0], b[1]
	}
	p.Payload = append([]byte(nil), b[need:]...)
	return p, true
}

// encode is the packet on the wire. The ICMP header beyond type and code is zero.
func (p Packet) encode() []byte {
	v6 := p.Dst.Addr().Is6()
	number := p.Proto.number(v6)
	var b []byte
	switch p.Proto {
	case TCP:
		b = make([]byte, 20)
		binary.BigEndian.PutUint32(b[4:], p.Seq)
		b[12], b[13] = 5<<4, p.Flags
		binary.BigEndian.PutUint16(b[14:], 65535)
	case UDP:
		b = make([]byte, 8)
		binary.BigEndian.PutUint16(b[4:], uint16(8+len(p.Payload)))
	case SCTP:
		b = make([]byte, 12)
	case ICMP:
		b = []byte{p.Type, p.Code, 0, 0, 0, 0, 0, 0}
	}
	if p.Proto != ICMP {
		binary.BigEndian.PutUint16(b, p.Src.Port())
		binary.BigEndian.PutUint16(b[2:], p.Dst.Port())
	}
	b = append(b, p.Payload...)
	pseudo := pseudoHeader(p.Src.Addr(), p.Dst.Addr(), number, len(b))
	switch {
	case p.Proto == TCP:
		binary.BigEndian.PutUint16(b[16:], checksum(pseudo, b))
	case p.Proto == UDP:
		binary.BigEndian.PutUint16(b[6:], checksum(pseudo, b))
	case p.Proto == SCTP:
		putSCTPChecksum(b)
	case v6:
		binary.BigEndian.PutUint16(b[2:], checksum(pseudo, b))
	default:
		binary.BigEndian.PutUint16(b[2:], checksum(nil, b))
	}
	return append(ipHeader(p.Src.Addr(), p.Dst.Addr(), number, len(b)), b...)
}

func ipHeader(src, dst netip.Addr, number, length int) []byte {
	if dst.Is6() {
		h := make([]byte, 8, 40)
		h[0] = 6 << 4
		binary.BigEndian.PutUint16(h[4:], uint16(length))
		h[6], h[7] = byte(number), 64
		return append(append(h, src.AsSlice()...), dst.AsSlice()...)
	}
	h := make([]byte, 12, 20)
	h[0] = 4<<4 | 5
	binary.BigEndian.PutUint16(h[2:], uint16(20+length))
	h[8], h[9] = 64, byte(number)
	h = append(append(h, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(h[10:], checksum(nil, h))
	return h
}

func pseudoHeader(src, dst netip.Addr, number, length int) []byte {
	h := append(src.AsSlice(), dst.AsSlice()...)
	h = binary.BigEndian.AppendUint32(h, uint32(length))
	return binary.BigEndian.AppendUint32(h, uint32(number))
}

// checksum is that of RFC 1071 over the concatenation; the first part has an even length.
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, b := range parts {
		for i := 0; i < len(b)-1; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		if len(b)%2 == 1 {
			sum += uint32(b[len(b)-1]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	if sum == 0xffff {
		return 0xffff // UDP reads zero as "no checksum"; to the others both are the same
	}
	return ^uint16(sum)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// putSCTPChecksum fills in the checksum of an SCTP packet (RFC 9260, appendix A).
func putSCTPChecksum(b []byte) {
	clear(b[8:12])
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
}

func nativeUint32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

const (
	icmpEcho       = 8
	icmpEchoReply  = 0
	icmp6Echo      = 128
	icmp6EchoReply = 129
)

// htons is needed where the kernel takes a protocol in network byte order.
func htons(v uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)) }

var allFrames = htons(unix.ETH_P_ALL)
