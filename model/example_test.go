package model_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// A Programmer makes the kernel hold a state, and then applies what changes. That of nftables, iptables or ipvs is used
// in the same way.
func ExampleProgrammer() {
	ctx := context.Background()
	kernel := modeltest.NewKernel()
	var lb model.Programmer = modeltest.NewFake(kernel, modeltest.FakeConfig{}) // nftables.New(ctx, nftables.Config{})
	defer lb.Close()                                                            // leaves the rules in place

	tracker := model.NewTracker(model.Node{Name: "node-1"})
	tracker.SetService("shop/web:http", model.Service{Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.10:80")}}})
	tracker.SetEndpoints("shop/web:http", []model.Endpoint{{Addr: netip.MustParseAddrPort("10.244.0.1:8080")}})
	if _, err := lb.Sync(ctx, tracker.State()); err != nil { // everything, whatever the kernel holds now
		fmt.Println(err)
	}
	tracker.SetEndpoints("shop/web:http", []model.Endpoint{{Addr: netip.MustParseAddrPort("10.244.0.2:8080")}})
	res, err := lb.Apply(ctx, tracker.Diff()) // what changed, at the cost of what changed
	fmt.Println(res.Written() > 0, res.Err(), err)

	kernel.Flush() // somebody else
	if err := lb.Check(ctx); errors.Is(err, model.ErrDrift) {
		_, err = lb.Sync(ctx, tracker.State())
		fmt.Println("repaired", err)
	}
	fmt.Println(lb.Cleanup(ctx), len(kernel.Objects()))
	// Output:
	// true <nil> <nil>
	// repaired <nil>
	// <nil> 0
}

// One service that makes no sense stops nobody else: it is named in the Result.
func ExampleResult() {
	lb := modeltest.NewFake(modeltest.NewKernel(), modeltest.FakeConfig{})
	at := func(addr string) model.Service {
		return model.Service{Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort(addr)}}}
	}
	res, err := lb.Sync(context.Background(), model.State{Services: model.ServiceMap{
		"good": at("10.96.0.10:80"), "late": at("10.96.0.10:80"), "loop": at("127.0.0.1:80"),
	}})
	fmt.Println(err)
	for _, rejected := range res.Rejected {
		fmt.Println(rejected.Service, errors.Is(rejected, model.ErrInvalid), errors.Is(rejected, model.ErrConflict))
	}
	// Output:
	// <nil>
	// late false true
	// loop true false
}

// A service as a load balancer's, with all that it can say.
func ExampleService() {
	web := model.Service{
		Protocol: model.TCP,
		Frontends: []model.Frontend{
			{Kind: model.Internal, Addr: netip.MustParseAddrPort("10.96.0.10:80")},
			{Kind: model.External, Addr: netip.MustParseAddrPort("198.51.100.10:80"),
				SourceRanges: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}},
			{Kind: model.NodePort, Addr: netip.AddrPortFrom(netip.Addr{}, 30080)}, // in both families
		},
		Balance:         model.Maglev,
		Affinity:        10 * time.Minute,
		ExternalTraffic: model.Local,
	}
	for _, f := range web.Frontends {
		fmt.Println(f, web.Policy(f.Kind), f.Restricted())
	}
	// Output:
	// internal 10.96.0.10:80 cluster false
	// external 198.51.100.10:80 local true
	// node port 30080 local false
}

// Changes may come one by one or as a whole; those that cancel each other cost nothing.
func ExampleTracker() {
	var tracker model.Tracker
	tracker.SetService("shop/web:http", model.Service{})
	tracker.SetService("shop/dns", model.Service{Protocol: model.UDP})
	tracker.DeleteService("shop/dns")
	for _, c := range tracker.Diff().Changes {
		fmt.Println(c.Name, c.Before == nil, c.After != nil)
	}
	tracker.Replace(model.State{}) // what it does not name goes
	fmt.Println(tracker.Pending())
	// Output:
	// shop/web:http true true
	// 1
}

// Two whole states are compared where nobody has kept track.
func ExampleDiffStates() {
	endpoint := []model.Endpoint{{Addr: netip.MustParseAddrPort("10.244.0.1:8080")}}
	before := model.State{Services: model.ServiceMap{"a": {}, "b": {}}, Endpoints: model.EndpointMap{"a": endpoint}}
	after := model.State{Services: model.ServiceMap{"a": {}, "c": {}}, Endpoints: model.EndpointMap{}}
	for _, c := range model.DiffStates(before, after).Changes {
		fmt.Println(c.Name)
	}
	// Output:
	// a
	// b
	// c
}

