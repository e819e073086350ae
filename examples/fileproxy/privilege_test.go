package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// only returns the program that starts another with these capabilities and no others, nor any way to get them.
func only(uid int, caps ...string) []string {
	set := "-all,+" + strings.Join(caps, ",+")
	wrap := []string{"setpriv", fmt.Sprintf("--reuid=%d", uid), fmt.Sprintf("--regid=%d", uid), "--clear-groups", "--no-new-privs",
		"--bounding-set=" + set, "--inh-caps=" + set}
	if uid != 0 { // root has what the bounding set leaves
		wrap = append(wrap, "--ambient-caps="+set)
	}
	return append(wrap, "--")
}

// capabilities returns those that a process has, in each of its sets.
func capabilities(t *testing.T, pid int) map[string]uint64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	sets := map[string]uint64{}
	for _, m := range regexp.MustCompile(`(?m)^(Cap\w+):\t([0-9a-f]+)$`).FindAllStringSubmatch(string(text), -1) {
		var v uint64
		_, err := fmt.Sscanf(m[2], "%x", &v)
		require.NoError(t, err)
		sets[m[1]] = v
	}
	return sets
}

// TestCapabilities runs the program as its units do: as nobody with CAP_NET_ADMIN alone, and for iptables as a root that has
// but CAP_NET_RAW besides.
func TestCapabilities(t *testing.T) {
	const admin, raw = uint64(1) << unix.CAP_NET_ADMIN, uint64(1) << unix.CAP_NET_RAW
	for _, c := range []struct {
		backend string
		uid     int
		names   []string
		has     uint64
	}{
		{"nftables", 65534, []string{"net_admin"}, admin},
		{"iptables", 0, []string{"net_admin", "net_raw"}, admin | raw},
	} {
		t.Run(c.backend, func(t *testing.T) {
			r := start(t, "-backend", c.backend, "-within", "10m")
			r.everybodys()
			r.wrap = only(c.uid, c.names...)
			if c.uid == 0 { // it may not write what is somebody else's
				require.NoError(t, unix.Chown(r.dir, 0, 0))
			}
			r.write(both)
			r.run()
			r.until("it has the file", programmed("shop/web", 2))
			sets := capabilities(t, r.running.Process.Pid)
			for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
				require.Equal(t, c.has, sets[set], set)
			}
			r.answers("alpha", "beta")
			for line := range strings.Lines(r.log.String()) {
				harmless := strings.Contains(line, "could not try what the kernel can") // in a namespace of its own
				require.False(t, strings.Contains(line, "permi") && !harmless || strings.Contains(line, "will not be forgotten"), line)
			}
			r.write(gammaAlone)
			r.until("it has the change", programmed("shop/web", 1))
			r.answers("gamma")
			r.flushed(c.backend, "gamma")

			require.Error(t, r.end(unix.SIGKILL))
			r.run()
			r.until("it is back", programmed("shop/web", 1))
			require.NoError(t, r.end(unix.SIGTERM))
			r.answers("gamma")
			out, err := r.client("-cleanup", "-backend", c.backend)
			require.NoError(t, err, out)
			r.silent()
		})
	}
}

// TestWithoutCapabilities sees that what is missing is named.
func TestWithoutCapabilities(t *testing.T) {
	r := start(t, "-backend", "nftables")
	r.everybodys()
	r.wrap = []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"}
	r.write(both)
	r.run()
	require.Error(t, r.running.Wait())
	require.Contains(t, r.log.String(), "CAP_NET_ADMIN")
}

// TestUnits lets systemd judge the units.
func TestUnits(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	unit, err := os.ReadFile("systemd/fileproxy.service")
	require.NoError(t, err)
	dropIn, err := os.ReadFile("systemd/iptables.conf")
	require.NoError(t, err)
	dir := t.TempDir()
	for name, text := range map[string][]byte{"fileproxy.service": unit, "fileproxy-iptables.service": unit, "fileproxy-iptables.service.d/iptables.conf": dropIn} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		installed := strings.ReplaceAll(string(text), "/usr/local/sbin/fileproxy", self) // it must be there
		require.NoError(t, os.WriteFile(path, []byte(installed), 0o644))
	}
	for name, exposed := range map[string]string{"fileproxy.service": "20", "fileproxy-iptables.service": "40"} {
		path := filepath.Join(dir, name)
		out, err := exec.Command("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", path).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Empty(t, string(out))
		out, err = exec.Command("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold="+exposed, path).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// TestNotify plays systemd, which waits to be told that the service is ready.
func TestNotify(t *testing.T) {
	for name, text := range map[string]string{"a good file": both, "a bad file": broken} {
		t.Run(name, func(t *testing.T) {
			r := start(t, "-backend", "nftables")
			path := filepath.Join(t.TempDir(), "notify")
			l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
			require.NoError(t, err)
			defer l.Close()
			require.NoError(t, l.SetReadDeadline(time.Now().Add(patience)))
			r.env = append(r.env, "NOTIFY_SOCKET="+path)
			r.write(text)
			r.run()
			got := ""
			for buf := make([]byte, 1024); !strings.Contains(got, "READY=1"); {
				n, err := l.Read(buf)
				require.NoError(t, err, got)
				got = string(buf[:n])
			}
			if text == both {
				r.answers("alpha", "beta")
			} else {
				require.Regexp(t, `(?m)^STATUS=the file is no good: near line 2: `, got)
			}
		})
	}
}
