package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/conntrack"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/nodewatch"
	"github.com/headgate/headgate/model/prometheus"
)

// A proxy keeps the kernel in step with a file.
type proxy struct {
	cfg     config
	log     *slog.Logger
	syncer  *model.Syncer
	metrics *prom.Registry

	memory memory

	// mu guards what follows.
	mu   sync.Mutex
	seen string      // what was read last, or why it could not be
	want model.State // what is to be programmed: what the file says or, where that is no good, what it said before
	file fileReport  // how that went
}

// run is the proxy's life. It ends with ctx, and leaves the rules in place.
func run(ctx context.Context, cfg config, log *slog.Logger) error {
	lock, err := lockDir(cfg.dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	candidates, err := named(backends(cfg.setSysctls), cfg.backend)
	if err != nil {
		return err
	}
	choice, err := choose(ctx, candidates, log)
	if err != nil {
		return err
	}
	defer choice.Programmer.Close()
	addrs, err := nodewatch.New(nodewatch.Config{})
	if err != nil {
		return err
	}
	defer addrs.Close()
	p := &proxy{cfg: cfg, log: log, metrics: prom.NewRegistry(), memory: memory{cfg.dir}, file: fileReport{Path: cfg.file}}
	flows := prometheus.Config{}
	drive := model.SyncerConfig{Nodes: addrs, Logger: log, CheckPeriod: cfg.within / 3}
	if cleaner, err := conntrack.New(ctx, conntrack.Config{}); err != nil {
		log.Warn("flows to endpoints that are gone will not be forgotten", "err", err)
	} else {
		defer cleaner.Close()
		drive.Cleaner = cleaner
		flows.Usage = func(ctx context.Context) (prometheus.Usage, error) {
			u, err := cleaner.Usage(ctx)
			return prometheus.Usage(u), err
		}
	}
	collector := prometheus.New(flows)
	drive.Observer = collector
	p.syncer = model.NewSyncer(choice.Programmer, drive)
	p.metrics.MustRegister(collector, fileMetrics{p})
	return p.serve(ctx, choice.Name)
}

// serve runs everything until ctx is over or one part of it fails.
func (p *proxy) serve(ctx context.Context, backend string) error {
	parts, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	closeServers, err := p.listen(stop)
	if err != nil {
		return err
	}
	defer closeServers()
	p.recall()
	p.load(true)
	var all sync.WaitGroup
	all.Go(func() { watch(parts, p.cfg.file, slowLook, p.log, func() { p.load(false) }) })
	all.Go(func() { p.resyncs(parts) })
	all.Go(func() { p.settle(parts, backend) })
	err = p.syncer.Run(parts)
	if err == nil && ctx.Err() == nil {
		err = context.Cause(parts)
	}
	stop(err)
	all.Wait()
	p.log.Info("stopped: the rules stay in the kernel", "err", err)
	return err
}

// recall takes up what was wanted before this program ran, to which the file is compared.
func (p *proxy) recall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	want, since, ok, err := p.memory.state()
	if ok {
		err = p.syncer.Replace(want)
	}
	if err != nil {
		p.log.Warn("cannot recall what was wanted before", "err", err)
	} else if ok {
		p.want, p.file.Taken = want, since
	}
}

// load reads the file and hands what it says to the Syncer. If it has not changed, only force makes it be taken anew.
func (p *proxy) load(force bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text, err := os.ReadFile(p.cfg.file)
	seen := fmt.Sprintf("%s%v", text, err)
	if seen == p.seen && !force {
		return
	}
	p.seen = seen
	var doc document
	if err == nil {
		doc, err = parse(text)
	}
	if err == nil {
		doc.keep(p.want)
		err = p.syncer.Replace(doc.state)
	}
	if err != nil {
		p.file.Err = err.Error()
		p.log.Error("the file is no good: everything stays as it was", "file", p.cfg.file, "err", err)
		p.tell("READY=1", "the file is no good: "+err.Error()) // nobody need wait for what only a person can mend
		return
	}
	p.want = doc.state
	if err := p.memory.keep(p.want); err != nil {
		p.log.Warn("cannot keep what is wanted for the next start", "err", err)
	}
	p.file = fileReport{Path: p.cfg.file, Taken: time.Now(), Faults: map[model.ServiceName]string{}}
	for _, name := range slices.Sorted(maps.Keys(doc.faults)) {
		p.file.Faults[name] = doc.faults[name].Error()
		p.log.Error("a service makes no sense: it stays as it was", "service", name, "err", doc.faults[name])
	}
	p.log.Info("took the file", "file", p.cfg.file, "services", len(doc.state.Services), "faulty", len(doc.faults))
	p.tell("", fmt.Sprintf("%d services, %d faulty", len(doc.state.Services), len(doc.faults)))
}

// resyncs reads the file and programs everything anew whenever SIGHUP comes.
func (p *proxy) resyncs(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.cfg.hangups:
		}
		p.load(true)
		switch err := p.syncer.Resync(ctx); {
		case err == nil:
			p.log.Info("programmed everything anew")
		case ctx.Err() == nil:
			p.log.Error("asked to program everything anew", "err", err)
		}
	}
}

// settle does what is to be done once, after everything has been programmed: it tells systemd, and removes what an
// earlier run may have left of another backend.
func (p *proxy) settle(ctx context.Context, backend string) {
	if p.syncer.Wait(ctx) != nil {
		return
	}
	p.tell("READY=1", "")
	last, _ := os.ReadFile(p.memory.path(lastBackend)) // none is no backend's name
	if c, err := named(backends(p.cfg.setSysctls), strings.TrimSpace(string(last))); err == nil && len(c) == 1 && c[0].Name != backend {
		if err := retire(ctx, c[0], p.log); err != nil {
			p.log.Error("cannot remove what the other backend has: trying again with the next start", "backend", c[0].Name, "err", err)
			return
		}
		p.log.Info("removed what the other backend had", "backend", c[0].Name)
	}
	if err := p.memory.write(lastBackend, []byte(backend+"\n")); err != nil {
		p.log.Warn("noting the backend", "err", err)
	}
}

// tell tells systemd a state, READY=1 say, and what "systemctl status" shall show; either may be empty.
func (p *proxy) tell(state, status string) {
	if status != "" {
		state += "\nSTATUS=" + strings.ReplaceAll(status, "\n", "; ")
	}
	if err := notify(state); err != nil {
		p.log.Warn("telling systemd", "err", err)
	}
}

// explain says what becomes of a connection, by the backend's own account.
func (p *proxy) explain(ctx context.Context, q model.Query) (model.Explanation, error) {
	lb, ok := p.syncer.Programmer().(model.Explainer)
	if !ok {
		return model.Explanation{}, fmt.Errorf("explaining: %w", model.ErrNotSupported)
	}
	return lb.Explain(ctx, q)
}

// lockDir makes the folder for what a running proxy has on disk, and sees that there is only one. Closing the file
// releases the lock.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("a fileproxy runs already with %s: %w", dir, err), f.Close())
	}
	return f, nil
}
