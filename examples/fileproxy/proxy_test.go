package main

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
)

const (
	both = `
services:
  shop/web:
    frontends: [{internal: 10.96.0.10:80}]
    endpoints: [{address: 10.0.1.1:8080}, {address: 10.0.1.2:8080}]
`
	gammaAlone = `
services:
  shop/web:
    frontends: [{internal: 10.96.0.10:80}]
    endpoints: [{address: 10.0.1.3:8080}]
`
	all = `
services:
  shop/web:
    frontends: [{internal: 10.96.0.10:80}]
    endpoints: [{address: 10.0.1.1:8080}, {address: 10.0.1.2:8080}, {address: 10.0.1.3:8080}]
`
	brokenWebGoodDNS = `
services:
  shop/web:
    frontends: [{internal: 10.96.0.10:80}]
    endpoints: [{adress: 10.0.1.3:8080}]
  shop/dns:
    protocol: udp
    frontends: [{internal: 10.96.0.53:53}]
    endpoints: [{address: 10.0.1.1:5353}]
`
	broken = "services:\n  shop/web: [}\n"
)

// flushes has what an administrator types to lose all rules of each backend.
var flushes = map[string]string{
	"nftables": "nft flush ruleset",
	"iptables": "for table in nat filter; do iptables -t $table -F; iptables -t $table -X; done",
	"ipvs":     "ipvsadm -C",
}

// TestLife runs the program as an operator does, through a day on which much goes wrong.
func TestLife(t *testing.T) {
	able := []string{"nftables", "iptables"}
	if _, err := os.Stat("/proc/net/ip_vs"); err == nil { // few kernels have it loaded
		able = append(able, "ipvs")
	}
	for _, backend := range able {
		t.Run(backend, func(t *testing.T) {
			// Checks are rare, so that nothing is mended but by what is tested.
			r := start(t, "-backend", backend, "-within", "10m", "-set-sysctls")
			r.run()
			r.until("it runs", func(r report) bool { return r.Backend == backend })
			code, why := r.get("/healthz")
			require.Equal(t, 503, code)
			require.Contains(t, why, "no good file yet")
			out, err := r.client("status")
			require.Error(t, err, "status fails when the proxy is not healthy")
			require.Contains(t, out, "no such file")

			r.write(both)
			r.until("it has the file", programmed("shop/web", 2))
			code, _ = r.get("/healthz")
			require.Equal(t, 200, code)
			r.answers("alpha", "beta")
			r.write(all)
			r.until("it has the change", programmed("shop/web", 3))
			r.answers("alpha", "beta", "gamma")

			r.badFile()
			r.flushed(backend, "alpha", "beta", "gamma")
			r.killed()
			r.stopped()
		})
	}
}

