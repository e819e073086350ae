package prometheus

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// idle returns a Syncer that is observed, and does nothing.
func idle(c *Collector) *model.Syncer {
	features := model.FeatureSet{Backend: "nftables", Balances: []model.Balance{model.Random}}
	return model.NewSyncer(modeltest.NewFake(modeltest.NewKernel(), modeltest.FakeConfig{Features: &features}), model.SyncerConfig{Observer: c})
}

// told returns a Collector that was told of everything there is.
func told(cfg Config) *Collector {
	c := New(cfg)
	c.Started(idle(c))
	c.Synced(model.SyncReport{Backend: "nftables", Full: true, Reason: model.ReasonStart, Took: 450 * time.Millisecond, Changes: 3,
		Latency: 2 * time.Second, Latencies: []time.Duration{2 * time.Second, 300 * time.Millisecond}, Result: model.Result{Added: 30}})
	c.Synced(model.SyncReport{Backend: "nftables", Reason: model.ReasonChange, Took: 40 * time.Microsecond, Changes: 1,
		Latencies: []time.Duration{90 * time.Microsecond}, Result: model.Result{Added: 1, Changed: 2, Deleted: 3}})
	c.Synced(model.SyncReport{Backend: "nftables", Reason: model.ReasonChange, Took: time.Millisecond, Err: fmt.Errorf("no: %w", model.ErrBusy)})
	c.Synced(model.SyncReport{Backend: "nftables", Full: true, Reason: model.ReasonDrift, Took: time.Second})
	c.Synced(model.SyncReport{Backend: "nftables", Full: true, Reason: model.ReasonDrift, Took: time.Second, Err: errors.New("what")})
	c.Checked(model.CheckReport{Backend: "nftables"})
	c.Checked(model.CheckReport{Backend: "nftables", Err: model.ErrDrift})
	c.Cleaned(model.CleanReport{Took: 50 * time.Millisecond, Result: model.Result{Deleted: 1000}})
	c.Cleaned(model.CleanReport{Took: time.Millisecond, Err: model.ErrPermission})
	return c
}

func usage(context.Context) (Usage, error) {
	return Usage{Entries: 850, Limit: 1000, Dropped: 3, Evicted: 2, Clashed: 1}, nil
}

// What is exported is what golden.txt says, for a node of which everything was told.
func TestExposition(t *testing.T) {
	const golden = "testdata/golden.txt"
	c := told(Config{Usage: usage, Labels: map[string]string{"instance_name": "a"}})
	r := prom.NewPedanticRegistry()
	require.NoError(t, r.Register(c))
	text := exposed(t, r)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(golden, []byte(text), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), text)
	problems, err := testutil.GatherAndLint(r)
	require.NoError(t, err)
	for _, p := range problems {
		require.Fail(t, "promlint", "%s: %s", p.Metric, p.Text)
	}
}

// exposed returns what a scrape gets, without buckets that are as their neighbours and without times.
func exposed(t *testing.T, g prom.Gatherer) string {
	t.Helper()
	families, err := g.Gather()
	require.NoError(t, err)
	var b strings.Builder
	for _, f := range families {
		fmt.Fprintf(&b, "# %s %s\n", f.GetName(), strings.ToLower(f.GetType().String()))
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			fmt.Fprintf(&b, "{%s}", strings.Join(labels, " "))
			switch h := m.GetHistogram(); {
			case h != nil:
				last := uint64(0)
				for _, bucket := range h.GetBucket() {
					if n := bucket.GetCumulativeCount(); n != last {
						fmt.Fprintf(&b, " %d≤%g", n, bucket.GetUpperBound())
						last = n
					}
				}
				fmt.Fprintf(&b, " count %d sum %g\n", h.GetSampleCount(), h.GetSampleSum())
			case m.GetCounter() != nil:
				fmt.Fprintf(&b, " %g\n", m.GetCounter().GetValue())
			default:
				fmt.Fprintf(&b, " %g\n", m.GetGauge().GetValue())
			}
		}
	}
	return b.String()
}

// names returns the names of all metrics that a Collector may export.
func names(c *Collector) []string {
	out := make(chan *prom.Desc)
	go func() {
		c.Describe(out)
		close(out)
	}()
	word := regexp.MustCompile(`fqName: "([^"]+)"`)
	var all []string
	for d := range out {
		all = append(all, word.FindStringSubmatch(d.String())[1])
	}
	slices.Sort(all)
	return all
}

// The documentation names every metric, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	var documented []string
	for _, m := range regexp.MustCompile(`(?m)^//\t([a-z_]+)(?:\{\w+\})? +(?:histogram|gauge|counter) `).FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, "headgate_"+m[1])
	}
	slices.Sort(documented)
	require.Equal(t, names(New(Config{Usage: usage})), documented)
}

