package ipvs

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/nlink"
	"github.com/headgate/headgate/model"
)

// randomOp returns a request of a kind about virtual services and real servers.
func randomOp(r *rand.Rand) op {
	addr := func() netip.AddrPort {
		var b [16]byte
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		if r.IntN(2) == 0 {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[:4])), uint16(r.Uint32()))
		}
		return netip.AddrPortFrom(netip.AddrFrom16(b), uint16(r.Uint32()))
	}
	o := op{kind: opKind(r.IntN(int(delServer) + 1)), key: virtualKey{proto: model.Protocol(r.IntN(3)), at: addr()}, weight: r.Uint32(),
		spec: virtualSpec{scheduler: []string{"rr", "mh", "0123456789"}[r.IntN(3)], flags: r.Uint32() &^ flagHashed, timeout: r.Uint32(), netmask: r.Uint32()}}
	for o.server = addr(); o.server.Addr().Is4() != o.key.at.Addr().Is4(); {
		o.server = addr()
	}
	return o
}

// What is written is what the kernel tells in the same form.
func FuzzOps(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		o := randomOp(rand.New(rand.NewPCG(seed, 0)))
		var w nlink.Writer
		writeOp(&w, 33, &o)
		require.Equal(t, nlink.MessageLen(w.Buf), len(w.Buf))
		body := w.Buf[nlink.HeaderLen:]
		k, spec, ok, err := readService(body)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, o.key, k)
		if o.kind == addVirtual || o.kind == editVirtual {
			require.Equal(t, o.spec, spec)
		}
		if o.kind == addServer || o.kind == editServer {
			s, err := readServer(body, o.key.family())
			require.NoError(t, err)
			require.Equal(t, server{at: o.server, weight: o.weight}, s.server)
		}
	})
}

// Whatever the kernel says, reading it does not crash.
func FuzzRead(f *testing.F) {
	var w nlink.Writer
	o := randomOp(rand.New(rand.NewPCG(1, 0)))
	writeOp(&w, 33, &o)
	f.Add(w.Buf[nlink.HeaderLen:])
	w = nlink.Writer{}
	writeRoute(&w, 104, &op{kind: addRoute, vip: netip.MustParseAddr("10.0.0.1"), src: netip.MustParseAddr("10.0.0.2")})
	f.Add(w.Buf[nlink.HeaderLen:])
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, _, _ = readService(b)
		_, _ = readServer(b, model.IPv4)
		_, _, _, _ = readRoute(b, 104)
		_, _, _ = readIfAddr(b)
	})
}

func TestRoutesAreReadAsWritten(t *testing.T) {
	for _, o := range []op{
		{kind: addRoute, vip: netip.MustParseAddr("10.96.0.1"), src: netip.MustParseAddr("192.0.2.1")},
		{kind: editRoute, vip: netip.MustParseAddr("fd00::1"), src: netip.MustParseAddr("2001:db8::1")},
		{kind: addRoute, vip: netip.MustParseAddr("10.96.0.1")},
	} {
		var w nlink.Writer
		writeRoute(&w, 104, &o)
		vip, src, ok, err := readRoute(w.Buf[nlink.HeaderLen:], 104)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, o.vip, vip)
		require.Equal(t, o.src, src)
		_, _, ok, err = readRoute(w.Buf[nlink.HeaderLen:], 105)
		require.NoError(t, err)
		require.False(t, ok, "a route with another protocol number is not ours")
	}
}
