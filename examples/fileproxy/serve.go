package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/headgate/headgate/model"
)

// listen serves /healthz and /metrics to whoever can reach the address, and everything on a socket in the proxy's
// folder, to those who may write to it: root, and the user that it runs as. A server that fails stops the proxy.
func (p *proxy) listen(stop context.CancelCauseFunc) (closeAll func(), err error) {
	public := http.NewServeMux()
	public.HandleFunc("GET /healthz", p.serveHealth)
	public.Handle("GET /metrics", promhttp.HandlerFor(p.metrics, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelWarn)}))
	private := http.NewServeMux()
	private.Handle("/", public)
	private.HandleFunc("GET /status", p.serveStatus)
	private.HandleFunc("GET /explain", p.serveExplain)

	var servers []*http.Server
	closeAll = func() {
		for _, s := range servers {
			_ = s.Close()
		}
	}
	serve := func(network, addr string, mux http.Handler) error {
		l, err := net.Listen(network, addr)
		if err != nil {
			return err
		}
		s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
		servers = append(servers, s)
		go func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				stop(fmt.Errorf("serve %s: %w", addr, err))
			}
		}()
		p.log.Info("listening", "on", l.Addr())
		return nil
	}
	socket := socketPath(p.cfg.dir)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err = serve("unix", socket, private); err == nil {
		err = os.Chmod(socket, 0o660)
	}
	if err == nil && p.cfg.listen != "" {
		err = serve("tcp", p.cfg.listen, public)
	}
	if err != nil {
		closeAll()
	}
	return closeAll, err
}

// socketPath is where a proxy listens for "fileproxy status". The lock beside it sees that it is nobody else's.
func socketPath(dir string) string { return filepath.Join(dir, "socket") }

func (p *proxy) serveHealth(w http.ResponseWriter, _ *http.Request) {
	if err := unhealthy(p.syncer.Overview(), time.Now(), p.cfg.within); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (p *proxy) serveStatus(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(p.report(time.Now())) // the client is gone
}

func (p *proxy) serveExplain(w http.ResponseWriter, r *http.Request) {
	q, err := question(r.FormValue("to"), r.FormValue("protocol"), r.FormValue("from"), r.FormValue("interface"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e, err := p.explain(r.Context(), q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, e)
}

// question reads what somebody wants explained. An empty from is the node itself.
func question(to, protocol, from, iface string) (q model.Query, err error) {
	q.Interface = iface
	if q.To, err = netip.ParseAddrPort(to); err != nil {
		return q, err
	}
	if from != "" {
		if q.From, err = netip.ParseAddr(from); err != nil {
			return q, err
		}
	}
	for _, proto := range model.Protocols {
		if proto.String() == protocol {
			q.Protocol = proto
			return q, nil
		}
	}
	return q, fmt.Errorf("%q is no protocol", protocol)
}

// FileMetrics are those about the file. They are read when they are scraped.
type fileMetrics struct{ *proxy }

var (
	fileGood   = prom.NewDesc("fileproxy_file_good", "1 if the file, as it is now, could be used, else 0.", nil, nil)
	fileTaken  = prom.NewDesc("fileproxy_file_last_good_timestamp_seconds", "When the file was last good.", nil, nil)
	fileFaults = prom.NewDesc("fileproxy_file_faulty_services", "Services in the file that make no sense, and stay as they were.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m fileMetrics) Describe(out chan<- *prom.Desc) {
	out <- fileGood
	out <- fileTaken
	out <- fileFaults
}

// Collect implements prometheus.Collector.
func (m fileMetrics) Collect(out chan<- prom.Metric) {
	m.mu.Lock()
	file := m.file
	m.mu.Unlock()
	good, taken := 0.0, 0.0
	if file.Err == "" {
		good = 1
	}
	if !file.Taken.IsZero() {
		taken = float64(file.Taken.UnixNano()) / 1e9
	}
	out <- prom.MustNewConstMetric(fileGood, prom.GaugeValue, good)
	out <- prom.MustNewConstMetric(fileTaken, prom.GaugeValue, taken)
	out <- prom.MustNewConstMetric(fileFaults, prom.GaugeValue, float64(len(file.Faults)))
}
