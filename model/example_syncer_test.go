package model_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// A Syncer takes changes from any goroutine and keeps the kernel in step with them.
func ExampleSyncer() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	// With a real kernel: lb, err := nftables.New(ctx, nftables.Config{})
	lb := modeltest.NewFake(modeltest.NewKernel(), modeltest.FakeConfig{})
	defer lb.Close()

	syncer := model.NewSyncer(lb, model.SyncerConfig{Logger: slog.New(slog.DiscardHandler)})
	done := make(chan error)
	go func() { done <- syncer.Run(ctx) }()

	// The first complete state: from now on what it does not name may go.
	err := syncer.Replace(model.State{
		Services:  model.ServiceMap{"shop/web:http": {Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.10:80")}}}},
		Endpoints: model.EndpointMap{"shop/web:http": {{Addr: netip.MustParseAddrPort("10.244.0.1:8080")}}},
	})
	if err != nil {
		fmt.Println(err)
	}

	// Then changes, as they come.
	syncer.SetEndpoints("shop/web:http", []model.Endpoint{
		{Addr: netip.MustParseAddrPort("10.244.0.1:8080"), State: model.Draining},
		{Addr: netip.MustParseAddrPort("10.244.0.2:8080")},
	})
	syncer.SetService("shop/dns", model.Service{Protocol: model.UDP})

	if err := syncer.Wait(ctx); err != nil { // until all of it is programmed
		fmt.Println(err)
	}
	fmt.Println(syncer.Status("shop/web:http").Phase)
	stop() // the rules stay in the kernel, until somebody calls lb.Cleanup
	fmt.Println(<-done)
	// Output:
	// programmed
	// <nil>
}

// After something has reloaded the firewall, everything is programmed anew.
func ExampleSyncer_Resync() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	kernel := modeltest.NewKernel()
	syncer := model.NewSyncer(modeltest.NewFake(kernel, modeltest.FakeConfig{}), model.SyncerConfig{})
	go syncer.Run(ctx)
	syncer.SetService("shop/web:http", model.Service{})
	syncer.Ready()
	_ = syncer.Wait(ctx)

	kernel.Flush() // firewall-cmd --reload
	if err := syncer.Resync(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println(len(kernel.Objects()) > 0)
	// Output: true
}

// Watch yields each service whose status has changed, with the status that it has now.
func ExampleSyncer_Watch() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	syncer := model.NewSyncer(modeltest.NewFake(modeltest.NewKernel(), modeltest.FakeConfig{}), model.SyncerConfig{})
	go syncer.Run(ctx)

	vip := []model.Frontend{{Kind: model.External, Addr: netip.MustParseAddrPort("192.0.2.1:80")}}
	syncer.SetService("shop/web:http", model.Service{Frontends: vip})
	syncer.SetService("shop/new:http", model.Service{Frontends: vip})
	syncer.Ready()

	for name, status := range syncer.Watch(ctx) {
		if status.Phase == model.PhaseConflicting {
			fmt.Printf("%s does without %s, which %s holds\n", name, status.Conflicts[0].Frontend, status.Conflicts[0].Holder)
			break
		}
	}
	// Output: shop/web:http does without tcp 192.0.2.1:80, which shop/new:http holds
}

// A health answer says no while the oldest change has been waiting for too long.
func ExampleSyncer_Overview() {
	syncer := model.NewSyncer(modeltest.NewFake(modeltest.NewKernel(), modeltest.FakeConfig{}), model.SyncerConfig{})
	syncer.SetService("shop/web:http", model.Service{})
	o := syncer.Overview()
	healthy := o.Synced && o.Behind(time.Now()) < time.Minute
	fmt.Println(healthy, o.Pending)
	// Output: false 1
}

// A node goes from one backend to another without losing a connection.
func ExampleSyncer_Switch() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	kernel := modeltest.NewKernel()
	old := modeltest.NewFake(kernel, modeltest.FakeConfig{Table: "old"})
	syncer := model.NewSyncer(old, model.SyncerConfig{})
	go syncer.Run(ctx)
	syncer.SetService("shop/web:http", model.Service{Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.10:80")}}})
	syncer.Ready()

	switched, err := syncer.Switch(ctx, modeltest.NewFake(kernel, modeltest.FakeConfig{Table: "new"}))
	if err == nil {
		err = switched.Drained(ctx) // what open connections need of the old one, if they need anything
	}
	if err == nil {
		err = old.Close()
	}
	fmt.Println(err, len(kernel.Objects("old")), len(kernel.Objects("new")) > 0)
	// Output: <nil> 0 true
}

// Without a Syncer, Switch does the same.
func ExampleSwitch() {
	ctx := context.Background()
	kernel := modeltest.NewKernel()
	from := modeltest.NewFake(kernel, modeltest.FakeConfig{Table: "old"})
	to := modeltest.NewFake(kernel, modeltest.FakeConfig{Table: "new"})
	state := model.State{Services: model.ServiceMap{"shop/web:http": {}}}
	if _, err := from.Sync(ctx, state); err != nil {
		fmt.Println(err)
	}
	switched, err := model.Switch(ctx, from, to, state)
	fmt.Println(switched.Active, len(switched.Remains), err)
	// Output: true 0 <nil>
}

// The first backend that can work here is chosen, and it is said why the others were not.
func ExampleFirstSupported() {
	choice, err := model.FirstSupported(context.Background(),
		model.Candidate{Name: "nftables", New: func(context.Context) (model.Programmer, error) {
			return nil, fmt.Errorf("nftables: expression fib: %w", model.ErrNotSupported)
		}},
		model.Candidate{Name: "fake", New: func(context.Context) (model.Programmer, error) {
			return modeltest.NewFake(modeltest.NewKernel(), modeltest.FakeConfig{}), nil
		}},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer choice.Programmer.Close()
	fmt.Println("chosen:", choice.Name)
	for _, r := range choice.Refused {
		fmt.Println("refused:", r.Err, errors.Is(r, model.ErrNotSupported))
	}
	// Output:
	// chosen: fake
	// refused: nftables: expression fib: not supported true
}

// Explain says which service a connection is for, where it goes, and why.
func ExampleResolver_Explain() {
	r := model.NewResolver(model.FeatureSet{Backend: "example", Balances: []model.Balance{model.Random}})
	delta, err := r.ResolveState(model.State{
		Services:  model.ServiceMap{"shop/web:http": {Frontends: []model.Frontend{{Kind: model.External, Addr: netip.MustParseAddrPort("192.0.2.1:80")}}}},
		Endpoints: model.EndpointMap{"shop/web:http": {{Addr: netip.MustParseAddrPort("10.244.0.1:8080")}}},
	}, nil)
	if err != nil {
		fmt.Println(err)
	}
	r.Commit(delta)
	fmt.Println(r.Explain(model.Query{To: netip.MustParseAddrPort("192.0.2.1:80"), From: netip.MustParseAddr("203.0.113.5"), Interface: "eth0"}, nil))
	// Output:
	// tcp 192.0.2.1:80 from 203.0.113.5 (eth0): balanced: random over 1 of 1 endpoints, policy cluster
	//   service shop/web:http, external 192.0.2.1:80
	//   endpoint 10.244.0.1:8080, sees the node
}
