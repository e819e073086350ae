package peers

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"

	"golang.org/x/sys/unix"
)

// sum is the one's complement sum of RFC 1071 over b, added to what was summed before over an even number of bytes.
func sum(before uint16, b []byte) uint16 {
	s := uint32(before)
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// pseudoSum is the sum over the pseudo header (RFC 9293 section 3.1, RFC 8200 section 8.1).
func pseudoSum(number uint8, src, dst netip.Addr, length int) uint16 {
	s := sum(sum(0, src.AsSlice()), dst.AsSlice())
	return sum(s, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(length)), uint32(number)))
}

// sctpSum is the checksum of SCTP (RFC 9260 appendix A) over a packet whose checksum field is zero.
func sctpSum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// checksumAt says where the checksum of a protocol is, and whether the pseudo header counts.
func checksumAt(number uint8) (offset int, pseudo bool) {
	switch number {
	case unix.IPPROTO_TCP:
		return 16, true
	case unix.IPPROTO_UDP:
		return 6, true
	case unix.IPPROTO_ICMPV6:
		return 2, true
	case unix.IPPROTO_ICMP:
		return 2, false
	}
	return -1, false
}

// putChecksum fills in the checksum of what follows an IP header.
func putChecksum(number uint8, src, dst netip.Addr, b []byte) {
	if number == unix.IPPROTO_SCTP {
		clear(b[8:12])
		binary.LittleEndian.PutUint32(b[8:], sctpSum(b))
		return
	}
	offset, pseudo := checksumAt(number)
	clear(b[offset : offset+2])
	var before uint16
	if pseudo {
		before = pseudoSum(number, src, dst, len(b))
	}
	c := ^sum(before, b)
	if c == 0 && number == unix.IPPROTO_UDP {
		c = 0xffff // zero says that there is none
	}
	binary.BigEndian.PutUint16(b[offset:], c)
}

// intact reports whether the checksum of a packet is right, as far as it has one that we know.
func (r rawPacket) intact() bool {
	if r.number == unix.IPPROTO_SCTP {
		if len(r.payload) < 12 {
			return false
		}
		b := append([]byte(nil), r.payload...)
		clear(b[8:12])
		return binary.LittleEndian.Uint32(r.payload[8:]) == sctpSum(b)
	}
	offset, pseudo := checksumAt(r.number)
	if offset < 0 {
		return true
	}
	if len(r.payload) < offset+2 {
		return false
	}
	if r.number == unix.IPPROTO_UDP && r.dst.Is4() && binary.BigEndian.Uint16(r.payload[offset:]) == 0 {
		return true
	}
	var before uint16
	if pseudo {
		before = pseudoSum(r.number, r.src, r.dst, len(r.payload))
	}
	return sum(before, r.payload) == 0xffff
}
