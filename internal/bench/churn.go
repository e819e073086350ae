package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// A churnReport is what -churn adds: a model.Syncer, configured as by default, keeps the kernel in step while one in a
// hundred services changes every second, evenly spread, each by one endpoint that takes the place of another.
type churnReport struct {
	Changes int `json:"churn_changes"`
	Applies int `json:"churn_applies"`
	// CPUMicroseconds is the CPU time of this process per change, with the kernel's share, the checks, and the making of
	// the changes.
	CPUMicroseconds float64 `json:"churn_cpu_microseconds"`
	// Each change counts from the call that asked for it until it was programmed. Most of that is the Syncer's
	// MinInterval, over which it gathers changes.
	P50Milliseconds float64 `json:"churn_p50_milliseconds"`
	P99Milliseconds float64 `json:"churn_p99_milliseconds"`
}

// A witness notes what a Syncer does.
type witness struct {
	model.Unobserved
	first   chan struct{} // is closed by the first report
	once    sync.Once
	mu      sync.Mutex // guards what follows
	on      bool
	applies int
	waited  []time.Duration
	errs    []error
}

// Synced implements model.Observer.
func (w *witness) Synced(r model.SyncReport) {
	defer w.once.Do(func() { close(w.first) })
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(r.Err, r.Result.Err()); err != nil {
		w.errs = append(w.errs, err)
	}
	if w.on {
		w.applies++
		w.waited = append(w.waited, r.Latencies...)
	}
}

func (w *witness) turnOn() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on = true
}

// measureChurn lets services change for cfg.churn.
func measureChurn(ctx context.Context, b backend, cfg config) (_ *churnReport, err error) {
	ns, err := lab.NewNetNS("churn")
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	p, err := b.open(ctx, ns, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()

	seen := &witness{first: make(chan struct{})}
	syncer := model.NewSyncer(p, model.SyncerConfig{Observer: seen})
	state := cfg.state()
	if err := syncer.Replace(state); err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- syncer.Run(running) }()
	end := sync.OnceValue(func() error {
		stop()
		return <-ended
	})
	defer func() { err = errors.Join(err, end()) }()
	if err := syncer.Wait(ctx); err != nil {
		return nil, err
	}
	<-seen.first // the report comes a moment after what it tells
	seen.turnOn()
	cpu := cpuTime()
	changes, err := churnServices(ctx, syncer, cfg, state.Endpoints)
	if err != nil {
		return nil, err
	}
	cpu = cpuTime() - cpu
	if err := end(); err != nil { // all is reported then
		return nil, err
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if err := errors.Join(seen.errs...); err != nil {
		return nil, err
	}
	if len(seen.waited) != changes {
		return nil, fmt.Errorf("%d changes were asked for, and %d programmed", changes, len(seen.waited))
	}
	return &churnReport{
		Changes: changes, Applies: seen.applies, CPUMicroseconds: microseconds(cpu / time.Duration(changes)),
		P50Milliseconds: microseconds(median(seen.waited)) / 1e3, P99Milliseconds: microseconds(quantile(seen.waited, 0.99)) / 1e3,
	}, nil
}

// churnServices changes one service after the other, and waits until all of it is programmed. It returns how many.
func churnServices(ctx context.Context, syncer *model.Syncer, cfg config, held model.EndpointMap) (int, error) {
	pause := time.Second / time.Duration(max(1, cfg.services/100))
	began, changes := time.Now(), 0
	for due := began; time.Since(began) < cfg.churn; due = due.Add(pause) { // a pause that was too long is made up for
		select {
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
			return changes, context.Cause(ctx)
		}
		name := modeltest.BigName(changes % cfg.services)
		eps := append(slices.Clone(held[name][1:]), modeltest.BigEndpoint(cfg.services*cfg.endpoints+changes))
		held[name] = eps
		syncer.SetEndpoints(name, eps)
		changes++
	}
	return changes, syncer.Wait(ctx)
}
