package peers

import (
	"bytes"
	"encoding/binary"
)

// What our datagrams and TCP data hold: a mark of what they are, and the token.
var (
	markQuestion = []byte("hg?\n")
	markAnswer   = []byte("hg!\n")
)

const dataLen = 8 // of a mark and a token

func marked(mark []byte, token uint32) []byte {
	return binary.BigEndian.AppendUint32(bytes.Clone(mark), token)
}

// unmarked reads what marked wrote.
func unmarked(b []byte) (token uint32, asks, ok bool) {
	if len(b) < dataLen {
		return 0, false, false
	}
	asks = bytes.Equal(b[:4], markQuestion)
	return binary.BigEndian.Uint32(b[4:]), asks, asks || bytes.Equal(b[:4], markAnswer)
}

// TCP flags.
const (
	flagSYN = 1 << 1
	flagRST = 1 << 2
	flagPSH = 1 << 3
	flagACK = 1 << 4
)

func (p packet) encodeTCP() []byte {
	b := make([]byte, 20, 20+dataLen)
	binary.BigEndian.PutUint16(b, p.src.Port())
	binary.BigEndian.PutUint16(b[2:], p.dst.Port())
	binary.BigEndian.PutUint32(b[4:], p.seq)
	binary.BigEndian.PutUint32(b[8:], p.ack)
	b[12] = 5 << 4
	binary.BigEndian.PutUint16(b[14:], 65535)
	switch p.part {
	case question:
		b[13] = flagSYN
		clear(b[8:12])
	case answer:
		b[13] = flagSYN | flagACK
	case refusal:
		b[13] = flagRST
		clear(b[8:12])
	case data:
		b[13] = flagPSH | flagACK
		b = append(b, marked(markQuestion, p.token)...)
	case dataBack:
		b[13] = flagPSH | flagACK
		b = append(b, marked(markAnswer, p.token)...)
	default:
		b[13] = flagACK
	}
	return b
}

// decodeTCP reads a segment, or the first 8 bytes of one, as a report quotes it.
func (p *packet) decodeTCP(b []byte) {
	p.seq = binary.BigEndian.Uint32(b[4:])
	if len(b) < 20 {
		p.part, p.token = question, p.seq
		return
	}
	p.ack = binary.BigEndian.Uint32(b[8:])
	payload := b[min(max(int(b[12]>>4)*4, 20), len(b)):]
	p.size = uint32(len(payload))
	switch flags := b[13]; {
	case flags&flagRST != 0 && flags&flagACK != 0:
		p.part, p.token = refusal, p.ack-1
	case flags&flagRST != 0:
		p.part, p.token = refusal, p.seq-1
	case flags&flagSYN != 0 && flags&flagACK != 0:
		p.part, p.token = answer, p.ack-1
	case flags&flagSYN != 0:
		p.part, p.token = question, p.seq
	case flags&flagACK != 0 && len(payload) == 0:
		p.part = confirm
	default:
		if token, asks, ok := unmarked(payload); ok {
			p.part, p.token = dataBack, token
			if asks {
				p.part = data
			}
		}
	}
}

func (p packet) encodeUDP() []byte {
	b := make([]byte, 8, 8+dataLen)
	binary.BigEndian.PutUint16(b, p.src.Port())
	binary.BigEndian.PutUint16(b[2:], p.dst.Port())
	binary.BigEndian.PutUint16(b[4:], 8+dataLen)
	if p.part == question {
		return append(b, marked(markQuestion, p.token)...)
	}
	return append(b, marked(markAnswer, p.token)...)
}

func (p *packet) decodeUDP(b []byte) {
	if token, asks, ok := unmarked(b[8:]); ok {
		p.part, p.token = answer, token
		if asks {
			p.part = question
		}
	}
}

// Types of SCTP chunks (RFC 9260 section 3.2).
const (
	chunkInit    = 1
	chunkInitAck = 2
	chunkAbort   = 6
)

func (p packet) encodeSCTP() []byte {
	b := make([]byte, 12, 40)
	binary.BigEndian.PutUint16(b, p.src.Port())
	binary.BigEndian.PutUint16(b[2:], p.dst.Port())
	init := func(typ byte, length uint16, token uint32) {
		b = append(b, typ, 0, byte(length>>8), byte(length))
		b = binary.BigEndian.AppendUint32(b, token)
		b = append(b, 0, 1, 0, 0, 0, 1, 0, 1) // window, streams each way
		b = binary.BigEndian.AppendUint32(b, token)
	}
	switch p.part {
	case question:
		init(chunkInit, 20, p.token)
	case answer:
		binary.BigEndian.PutUint32(b[4:], p.token) // the verification tag is that of whom it is for
		init(chunkInitAck, 28, serverToken(p.token))
		b = append(b, 0, 7, 0, 8, 'h', 'g', '!', '\n') // state cookie
	default: // the client's refusal
		binary.BigEndian.PutUint32(b[4:], serverToken(p.token))
		b = append(b, chunkAbort, 0, 0, 4)
	}
	return b
}

// decodeSCTP reads a packet, of which a report may quote the beginning.
func (p *packet) decodeSCTP(b []byte) {
	tag := binary.BigEndian.Uint32(b[4:])
	if len(b) < 16 {
		p.part = question // our others are never reported about
		return
	}
	switch b[12] {
	case chunkInit:
		p.part = question
		if len(b) >= 20 {
			p.token = binary.BigEndian.Uint32(b[16:])
		}
	case chunkInitAck:
		p.part, p.token = answer, tag
	case chunkAbort:
		p.part, p.token = refusal, tag
	}
}

// Types of ICMP and ICMPv6 messages.
const (
	icmpEchoReply    = 0
	icmpUnreachable  = 3
	icmpEcho         = 8
	icmp6Unreachable = 1
	icmp6Echo        = 128
	icmp6EchoReply   = 129
)

func (p packet) encodeEcho() []byte {
	asks := p.part == question
	b := make([]byte, 8, 8+dataLen)
	switch {
	case p.v6() && asks:
		b[0] = icmp6Echo
	case p.v6():
		b[0] = icmp6EchoReply
	case asks:
		b[0] = icmpEcho
	default:
		b[0] = icmpEchoReply
	}
	binary.BigEndian.PutUint16(b[4:], p.id)
	b[7] = 1
	return append(b, marked(markQuestion, p.token)...)
}

func (p *packet) decodeICMP(b []byte) {
	if len(b) < 8 {
		return
	}
	typ, unreachable := b[0], byte(icmpUnreachable)
	p.id = binary.BigEndian.Uint16(b[4:])
	token, _, ours := unmarked(b[8:])
	if p.v6() {
		unreachable = icmp6Unreachable
	}
	switch {
	case typ == unreachable:
		if r, ok := splitIP(b[8:], true); ok {
			about := r.decode()
			p.part, p.code, p.about = report, b[1], &about
		}
	case ours && (!p.v6() && typ == icmpEcho || p.v6() && typ == icmp6Echo):
		p.part, p.token = question, token
	case ours && (!p.v6() && typ == icmpEchoReply || p.v6() && typ == icmp6EchoReply):
		p.part, p.token = answer, token
	}
}
