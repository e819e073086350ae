package conntrack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// fakeRoot makes a directory with the variables that Tune sets, and what a machine of some CPUs says about them.
func fakeRoot(t *testing.T, cpus string, values map[string]int) string {
	t.Helper()
	root := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	write("sys/devices/system/cpu/online", cpus+"\n")
	for name, v := range values {
		write(filepath.Join("proc/sys", strings.ReplaceAll(name, ".", "/")), fmt.Sprintln(v))
	}
	return root
}

// usual are the values of a small machine.
func usual() map[string]int {
	return map[string]int{sysctlMax: 65536, sysctlBuckets: 16384, sysctlTCPEstablished: 432000, sysctlTCPCloseWait: 60,
		sysctlUDP: 30, sysctlUDPStream: 120, sysctlTCPLiberal: 0}
}

// readBack returns the variables below a root that differ from the usual ones.
func readBack(t *testing.T, root string) map[string]int {
	t.Helper()
	changed := map[string]int{}
	for name, was := range usual() {
		v, err := sysctls{filepath.Join(root, "proc/sys")}.read(name)
		require.NoError(t, err)
		if v != was {
			changed[name] = v
		}
	}
	return changed
}

func TestTune(t *testing.T) {
	yes, no := true, false
	for name, tc := range map[string]struct {
		cpus   string
		tuning Tuning
		want   map[string]int
	}{
		"nothing":      {"0-3", Tuning{}, map[string]int{}},
		"default":      {"0-3", DefaultTuning(), map[string]int{sysctlMax: 131072, sysctlBuckets: 32768, sysctlTCPEstablished: 86400, sysctlTCPCloseWait: 3600}},
		"many cores":   {"0-7,9,12-15", DefaultTuning(), map[string]int{sysctlMax: 13 * 32768, sysctlBuckets: 13 * 8192, sysctlTCPEstablished: 86400, sysctlTCPCloseWait: 3600}},
		"ceiling":      {"0-255", Tuning{PerCore: 32768, Floor: 131072, Ceiling: 1048576}, map[string]int{sysctlMax: 1048576, sysctlBuckets: 262144}},
		"no ceiling":   {"0-63", Tuning{PerCore: 32768}, map[string]int{sysctlMax: 2097152, sysctlBuckets: 524288}},
		"never lowers": {"0", Tuning{PerCore: 10, Floor: 20}, map[string]int{}},
		"told to":      {"0", Tuning{Max: 50000}, map[string]int{sysctlMax: 50000}},
		"more":         {"0", Tuning{Max: 66000, PerCore: 1 << 20}, map[string]int{sysctlMax: 66000, sysctlBuckets: 16500}},
		"UDP":          {"0", Tuning{UDP: time.Minute, UDPStream: 3 * time.Minute}, map[string]int{sysctlUDP: 60, sysctlUDPStream: 180}},
		"liberal":      {"0", Tuning{TCPLiberal: &yes}, map[string]int{sysctlTCPLiberal: 1}},
		"not liberal":  {"0", Tuning{TCPLiberal: &no}, map[string]int{}},
	} {
		t.Run(name, func(t *testing.T) {
			root := fakeRoot(t, tc.cpus, usual())
			c := newCleaner(t, lab.StartNetNS(t, "node"), Config{Root: root})
			done, err := c.Tune(t.Context(), tc.tuning)
			require.NoError(t, err)
			require.Equal(t, tc.want, readBack(t, root))
			told := map[string]int{}
			for _, s := range done {
				require.Equal(t, usual()[s.Name], s.Before)
				told[s.Name] = s.After
			}
			require.Equal(t, tc.want, told)
			done, err = c.Tune(t.Context(), tc.tuning)
			require.NoError(t, err)
			require.Empty(t, done, "the second time")
		})
	}
}

