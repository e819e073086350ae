package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/examples/cni/internal/site"
	"github.com/headgate/headgate/internal/lab"
)

func TestPublishedPort(t *testing.T) {
	w := newWorld(t, nil)
	c := w.container("web", 8080, site.Port(80, 8080), site.Port(80, 8080, "udp"), site.Port(81, 8080))
	w.add(c)
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP} {
		for i, node := range site.Node {
			at := netip.AddrPortFrom(node, 80).String()
			a := w.answers(w.Outside, p, at, "web")
			require.Equal(t, site.Outsider[i], a.Peer.Addr(), "the container does not see who is talking to it")
			w.answers(w.Node, p, at, "web")
		}
	}
	w.answers(w.Outside, lab.TCP, "192.0.2.1:81", "web")
	require.Equal(t, lab.Refused, w.ask(w.Outside, lab.UDP, "192.0.2.1:81").Verdict, "nobody published that")

	require.NoError(t, w.Check(t.Context(), c))
	for range 2 { // the second time there is nothing to be done
		require.NoError(t, w.Del(t.Context(), c))
		require.Empty(t, w.recorded())
		require.Empty(t, w.nft("list", "ruleset"), "the last container leaves nothing behind")
	}
	require.Equal(t, lab.Refused, w.ask(w.Outside, lab.TCP, "192.0.2.1:80").Verdict)
}

func TestPortAtOneAddress(t *testing.T) {
	w := newWorld(t, nil)
	port := func(ip string) map[string]any {
		p := site.Port(80, 8080)
		p["hostIP"] = ip
		return p
	}
	require.NoError(t, w.AddNodeAddr(netip.MustParseAddr("192.0.2.2")))
	w.add(w.container("one", 8080, port("192.0.2.2")), w.container("six", 8080, port("::")))
	w.answers(w.Outside, lab.TCP, "192.0.2.2:80", "one")
	w.answers(w.Outside, lab.TCP, "[2001:db8::1]:80", "six")
	require.Equal(t, lab.Refused, w.ask(w.Outside, lab.TCP, "192.0.2.1:80").Verdict)
}

// TestNeighbours is about containers on one bridge, whose packets to each other pass the node by.
func TestNeighbours(t *testing.T) {
	w := newWorld(t, map[string]any{"masqAll": true})
	a, b := w.container("a", 8080, site.Port(80, 8080)), w.container("b", 8080)
	w.add(a, b)
	answer := w.answers(b.NetNS, lab.TCP, "192.0.2.1:80", "a")
	require.NotEqual(t, b.Addrs[0], answer.Peer.Addr())
	w.answers(a.NetNS, lab.TCP, "192.0.2.1:80", "a")
}

func TestServices(t *testing.T) {
	w := newWorld(t, map[string]any{
		"services": map[string]any{
			"web": map[string]any{"frontends": []string{"10.96.0.10:80", "[fd00:96::10]:80"}, "port": 8080},
			"dns": map[string]any{"frontends": []string{"10.96.0.53:53"}, "port": 8080, "protocol": "udp"},
		},
	})
	a, b, client := w.container("a", 8080).Join("web,dns"), w.container("b", 8080).Join("web"), w.container("client", 1)
	w.add(a, b, client)
	require.Equal(t, []string{"a", "b"}, w.recorded(), "there is nothing to be done for the third")
	for _, from := range []*lab.NetNS{w.Outside, w.Node, client.NetNS, a.NetNS} {
		for _, vip := range []string{"10.96.0.10:80", "[fd00:96::10]:80"} {
			got, err := from.AskMany(t.Context(), lab.Query{Proto: lab.TCP, To: netip.MustParseAddrPort(vip)}, 60)
			require.NoError(t, err)
			require.Equal(t, 60, got.ByName["a"]+got.ByName["b"], "from %s: %+v", from.Name(), got)
			require.Positive(t, got.ByName["a"])
			require.Positive(t, got.ByName["b"])
		}
		w.answers(from, lab.UDP, "10.96.0.53:53", "a")
	}
	require.NoError(t, w.Check(t.Context(), a))
	require.NoError(t, w.Check(t.Context(), b))
	require.NoError(t, w.Check(t.Context(), client))

	require.NoError(t, w.Del(t.Context(), a))
	got, err := w.Outside.AskMany(t.Context(), lab.Query{Proto: lab.TCP, To: netip.MustParseAddrPort("10.96.0.10:80")}, 20)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"b": 20}, got.ByName)
	require.NoError(t, w.Check(t.Context(), b))
}

