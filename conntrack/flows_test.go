package conntrack

import (
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestFlows(t *testing.T) {
	for _, whole := range []bool{false, true} {
		svc := service(at(vip, 53), at(vip6, 53))
		svc.Frontends = append(svc.Frontends, nodePort(30053))
		st := state("dns", svc, endpoints(epA, at(podA6, 5353))...)
		ns, c := begun(t, Config{NoKernelFilter: whole}, st)
		put(t, ns, flowA, flowB, inZone(9, entry{client: at(pod, 41009), to: at(vip, 53), from: at(vip, 53)}), tcp(flowA),
			entry{client: at(pod, 1), to: at(vip, 54), from: epA}, entry{client: at(pod, 2), to: at(vip2, 53), from: epA},
			entry{client: at(pod6, 7), to: at(vip6, 53), from: at(podA6, 5353)}, entry{client: at(pod6, 8), to: at(vip6, 54), from: at(podA6, 5353)},
			entry{client: at(pod, 8), to: at(node, 30053), from: epA}, entry{client: at(pod, 9), to: at(outside, 30053), from: epB})
		list := func(p model.Protocol, at string) []Flow {
			flows, err := c.Flows(t.Context(), model.FrontendKey{Protocol: p, Addr: netip.MustParseAddrPort(at)})
			require.NoError(t, err)
			return flows
		}
		got := list(model.UDP, "172.20.9.1:53")
		require.Len(t, got, 3)
		require.InDelta(t, 600, got[0].Expires.Seconds(), 60)
		got[0].Expires = 0
		require.Equal(t, Flow{Protocol: model.UDP, Client: flowA.client, Frontend: flowA.to, Endpoint: epA, Seen: flowA.client}, withoutStatus(got[0]))
		require.Equal(t, epB, got[1].Endpoint)
		require.True(t, got[1].Stale)
		require.EqualValues(t, 9, got[2].Zone)
		require.False(t, got[2].Translated())
		require.False(t, got[2].Stale, "it may cross another zone untranslated")
		require.Len(t, list(model.TCP, "172.20.9.1:53"), 1)
		require.Len(t, list(model.UDP, "[2001:db8:20::1]:53"), 1)
		require.Len(t, list(model.UDP, "[::ffff:172.20.9.1]:53"), 3)
		require.Empty(t, list(model.UDP, "172.20.9.1:55"))
		ports := list(model.UDP, "0.0.0.0:30053")
		require.Len(t, ports, 1, "not the one to another host")
		require.Equal(t, at(pod, 8), ports[0].Client)

		_, err := c.Flows(t.Context(), model.FrontendKey{Protocol: model.UDP})
		require.ErrorIs(t, err, model.ErrInvalid)
	}
}

func withoutStatus(f Flow) Flow {
	f.Replied, f.Assured, f.Mark = false, false, 0
	return f
}

// TestRealFlows lists real ones: with replies, with a source that was masqueraded, with traffic counted.
func TestRealFlows(t *testing.T) {
	s := newStage(t, Config{})
	require.NoError(t, s.topo.Node.Sysctl("net/netfilter/nf_conntrack_acct", "1"))
	s.nft("table ip masq { chain post { type nat hook postrouting priority 100; ip saddr 203.0.113.5 masquerade; }; }")
	s.tracker.SetService("dns", everywhere())
	s.tracker.SetEndpoints("dns", endpoints(epA))
	s.sync()
	s.talk("masqueraded", outside, at(ext, 530))
	s.talk("node port", outside, at(node2, 30053))
	s.again("masqueraded")

	flows, err := s.cleaner.Flows(s.ctx, model.FrontendKey{Protocol: model.UDP, Addr: at(ext, 530)})
	require.NoError(t, err)
	require.Len(t, flows, 1)
	f := flows[0]
	require.Equal(t, epA, f.Endpoint)
	require.Equal(t, outside, f.Client.Addr())
	require.Equal(t, node, f.Seen.Addr())
	require.True(t, f.Replied)
	require.False(t, f.Stale)
	require.GreaterOrEqual(t, f.Sent.Packets, uint64(2))
	require.GreaterOrEqual(t, f.Received.Bytes, uint64(56))
	require.Contains(t, f.String(), "udp 203.0.113.5:40000 -> 192.0.2.10:530 -> 10.128.0.11:5353 (as 198.51.100.10:")

	flows, err = s.cleaner.Flows(s.ctx, model.FrontendKey{Protocol: model.UDP, Addr: at(model.IPv4.Unspecified(), 30053)})
	require.NoError(t, err)
	require.Len(t, flows, 1)
}

// TestNodeAddressesAreAskedFor: without addresses in the Node, the kernel tells them, and those that came and went.
func TestNodeAddressesAreAskedFor(t *testing.T) {
	topo := lab.Start(t, lab.Spec{Node: []netip.Addr{node, node6}})
	c := newCleaner(t, topo.Node, Config{})
	svc := service()
	svc.Frontends = append(svc.Frontends, nodePort(30053))
	st := state("dns", svc, endpoints(epA, at(podA6, 5353))...)
	st.Node = model.Node{}
	synced(c, st)
	toNode := entry{client: at(pod, 1), to: at(node, 30053), from: epB}
	toNode6 := entry{client: at(pod6, 2), to: at(node6, 30053), from: at(podB6, 5353)}
	toNode2 := entry{client: at(pod, 3), to: at(node2, 30053), from: epB}
	toLoopback := entry{client: at(addr("127.0.0.1"), 4), to: at(addr("127.0.0.1"), 30053), from: epB}
	put(t, topo.Node, toNode, toNode6, toNode2, toLoopback)
	require.Equal(t, 2, settle(t, c))
	require.Equal(t, []uint16{3, 4}, clients(t, topo.Node))

	// An address comes: whatever went there before was not for us.
	require.NoError(t, topo.AddNodeAddr(node2))
	other := with(st, func(s *model.State) { s.Node.Zone = "elsewhere" })
	applied(c, model.DiffStates(st, other))
	require.Zero(t, settle(t, c), "nothing asked for a look")
	gone := with(other, func(s *model.State) { s.Endpoints["dns"] = endpoints(at(podA6, 5353)) })
	applied(c, model.DiffStates(other, gone))
	require.Equal(t, 1, settle(t, c))
	require.Equal(t, []uint16{4}, clients(t, topo.Node))

	// One goes, while the service has endpoints again: flows to it lead nowhere now.
	put(t, topo.Node, entry{client: at(pod, 5), to: at(node2, 30053), from: epA})
	applied(c, model.DiffStates(gone, other))
	require.Zero(t, settle(t, c))
	require.NoError(t, topo.DelNodeAddr(node2))
	synced(c, other)
	require.Equal(t, 1, settle(t, c))
	require.Equal(t, []uint16{4}, clients(t, topo.Node))
}

func TestUsage(t *testing.T) {
	ns := lab.StartNetNS(t, "node")
	c := newCleaner(t, ns, Config{})
	u, err := c.Usage(t.Context())
	require.NoError(t, err)
	require.Zero(t, u.Entries)
	limit, err := ns.ReadSysctl("net/netfilter/nf_conntrack_max")
	require.NoError(t, err)
	require.Equal(t, limit, strconv.Itoa(u.Limit))
	put(t, ns, flowA, flowB, flowC)
	u, err = c.Usage(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, u.Entries)
	require.InDelta(t, 3/float64(u.Limit), u.Fraction(), 1e-9)
	require.Equal(t, "3 of "+limit+" entries (0 %), 0 packets dropped, 0 entries evicted", u.String())
	require.Zero(t, Usage{Entries: 3}.Fraction())
}

func TestProbe(t *testing.T) {
	ns := lab.StartNetNS(t, "node")
	r, err := Probe(t.Context(), Config{NetNS: ns.FD()})
	require.NoError(t, err)
	require.NoError(t, r.Err())
	require.Empty(t, r.Warnings)
	_, err = Probe(t.Context(), Config{NetNS: ns.FD(), Protocols: []model.Protocol{9}})
	require.ErrorIs(t, err, model.ErrInvalid)
}

// TestOldKernels: one without CTA_FILTER starts to list, or has nothing to list; one without conntrack's interface does
// not know the request.
func TestOldKernels(t *testing.T) {
	for name, answer := range map[string]func(k *fakeKernel, seq uint32){
		"lists":   func(k *fakeKernel, seq uint32) { k.say(item(seq, "flow")) },
		"nothing": func(k *fakeKernel, seq uint32) { k.say(end(unix.NLMSG_DONE, seq, 0)) },
	} {
		k := newFakeKernel(t, time.Minute)
		k.answer(func() { answer(k, k.request()) })
		c := &Cleaner{table: k.conn}
		filters, err := c.probeFilter(t.Context())
		require.NoError(t, err, name)
		require.False(t, filters, name)
	}
	k := newFakeKernel(t, time.Minute)
	k.answer(func() { k.say(end(unix.NLMSG_ERROR, k.request(), unix.EINVAL)) })
	c := &Cleaner{table: k.conn}
	require.ErrorIs(t, c.probe(t.Context()), model.ErrNotSupported)
}

// TestNamespaceOfTheCaller: without a descriptor it is that of the thread which called New, whoever uses it later.
func TestNamespaceOfTheCaller(t *testing.T) {
	ns := lab.StartNetNS(t, "node")
	put(t, ns, flowA, flowB)
	var c *Cleaner
	require.NoError(t, ns.Do(func() (err error) {
		c, err = New(t.Context(), Config{})
		return err
	}))
	defer c.Close()
	u, err := c.Usage(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, u.Entries)
	synced(c, dns(epA))
	require.Equal(t, 1, clean(t, c))
}