// With the namespace of kube-proxy the names are those that its dashboards ask for.
func TestNamesOfKubeProxy(t *testing.T) {
	got := names(New(Config{Namespace: "kubeproxy"}))
	for _, name := range []string{
		"sync_proxy_rules_duration_seconds", "sync_full_proxy_rules_duration_seconds", "sync_partial_proxy_rules_duration_seconds",
		"network_programming_duration_seconds", "sync_proxy_rules_last_timestamp_seconds", "sync_proxy_rules_last_queued_timestamp_seconds",
		"sync_proxy_rules_endpoint_changes_pending", "sync_proxy_rules_endpoint_changes_total", "sync_proxy_rules_service_changes_pending",
		"sync_proxy_rules_service_changes_total", "sync_proxy_rules_nftables_sync_failures_total", "sync_proxy_rules_iptables_restore_failures_total",
		"conntrack_reconciler_sync_duration_seconds", "conntrack_reconciler_deleted_entries_total",
	} {
		require.Contains(t, got, "kubeproxy_"+name)
	}
}

// The bounds of kube-proxy's buckets are among ours, so that queries for them find something.
func TestBuckets(t *testing.T) {
	for i, le := 0, 0.001; i < 14; i, le = i+1, le*2 {
		require.Contains(t, syncBuckets(), le)
	}
	for _, le := range []float64{0.25, 0.5, 1, 5, 10, 30, 60, 120, 300} {
		require.Contains(t, networkBuckets(), le)
	}
	require.True(t, slices.IsSorted(networkBuckets()))
}

// Before a Syncer runs there is nothing about one; several go into one registry by their labels.
func TestRegistration(t *testing.T) {
	r := prom.NewPedanticRegistry()
	c := New(Config{Labels: map[string]string{"instance_name": "a"}})
	require.NoError(t, r.Register(c))
	require.Empty(t, exposed(t, r))
	require.NoError(t, r.Register(New(Config{Labels: map[string]string{"instance_name": "b"}})))
	require.Error(t, r.Register(New(Config{Labels: map[string]string{"instance_name": "b"}})))
	c.Started(idle(c))
	require.Contains(t, exposed(t, r), "headgate_sync_failures_total")
}

// A table that cannot be asked takes nothing else along.
func TestUsageThatFails(t *testing.T) {
	c := New(Config{UsageTimeout: time.Millisecond, Usage: func(ctx context.Context) (Usage, error) {
		<-ctx.Done()
		return Usage{}, ctx.Err()
	}})
	c.Started(idle(c))
	r := prom.NewPedanticRegistry()
	require.NoError(t, r.Register(c))
	text := exposed(t, r)
	require.Contains(t, text, "# headgate_conntrack_usage_errors_total counter\n{ip_family=dual} 1\n")
	require.NotContains(t, text, "headgate_conntrack_entries")
	require.Contains(t, text, "headgate_services ")
}

// A Syncer at work shows what it does.
func TestSyncerIsObserved(t *testing.T) {
	kernel := modeltest.NewKernel()
	c := New(Config{})
	s := model.NewSyncer(modeltest.NewFake(kernel, modeltest.FakeConfig{}), model.SyncerConfig{Observer: c, CheckPeriod: time.Millisecond,
		Retry: model.Backoff{Min: time.Millisecond, Max: 2 * time.Millisecond}})
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		stop()
		require.NoError(t, <-done)
	}()
	vip := []model.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.10:80")}}
	s.SetService("a", model.Service{Frontends: vip})
	s.SetService("b", model.Service{Frontends: vip})
	s.SetService("bad", model.Service{Protocol: 9})
	s.Ready()
	require.NoError(t, s.Wait(ctx))
	kernel.FailNext(1, syscall.EBUSY)
	kernel.Flush()
	r := prom.NewPedanticRegistry()
	require.NoError(t, r.Register(c))
	value := func(name, labels string) string {
		m := regexp.MustCompile(`(?m)^# headgate_` + name + ` \w+\n(?:\{.*\n)*?\{` + labels + `\} (.*)$`).FindStringSubmatch(exposed(t, r))
		if m == nil {
			return ""
		}
		return m[1]
	}
	const fake = "backend=fake ip_family=dual"
	for value("drift_repairs_total", fake) != "1" {
		require.NoError(t, ctx.Err(), exposed(t, r))
		time.Sleep(time.Millisecond)
	}
	require.Equal(t, "1", value("sync_failures_total", "backend=fake class=busy ip_family=dual"))
	require.NotEqual(t, "0", value("check_failures_total", "backend=fake class=drift ip_family=dual"))
	require.Equal(t, "3", value("services", fake))
	require.Equal(t, "1", value("services_rejected", fake))
	require.Equal(t, "1", value("services_conflicting", fake))
	require.Equal(t, "1", value("sync_synced", fake))
	require.Equal(t, "0", value("sync_proxy_rules_service_changes_pending", fake))
	require.Equal(t, "3", value("sync_proxy_rules_service_changes_total", fake))
	require.Equal(t, "0", value("sync_consecutive_failures", fake))
}

// It is told and scraped at the same time.
func TestConcurrently(t *testing.T) {
	c := told(Config{Usage: usage})
	r := prom.NewPedanticRegistry()
	require.NoError(t, r.Register(c))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				c.Synced(model.SyncReport{Backend: "nftables", Took: time.Millisecond})
				c.Cleaned(model.CleanReport{})
				if _, err := r.Gather(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
