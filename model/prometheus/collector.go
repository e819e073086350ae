package prometheus

import (
	"context"
	"sync"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/model"
)

// Config configures [New]. The zero Config is ready to use.
type Config struct {
	// Namespace begins every name. Empty means "headgate".
	Namespace string
	// Family is the label ip_family. Empty means "dual".
	Family string
	// Labels are further labels of every metric.
	Labels map[string]string
	// Usage asks how full the connection tracking table is, at each scrape. Nil exports nothing about it. With package
	// conntrack:
	//
	//	func(ctx context.Context) (prometheus.Usage, error) {
	//		u, err := cleaner.Usage(ctx)
	//		return prometheus.Usage(u), err
	//	}
	Usage func(ctx context.Context) (Usage, error)
	// UsageTimeout bounds a call of Usage. 0 means five seconds.
	UsageTimeout time.Duration
}

// Usage says how full a connection tracking table is. Its fields are those of conntrack.Usage, which converts to it.
type Usage struct {
	Entries, Limit            int
	Dropped, Evicted, Clashed uint64
}

// A Collector gathers metrics about one Syncer, whose Observer it is. It is a prometheus.Collector, to be registered
// once; several need different Labels. It is safe for concurrent use.
type Collector struct {
	model.Unobserved
	cfg Config

	// mu guards what follows.
	mu     sync.Mutex
	syncer *model.Syncer

	syncs, fulls, partials, network, cleans *prom.HistogramVec
	failures, checkFailures, cleanFailures  *prom.CounterVec
	compatible                              map[string]*prom.CounterVec // failures by the name that one backend's have
	repairs, written, forgotten             *prom.CounterVec
	unasked                                 prom.Counter
	overview                                []reading
	usage                                   []usageReading
}

var (
	_ model.Observer = (*Collector)(nil)
	_ prom.Collector = (*Collector)(nil)
)

// syncBuckets go from what one change costs with nftables to what everything costs with iptables. Those of kube-proxy,
// a millisecond and its doubles, are among them.
func syncBuckets() []float64 { return prom.ExponentialBuckets(0.000_031_25, 2, 20) }

// networkBuckets go from a millisecond to five minutes; from 0.25 seconds on they are some of kube-proxy's.
func networkBuckets() []float64 {
	return []float64{0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.5, 1, 2, 3, 5, 8, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 300}
}

// New returns a Collector of nothing yet.
func New(cfg Config) *Collector {
	if cfg.Namespace == "" {
		cfg.Namespace = "headgate"
	}
	if cfg.Family == "" {
		cfg.Family = "dual"
	}
	if cfg.UsageTimeout <= 0 {
		cfg.UsageTimeout = 5 * time.Second
	}
	labels := prom.Labels{"ip_family": cfg.Family}
	for name, value := range cfg.Labels {
		labels[name] = value
	}
	histogram := func(name, help string, buckets []float64) *prom.HistogramVec {
		return prom.NewHistogramVec(prom.HistogramOpts{Namespace: cfg.Namespace, Name: name, Help: help, ConstLabels: labels, Buckets: buckets}, []string{"backend"})
	}
	counter := func(name, help string, more ...string) *prom.CounterVec {
		return prom.NewCounterVec(prom.CounterOpts{Namespace: cfg.Namespace, Name: name, Help: help, ConstLabels: labels}, append([]string{"backend"}, more...))
	}
	c := &Collector{
		cfg:      cfg,
		syncs:    histogram("sync_proxy_rules_duration_seconds", "How long attempts to program took, good or not.", syncBuckets()),
		fulls:    histogram("sync_full_proxy_rules_duration_seconds", "How long attempts to program everything took.", syncBuckets()),
		partials: histogram("sync_partial_proxy_rules_duration_seconds", "How long attempts to program what changed took.", syncBuckets()),
		network: histogram("network_programming_duration_seconds",
			"Time from the first change of a service that was not programmed to when it was.", networkBuckets()),
		cleans:        histogram("conntrack_reconciler_sync_duration_seconds", "How long attempts to forget stale flows took.", syncBuckets()),
		failures:      counter("sync_failures_total", "Attempts to program that failed, by kind of failure.", "class"),
		checkFailures: counter("check_failures_total", "Checks that failed; of class drift those that found something changed.", "class"),
		cleanFailures: counter("conntrack_clean_failures_total", "Attempts to forget stale flows that failed, by kind of failure.", "class"),
		compatible: map[string]*prom.CounterVec{
			"nftables": counter("sync_proxy_rules_nftables_sync_failures_total", "Attempts to program nftables that failed."),
			"iptables": counter("sync_proxy_rules_iptables_restore_failures_total", "Attempts to program iptables that failed."),
		},
		repairs:   counter("drift_repairs_total", "Syncs that mended what somebody else had changed in the kernel."),
		written:   counter("written_objects_total", "Objects in the kernel that were added, changed or deleted.", "op"),
		forgotten: counter("conntrack_reconciler_deleted_entries_total", "Stale flows that were forgotten."),
		overview:  overviewReadings(cfg.Namespace, labels),
	}
	if cfg.Usage != nil {
		c.usage = usageReadings(cfg.Namespace, labels)
		c.unasked = prom.NewCounter(prom.CounterOpts{Namespace: cfg.Namespace, Name: "conntrack_usage_errors_total",
			Help: "Scrapes that could not ask how full the connection tracking table is.", ConstLabels: labels})
	}
	return c
}

