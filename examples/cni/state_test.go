package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

// sample returns an attachment that publishes a port and has joined a service.
func sample(id string, hostPort uint16) attachment {
	return attachment{
		key:      key{"shop", id, "eth0"},
		Addrs:    []netip.Addr{netip.MustParseAddr("10.88.0.5"), netip.MustParseAddr("fd00:88::5")},
		Ports:    []port{{Host: netip.AddrPortFrom(netip.IPv4Unspecified(), hostPort), Container: 8080}},
		Services: map[string]service{"web": {Frontends: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:80")}, Port: 8080}},
	}
}

func stateOf(t testing.TB, all ...attachment) (s state) {
	t.Helper()
	var err error
	for _, a := range all {
		s, err = s.with(a)
		require.NoError(t, err)
	}
	return s
}

func TestWhoComesFirstKeepsAPort(t *testing.T) {
	s := stateOf(t, sample("z", 80))
	_, err := s.with(sample("a", 80))
	require.ErrorIs(t, err, model.ErrConflict)
	require.ErrorContains(t, err, "shop/z/eth0")

	again, err := s.with(sample("z", 80))
	require.NoError(t, err, "it has the port itself")
	require.Equal(t, s, again)
	_, err = s.without(func(a attachment) bool { return a.Container == "z" }).with(sample("a", 80))
	require.NoError(t, err)

	udp := sample("a", 80)
	require.NoError(t, udp.Ports[0].Protocol.UnmarshalText([]byte("UDP")))
	at := sample("b", 80)
	at.Ports[0].Host = netip.MustParseAddrPort("192.0.2.1:80")
	stateOf(t, sample("z", 80), udp, at) // other frontends

	// A service of another network at the same address is another service.
	foreign := sample("a", 81)
	foreign.Network = "other"
	_, err = s.with(foreign)
	require.ErrorIs(t, err, model.ErrConflict)
}

func TestWanted(t *testing.T) {
	a, b := sample("a", 80), sample("b", 81)
	b.Addrs = []netip.Addr{netip.MustParseAddr("10.88.0.6")}
	b.Ports[0].Masquerade = true
	b.Ports = append(b.Ports, port{Host: netip.MustParseAddrPort("192.0.2.1:82"), Container: 8080, Masquerade: true})
	node := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	want := stateOf(t, a, b).wanted(node)
	require.Equal(t, node, want.Node.Addrs)
	require.Equal(t, model.ServiceMap{
		"shop/web": {Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.10:80")}}},
		"shop/a/eth0:tcp:8080": {
			Frontends:       []model.Frontend{{Kind: model.NodePort, Addr: netip.MustParseAddrPort("0.0.0.0:80")}},
			ExternalTraffic: model.Local,
		},
		"shop/b/eth0:tcp:8080": {Frontends: []model.Frontend{
			{Kind: model.NodePort, Addr: netip.MustParseAddrPort("0.0.0.0:81")},
			{Kind: model.External, Addr: netip.MustParseAddrPort("192.0.2.1:82")},
		}},
	}, want.Services)
	require.Equal(t, a.endpoints(8080), want.Endpoints["shop/a/eth0:tcp:8080"])
	require.Equal(t, b.endpoints(8080), want.Endpoints["shop/b/eth0:tcp:8080"])
	require.Equal(t, append(a.endpoints(8080), b.endpoints(8080)...), want.Endpoints["shop/web"])
}

func open(t testing.TB, dir string) *store {
	t.Helper()
	s, _, err := openStore(context.Background(), dir, exclusive)
	require.NoError(t, err)
	return s
}

func TestStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := open(t, dir)
	defer s.Close()
	empty, err := s.load()
	require.NoError(t, err)
	require.Equal(t, state{}, empty)

	want := stateOf(t, sample("a", 80), sample("b", 81))
	want.damaged = [][]byte{[]byte(`{"network": "sh`), []byte(`{}`), []byte("\x00\xff")}
	for range 2 {
		require.NoError(t, s.save(want))
		got, err := s.load()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	// What a killed process was writing is no obstacle.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "attachments.new"), []byte("half"), 0o600))
	require.NoError(t, s.save(stateOf(t, sample("a", 80))))
	got, err := s.load()
	require.NoError(t, err)
	require.Equal(t, stateOf(t, sample("a", 80)), got)
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	held := open(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, _, err := openStore(ctx, dir, shared)
	require.ErrorIs(t, err, model.ErrBusy)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	held.Close()
	open(t, dir).Close()
}

// BenchmarkThousandContainers is one ADD and DEL on a node that has 1,000 containers: the whole process.
func BenchmarkThousandContainers(b *testing.B) {
	w := newWorld(b, nil)
	s := open(b, w.StateDir())
	var all state
	for i := range 1000 {
		a := sample(fmt.Sprintf("%064d", i), uint16(10000+i))
		a.Addrs[0] = netip.AddrFrom4([4]byte{10, 88, byte(i >> 8), byte(i)})
		all.attachments = append(all.attachments, a)
	}
	require.NoError(b, s.save(all))
	s.Close()
	env := map[string]string{"CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0", "CNI_NETNS": "/x"}
	config := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "shop", "stateDir": %q, "runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 80}]},
		"prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}], "ips": [{"address": "10.1.0.5/16", "interface": 0}]}}`, w.StateDir())
	for b.Loop() {
		for _, command := range []string{"ADD", "CHECK", "STATUS", "DEL"} {
			cmd := w.command(command, env, config)
			out, err := cmd.Output()
			require.NoError(b, err, "%s", out)
			cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			b.ReportMetric(float64(cpu.Microseconds())/1000, command+"-cpu-ms")
		}
	}
}