func TestTuneRefuses(t *testing.T) {
	root := fakeRoot(t, "0-3", usual())
	ns := lab.StartNetNS(t, "node")
	c := newCleaner(t, ns, Config{Root: root})
	put(t, ns, flowA, flowB, flowC)
	for name, tuning := range map[string]Tuning{
		"less than in use":    {Max: 2},
		"negative":            {Max: -1},
		"floor above ceiling": {PerCore: 1, Floor: 10, Ceiling: 5},
		"half a second":       {UDP: 500 * time.Millisecond},
		"second and a half":   {UDP: 1500 * time.Millisecond},
		"negative time":       {TCPCloseWait: -time.Second},
		"eternity":            {TCPEstablished: 1 << 62},
	} {
		tuning.UDPStream = 7 * time.Second // must not be set either
		done, err := c.Tune(t.Context(), tuning)
		require.ErrorIs(t, err, model.ErrInvalid, name)
		require.Empty(t, done, name)
	}
	require.Empty(t, readBack(t, root))
	_, err := c.Tune(t.Context(), Tuning{Max: 3})
	require.NoError(t, err)
}

// TestTuneWhatItCan: variables that are not there, or not to be read, are named, and the others set.
func TestTuneWhatItCan(t *testing.T) {
	values := usual()
	delete(values, sysctlUDP)
	root := fakeRoot(t, "0-3", values)
	require.NoError(t, os.WriteFile(filepath.Join(root, "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"), []byte("soon"), 0o644))
	c := newCleaner(t, lab.StartNetNS(t, "node"), Config{Root: root})
	done, err := c.Tune(t.Context(), Tuning{Max: 70000, TCPCloseWait: time.Hour, UDP: time.Minute, UDPStream: time.Minute})
	require.ErrorIs(t, err, model.ErrNotSupported)
	require.ErrorContains(t, err, sysctlUDP)
	require.ErrorContains(t, err, sysctlTCPCloseWait)
	require.Len(t, done, 3)
	require.Equal(t, "net.netfilter.nf_conntrack_max: 65536 -> 70000", done[0].String())
}

// TestTuneOneNamespace: timeouts are the namespace's own. The limit is the host's, and the kernel lets nobody set it
// from here; whether it would have to change depends on the host, which this test leaves as it is.
func TestTuneOneNamespace(t *testing.T) {
	tuned, other := lab.StartNetNS(t, "tuned"), lab.StartNetNS(t, "other")
	was, err := other.ReadSysctl("net/netfilter/nf_conntrack_udp_timeout")
	require.NoError(t, err)
	here, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_udp_timeout")
	require.NoError(t, err)
	c := newCleaner(t, tuned, Config{})
	yes := true
	_, err = c.Tune(t.Context(), Tuning{UDP: 77 * time.Second, TCPLiberal: &yes})
	require.NoError(t, err)
	now, err := tuned.ReadSysctl("net/netfilter/nf_conntrack_udp_timeout")
	require.NoError(t, err)
	require.Equal(t, "77", now)
	unchanged, err := other.ReadSysctl("net/netfilter/nf_conntrack_udp_timeout")
	require.NoError(t, err)
	require.Equal(t, was, unchanged)
	stillHere, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_udp_timeout")
	require.NoError(t, err)
	require.Equal(t, here, stillHere)

	u, err := c.Usage(t.Context())
	require.NoError(t, err)
	done, err := c.Tune(t.Context(), Tuning{Max: u.Limit + 1, UDP: 78 * time.Second})
	require.ErrorIs(t, err, model.ErrPermission)
	require.ErrorContains(t, err, sysctlMax)
	require.Len(t, done, 1, "the timeout is set all the same")
	after, err := c.Usage(t.Context())
	require.NoError(t, err)
	require.Equal(t, u.Limit, after.Limit)
}

func TestCountCPUs(t *testing.T) {
	for list, want := range map[string]int{"0": 1, "0-3": 4, "0,2,4": 3, "0-1,8-11,15": 7} {
		n, err := countCPUs(list)
		require.NoError(t, err, list)
		require.Equal(t, want, n, list)
	}
	for _, list := range []string{"", "x", "0-", "-1", "0-x"} {
		_, err := countCPUs(list)
		require.Error(t, err, list)
	}
	require.Positive(t, cores(Config{Root: t.TempDir()}))
}
