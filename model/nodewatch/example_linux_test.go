package nodewatch_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/headgate/headgate/model/nodewatch"
)

// A Syncer that is given a Watcher keeps node ports on all addresses that the node has.
func Example() {
	watcher, err := nodewatch.New(nodewatch.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer watcher.Close()
	lb := modeltest.NewFake(modeltest.NewKernel(), modeltest.FakeConfig{})
	syncer := model.NewSyncer(lb, model.SyncerConfig{Nodes: watcher})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- syncer.Run(ctx) }()
	syncer.Ready()
	fmt.Println(syncer.Wait(ctx))
	stop()
	fmt.Println(<-done)
	// Output:
	// <nil>
	// <nil>
}

// Watch can be used by itself.
func ExampleWatcher_Watch() {
	watcher, err := nodewatch.New(nodewatch.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer watcher.Close()
	ctx, stop := context.WithCancel(context.Background())
	err = watcher.Watch(ctx, func(addrs []netip.Addr) {
		stop() // one is enough here
	})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output: true
}
