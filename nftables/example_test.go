package nftables_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/nftables"
)

// A service is programmed, one endpoint of it replaced, and all of it removed.
func ExampleNew() {
	ctx := context.Background()
	node := namespace() // in a program of one's own: the namespace that it runs in, with the zero Config
	defer node.Close()
	lb, err := nftables.New(ctx, nftables.Config{NetNS: node.FD()})
	if err != nil {
		panic(err) // says what the kernel lacks
	}
	defer lb.Close() // leaves the rules in place

	tracker := model.NewTracker(model.Node{})
	tracker.SetService("shop/web:http", model.Service{Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.10:80")}}})
	tracker.SetEndpoints("shop/web:http", []model.Endpoint{{Addr: netip.MustParseAddrPort("10.244.0.1:8080")}})
	if _, err := lb.Sync(ctx, tracker.State()); err != nil {
		panic(err)
	}
	show(node, "list", "map", "ip", "headgate", "services")

	tracker.SetEndpoints("shop/web:http", []model.Endpoint{{Addr: netip.MustParseAddrPort("10.244.0.2:8080")}})
	res, err := lb.Apply(ctx, tracker.Diff())
	fmt.Println(res.Transactions, "transaction", res.Err(), err)

	if err := lb.Cleanup(ctx); err != nil {
		panic(err)
	}
	show(node, "list", "ruleset")
	// Output:
	// elements = { 10.96.0.10 . tcp . 80 comment "shop/web:http" : goto internal-lb-1 }
	// 1 transaction <nil> <nil>
}

// Check notices, at little cost, that somebody has changed what is ours.
func ExampleProgrammer_Check() {
	ctx := context.Background()
	node := namespace()
	defer node.Close()
	lb, err := nftables.New(ctx, nftables.Config{NetNS: node.FD()})
	if err != nil {
		panic(err)
	}
	defer lb.Close()
	state := model.State{Services: model.ServiceMap{"shop/web:http": {Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.10:80")}}}}}
	if _, err := lb.Sync(ctx, state); err != nil {
		panic(err)
	}
	fmt.Println(lb.Check(ctx))

	show(node, "flush", "ruleset")
	fmt.Println(errors.Is(lb.Check(ctx), model.ErrDrift))
	_, err = lb.Sync(ctx, state)
	fmt.Println(err, lb.Check(ctx))
	// Output:
	// <nil>
	// true
	// <nil> <nil>
}

// Probe says what the administrator has to do before traffic flows. A Programmer whose kernel lacks something is not
// even made.
func ExampleProgrammer_Probe() {
	ctx := context.Background()
	node := namespace()
	defer node.Close()
	lb, err := nftables.New(ctx, nftables.Config{NetNS: node.FD()})
	if err != nil {
		panic(err)
	}
	defer lb.Close()
	if err := node.Sysctl("net/ipv4/ip_forward", "0"); err != nil {
		panic(err)
	}
	report, err := lb.Probe(ctx)
	fmt.Println(report.Err(), err)
	for _, w := range report.Warnings {
		if w.What == "net.ipv4.ip_forward" {
			fmt.Println("in the way:", w.What)
		}
	}
	// Output:
	// <nil> <nil>
	// in the way: net.ipv4.ip_forward
}

// Two Programmers in one namespace each have a table and label bits of their own.
func ExampleConfig() {
	ctx := context.Background()
	node := namespace()
	defer node.Close()
	for _, cfg := range []nftables.Config{{Table: "blue"}, {Table: "green", BalancedLabel: 124, MasqueradeLabel: 125}} {
		cfg.NetNS = node.FD()
		lb, err := nftables.New(ctx, cfg)
		if err != nil {
			panic(err)
		}
		if _, err := lb.Sync(ctx, model.State{}); err != nil {
			panic(err)
		}
		if err := lb.Close(); err != nil {
			panic(err)
		}
	}
	show(node, "list", "tables")
	// Output:
	// table ip blue
	// table ip6 blue
	// table ip green
	// table ip6 green
}

// namespace returns a network namespace, so that the examples leave the machine's own alone.
func namespace() *lab.NetNS {
	ns, err := lab.NewNetNS("example")
	if err != nil {
		panic(err)
	}
	return ns
}

// show runs the stock nft in a namespace and prints the elements and tables that it lists.
func show(ns *lab.NetNS, args ...string) {
	out, err := ns.Command(context.Background(), "nft", args...).Output()
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "elements") || strings.HasPrefix(line, "table") && !strings.HasSuffix(line, "{") {
			fmt.Println(line)
		}
	}
}
