package lab

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPacketRoundTrip(t *testing.T) {
	for _, family := range [][2]string{{"10.1.2.3", "172.20.0.1"}, {"fd10::1", "fd20::2"}} {
		for _, p := range []Packet{
			{Proto: TCP, Flags: SYN, Seq: 7},
			{Proto: TCP, Flags: PSH | ACK, Seq: 1 << 31, Payload: []byte("odd")},
			{Proto: UDP, Payload: []byte("even")},
			{Proto: UDP},
			{Proto: SCTP, Payload: SCTPInit()},
			{Proto: ICMP, Type: icmpEcho, Payload: []byte("x")},
		} {
			sport, dport := uint16(1234), uint16(80)
			if p.Proto == ICMP {
				sport, dport = 0, 0
			}
			p.Src = netip.AddrPortFrom(netip.MustParseAddr(family[0]), sport)
			p.Dst = netip.AddrPortFrom(netip.MustParseAddr(family[1]), dport)
			b := p.encode()
			got, ok := decode(append(b, 0, 0, 0)) // an Ethernet frame may have padding
			require.True(t, ok)
			require.Equal(t, string(p.Payload), string(got.Payload))
			got.Payload = p.Payload
			require.Equal(t, p, got)
			for n := range b {
				_, _ = decode(b[:n])
			}
		}
	}
}

func TestChecksum(t *testing.T) {
	// The example of RFC 1071, section 3.
	require.EqualValues(t, ^uint16(0xddf2), checksum([]byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}))
	require.EqualValues(t, ^uint16(0x0a00), checksum([]byte{1, 0, 2, 0, 3, 0}, []byte{4}))
}

func FuzzDecode(f *testing.F) {
	f.Add(Packet{Proto: TCP, Flags: SYN, Src: netip.MustParseAddrPort("10.0.0.1:1"), Dst: netip.MustParseAddrPort("10.0.0.2:2")}.encode())
	f.Add(Packet{Proto: SCTP, Payload: SCTPInit(), Src: netip.MustParseAddrPort("[fd::1]:1"), Dst: netip.MustParseAddrPort("[fd::2]:2")}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := decode(b)
		if !ok {
			return
		}
		_ = p.fingerprint()
		_ = p.String()
		if p.Proto == TCP {
			p.Flags &= FIN | SYN | RST | PSH | ACK
		}
		again, ok := decode(p.encode())
		require.True(t, ok)
		require.Equal(t, p.Proto, again.Proto)
		require.Equal(t, p.Src, again.Src)
		require.Equal(t, p.Dst, again.Dst)
		require.Equal(t, string(p.Payload), string(again.Payload))
	})
}

func FuzzSCTP(f *testing.F) {
	f.Add(sctpPacket{sport: 1, dport: 2, tag: 3, chunk: initChunk(sctpInitAck, 4, "a 10.0.0.1:1")}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := parseSCTP(b)
		if !ok {
			return
		}
		_, _ = paramValue(p.chunk.value, sctpParamCookie)
		again, ok := parseSCTP(p.encode())
		require.True(t, ok)
		require.Equal(t, p, again)
	})
}