// TestHowServicesAreJoined tries the three ways to say so.
func TestHowServicesAreJoined(t *testing.T) {
	service := func(last int) map[string]any {
		return map[string]any{"frontends": []string{fmt.Sprintf("10.96.0.%d:80", last)}, "port": 8080}
	}
	w := newWorld(t, map[string]any{
		"services": map[string]any{"all": service(1), "args": service(2), "env": service(3)}, "join": []string{"all"},
	})
	w.add(w.container("env", 8080).Join("env"))
	list := w.List
	var err error
	w.List, err = libcni.NetworkConfFromBytes(list.Bytes)
	require.NoError(t, err)
	w.List.Plugins[1], err = libcni.InjectConf(w.List.Plugins[1], map[string]any{"args": map[string]any{"cni": map[string]any{"services": []string{"args"}}}})
	require.NoError(t, err)
	w.add(w.container("args", 8080).Join("env")) // args count more
	for vip, names := range map[string][]string{"10.96.0.1:80": {"args", "env"}, "10.96.0.2:80": {"args"}, "10.96.0.3:80": {"env"}} {
		got, err := w.Outside.AskMany(t.Context(), lab.Query{Proto: lab.TCP, To: netip.MustParseAddrPort(vip)}, 40)
		require.NoError(t, err)
		require.Len(t, got.ByName, len(names), vip)
		for _, name := range names {
			require.Contains(t, got.ByName, name, vip)
		}
	}
}

// TestUDPFlows keeps sending over one port while containers come and go behind it.
func TestUDPFlows(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.Node.ServeAs("node", lab.UDP, netip.MustParseAddrPort("192.0.2.1:53"))
	require.NoError(t, err)
	flow, err := w.Outside.Open(t.Context(), lab.Query{Proto: lab.UDP, To: netip.MustParseAddrPort("192.0.2.1:53")})
	require.NoError(t, err)
	defer flow.Close()
	serves := func(name string) {
		t.Helper()
		a, err := flow.Ping(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, lab.Answered, a.Verdict)
		require.Equal(t, name, a.Name)
	}
	serves("node")
	for _, id := range []string{"first", "second"} {
		c := w.container(id, 5353, site.Port(53, 5353, "udp"))
		w.add(c)
		serves(id) // though the flow was the node's
		require.NoError(t, w.Del(t.Context(), c))
		serves("node") // though the container is still there to answer
	}
}

func TestTakenPort(t *testing.T) {
	w := newWorld(t, nil)
	first := w.container("z-first", 8080, site.Port(80, 8080))
	second := w.container("a-second", 8080, site.Port(81, 8080), site.Port(80, 8080))
	w.add(first)
	_, err := w.Add(t.Context(), second)
	require.Equal(t, uint(errTaken), w.code(err))
	require.ErrorContains(t, err, "z-first")
	require.Equal(t, []string{"z-first"}, w.recorded())
	w.answers(w.Outside, lab.TCP, "192.0.2.1:80", "z-first")
	require.Equal(t, lab.Refused, w.ask(w.Outside, lab.TCP, "192.0.2.1:81").Verdict, "half a container is published")
	require.NoError(t, w.Del(t.Context(), second), "a runtime deletes what it failed to add")
	w.answers(w.Outside, lab.TCP, "192.0.2.1:80", "z-first")

	require.NoError(t, w.Del(t.Context(), first))
	w.add(second)
	w.answers(w.Outside, lab.TCP, "192.0.2.1:80", "a-second")
}

