package ipvs_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	reader "github.com/moby/ipvs"
	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/ipvs"
	"github.com/headgate/headgate/model"
)

// A field is a node with two pods on it and somebody outside.
type field struct {
	*lab.Topology
	client *lab.NetNS
}

var (
	vip   = netip.MustParseAddrPort("172.20.0.10:80")
	vip6  = netip.MustParseAddrPort("[fd20:96::10]:80")
	realA = netip.MustParseAddrPort("10.128.0.11:8080")
	realB = netip.MustParseAddrPort("10.128.0.12:8080")
	real6 = netip.MustParseAddrPort("[fd10::11]:8080")
)

func newField(t *testing.T) *field {
	t.Helper()
	needIPVS(t)
	topo := lab.Start(t, lab.Spec{
		Node: []netip.Addr{netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("2001:db8:a::10")},
		Hosts: []lab.Host{
			{Name: "a", Addrs: []netip.Addr{realA.Addr(), real6.Addr()}},
			{Name: "b", Addrs: []netip.Addr{realB.Addr()}},
			{Name: "client", Place: lab.Far, Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("2001:db8:e::5")}},
		},
	})
	return &field{topo, topo.Host("client")}
}

func (f *field) open(t *testing.T, cfg ipvs.Config) *ipvs.Programmer {
	t.Helper()
	cfg.NetNS = f.Node.FD()
	p, err := ipvs.New(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func (f *field) state(services map[model.ServiceName]model.Service, addrs ...netip.AddrPort) model.State {
	s := model.State{Services: services, Endpoints: model.EndpointMap{}, Node: model.Node{Name: "node",
		Addrs: []netip.Addr{netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("2001:db8:a::10")}}}
	for name := range services {
		for _, a := range addrs {
			s.Endpoints[name] = append(s.Endpoints[name], model.Endpoint{Addr: a})
		}
	}
	return s
}

func at(addrs ...netip.AddrPort) (fs []model.Frontend) {
	for _, a := range addrs {
		fs = append(fs, model.Frontend{Addr: a})
	}
	return fs
}

func program(t *testing.T, p *ipvs.Programmer, s model.State) {
	t.Helper()
	res, err := p.Sync(context.Background(), s)
	require.NoError(t, err)
	require.NoError(t, res.Err())
}

func (f *field) ask(t *testing.T, proto lab.Protocol, to netip.AddrPort) lab.Answer {
	t.Helper()
	a, err := f.client.Ask(context.Background(), lab.Query{Proto: proto, To: to})
	require.NoError(t, err)
	return a
}

// B72: a scheduler that the kernel does not have is named, for the one service that needs it.
func TestSchedulerMissing(t *testing.T) {
	f := newField(t)
	p := f.open(t, ipvs.Config{SetSysctls: true})
	lab.Serve(t, f.Topology, lab.TCP, realA)
	const modprobe = "/proc/sys/kernel/modprobe"
	loader, err := os.ReadFile(modprobe)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, os.WriteFile(modprobe, loader, 0))
		out, err := f.Node.Command(context.Background(), "modprobe", "ip_vs_mh").CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
	require.NoError(t, os.WriteFile(modprobe, []byte("/bin/false"), 0))
	require.Eventually(t, func() bool {
		_, err := f.Node.Command(t.Context(), "rmmod", "ip_vs_mh").CombinedOutput()
		return err == nil
	}, 3*time.Minute, 100*time.Millisecond, "the kernel takes its time to forget the services of namespaces that are gone")
	other := netip.MustParseAddrPort("172.20.0.11:80")
	for range 2 {
		res, err := p.Sync(t.Context(), f.state(map[model.ServiceName]model.Service{
			"default/hashed": {Balance: model.Maglev, Frontends: at(other)},
			"default/plain":  {Frontends: at(vip)},
		}, realA))
		require.NoError(t, err)
		require.Len(t, res.Rejected, 1)
		require.Equal(t, model.ServiceName("default/hashed"), res.Rejected[0].Service)
		require.ErrorIs(t, res.Rejected[0], model.ErrNotSupported)
		require.ErrorContains(t, res.Rejected[0], "ip_vs_mh")
		require.Equal(t, lab.Answered, f.ask(t, lab.TCP, vip).Verdict)
		require.NoError(t, p.Check(t.Context()))
	}
}

// With StrictARP the node does not answer for virtual addresses on its links, without it it does.
func TestStrictARP(t *testing.T) {
	f := newField(t)
	wire := func(script string) string {
		out, err := f.Wire.Command(t.Context(), "sh", "-c", script).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	wire("ip addr add 198.51.100.99/32 dev eth0; ip route replace 172.20.0.10/32 dev eth0; ip route replace 198.51.100.10/32 dev eth0")
	for _, strict := range []bool{false, true} {
		p := f.open(t, ipvs.Config{SetSysctls: true, StrictARP: strict})
		program(t, p, f.state(map[model.ServiceName]model.Service{"default/web": {Frontends: at(vip)}}, realA))
		wire("ip neigh flush dev eth0")
		neighbours := wire("ping -c 1 -W 2 172.20.0.10 >/dev/null; ping -c 1 -W 2 198.51.100.10 >/dev/null; ip neigh show dev eth0")
		require.Regexp(t, `(?m)^198\.51\.100\.10 lladdr`, neighbours, "the node's own address")
		if strict {
			require.NotRegexp(t, `(?m)^172\.20\.0\.10 lladdr`, neighbours)
		} else {
			require.Regexp(t, `(?m)^172\.20\.0\.10 lladdr`, neighbours)
		}
	}
}

// A local route that somebody else has to a virtual address, of either family, is no obstacle and stays; nor are two
// Programmers in each other's way that share an address.
func TestSharedAddress(t *testing.T) {
	f := newField(t)
	for _, a := range []netip.AddrPort{realA, real6} {
		lab.Serve(t, f.Topology, lab.TCP, a)
	}
	theirs := `ip route add local 172.20.0.10 dev lo proto 99 metric 1024; ip -6 route add local fd20:96::10 dev lo proto 99`
	out, err := run(f.Node.FD(), "", "sh", "-ec", theirs)
	require.NoError(t, err, out)
	first := f.open(t, ipvs.Config{SetSysctls: true})
	second := f.open(t, ipvs.Config{SetSysctls: true, Table: "second", RouteProtocol: 105, BalancedLabel: 3, MasqueradeLabel: 4})
	port := func(a netip.AddrPort, p uint16) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), p) }
	one := f.state(map[model.ServiceName]model.Service{"default/one": {Frontends: at(vip, vip6)}}, realA, real6)
	two := f.state(map[model.ServiceName]model.Service{"default/two": {Frontends: at(port(vip, 443), port(vip6, 443))}}, realA, real6)
	program(t, first, one)
	program(t, second, two)
	program(t, first, one)
	require.NoError(t, first.Check(t.Context()))
	require.NoError(t, second.Check(t.Context()))
	require.NoError(t, first.Cleanup(t.Context()))
	require.NoError(t, second.Check(t.Context()))
	require.NoError(t, second.Cleanup(t.Context()))
	left, err := run(f.Node.FD(), "", "sh", "-ec", "ip route show table local proto 104; ip -6 route show table local proto 104; ip route show table local proto 105; ip -6 route show table local proto 105; ipvsadm -Sn")
	require.NoError(t, err)
	require.Empty(t, strings.TrimSpace(left))
	kept, err := run(f.Node.FD(), "", "sh", "-ec", "ip route show table all proto 99; ip -6 route show table all proto 99")
	require.NoError(t, err)
	require.Contains(t, kept, "172.20.0.10")
	require.Contains(t, kept, "fd20:96::10")
}

