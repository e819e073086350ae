package peers

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// every packet that this package sends.
func sent() []packet {
	var ps []packet
	for _, pair := range [][2]string{{"10.128.0.100:40000", "172.20.0.1:80"}, {"[fd10::1]:40000", "[fd20::1]:80"}} {
		for _, proto := range []Protocol{TCP, UDP, SCTP, ICMP} {
			for _, part := range []part{question, answer} {
				p := packet{proto: proto, part: part, src: ap(pair[0]), dst: ap(pair[1]), token: 0x1234500}
				switch {
				case proto == TCP && part == question:
					p.seq = p.token
				case proto == TCP:
					p.seq, p.ack = serverToken(p.token), p.token+1
				case proto == ICMP:
					p.src, p.dst, p.id = netip.AddrPortFrom(p.src.Addr(), 0), netip.AddrPortFrom(p.dst.Addr(), 0), 7
				}
				ps = append(ps, p)
			}
		}
		ps = append(ps, packet{proto: TCP, part: data, src: ap(pair[0]), dst: ap(pair[1]), token: 9, seq: 1, ack: 2, size: dataLen},
			packet{proto: TCP, part: dataBack, src: ap(pair[0]), dst: ap(pair[1]), token: 9, seq: 1, ack: 2, size: dataLen},
			packet{proto: TCP, part: refusal, src: ap(pair[0]), dst: ap(pair[1]), token: 9, seq: 10})
	}
	return ps
}

func TestPacketsComeBackAsTheyWere(t *testing.T) {
	for _, p := range sent() {
		b := p.encode()
		r, ok := splitIP(b, false)
		require.True(t, ok, p.String())
		require.True(t, r.intact(), p.String())
		require.Equal(t, p, r.decode(), p.String())
		if p.src.Addr().Is4() {
			require.EqualValues(t, 0xffff, sum(0, b[:20]), "checksum of the header of %s", p)
		}
		for i := range r.payload {
			r.payload[i] ^= 0x40
			require.False(t, r.intact(), "%s with byte %d broken", p, i)
			r.payload[i] ^= 0x40
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, p := range sent() {
		b := p.encode()
		f.Add(b)
		// An ICMP error about it.
		typ := []byte{icmpUnreachable, 3, 0, 0, 0, 0, 0, 0}
		number := ICMP.number(p.v6())
		if p.v6() {
			typ[0], typ[1] = icmp6Unreachable, 4
		}
		f.Add(append(ipHeader(p.dst.Addr(), p.src.Addr(), number, len(b)+8), append(typ, b...)...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, ok := splitIP(b, false)
		if !ok {
			return
		}
		r.intact()
		p := r.decode()
		_ = p.String()
		if p.part == question && p.proto != "" {
			again, ok := splitIP(p.encode(), false)
			require.True(t, ok)
			got := again.decode()
			require.Equal(t, p.token, got.token)
			require.Equal(t, p.src, got.src)
			require.Equal(t, p.dst, got.dst)
		}
	})
}

func TestReportsNameWhatTheyAreAbout(t *testing.T) {
	for _, p := range sent() {
		if p.part != question {
			continue
		}
		b := p.encode()
		header := 20
		typ := byte(icmpUnreachable)
		if p.v6() {
			header, typ = 40, icmp6Unreachable
		}
		for _, cut := range []int{header + 8, len(b)} {
			quote := append([]byte{typ, 3, 0, 0, 0, 0, 0, 0}, b[:cut]...)
			r := rawPacket{number: ICMP.number(p.v6()), src: p.dst.Addr(), dst: p.src.Addr(), payload: quote}
			got := r.decode()
			require.Equal(t, report, got.part, p.String())
			require.Equal(t, p.src, got.about.src)
			require.Equal(t, p.dst, got.about.dst)
		}
	}
}
