package prometheus_test

import (
	"context"
	"fmt"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/headgate/headgate/model/prometheus"
)

// The Collector is the Syncer's Observer, and is registered like every other.
func Example() {
	metrics := prometheus.New(prometheus.Config{})
	registry := prom.NewRegistry() // with HTTP: promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	registry.MustRegister(metrics)

	lb := modeltest.NewFake(modeltest.NewKernel(), modeltest.FakeConfig{})
	syncer := model.NewSyncer(lb, model.SyncerConfig{Observer: metrics})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- syncer.Run(ctx) }()
	syncer.SetService("shop/web:http", model.Service{})
	syncer.Ready()
	if err := syncer.Wait(ctx); err != nil {
		fmt.Println(err)
	}
	stop()
	<-done

	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
	}
	for _, f := range families {
		if f.GetName() == "headgate_services" || f.GetName() == "headgate_sync_synced" {
			fmt.Println(f.GetName(), f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	// Output:
	// headgate_services 1
	// headgate_sync_synced 1
}
