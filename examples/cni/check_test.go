package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/examples/cni/internal/site"
	"github.com/headgate/headgate/internal/lab"
)

// TestCheckNoticesDamage damages the rules of a container, lets CHECK notice, and an ADD of another repair them.
func TestCheckNoticesDamage(t *testing.T) {
	w := newWorld(t, map[string]any{
		"services": map[string]any{"web": map[string]any{"frontends": []string{"10.96.0.10:80"}, "port": 8080}},
	})
	c := w.container("c", 8080, site.Port(80, 8080)).Join("web")
	other := w.container("other", 8080, site.Port(81, 8080))
	w.add(c, other)
	const table = "headgate-cni"
	for i, damage := range []struct {
		name  string
		nft   []string
		other bool // whether the other container is hurt as well
	}{
		{"everything flushed", []string{"flush", "ruleset"}, true},
		{"table gone", []string{"delete", "table", "ip", table}, true},
		{"chain flushed", []string{"flush", "chain", "ip6", table, "dispatch"}, true},
		{"rule inserted", []string{"insert", "rule", "ip", table, "dispatch", "drop"}, true},
		{"port gone", []string{"delete", "element", "ip", table, "node-ports", "{ tcp . 80 }"}, false},
		{"port leads nowhere", []string{"delete", "element", "ip", table, "node-port-endpoints", "{ tcp . 80 . 100000 }"}, false},
		{"service gone", []string{"delete", "element", "ip", table, "services", "{ 10.96.0.10 . tcp . 80 }"}, false},
	} {
		t.Run(damage.name, func(t *testing.T) {
			require.NoError(t, w.Check(t.Context(), c))
			require.NoError(t, w.Check(t.Context(), other))
			require.NoError(t, w.CNI.GetStatusNetworkList(t.Context(), w.List))

			w.nft(damage.nft...)
			err := w.Check(t.Context(), c)
			require.ErrorContains(t, err, "drifted")
			err = w.Check(t.Context(), other)
			if damage.other {
				require.ErrorContains(t, err, "drifted")
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, types.ErrLimitedConnectivity, w.code(w.CNI.GetStatusNetworkList(t.Context(), w.List)))

			w.add(w.container(fmt.Sprint("next", i), 8080, site.Port(90+i, 8080)))
			w.answers(w.Outside, lab.TCP, "192.0.2.1:80", "c")
			w.answers(w.Outside, lab.TCP, "10.96.0.10:80", "c")
			w.answers(w.Outside, lab.TCP, "192.0.2.1:81", "other")
		})
	}
}

// TestCheckNoticesLoss takes the plugin's file away.
func TestCheckNoticesLoss(t *testing.T) {
	w := newWorld(t, nil)
	c := w.container("c", 8080, site.Port(80, 8080))
	w.add(c)
	require.NoError(t, os.Remove(filepath.Join(w.StateDir(), "attachments")))
	require.ErrorContains(t, w.Check(t.Context(), c), "not recorded")
}

// TestGarbageInFile damages one line of the file.
func TestGarbageInFile(t *testing.T) {
	w := newWorld(t, nil)
	a, b, c := w.container("a", 8080, site.Port(80, 8080)), w.container("b", 8080, site.Port(81, 8080)), w.container("c", 8080, site.Port(82, 8080))
	w.add(a, b)
	file := filepath.Join(w.StateDir(), "attachments")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, text[10:], 0o600))

	require.Equal(t, types.ErrLimitedConnectivity, w.code(w.CNI.GetStatusNetworkList(t.Context(), w.List)))
	require.NoError(t, w.Check(t.Context(), b))
	w.add(c)
	w.answers(w.Outside, lab.TCP, "192.0.2.1:81", "b")
	w.answers(w.Outside, lab.TCP, "192.0.2.1:82", "c")
	require.Equal(t, types.ErrLimitedConnectivity, w.code(w.CNI.GetStatusNetworkList(t.Context(), w.List)), "the loss is forgotten")
	require.NoError(t, w.Del(t.Context(), a), "what cannot be read cannot keep a container from going")

	valid := site.Attachments("b", "c")
	require.NoError(t, w.CNI.GCNetworkList(t.Context(), w.List, &libcni.GCArgs{ValidAttachments: valid}))
	require.NoError(t, w.CNI.GetStatusNetworkList(t.Context(), w.List))
	require.Equal(t, []string{"b", "c"}, w.recorded())
}

