package prometheus

import (
	"context"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/model"
)

// A reading is a metric that is read from the Syncer when it is scraped.
type reading struct {
	desc *prom.Desc
	kind prom.ValueType
	of   func(o model.Overview) float64
}

// overviewReadings returns all of them.
func overviewReadings(namespace string, labels prom.Labels) []reading {
	gauge, counter := prom.GaugeValue, prom.CounterValue
	r := func(name, help string, kind prom.ValueType, of func(o model.Overview) float64) reading {
		return reading{prom.NewDesc(prom.BuildFQName(namespace, "", name), help, []string{"backend"}, labels), kind, of}
	}
	pending := func(o model.Overview) float64 { return float64(o.Pending) }
	changes := func(o model.Overview) float64 { return float64(o.Changes) }
	return []reading{
		r("sync_proxy_rules_last_timestamp_seconds", "When something was last programmed.", gauge,
			func(o model.Overview) float64 { return stamp(o.LastSync) }),
		r("sync_proxy_rules_last_queued_timestamp_seconds", "When a change was last asked for.", gauge,
			func(o model.Overview) float64 { return stamp(o.LastChange) }),
		r("sync_proxy_rules_service_changes_pending", "Services with changes that are not programmed.", gauge, pending),
		r("sync_proxy_rules_service_changes_total", "Changes that were asked for.", counter, changes),
		r("sync_proxy_rules_endpoint_changes_pending", "The same as sync_proxy_rules_service_changes_pending.", gauge, pending),
		r("sync_proxy_rules_endpoint_changes_total", "The same as sync_proxy_rules_service_changes_total.", counter, changes),
		r("sync_consecutive_failures", "Attempts to program that failed since the last good one.", gauge,
			func(o model.Overview) float64 { return float64(o.Failures) }),
		r("sync_behind_seconds", "How long the oldest change has been waiting to be programmed.", gauge,
			func(o model.Overview) float64 { return o.Behind(time.Now()).Seconds() }),
		r("sync_last_full_timestamp_seconds", "When everything was last programmed.", gauge,
			func(o model.Overview) float64 { return stamp(o.LastFull) }),
		r("sync_synced", "1 once everything has been programmed, else 0.", gauge, func(o model.Overview) float64 {
			if o.Synced {
				return 1
			}
			return 0
		}),
		r("check_last_timestamp_seconds", "When the kernel was last found to hold what was written.", gauge,
			func(o model.Overview) float64 { return stamp(o.LastCheck) }),
		r("services", "Services that are wanted.", gauge, func(o model.Overview) float64 { return float64(o.Services) }),
		r("services_rejected", "Services that cannot be programmed as they are.", gauge,
			func(o model.Overview) float64 { return float64(o.Rejected) }),
		r("services_conflicting", "Services that do without a frontend that another one holds.", gauge,
			func(o model.Overview) float64 { return float64(o.Conflicting) }),
		r("draining", "What is there only for connections that are open.", gauge,
			func(o model.Overview) float64 { return float64(o.Draining) }),
	}
}

// stamp returns a time as Prometheus writes it; 0 for the zero time.
func stamp(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}

// A usageReading is a metric that is read from the connection tracking table when it is scraped.
type usageReading struct {
	desc *prom.Desc
	kind prom.ValueType
	of   func(u Usage) float64
}

// usageReadings returns all of them.
func usageReadings(namespace string, labels prom.Labels) []usageReading {
	r := func(name, help string, kind prom.ValueType, of func(u Usage) float64) usageReading {
		return usageReading{prom.NewDesc(prom.BuildFQName(namespace, "", name), help, []string{"backend"}, labels), kind, of}
	}
	return []usageReading{
		r("conntrack_entries", "Flows in the connection tracking table.", prom.GaugeValue, func(u Usage) float64 { return float64(u.Entries) }),
		r("conntrack_entries_limit", "Flows that the connection tracking table may hold; 0 is no limit.", prom.GaugeValue,
			func(u Usage) float64 { return float64(u.Limit) }),
		r("conntrack_dropped_packets_total", "Packets dropped for want of an entry in the connection tracking table.", prom.CounterValue,
			func(u Usage) float64 { return float64(u.Dropped) }),
		r("conntrack_evicted_entries_total", "Entries of the connection tracking table that went early to make room.", prom.CounterValue,
			func(u Usage) float64 { return float64(u.Evicted) }),
		r("conntrack_clashed_entries_total", "Entries that could not be inserted into the connection tracking table.", prom.CounterValue,
			func(u Usage) float64 { return float64(u.Clashed) }),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prom.Desc) {
	for _, m := range c.own() {
		m.Describe(out)
	}
	for _, r := range c.overview {
		out <- r.desc
	}
	for _, r := range c.usage {
		out <- r.desc
	}
}

// Collect implements prometheus.Collector. Before Run has begun there is nothing about a Syncer.
func (c *Collector) Collect(out chan<- prom.Metric) {
	s := c.observed()
	var backend string
	if s != nil {
		o := s.Overview()
		backend = o.Backend
		for _, r := range c.overview {
			out <- prom.MustNewConstMetric(r.desc, r.kind, r.of(o), backend)
		}
	}
	c.collectUsage(out, backend)
	for _, m := range c.own() {
		m.Collect(out)
	}
}

func (c *Collector) collectUsage(out chan<- prom.Metric, backend string) {
	if c.cfg.Usage == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.UsageTimeout)
	defer cancel()
	u, err := c.cfg.Usage(ctx)
	if err != nil {
		c.unasked.Inc()
		return
	}
	for _, r := range c.usage {
		out <- prom.MustNewConstMetric(r.desc, r.kind, r.of(u), backend)
	}
}
