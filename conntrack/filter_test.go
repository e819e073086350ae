package conntrack

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

func TestFiltersRefuseToNameNothing(t *testing.T) {
	udp := func(a netip.AddrPort) model.FrontendKey { return model.FrontendKey{Protocol: model.UDP, Addr: a} }
	mapped := netip.AddrPortFrom(addr("::ffff:10.0.0.1"), 53)
	for name, build := range map[string]func() (filter, error){
		"no protocol":           func() (filter, error) { return ofProtocol(model.Protocol(9), model.IPv4) },
		"no family":             func() (filter, error) { return ofProtocol(model.UDP, model.Family(2)) },
		"frontend, no protocol": func() (filter, error) { return toFrontend(model.FrontendKey{Protocol: 9, Addr: at(vip, 53)}) },
		"no frontend":           func() (filter, error) { return toFrontend(udp(netip.AddrPort{})) },
		"frontend, no port":     func() (filter, error) { return toFrontend(udp(at(vip, 0))) },
		"node port 0":           func() (filter, error) { return toFrontend(udp(at(netip.IPv4Unspecified(), 0))) },
		"frontend, mapped":      func() (filter, error) { return toFrontend(udp(mapped)) },
		"untranslated, no port": func() (filter, error) { return untranslated(udp(at(vip, 0))) },
		"no endpoint":           func() (filter, error) { return fromEndpoint(model.UDP, netip.AddrPort{}) },
		"endpoint, no port":     func() (filter, error) { return fromEndpoint(model.UDP, at(podA, 0)) },
		"endpoint, unspecified": func() (filter, error) { return fromEndpoint(model.UDP, at(netip.IPv4Unspecified(), 53)) },
		"endpoint, mapped":      func() (filter, error) { return fromEndpoint(model.UDP, mapped) },
		"pair, no frontend":     func() (filter, error) { return between(udp(netip.AddrPort{}), epA) },
		"pair, no endpoint":     func() (filter, error) { return between(udp(at(vip, 53)), netip.AddrPort{}) },
		"pair of two families":  func() (filter, error) { return between(udp(at(vip, 53)), at(podA6, 53)) },
		"no address":            func() (filter, error) { return toAddr(model.UDP, netip.Addr{}) },
		"unspecified address":   func() (filter, error) { return toAddr(model.UDP, netip.IPv6Unspecified()) },
	} {
		f, err := build()
		require.ErrorIs(t, err, model.ErrInvalid, name)
		_, err = f.list()
		require.Error(t, err, "%s: a filter came with the error", name)
	}
	_, err := filter{}.list()
	require.ErrorIs(t, err, model.ErrInvalid)
}

// TestFiltersListWhatTheyName puts flows that differ in one thing each into a table and asks the kernel for them by
// every filter there is: it must list what the filter names, and may list more only for IPv6.
func TestFiltersListWhatTheyName(t *testing.T) {
	ns := lab.StartNetNS(t, "node")
	c := newCleaner(t, ns, Config{})
	require.True(t, c.filters, "the kernel is older than any that is tested")
	for _, a := range [][4]netip.Addr{{vip, vip2, podA, podB}, {vip6, addr("2001:db8:20::2"), podA6, podB6}} {
		client := pod
		if a[0].Is6() {
			client = pod6
		}
		var flows []entry
		for _, dst := range []netip.AddrPort{at(a[0], 53), at(a[0], 54), at(a[1], 53), at(a[1], 54)} {
			for _, src := range []netip.AddrPort{at(a[2], 5353), at(a[3], 5353), at(a[2], 5354), dst} {
				for _, proto := range []model.Protocol{model.UDP, model.TCP} {
					flows = append(flows, entry{proto: proto.Number(), client: at(client, uint16(10000+len(flows))), to: dst, from: src})
				}
			}
		}
		put(t, ns, flows...)
		key := func(a netip.AddrPort) model.FrontendKey { return model.FrontendKey{Protocol: model.UDP, Addr: a} }
		unspecified := model.FamilyOf(a[0]).Unspecified()
		for name, build := range map[string]func() (filter, error){
			"protocol":     func() (filter, error) { return ofProtocol(model.TCP, model.FamilyOf(a[0])) },
			"frontend":     func() (filter, error) { return toFrontend(key(at(a[0], 53))) },
			"node port":    func() (filter, error) { return toFrontend(key(at(unspecified, 53))) },
			"untranslated": func() (filter, error) { return untranslated(key(at(a[0], 53))) },
			"endpoint":     func() (filter, error) { return fromEndpoint(model.UDP, at(a[2], 5353)) },
			"pair":         func() (filter, error) { return between(key(at(a[0], 53)), at(a[2], 5353)) },
			"address":      func() (filter, error) { return toAddr(model.UDP, a[1]) },
		} {
			f, err := build()
			require.NoError(t, err, name)
			want, got, more := 0, 0, 0
			for _, e := range flows {
				if f.matches(&flow{family: f.family, proto: e.proto, to: e.to, from: e.from}) {
					want++
				}
			}
			require.NotZero(t, want, name)
			m, err := f.list()
			require.NoError(t, err, name)
			require.NoError(t, c.table.ask(t.Context(), m, func(msgs [][]byte) error {
				for _, msg := range msgs {
					var fl flow
					require.True(t, fl.decode(msg))
					if f.matches(&fl) {
						got++
					} else {
						more++
					}
				}
				return nil
			}), name)
			require.Equal(t, want, got, name)
			if f.sent() == f {
				require.Zero(t, more, name)
			}
		}
	}
}