// Select says who serves on a node, and Serving what a new connection meets.
func ExampleSelect() {
	endpoints := []model.Endpoint{
		{Addr: netip.MustParseAddrPort("10.244.0.1:8080"), State: model.Draining, Local: true},
		{Addr: netip.MustParseAddrPort("10.244.1.1:8080"), Zones: []string{"a"}},
		{Addr: netip.MustParseAddrPort("10.244.2.1:8080"), Zones: []string{"b"}},
	}
	sel := model.Select(endpoints, model.Node{Zone: "b"}, model.IPv4)
	for _, policy := range []model.TrafficPolicy{model.Cluster, model.Local} {
		verdict, serving := sel.Serving(policy)
		fmt.Println(policy, verdict, serving[0].Addr, len(serving))
	}
	fmt.Println("healthy for a load balancer:", sel.LocalReady() > 0)
	// Output:
	// cluster balanced 10.244.2.1:8080 1
	// local balanced 10.244.0.1:8080 1
	// healthy for a load balancer: false
}

// What a backend cannot do is known before it is asked to.
func ExampleFeatureSet_Check() {
	features := model.FeatureSet{Backend: "example", Balances: []model.Balance{model.Random, model.RoundRobin}}
	err := features.Check(model.Service{Balance: model.LeastConn})
	fmt.Println(err, errors.Is(err, model.ErrNotSupported))
	// Output: balance least-conn: not supported true
}

// Node ports answer on the node's addresses in some networks alone.
func ExampleNode_NodePortAddrs() {
	node := model.Node{
		Addrs:     []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.244.0.1"), netip.MustParseAddr("2001:db8::1")},
		NodePorts: model.NodePortScope{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
	}
	fmt.Println(node.NodePortAddrs(model.IPv4), node.NodePortAddrs(model.IPv6))
	// Output: [192.0.2.1] [2001:db8::1]
}

// Internal sources are recognised by their address, or by the interface that they come in on.
func ExampleLocalDetector_Internal() {
	pods := model.LocalDetector{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Interfaces: []string{"veth"}}
	fmt.Println(pods.Internal(netip.MustParseAddr("10.244.3.7"), "eth0"))
	fmt.Println(pods.Internal(netip.MustParseAddr("192.0.2.7"), "veth1a2b"))
	fmt.Println(pods.Internal(netip.MustParseAddr("192.0.2.7"), "eth0"))
	// Output:
	// true
	// true
	// false
}

// A backend of one's own leaves to a Resolver what all backends must do alike.
func ExampleResolver() {
	r := model.NewResolver(model.FeatureSet{Backend: "example", Balances: []model.Balance{model.Random}})
	web := model.Service{Frontends: []model.Frontend{{Kind: model.NodePort, Addr: netip.AddrPortFrom(netip.Addr{}, 30080)}}}
	delta, err := r.ResolveState(model.State{
		Services:  model.ServiceMap{"shop/web:http": web, "shop/bad": {Balance: model.Maglev}},
		Endpoints: model.EndpointMap{"shop/web:http": {{Addr: netip.MustParseAddrPort("10.244.0.1:8080")}}},
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range delta.Changes {
		for _, f := range c.After.Frontends { // in normal form
			verdict, endpoints := c.After.Selections[f.Family()].Serving(c.After.Service.Policy(f.Kind))
			fmt.Println(c.After.Key(f), verdict, len(endpoints))
		}
	}
	fmt.Println(delta.Rejected[0])
	r.Commit(delta) // once the kernel holds it
	// Output:
	// tcp node port 30080 (IPv4) balanced 1
	// tcp node port 30080 (IPv6) rejected 0
	// example: validate: service "shop/bad": balance maglev: not supported
}

func ExampleMergePrefixes() {
	fmt.Println(model.MergePrefixes([]netip.Prefix{
		netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("10.0.0.7/32"),
	}))
	// Output: [10.0.0.0/23]
}

// Errors have a kind by which metrics may count them.
func ExampleFailureClass() {
	fmt.Println(model.FailureClass(fmt.Errorf("nftables: send: %w", model.ErrPermission)), model.FailureClass(context.DeadlineExceeded))
	// Output: permission timeout
}

// counter counts what was written; what else happens it need not know.
type counter struct {
	model.Unobserved
	written int
}

func (c *counter) Synced(r model.SyncReport) { c.written += r.Result.Written() }

// An Observer is told what a Syncer does. That of package model/prometheus makes metrics of it.
func ExampleObserver() {
	seen := &counter{}
	syncer := model.NewSyncer(modeltest.NewFake(modeltest.NewKernel(), modeltest.FakeConfig{}), model.SyncerConfig{Observer: seen})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- syncer.Run(ctx) }()
	syncer.SetService("shop/web:http", model.Service{Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.10:80")}}})
	syncer.Ready()
	err := syncer.Wait(ctx)
	stop()
	fmt.Println(err, <-done, seen.written > 0)
	// Output: <nil> <nil> true
}