// B68: who keeps sending UDP from one port is with another endpoint as soon as that of before is gone.
func TestUDPSenderMoves(t *testing.T) {
	f := newField(t)
	for _, a := range []netip.AddrPort{realA, realB} {
		lab.Serve(t, f.Topology, lab.UDP, a)
	}
	p := f.open(t, ipvs.Config{SetSysctls: true})
	state := func(a netip.AddrPort) model.State {
		return f.state(map[model.ServiceName]model.Service{"default/dns": {Protocol: model.UDP,
			Frontends: []model.Frontend{{Kind: model.External, Addr: vip}}}}, a)
	}
	program(t, p, state(realA))
	q := lab.Query{Proto: lab.UDP, To: vip, Source: netip.MustParseAddrPort("203.0.113.5:40000")}
	a, err := f.client.Ask(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, realA.String(), a.Name, "%s", a)
	_, err = p.Apply(t.Context(), model.DiffStates(state(realA), state(realB)))
	require.NoError(t, err)
	for i := 0; a.Name != realB.String(); i++ {
		require.Less(t, i, 3, "%s", a) // a packet that belonged to what is gone may be lost
		a, err = f.client.Ask(t.Context(), q)
		require.NoError(t, err)
	}
	require.NotEqual(t, q.Source.Addr(), a.Peer.Addr(), "it is masqueraded anew: %s", a)
}

