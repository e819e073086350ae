// Prometheus shows what headgate tells a monitoring system, and what that is good for:
//
//	sudo go run .                              from this folder
//	sudo go run . -listen 127.0.0.1:9770       and go on serving it, until interrupted
//
// It programs services in a network namespace without a name, which ends with the program, and does to them what an
// administrator wants to be told of. After each step it scrapes itself, and prints the metrics that the step moved and the
// alert rules that watch them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/headgate/headgate/conntrack"
	"github.com/headgate/headgate/internal/example"
	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/prometheus"
	"github.com/headgate/headgate/nftables"
)

func main() {
	listen := flag.String("listen", "", "`address` to go on serving the metrics on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "prometheus:", example.Explain(err, "."))
		os.Exit(1)
	}
}

func run(ctx context.Context, listen string) error {
	node, err := lab.NewNetNS("node")
	if err != nil {
		return err
	}
	defer node.Close()
	lb, err := nftables.New(ctx, nftables.Config{NetNS: node.FD()})
	if err != nil {
		return err
	}
	defer lb.Close()
	cleaner, err := conntrack.New(ctx, conntrack.Config{NetNS: node.FD()})
	if err != nil {
		return err
	}
	defer cleaner.Close()

	// This is all that an embedder does: the Collector observes the Syncer, and is registered like any other.
	metrics := prometheus.New(prometheus.Config{Usage: func(ctx context.Context) (prometheus.Usage, error) {
		u, err := cleaner.Usage(ctx)
		return prometheus.Usage(u), err
	}})
	registry := prom.NewRegistry()
	registry.MustRegister(metrics)
	syncer := model.NewSyncer(lb, model.SyncerConfig{Observer: metrics, Cleaner: cleaner, CheckPeriod: 100 * time.Millisecond})

	l, err := net.Listen("tcp", first(listen, "127.0.0.1:0"))
	if err != nil {
		return err
	}
	defer l.Close()
	go http.Serve(l, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- syncer.Run(ctx) }()
	s := &show{ctx: ctx, syncer: syncer, node: node, url: "http://" + l.Addr().String() + "/metrics"}
	err = errors.Join(s.programming(), s.changes(), s.rejection(), s.drift(), s.conntrack())
	if err == nil {
		fmt.Println("\nThe rules are in model/prometheus/alerts.yaml, for Prometheus to load as they are.")
	}
	if err == nil && listen != "" {
		fmt.Println("\nServing", s.url)
		<-ctx.Done()
	}
	stop()
	return errors.Join(err, <-done)
}

func first(of ...string) string {
	for _, s := range of {
		if s != "" {
			return s
		}
	}
	return ""
}

// A show is what is done to the Syncer, and what the metrics say then.
type show struct {
	ctx    context.Context
	syncer *model.Syncer
	node   *lab.NetNS
	url    string
}

func (s *show) programming() error {
	state := model.State{Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	for i := range 100 {
		name := model.ServiceName(fmt.Sprintf("shop/web-%d", i))
		state.Services[name] = model.Service{Frontends: []model.Frontend{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)}), 80)}}}
		state.Endpoints[name] = servers(3)
	}
	if err := errors.Join(s.syncer.Replace(state), s.syncer.Wait(s.ctx)); err != nil {
		return err
	}
	return s.print("A hundred services are programmed", "HeadgateSyncFailing and HeadgateSyncSlow",
		"services", "sync_synced", "sync_consecutive_failures", "sync_full_proxy_rules_duration_seconds_count", "written_objects_total")
}

func (s *show) changes() error {
	for n := range 20 {
		s.syncer.SetEndpoints("shop/web-0", servers(1+n%5))
		if err := s.syncer.Wait(s.ctx); err != nil {
			return err
		}
	}
	return s.print("Twenty changes: how long each took to be in force, gathered ones included", "HeadgateBehind",
		"network_programming_duration_seconds_sum", "network_programming_duration_seconds_count",
		"sync_partial_proxy_rules_duration_seconds_sum", "sync_partial_proxy_rules_duration_seconds_count", "sync_behind_seconds")
}

func (s *show) rejection() error {
	svc := model.Service{Balance: model.LeastConn, Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("10.96.1.1:80")}}}
	s.syncer.SetService("shop/least", svc)
	svc.Balance, svc.Frontends[0].Addr = model.Random, netip.MustParseAddrPort("10.96.0.1:80")
	s.syncer.SetService("shop/zz-thief", svc)
	if err := s.syncer.Wait(s.ctx); err != nil {
		return err
	}
	return s.print("One service asks for what nftables cannot do, one for another's address", "HeadgateServicesRejected and HeadgateServicesConflicting",
		"services_rejected", "services_conflicting")
}

func (s *show) drift() error {
	if err := s.node.Command(s.ctx, "nft", "flush", "ruleset").Run(); err != nil {
		return err
	}
	for s.syncer.Overview().Drifts == 0 || s.syncer.Wait(s.ctx) != nil {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
	if err := s.syncer.Resync(s.ctx); err != nil { // behind the repair, which is no change that Wait waits for
		return err
	}
	return s.print("Somebody flushes the rules, and the next check mends them", "HeadgateDriftRepeated",
		`check_failures_total{backend="nftables",class="drift"`, "drift_repairs_total", "check_last_timestamp_seconds")
}

func (s *show) conntrack() error {
	return s.print("How full the connection tracking table is", "HeadgateConntrackFull, HeadgateConntrackDropping and HeadgateStaleFlows",
		"conntrack_entries", "conntrack_entries_limit", "conntrack_dropped_packets_total", "conntrack_reconciler_deleted_entries_total")
}

// print scrapes, and prints the metrics that begin with one of the names, and which alerts watch them.
func (s *show) print(what, alerts string, names ...string) error {
	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	fmt.Printf("\n%s:\n", what)
	for _, name := range names {
		if !strings.Contains(name, "{") {
			name += "{"
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "headgate_"+name) {
				fmt.Print("  ", line)
			}
		}
	}
	fmt.Printf("  watched by %s\n", alerts)
	return nil
}

// servers returns so many endpoints.
func servers(n int) []model.Endpoint {
	var eps []model.Endpoint
	for i := range n {
		eps = append(eps, model.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}), 8080)})
	}
	return eps
}