func TestDelNeedsNothing(t *testing.T) {
	w := newWorld(t, nil)
	c, other := w.container("gone", 8080, site.Port(80, 8080)), w.container("other", 8080, site.Port(81, 8080))
	w.add(c, other)
	conf := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "type": "headgate", "stateDir": %q}`, site.Network, w.StateDir())
	for range 2 {
		out, err := w.plugin("DEL", map[string]string{"CNI_CONTAINERID": "gone", "CNI_IFNAME": "eth0"}, conf)
		require.NoError(t, err, "%s", out)
		require.Empty(t, out)
		require.Equal(t, []string{"other"}, w.recorded())
	}
	w.silent(w.Outside, lab.TCP, "192.0.2.1:80")
	w.answers(w.Outside, lab.TCP, "192.0.2.1:81", "other")

	// Another interface or network of the same container is another attachment.
	for _, env := range []map[string]string{{"CNI_CONTAINERID": "other", "CNI_IFNAME": "eth1"}, {"CNI_CONTAINERID": "nobody", "CNI_IFNAME": "eth0"}} {
		_, err := w.plugin("DEL", env, conf)
		require.NoError(t, err)
	}
	require.Equal(t, []string{"other"}, w.recorded())
}

// TestPassesOn sees that what the plugin before has found is printed as it came.
func TestPassesOn(t *testing.T) {
	w := newWorld(t, nil)
	const result = `{
		"cniVersion": "%s",
		"interfaces": [{"name": "br0", "mac": "02:00:00:00:00:01"}, {"name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": "/run/netns/x"}],
		"ips": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 1}],
		"routes": [{"dst": "0.0.0.0/0"}],
		"dns": {"nameservers": ["10.1.0.1"]}
	}`
	for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		for _, mappings := range []string{`[]`, `[{"hostPort": 80, "containerPort": 8080, "protocol": "tcp"}]`} {
			want := fmt.Sprintf(result, version)
			if version == "0.4.0" { // where addresses say of which family they are
				want = `{"cniVersion": "0.4.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/x"}],
					"ips": [{"version": "4", "interface": 0, "address": "10.1.0.5/16"}], "dns": {}}`
			}
			conf := fmt.Sprintf(`{"cniVersion": %q, "name": "n", "type": "headgate", "stateDir": %q, "runtimeConfig": {"portMappings": %s}, "prevResult": %s}`,
				version, w.StateDir(), mappings, want)
			env := map[string]string{"CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/netns/x"}
			out, err := w.plugin("ADD", env, conf)
			require.NoError(t, err, "%s", out)
			require.JSONEq(t, want, string(out))
		}
	}
}

func TestGC(t *testing.T) {
	w := newWorld(t, nil)
	var all []*site.Container
	for i := range 4 {
		c := w.container(fmt.Sprint("c", i), 8080, site.Port(80+i, 8080))
		all = append(all, c)
	}
	w.add(all[:3]...)
	first := w.List
	var err error
	w.List, err = w.Configure("other", 1, nil)
	require.NoError(t, err)
	w.add(all[3])
	w.List = first

	// The runtime has lost what it knew of c0, so that it does not delete it by itself.
	require.NoError(t, os.Remove(filepath.Join(w.Dir, "cache", "results", site.Network+"-c0-eth0")))
	valid := site.Attachments("c1", "c2")
	require.NoError(t, w.CNI.GCNetworkList(t.Context(), w.List, &libcni.GCArgs{ValidAttachments: valid}))
	require.Equal(t, []string{"c1", "c2", "c3"}, w.recorded())
	w.silent(w.Outside, lab.TCP, "192.0.2.1:80")
	for i, c := range all[1:] {
		w.answers(w.Outside, lab.TCP, fmt.Sprintf("192.0.2.1:%d", 81+i), c.Runtime.ContainerID)
	}

	require.NoError(t, w.CNI.GCNetworkList(t.Context(), w.List, &libcni.GCArgs{}))
	require.Equal(t, []string{"c3"}, w.recorded())
	w.answers(w.Outside, lab.TCP, "192.0.2.1:83", "c3")
}

func TestVersion(t *testing.T) {
	w := newWorld(t, nil)
	info, err := w.CNI.GetVersionInfo(t.Context(), "headgate")
	require.NoError(t, err)
	require.Contains(t, info.SupportedVersions(), "1.1.0")
	capabilities, err := w.CNI.ValidateNetworkList(t.Context(), w.List)
	require.NoError(t, err)
	require.Equal(t, []string{"portMappings"}, capabilities)

	cmd := w.Node.Command(t.Context(), filepath.Join(bin, "headgate"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(out), "CNI plugin headgate")
	_, err = w.plugin("UPDATE", nil, `{"cniVersion": "1.1.0", "name": "n"}`)
	require.Error(t, err)
	out, _ = w.plugin("ADD", nil, `{"cniVersion": "1.1.0", "name": "n"}`)
	require.Equal(t, types.ErrInvalidEnvironmentVariables, told(t, out).Code)
}
