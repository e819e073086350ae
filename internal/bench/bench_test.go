package main

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
)

// TestMain lets this test binary stand in for the program where that starts itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-memory" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var (
	fields = []string{"backend", "services", "endpoints", "sync_seconds", "sync_cpu_seconds", "floor_seconds",
		"apply_microseconds", "apply_floor_microseconds", "remove_microseconds", "remove_floor_microseconds",
		"restart_seconds", "cleanup_seconds", "peak_rss_bytes", "objects"}
	backendFields = map[string][]string{
		"iptables -variant legacy": {"variant", "rules_passed", "noop_restore_seconds"},
		"iptables -variant nft":    {"variant", "rules_passed", "noop_restore_seconds"},
		"ipvs":                     {"peer_sync_seconds", "restore_seconds"},
	}
	connectFields = []string{"direct_p50_microseconds", "vip_p50_microseconds", "direct_p99_microseconds", "vip_p99_microseconds", "connect_ratio"}
	churnFields   = []string{"churn_changes", "churn_applies", "churn_cpu_microseconds", "churn_p50_milliseconds", "churn_p99_milliseconds"}
)

// TestEachBackend runs the bench small. It asserts no time.
func TestEachBackend(t *testing.T) {
	lab.NeedRoot(t)
	for _, name := range backendNames() {
		t.Run(name, func(t *testing.T) {
			needKernel(t, name)
			dump := filepath.Join(t.TempDir(), "first-sync")
			for _, sc := range []struct {
				args   []string
				fields []string
			}{
				{[]string{"-services", "20", "-endpoints", "3", "-dump", dump}, fields},
				{[]string{"-services", "3", "-endpoints", "1", "-affinity", "2", "-restricted", "3", "-connect", "20"}, slices.Concat(fields, connectFields)},
				{[]string{"-services", "200", "-endpoints", "2", "-churn", "1500ms"}, slices.Concat(fields, churnFields)},
			} {
				var out bytes.Buffer
				require.NoError(t, run(t.Context(), slices.Concat(sc.args, strings.Fields("-runs 1 -backend "+name)), &out, io.Discard))
				r := map[string]any{}
				dec := json.NewDecoder(&out)
				require.NoError(t, dec.Decode(&r))
				require.False(t, dec.More(), "more than one object")
				require.ElementsMatch(t, slices.Concat(sc.fields, backendFields[name]), slices.Collect(maps.Keys(r)))
				require.Equal(t, strings.Fields(name)[0], r["backend"])
				for f, value := range r {
					if f != "backend" && f != "variant" {
						require.Positive(t, value, f)
					}
				}
			}
			var out bytes.Buffer
			require.NoError(t, run(t.Context(), strings.Fields("-replay "+dump+" -runs 2 -backend "+name), &out, io.Discard))
			require.Regexp(t, `^(\d+ bytes in \d+ pieces: \d+\.\d+ s\n){2}$`, out.String())
		})
	}
}

// TestTwinHoldsTheSame sees that a floor is that of the work that was done: what was sent again made the same rules.
func TestTwinHoldsTheSame(t *testing.T) {
	lab.NeedRoot(t)
	listers := map[string][]string{
		"iptables -variant legacy": {"sh", "-ec", "{ iptables-legacy-save; ip6tables-legacy-save; } | sed -n '/HEADGATE/p'"},
		"iptables -variant nft":    {"sh", "-ec", "{ iptables-nft-save; ip6tables-nft-save; } | sed -n '/HEADGATE/p'"},
		"ipvs":                     {"sh", "-ec", "nft list ruleset; ipvsadm -Sn; ip route show table local proto 104"},
		"nftables":                 {"nft", "list", "ruleset"},
	}
	for _, name := range backendNames() {
		t.Run(name, func(t *testing.T) {
			needKernel(t, name)
			rec, err := newRecorder()
			require.NoError(t, err)
			defer rec.Close()
			p, err := newPair(backends()[name], rec)
			require.NoError(t, err)
			defer p.close()
			cfg := config{backend: name, services: 120, endpoints: 3, affinity: 5, restricted: 5}
			s, err := p.repetition(t.Context(), cfg, "")
			require.NoError(t, err)
			require.Positive(t, s.removeTransactions)

			require.Contains(t, listers, name)
			subject, twin := rules(t, p.subject, listers[name]), rules(t, p.twin, listers[name])
			require.Greater(t, len(subject), cfg.services*cfg.endpoints)
			require.Equal(t, subject, twin)

			_, err = p.cleanup(t.Context())
			require.NoError(t, err)
			require.Empty(t, rules(t, p.subject, listers[name]))
		})
	}
}

// needKernel skips a test of a backend for which the kernel lacks a module. The virtual machine has them all.
func needKernel(t *testing.T, backend string) {
	t.Helper()
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil && backend == "ipvs" {
		t.Skip("needs IPVS: runs in the VM")
	}
	if strings.HasPrefix(backend, "iptables") && os.Getenv("HEADGATE_VM") != "" {
		t.Skip("an emulated processor starts programs too slowly: runs on the host")
	}
}

// rules lists the rules of a namespace in an order that does not depend on how the kernel hashes.
func rules(t *testing.T, ns *lab.NetNS, lister []string) []string {
	t.Helper()
	_, err := exec.LookPath(lister[0])
	require.NoError(t, err)
	out, err := ns.Command(t.Context(), lister[0], lister[1:]...).Output()
	require.NoError(t, err)
	words := strings.FieldsFunc(string(out), func(r rune) bool { return r == ',' || r == '\n' })
	for i := range words {
		words[i] = strings.TrimSpace(words[i])
	}
	slices.Sort(words)
	return words
}

func TestArguments(t *testing.T) {
	for _, sc := range []struct{ args, err string }{
		{"-backend teleport", `no backend "teleport"; there is `},
		{"-backend iptables", `no backend "iptables"; there is iptables -variant legacy, iptables -variant nft`},
		{"-services 0", "-services must be between 1 and"},
		{"-services 10 -endpoints 0", "-endpoints must be at least 1"},
		{"-services 1000000 -endpoints 1000000", "-endpoints must be at least 1"},
		{"-services 10 -affinity 11", "count services, of which there are 10"},
		{"-services 10 -restricted -1", "count services, of which there are 10"},
		{"-churn -1s", "-connect and -churn must not be negative"},
		{"-connect -1", "-connect and -churn must not be negative"},
		{"-runs 0", "nor -runs less than 1"},
		{"more", `unexpected argument "more"`},
		{"-replay /nowhere", "no such file"},
	} {
		t.Run(sc.args, func(t *testing.T) {
			err := run(t.Context(), strings.Fields(sc.args), io.Discard, io.Discard)
			require.ErrorContains(t, err, sc.err)
		})
	}
}