// B64: what the backend relies on is asked for, set if it may be, and missed when somebody turns it off.
func TestSysctls(t *testing.T) {
	f := newField(t)
	_, err := ipvs.New(t.Context(), ipvs.Config{NetNS: f.Node.FD()})
	require.ErrorIs(t, err, model.ErrNotSupported)
	require.ErrorContains(t, err, "net.ipv4.vs.conntrack")
	read := func(name string) string {
		out, err := run(f.Node.FD(), "", "cat", "/proc/sys/"+name)
		require.NoError(t, err)
		return strings.TrimSpace(out)
	}
	p := f.open(t, ipvs.Config{SetSysctls: true})
	require.Equal(t, "0", read("net/ipv4/vs/conntrack"), "New writes nothing")
	s := f.state(map[model.ServiceName]model.Service{"default/web": {Affinity: time.Hour, Frontends: at(vip)}}, realA)
	s.Node.NodePorts.Loopback = true
	program(t, p, s)
	for name, want := range map[string]string{"conntrack": "1", "expire_nodest_conn": "1", "expire_quiescent_template": "1"} {
		require.Equal(t, want, read("net/ipv4/vs/"+name), name)
	}
	require.Equal(t, "1", read("net/ipv4/conf/all/route_localnet"), "the first Sync sets it")
	require.NoError(t, p.Check(t.Context()))
	for _, name := range []string{"conntrack", "expire_quiescent_template"} {
		require.NoError(t, f.Node.Sysctl("net/ipv4/vs/"+name, "0"))
		err := p.Check(t.Context())
		require.ErrorIs(t, err, model.ErrDrift)
		require.ErrorContains(t, err, name)
		program(t, p, s)
		require.NoError(t, p.Check(t.Context()))
	}
	require.NoError(t, f.Node.Sysctl("net/ipv4/vs/conntrack", "0"))
	modest, err := ipvs.New(t.Context(), ipvs.Config{NetNS: f.Node.FD()})
	require.ErrorContains(t, err, "net.ipv4.vs.conntrack")
	require.Nil(t, modest)
}

// What moby/ipvs reads is what was asked for, of either family and every protocol.
func TestIndependentReader(t *testing.T) {
	f := newField(t)
	p := f.open(t, ipvs.Config{SetSysctls: true})
	services := map[model.ServiceName]model.Service{}
	for i, proto := range model.Protocols {
		services[model.ServiceName(fmt.Sprint("default/", proto))] = model.Service{Protocol: proto, Balance: []model.Balance{model.Random, model.SourceHash, model.LeastConn}[i],
			Affinity: time.Duration(i) * time.Hour, Frontends: at(vip, vip6)}
	}
	program(t, p, f.state(services, realA, real6))
	handle, err := reader.New(fmt.Sprintf("/proc/self/fd/%d", f.Node.FD()))
	require.NoError(t, err)
	defer handle.Close()
	found, err := handle.GetServices()
	require.NoError(t, err)
	got := map[string]string{}
	for _, s := range found {
		servers, err := handle.GetDestinations(s)
		require.NoError(t, err)
		require.Len(t, servers, 1)
		d := servers[0]
		require.EqualValues(t, reader.ConnectionFlagMasq, d.ConnectionFlags&reader.ConnectionFlagFwdMask)
		got[fmt.Sprintf("%d %s", s.Protocol, s.Address)] = fmt.Sprintf("%s %d -> %s:%d weight %d", s.SchedName, s.Timeout, d.Address, d.Port, d.Weight)
	}
	want := map[string]string{}
	for proto, spec := range map[int]string{6: "rr 0", 17: "sh 3600", 132: "lc 7200"} {
		want[fmt.Sprintf("%d 172.20.0.10", proto)] = spec + " -> 10.128.0.11:8080 weight 1"
		want[fmt.Sprintf("%d fd20:96::10", proto)] = spec + " -> fd10::11:8080 weight 1"
	}
	require.Equal(t, want, got)
}