// badFile breaks the file, and then one service of it.
func (r *rig) badFile() {
	t := r.t
	r.write(broken)
	rep := r.until("it knows", func(r report) bool { return r.File.Err != "" })
	require.Contains(t, rep.File.Err, "line 2")
	r.answers("alpha", "beta", "gamma")
	code, _ := r.get("/healthz")
	require.Equal(t, 200, code, "what is wanted is programmed")
	_, text := r.get("/metrics")
	require.Contains(t, text, "\nfileproxy_file_good 0\n")

	r.write("")
	r.until("it knows of the empty one", func(r report) bool {
		return r.File.Err == `the file is empty: one without services says "services: {}"`
	})
	r.answers("alpha", "beta", "gamma")

	r.write(brokenWebGoodDNS)
	rep = r.until("the good part is programmed", programmed("shop/dns", 1))
	require.Equal(t, "faulty", rep.service("shop/web").State)
	require.Len(t, rep.service("shop/web").Endpoints, 3, "it has its last good form")
	r.answers("alpha", "beta", "gamma")
	a, err := r.Ask(context.Background(), lab.Query{Proto: lab.UDP, To: netip.MustParseAddrPort(dnsVIP), Source: netip.MustParseAddrPort("203.0.113.7:0")})
	require.NoError(t, err)
	require.Equal(t, "alpha", a.Name)
	out, err := r.client("status")
	require.NoError(t, err, out)
	require.Regexp(t, `shop/dns +programmed +10\.96\.0\.53:53 udp +10\.0\.1\.1:5353 ready`, out)
	require.Regexp(t, `shop/web +faulty`, out)
	require.Contains(t, out, `line 5: unknown field "adress"`)
	_, text = r.get("/metrics")
	require.Contains(t, text, "\nfileproxy_file_faulty_services 1\n")
	require.Contains(t, text, "\nfileproxy_file_good 1\n")
	require.Regexp(t, `\nheadgate_services\{[^}]*\} 2\n`, text)
	require.Regexp(t, `\nheadgate_conntrack_entries\{[^}]*\} \d`, text)

	out, err = r.client("explain", vip, "-from", "203.0.113.7", "-interface", "uplink1")
	require.NoError(t, err, out)
	require.Contains(t, out, "balanced: random over 3 of 3 endpoints")
	require.Regexp(t, `(?i)\n  .*fileproxy.*: `, out, "the way through the rules")
	require.Contains(t, out, "shop/web")
	out, err = r.client("explain", "10.96.0.53:80", "-protocol", "udp")
	require.NoError(t, err, out)
	require.Contains(t, out, "refused")
	out, err = r.client("explain", "nonsense")
	require.Error(t, err)
	require.Contains(t, out, "usage")
}

// flushed lets somebody flush all rules, and asks for them again.
func (r *rig) flushed(backend string, answer ...string) {
	r.t.Helper()
	r.sh("sh", "-ec", flushes[backend])
	r.silent()
	require.NoError(r.t, r.running.Process.Signal(unix.SIGHUP))
	require.Eventually(r.t, func() bool {
		a, err := r.Host("client").Ask(context.Background(), web())
		return err == nil && a.Verdict == lab.Answered
	}, patience, patience/1000)
	r.answers(answer...)
}

// killed kills the program, starts it again while clients keep connecting, and once more with a file that is no good.
func (r *rig) killed() {
	t := r.t
	load := lab.Load{Query: web(), Flows: 4, Rate: 200, Slow: patience} // a SYN that is lost is counted as such
	rep, err := r.Load(context.Background(), load, func(context.Context) error {
		err := r.end(unix.SIGKILL)
		require.ErrorContains(t, err, "killed")
		r.write(all)
		r.run()
		r.until("it is back", programmed("shop/web", 3))
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, rep.Err())

	require.Error(t, r.end(unix.SIGKILL))
	r.write(broken)
	r.run()
	after := r.until("it is back", programmed("shop/web", 3))
	require.NotEmpty(t, after.File.Err)
	code, _ := r.get("/healthz")
	require.Equal(t, 200, code)
	r.answers("alpha", "beta", "gamma")

	require.Error(t, r.end(unix.SIGKILL))
	r.write(brokenWebGoodDNS)
	r.run()
	after = r.until("it is back", programmed("shop/dns", 1))
	require.Len(t, after.service("shop/web").Endpoints, 3, "it has its last good form")
	r.answers("alpha", "beta", "gamma")
	r.write(gammaAlone)
	r.until("it has the repaired file", programmed("shop/web", 1))
	r.answers("gamma")
}

// stopped ends the program as systemd does, and cleans up.
func (r *rig) stopped() {
	t := r.t
	out, err := r.client("-cleanup")
	require.Error(t, err, "while it runs")
	require.Contains(t, out, "a fileproxy runs already")
	r.answers("gamma")

	require.NoError(t, r.end(unix.SIGTERM))
	r.answers("gamma")
	_, err = r.client("status")
	require.Error(t, err)
	out, err = r.client("-cleanup")
	require.NoError(t, err, out)
	r.silent()
	r.write(broken)
	r.run()
	r.until("it is back", func(r report) bool { return r.File.Err != "" })
	code, _ := r.get("/healthz")
	require.Equal(t, 503, code, "nobody knows what is wanted")
	require.NoError(t, r.end(unix.SIGTERM))
	rules := r.sh("nft", "list", "ruleset") + r.sh("ip", "route", "show", "table", "all", "proto", "104")
	require.NotContains(t, rules, "fileproxy")
	require.NotContains(t, rules, "FILEPROXY")
	require.NotContains(t, rules, "10.96.0")
}

// TestConfigMap mounts the file as Kubernetes does: a link to a file below a link to a folder, which is swapped.
func TestConfigMap(t *testing.T) {
	r := start(t, "-backend", "nftables")
	dir := t.TempDir()
	swap := func(version, text string) {
		require.NoError(t, os.Mkdir(filepath.Join(dir, version), 0o755))
		writeFile(t, filepath.Join(dir, version, "services.yaml"), text)
		require.NoError(t, os.Symlink(version, filepath.Join(dir, "..tmp")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
	}
	swap("..1", both)
	require.NoError(t, os.Symlink("..data/services.yaml", filepath.Join(dir, "services.yaml")))
	require.NoError(t, os.Symlink(filepath.Join(dir, "services.yaml"), r.file)) // and a link to that from elsewhere
	r.run()
	r.until("it has the file", programmed("shop/web", 2))
	swap("..2", gammaAlone)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "..1")))
	r.until("it has the other", programmed("shop/web", 1))
	r.answers("gamma")
	swap("..3", all)
	r.until("it has the third", programmed("shop/web", 3))
}