// own returns everything that counts by itself.
func (c *Collector) own() []prom.Collector {
	all := []prom.Collector{c.syncs, c.fulls, c.partials, c.network, c.cleans, c.failures, c.checkFailures, c.cleanFailures,
		c.repairs, c.written, c.forgotten, c.compatible["nftables"], c.compatible["iptables"]}
	if c.unasked != nil {
		all = append(all, c.unasked)
	}
	return all
}

// Started implements [model.Observer]: it makes all counters of the backend appear, as 0.
func (c *Collector) Started(s *model.Syncer) {
	c.mu.Lock()
	c.syncer = s
	c.mu.Unlock()
	c.appear(s.Overview().Backend)
}

// appear makes the counters of a backend appear before they have counted anything, so that their rates are right.
func (c *Collector) appear(backend string) {
	for _, class := range model.FailureClasses() {
		c.failures.WithLabelValues(backend, class)
		c.checkFailures.WithLabelValues(backend, class)
		c.cleanFailures.WithLabelValues(backend, class)
	}
	for _, op := range [...]string{"added", "changed", "deleted"} {
		c.written.WithLabelValues(backend, op)
	}
	c.repairs.WithLabelValues(backend)
	c.forgotten.WithLabelValues(backend)
	if f := c.compatible[backend]; f != nil {
		f.WithLabelValues(backend)
	}
}

// Synced implements [model.Observer].
func (c *Collector) Synced(r model.SyncReport) {
	if r.Reason == model.ReasonSwitch {
		c.appear(r.Backend)
	}
	c.syncs.WithLabelValues(r.Backend).Observe(r.Took.Seconds())
	kind := c.partials
	if r.Full {
		kind = c.fulls
	}
	kind.WithLabelValues(r.Backend).Observe(r.Took.Seconds())
	if r.Err != nil {
		c.failures.WithLabelValues(r.Backend, model.FailureClass(r.Err)).Inc()
		if f := c.compatible[r.Backend]; f != nil {
			f.WithLabelValues(r.Backend).Inc()
		}
		return
	}
	for _, waited := range r.Latencies {
		c.network.WithLabelValues(r.Backend).Observe(waited.Seconds())
	}
	if r.Reason == model.ReasonDrift {
		c.repairs.WithLabelValues(r.Backend).Inc()
	}
	c.written.WithLabelValues(r.Backend, "added").Add(float64(r.Result.Added))
	c.written.WithLabelValues(r.Backend, "changed").Add(float64(r.Result.Changed))
	c.written.WithLabelValues(r.Backend, "deleted").Add(float64(r.Result.Deleted))
}

// Checked implements [model.Observer].
func (c *Collector) Checked(r model.CheckReport) {
	if r.Err != nil {
		c.checkFailures.WithLabelValues(r.Backend, model.FailureClass(r.Err)).Inc()
	}
}

// Cleaned implements [model.Observer].
func (c *Collector) Cleaned(r model.CleanReport) {
	backend := c.backend()
	c.cleans.WithLabelValues(backend).Observe(r.Took.Seconds())
	c.forgotten.WithLabelValues(backend).Add(float64(r.Result.Deleted))
	if r.Err != nil {
		c.cleanFailures.WithLabelValues(backend, model.FailureClass(r.Err)).Inc()
	}
}

func (c *Collector) backend() string {
	if s := c.observed(); s != nil {
		return s.Overview().Backend
	}
	return ""
}

func (c *Collector) observed() *model.Syncer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.syncer
}
