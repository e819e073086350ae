package modeltest_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// A program that embeds a Programmer is tested with a Fake: here the program is a few lines.
func ExampleFake() {
	ctx := context.Background()
	node := model.Node{Addrs: []netip.Addr{netip.MustParseAddr("198.51.100.10")}}
	kernel := modeltest.NewKernel(node.Addrs...)
	fake := modeltest.NewFake(kernel, modeltest.FakeConfig{})

	_, err := fake.Sync(ctx, model.State{
		Node: node,
		Services: model.ServiceMap{"default/web:http": {Frontends: []model.Frontend{
			{Addr: netip.MustParseAddrPort("172.20.0.10:80")},
		}}},
		Endpoints: model.EndpointMap{"default/web:http": {
			{Addr: netip.MustParseAddrPort("10.128.0.11:8080")},
		}},
	})
	if err != nil {
		fmt.Println(err)
	}
	out, err := kernel.Send(modeltest.Packet{
		Kind: modeltest.FromPod,
		From: netip.MustParseAddr("10.128.0.100"),
		To:   netip.MustParseAddrPort("172.20.0.10:80"),
	})
	fmt.Println(out.Verdict, out.Endpoint, err)

	// Somebody flushes the rules.
	kernel.Flush()
	fmt.Println(errors.Is(fake.Check(ctx), model.ErrDrift))
	// Output:
	// dnat 10.128.0.11:8080 <nil>
	// true
}

// A kernel that is told to fail shows whether a program tries again.
func ExampleKernel_FailNext() {
	ctx := context.Background()
	kernel := modeltest.NewKernel()
	fake := modeltest.NewFake(kernel, modeltest.FakeConfig{})
	kernel.FailNext(1, syscall.EPERM)

	_, err := fake.Sync(ctx, model.State{})
	fmt.Println(err)
	_, err = fake.Apply(ctx, model.Diff{})
	fmt.Println(err)
	_, err = fake.Sync(ctx, model.State{})
	fmt.Println(err, kernel.Commits().Refused, fake.Calls().Sync)
	// Output:
	// permission denied: operation not permitted
	// not synced
	// <nil> 1 2
}

// The suite runs against any backend that can make a Programmer for a network namespace.
func ExampleRun() {
	var t *testing.T // of the test that this is in
	if t == nil {
		return
	}
	modeltest.Run(t, modeltest.FakeTarget())
}
