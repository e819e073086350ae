package lab

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
)

// Chunk types and parameters of RFC 9260.
const (
	sctpInit         = 1
	sctpInitAck      = 2
	sctpHeartbeat    = 4
	sctpHeartbeatAck = 5
	sctpAbort        = 6
	sctpCookieEcho   = 10
	sctpCookieAck    = 11

	sctpParamHeartbeat = 1
	sctpParamCookie    = 7

	sctpFixedInit = 16 // bytes of an INIT or INIT ACK before its parameters
	sctpTagOfPeer = 1  // T bit of an ABORT: it bears the tag of whom it goes to
)

// An sctpPacket is one SCTP packet with one chunk, which is all that the kit speaks.
type sctpPacket struct {
	sport, dport uint16
	tag          uint32 // verification tag
	chunk        sctpChunk
}

type sctpChunk struct {
	typ, flags uint8
	value      []byte
}

func (p sctpPacket) encode() []byte {
	b := binary.BigEndian.AppendUint16(nil, p.sport)
	b = binary.BigEndian.AppendUint16(b, p.dport)
	b = binary.BigEndian.AppendUint32(b, p.tag)
	b = append(b, 0, 0, 0, 0)
	b = append(b, p.chunk.encode()...)
	putSCTPChecksum(b)
	return b
}

func (c sctpChunk) encode() []byte {
	b := binary.BigEndian.AppendUint16([]byte{c.typ, c.flags}, uint16(4+len(c.value)))
	return pad4(append(b, c.value...))
}

func pad4(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// parseSCTP reads the header and the first chunk. It does not check the checksum: the kernel or the
// kit itself made the packet.
func parseSCTP(b []byte) (sctpPacket, bool) {
	if len(b) < 12 {
		return sctpPacket{}, false
	}
	p := sctpPacket{
		sport: binary.BigEndian.Uint16(b),
		dport: binary.BigEndian.Uint16(b[2:]),
		tag:   binary.BigEndian.Uint32(b[4:]),
	}
	var ok bool
	p.chunk, ok = firstChunk(b[12:])
	return p, ok
}

func firstChunk(b []byte) (sctpChunk, bool) {
	if len(b) < 4 {
		return sctpChunk{}, false
	}
	length := int(binary.BigEndian.Uint16(b[2:]))
	if length < 4 || length > len(b) {
		return sctpChunk{}, false
	}
	return sctpChunk{typ: b[0], flags: b[1], value: b[4:length]}, true
}

// initChunk makes an INIT, or an INIT ACK with its cookie.
func initChunk(typ uint8, tag uint32, cookie string) sctpChunk {
	v := binary.BigEndian.AppendUint32(nil, tag)
	v = binary.BigEndian.AppendUint32(v, 65536) // receiver window, in bytes
	v = binary.BigEndian.AppendUint16(v, 1)     // outbound streams
	v = binary.BigEndian.AppendUint16(v, 1)     // inbound streams
	v = binary.BigEndian.AppendUint32(v, tag)   // initial TSN
	if cookie != "" {
		v = append(v, param(sctpParamCookie, cookie)...)
	}
	return sctpChunk{typ: typ, value: v}
}

func param(typ uint16, value string) []byte {
	b := binary.BigEndian.AppendUint16(nil, typ)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(value)))
	return pad4(append(b, value...))
}

// paramValue finds a parameter in a list of them.
func paramValue(b []byte, typ uint16) (string, bool) {
	for len(b) >= 4 {
		length := int(binary.BigEndian.Uint16(b[2:]))
		if length < 4 || length > len(b) {
			return "", false
		}
		if binary.BigEndian.Uint16(b) == typ {
			return string(b[4:length]), true
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	return "", false
}

// newTag makes a verification tag: anything but zero.
func newTag() uint32 { return rand.Uint32() | 1 }

// ephemeralPort picks a port that no server of a test has.
func ephemeralPort() uint16 { return uint16(49152 + rand.IntN(65536-49152)) }

// SCTPInit is the payload of the first packet of an association, for Inject.
func SCTPInit() []byte { return initChunk(sctpInit, newTag(), "").encode() }

// An association is known by its two ends.
type association struct {
	local, peer netip.AddrPort
}
