// Package prometheus exports what a [model.Syncer] does as metrics, by the names that the dashboards and alerts of this
// field know. It is a module of its own, so that nobody else depends on Prometheus.
//
//	metrics := prometheus.New(prometheus.Config{})
//	registry.MustRegister(metrics)
//	syncer := model.NewSyncer(programmer, model.SyncerConfig{Observer: metrics})
//
// # Names
//
// Every name begins with [Config.Namespace] and an underscore: "headgate_" unless another is given, so that on a node where
// kube-proxy runs as well the two do not mix. With "kubeproxy" the first of the metrics below have the very names of its
// own, so that dashboards and alerts made for it work as they are.
//
// Every metric has the labels backend, "nftables" say, and ip_family. A Sync or Apply programs both families at once, so
// ip_family is what [Config.Family] says, "dual" by default, and not one of two series: whoever runs a Syncer for each
// family gives each its own.
//
// These are known from kube-proxy:
//
//	sync_proxy_rules_duration_seconds                    histogram  one attempt to program, good or not
//	sync_full_proxy_rules_duration_seconds               histogram  of these, everything (a Sync)
//	sync_partial_proxy_rules_duration_seconds            histogram  of these, what changed (an Apply)
//	network_programming_duration_seconds                 histogram  from a service's first change that was not programmed to programmed
//	sync_proxy_rules_last_timestamp_seconds              gauge      when something was last programmed
//	sync_proxy_rules_last_queued_timestamp_seconds       gauge      when a change was last asked for
//	sync_proxy_rules_service_changes_pending             gauge      services with changes that are not programmed, the node counting as one
//	sync_proxy_rules_service_changes_total               counter    changes asked for
//	sync_proxy_rules_endpoint_changes_pending            gauge      the same as service_changes_pending: a service changes with its endpoints
//	sync_proxy_rules_endpoint_changes_total              counter    the same as service_changes_total
//	sync_proxy_rules_nftables_sync_failures_total        counter    failed attempts, of backend nftables alone
//	sync_proxy_rules_iptables_restore_failures_total     counter    failed attempts, of backend iptables alone
//	conntrack_reconciler_sync_duration_seconds           histogram  one attempt to forget stale flows
//	conntrack_reconciler_deleted_entries_total           counter    stale flows that were forgotten
//
// These are headgate's own:
//
//	sync_failures_total{class}                           counter    failed attempts, by model.FailureClass
//	sync_consecutive_failures                            gauge      failed attempts since the last good one
//	sync_behind_seconds                                  gauge      how long the oldest change has been waiting
//	sync_last_full_timestamp_seconds                     gauge      when everything was last programmed
//	sync_synced                                          gauge      1 once everything was programmed, else 0
//	check_last_timestamp_seconds                         gauge      when the kernel was last found to hold what was written
//	check_failures_total{class}                          counter    checks that failed; class drift is one that found something
//	drift_repairs_total                                  counter    syncs that mended what somebody else had changed
//	services                                             gauge      services that are wanted
//	services_rejected                                    gauge      of these, those that cannot be programmed as they are
//	services_conflicting                                 gauge      of these, those that do without a frontend that another holds
//	draining                                             gauge      what is there only for connections that are open
//	written_objects_total{op}                            counter    objects in the kernel added, changed, deleted
//	conntrack_clean_failures_total{class}                counter    failed attempts to forget stale flows
//	conntrack_entries                                    gauge      flows in the table; with [Config.Usage], as all that follow
//	conntrack_entries_limit                              gauge      flows that the table may hold; 0 is no limit
//	conntrack_dropped_packets_total                      counter    packets dropped for want of an entry
//	conntrack_evicted_entries_total                      counter    entries that went early to make room
//	conntrack_clashed_entries_total                      counter    entries that could not be inserted
//	conntrack_usage_errors_total                         counter    scrapes that could not ask for these
//
// Time stamps are seconds since 1970 and 0 for never. Gauges are read from the Syncer when they are scraped, so that a
// Syncer which hangs shows.
//
// # Alerts
//
// The file alerts.yaml beside this one has alert rules over these metrics: programming that is slow, fails or lags
// behind, drift that repeats, services that are rejected, a connection tracking table that fills up. Load it as it is,
// or take from it what suits.
package prometheus