func TestGarbageConfig(t *testing.T) {
	w := newWorld(t, nil)
	const prev = `"prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}], "ips": [{"address": "10.1.0.5/16", "interface": 0}]}`
	ports := func(mapping string) string {
		return prev + `, "runtimeConfig": {"portMappings": [` + mapping + `]}`
	}
	env := map[string]string{"CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0", "CNI_NETNS": "/x"}
	for name, bad := range map[string]struct {
		config string // besides version, name and type
		args   string
		code   uint
	}{
		"no prevResult":             {`"join": []`, "", types.ErrInvalidNetworkConfig},
		"prevResult of no kind":     {`"prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "nonsense"}]}`, "", types.ErrDecodingFailure},
		"no address":                {`"prevResult": {"cniVersion": "1.1.0"}, "runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 80}]}`, "", types.ErrInvalidNetworkConfig},
		"port too large":            {ports(`{"hostPort": 70000, "containerPort": 80}`), "", types.ErrDecodingFailure},
		"port zero":                 {ports(`{"hostPort": 0, "containerPort": 80}`), "", types.ErrInvalidNetworkConfig},
		"no container port":         {ports(`{"hostPort": 80}`), "", types.ErrInvalidNetworkConfig},
		"unknown protocol":          {ports(`{"hostPort": 80, "containerPort": 80, "protocol": "icmp"}`), "", types.ErrInvalidNetworkConfig},
		"address that is none":      {ports(`{"hostPort": 80, "containerPort": 80, "hostIP": "localhost"}`), "", types.ErrUnsupportedField},
		"loopback":                  {ports(`{"hostPort": 80, "containerPort": 80, "hostIP": "127.0.0.1"}`), "", types.ErrUnsupportedField},
		"address of other family":   {ports(`{"hostPort": 80, "containerPort": 80, "hostIP": "2001:db8::1"}`), "", types.ErrInvalidNetworkConfig},
		"a port twice":              {ports(`{"hostPort": 80, "containerPort": 80}, {"hostPort": 80, "containerPort": 81}`), "", errTaken},
		"unknown service":           {prev + `, "join": ["web"]`, "", types.ErrInvalidNetworkConfig},
		"unknown service in args":   {prev, "HEADGATE_SERVICES=web", types.ErrInvalidNetworkConfig},
		"service without a port":    {prev + `, "join": ["web"], "services": {"web": {"frontends": ["10.96.0.1:80"]}}`, "", types.ErrInvalidNetworkConfig},
		"service at no address":     {prev + `, "join": ["web"], "services": {"web": {"frontends": ["10.96.0.1"], "port": 80}}`, "", types.ErrDecodingFailure},
		"service at address zero":   {prev + `, "join": ["web"], "services": {"web": {"frontends": ["0.0.0.0:80"], "port": 80}}`, "", types.ErrInvalidNetworkConfig},
		"service with a bad name":   {prev + `, "join": ["a/b"], "services": {"a/b": {"frontends": ["10.96.0.1:80"], "port": 80}}`, "", types.ErrInvalidNetworkConfig},
		"table that nft refuses":    {ports(`{"hostPort": 80, "containerPort": 80}`) + `, "table": "a b"`, "", types.ErrInvalidNetworkConfig},
		"state in no folder":        {ports(`{"hostPort": 80, "containerPort": 80}`) + `, "stateDir": "state"`, "", types.ErrInvalidNetworkConfig},
		"state that cannot be kept": {ports(`{"hostPort": 80, "containerPort": 80}`) + `, "stateDir": "/dev/null/x"`, "", types.ErrIOFailure},
	} {
		t.Run(name, func(t *testing.T) {
			config := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "n", "type": "headgate", "stateDir": %q, %s}`, w.StateDir(), bad.config)
			env["CNI_ARGS"] = bad.args
			out, err := w.plugin("ADD", env, config)
			require.Error(t, err)
			require.Equal(t, bad.code, told(t, out).Code, "%s", out)
			require.Empty(t, w.recorded())
			require.Empty(t, w.nft("list", "ruleset"))
		})
	}
	for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
		for _, config := range []string{``, `{`, `[]`, `{"name": 1}`, `{"cniVersion": "9.9.9", "name": "n"}`, `{"cniVersion": "1.1.0"}`} {
			out, err := w.plugin(command, env, config)
			require.Error(t, err)
			require.NotZero(t, told(t, out).Code, "%s %s: %s", command, config, out)
		}
	}
	// What was refused must still be deletable.
	config := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "n", "stateDir": %q, %s}`, w.StateDir(), ports(`{"hostPort": 70000}`))
	out, err := w.plugin("DEL", env, config)
	require.NoError(t, err, "%s", out)
}

// TestStatusWithoutRights asks for the status as somebody who may not program the kernel.
func TestStatusWithoutRights(t *testing.T) {
	w := newWorld(t, nil)
	require.NoError(t, w.CNI.GetStatusNetworkList(t.Context(), w.List))
	config := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "n", "stateDir": %q}`, w.StateDir())
	cmd := w.command("STATUS", nil, config)
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	out, err := cmd.Output()
	require.Error(t, err)
	require.Equal(t, types.ErrPluginNotAvailable, told(t, out).Code, "%s", out)
	require.Contains(t, told(t, out).Msg, "nftables")
}