// TestStaleFlows takes an endpoint away from a client that keeps sending.
func TestStaleFlows(t *testing.T) {
	r := start(t, "-backend", "nftables")
	dns := func(server string) string {
		return "services: {shop/dns: {protocol: udp, frontends: [{internal: 10.96.0.53:53}], endpoints: [{address: " + server + ":5353}]}}"
	}
	r.write(dns("10.0.1.1"))
	r.run()
	r.until("it has the file", programmed("shop/dns", 1))
	ctx := context.Background()
	flow, err := r.Open(ctx, lab.Query{Proto: lab.UDP, To: netip.MustParseAddrPort(dnsVIP), Source: netip.MustParseAddrPort("203.0.113.7:0")})
	require.NoError(t, err)
	defer flow.Close()
	require.Equal(t, "alpha", flow.First().Name)
	r.write(dns("10.0.1.2"))
	require.Eventually(t, func() bool {
		a, err := flow.Ping(ctx, 0)
		return err == nil && a.Name == "beta"
	}, patience, patience/1000)
}

// TestSwitchBackend starts with another backend than the last time.
func TestSwitchBackend(t *testing.T) {
	r := start(t, "-backend", "auto")
	r.write(both)
	r.run()
	r.until("it has the file", programmed("shop/web", 2))
	require.Contains(t, r.sh("nft", "list", "tables"), "table ip fileproxy\n", "auto prefers nftables")
	require.Eventually(t, func() bool { return noted(r.dir) == "nftables\n" }, patience, patience/1000)
	load := lab.Load{Query: web(), Flows: 4, Rate: 100, Slow: patience}
	rep, err := r.Load(context.Background(), load, func(context.Context) error {
		require.NoError(t, r.end(unix.SIGTERM))
		r.args = []string{"-backend", "iptables"}
		r.run()
		require.Eventually(t, func() bool { return noted(r.dir) == "iptables\n" }, patience, patience/1000)
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, rep.Err())
	require.NotContains(t, r.sh("nft", "list", "tables"), "table ip fileproxy\n")
	r.answers("alpha", "beta")
}

func noted(dir string) string {
	text, _ := os.ReadFile(filepath.Join(dir, "backend"))
	return string(text)
}
