package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/examples/cni/internal/site"
	"github.com/headgate/headgate/internal/lab"
)

// TestCNITool leads the plugin through the life of a container with the program that the authors of CNI have for that.
func TestCNITool(t *testing.T) {
	w := newWorld(t, map[string]any{
		"services": map[string]any{"web": map[string]any{"frontends": []string{"10.96.0.10:80"}, "port": 8080}},
	})
	confs, varlib := filepath.Join(w.Dir, "net.d"), filepath.Join(w.Dir, "varlib")
	require.NoError(t, os.MkdirAll(confs, 0o700))
	require.NoError(t, os.MkdirAll(varlib, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(confs, "10-shop.conflist"), w.List.Bytes, 0o600))
	c := w.container("c", 8080)

	// It keeps what it knows below /var/lib, where this test has no business: it gets one of its own.
	cnitool := func(command string) (string, error) {
		script := fmt.Sprintf("mount --bind %q /var/lib && exec %q %s %s %q", varlib, filepath.Join(bin, "cnitool"), command, site.Network, c.Path())
		cmd := w.Node.Command(t.Context(), "sh", "-c", script)
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
		cmd.Env = append(os.Environ(), "CNI_PATH="+bin, "NETCONFPATH="+confs, "CNI_ARGS=HEADGATE_SERVICES=web;IgnoreUnknown=1",
			`CAP_ARGS={"portMappings": [{"hostPort": 80, "containerPort": 8080, "protocol": "tcp"}]}`)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	succeeds := func(command string) string {
		out, err := cnitool(command)
		require.NoError(t, err, "cnitool %s: %s", command, out)
		return out
	}
	succeeds("status")
	require.Contains(t, succeeds("add"), `"address": "10.88.0.2/16"`)
	w.answers(w.Outside, lab.TCP, "192.0.2.1:80", "c")
	w.answers(w.Outside, lab.TCP, "10.96.0.10:80", "c")
	succeeds("check")
	succeeds("status")
	w.nft("flush", "ruleset")
	out, err := cnitool("check")
	require.Error(t, err)
	require.Contains(t, out, "drifted")
	succeeds("del")
	require.Equal(t, lab.Refused, w.ask(w.Outside, lab.TCP, "192.0.2.1:80").Verdict)
	succeeds("del")

	succeeds("add")
	require.Len(t, w.recorded(), 1)
	succeeds("gc") // it names no attachment that is valid
	require.Empty(t, w.recorded())
	require.Empty(t, w.nft("list", "ruleset"))
}