// TestDeletionsNameOneFlow: no request to delete is ever made that does not name a flow in full.
func TestDeletionsNameOneFlow(t *testing.T) {
	whole := flow{family: model.IPv4, proto: 17, client: at(pod, 1), to: at(vip, 53), from: epA, seen: at(pod, 1),
		reply: []byte{8, 0, 2, 0x80, 4, 0, 1, 0}, id: []byte{8, 0, ctaID, 0, 1, 2, 3, 4}}
	b, ok := appendDelete(nil, &whole, 7)
	require.True(t, ok)
	m, rest := nextMessage(b)
	require.True(t, m.whole)
	require.Empty(t, rest)
	require.EqualValues(t, 7, m.seq)
	for name, spoil := range map[string]func(f *flow){
		"nothing":     func(f *flow) { *f = flow{} },
		"no tuple":    func(f *flow) { f.reply = nil },
		"no id":       func(f *flow) { f.id = nil },
		"no protocol": func(f *flow) { f.proto = 0 },
		"no client":   func(f *flow) { f.seen = netip.AddrPort{} },
		"no port":     func(f *flow) { f.seen = at(pod, 0) },
		"no endpoint": func(f *flow) { f.from = netip.AddrPort{} },
	} {
		f := whole
		spoil(&f)
		b, ok := appendDelete([]byte("x"), &f, 7)
		require.False(t, ok, name)
		require.Equal(t, []byte("x"), b, name)
	}
}

// FuzzDecode: whatever the kernel may send, decoding neither fails hard nor makes a flow out of nothing, and what it
// would delete by is part of the message.
func FuzzDecode(f *testing.F) {
	ns, err := lab.NewNetNS("node")
	if err == nil {
		defer ns.Close()
		for _, msg := range realMessages(f, ns) {
			f.Add(msg)
		}
	}
	f.Add([]byte{2, 0, 0, 0, 4, 0, 1, 0})
	f.Add([]byte{10, 0, 0, 0, 5, 0, 2, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, msg []byte) {
		var fl flow
		if !fl.decode(msg) {
			return
		}
		require.True(t, fl.to.IsValid() && fl.from.IsValid() && fl.client.IsValid())
		_ = fl.String()
		_ = fl.exported(msg)
		if b, ok := appendDelete(nil, &fl, 1); ok {
			require.Contains(t, string(msg), string(fl.reply))
			require.EqualValues(t, len(b), binary.NativeEndian.Uint32(b))
		}
	})
}

// realMessages returns entries of both families and several protocols as the kernel lists them.
func realMessages(t testing.TB, ns *lab.NetNS) (msgs [][]byte) {
	c := newCleaner(t, ns, Config{NoKernelFilter: true})
	put(t, ns, flowA, inZone(3, flowB), tcp(flowC), sctp(flowA), entry{client: at(pod6, 5), to: at(vip6, 53), from: at(podA6, 53)})
	for _, family := range model.Families {
		m, err := listFamily(family)
		require.NoError(t, err)
		require.NoError(t, c.table.ask(testContext(t), m, func(some [][]byte) error {
			for _, msg := range some {
				msgs = append(msgs, append([]byte(nil), msg...))
			}
			return nil
		}))
	}
	require.Len(t, msgs, 5)
	return msgs
}

// TestDecodeIsLenient: what is missing, cut short or unknown spoils one flow at most.
func TestDecodeIsLenient(t *testing.T) {
	for _, msg := range realMessages(t, lab.StartNetNS(t, "node")) {
		var whole, f flow
		require.True(t, whole.decode(msg))
		for n := range msg {
			f.decode(msg[:n])
		}
		strange := append(append([]byte(nil), msg...), 8, 0, 0xff, 0x3f, 1, 2, 3, 4, 6, 0, ctaZone, 0)
		require.True(t, f.decode(strange))
		require.Equal(t, whole.String(), f.String())
	}
}
