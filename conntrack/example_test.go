package conntrack_test

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/headgate/headgate/conntrack"
	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/mdlayher/netlink"
	timo "github.com/ti-mo/conntrack"
)

// Clean after each change that was programmed, and once more a little later: Due says when.
func ExampleCleaner() {
	ctx := context.Background()
	ns := newNamespace()
	defer ns.Close()
	cleaner, err := conntrack.New(ctx, conntrack.Config{NetNS: ns.FD()})
	if err != nil {
		panic(err)
	}
	defer cleaner.Close()
	var programmer model.Programmer = noProgrammer{} // nftables.New, say

	// At the start, and whenever everything is programmed anew.
	before := stateOf(netip.MustParseAddrPort("10.128.0.11:5353"))
	cleaner.Syncing(before)
	res, err := programmer.Sync(ctx, before)
	cleaner.Programmed(res, err)
	if _, err := cleaner.Clean(ctx); err != nil {
		panic(err)
	}

	// A client begins to talk to the endpoint, which is replaced by another.
	addFlow(ns, "10.128.0.100:40000", "172.20.9.1:53", "10.128.0.11:5353")
	after := stateOf(netip.MustParseAddrPort("10.128.0.12:5353"))
	diff := model.DiffStates(before, after)
	cleaner.Applying(diff)
	res, err = programmer.Apply(ctx, diff)
	cleaner.Programmed(res, err)
	res, err = cleaner.Clean(ctx)
	fmt.Println("forgotten:", res.Deleted, err)
	_, again := cleaner.Due()
	fmt.Println("owed a second look:", again)
	// Output:
	// forgotten: 1 <nil>
	// owed a second look: true
}

// Settle is for programs that make one change and end.
func ExampleCleaner_Settle() {
	ctx := context.Background()
	ns := newNamespace()
	defer ns.Close()
	addFlow(ns, "10.128.0.100:40000", "172.20.9.1:53", "10.128.0.11:5353") // of an endpoint that is gone
	addFlow(ns, "10.128.0.100:40001", "172.20.9.1:53", "10.128.0.12:5353")

	cleaner, err := conntrack.New(ctx, conntrack.Config{NetNS: ns.FD(), SecondLook: 100 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	defer cleaner.Close()
	cleaner.Syncing(stateOf(netip.MustParseAddrPort("10.128.0.12:5353")))
	cleaner.Programmed(model.Result{}, nil)
	res, err := cleaner.Settle(ctx)
	fmt.Println(res.Deleted, err)
	// Output: 1 <nil>
}

// Who talks to what through a frontend.
func ExampleCleaner_Flows() {
	ctx := context.Background()
	ns := newNamespace()
	defer ns.Close()
	cleaner, err := conntrack.New(ctx, conntrack.Config{NetNS: ns.FD()})
	if err != nil {
		panic(err)
	}
	defer cleaner.Close()
	cleaner.Syncing(stateOf(netip.MustParseAddrPort("10.128.0.12:5353")))
	cleaner.Programmed(model.Result{}, nil)
	addFlow(ns, "10.128.0.100:40000", "172.20.9.1:53", "10.128.0.11:5353")
	addFlow(ns, "10.128.0.100:40001", "172.20.9.1:53", "10.128.0.12:5353")

	flows, err := cleaner.Flows(ctx, model.FrontendKey{Protocol: model.UDP, Addr: netip.MustParseAddrPort("172.20.9.1:53")})
	if err != nil {
		panic(err)
	}
	for _, f := range flows {
		fmt.Println(f.Client, "->", f.Endpoint, "stale:", f.Stale)
	}
	// Output:
	// 10.128.0.100:40000 -> 10.128.0.11:5353 stale: true
	// 10.128.0.100:40001 -> 10.128.0.12:5353 stale: false
}

// How full the table is: worth an alert at 85 %.
func ExampleCleaner_Usage() {
	ctx := context.Background()
	ns := newNamespace()
	defer ns.Close()
	cleaner, err := conntrack.New(ctx, conntrack.Config{NetNS: ns.FD()})
	if err != nil {
		panic(err)
	}
	defer cleaner.Close()
	addFlow(ns, "10.128.0.100:40000", "172.20.9.1:53", "10.128.0.11:5353")
	usage, err := cleaner.Usage(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Println(usage.Entries, "in use; nearly full:", usage.Fraction() > 0.85)
	// Output: 1 in use; nearly full: false
}

// Timeouts belong to the namespace. The limit is the whole host's and can be set from the initial network namespace
// alone: there, begin with DefaultTuning.
func ExampleCleaner_Tune() {
	ctx := context.Background()
	ns := newNamespace()
	defer ns.Close()
	cleaner, err := conntrack.New(ctx, conntrack.Config{NetNS: ns.FD()})
	if err != nil {
		panic(err)
	}
	defer cleaner.Close()
	tuning := conntrack.Tuning{UDP: 45 * time.Second}
	changed, err := cleaner.Tune(ctx, tuning)
	for _, s := range changed {
		fmt.Println(s.Name, s.After, err)
	}
	changed, _ = cleaner.Tune(ctx, tuning)
	fmt.Println("the second time:", len(changed))
	// Output:
	// net.netfilter.nf_conntrack_udp_timeout 45 <nil>
	// the second time: 0
}

// What was done so far, for metrics.
func ExampleCleaner_Stats() {
	ctx := context.Background()
	ns := newNamespace()
	defer ns.Close()
	cleaner, err := conntrack.New(ctx, conntrack.Config{NetNS: ns.FD(), SecondLook: time.Millisecond})
	if err != nil {
		panic(err)
	}
	defer cleaner.Close()
	addFlow(ns, "10.128.0.100:40000", "172.20.9.1:53", "10.128.0.11:5353") // of an endpoint that is gone
	cleaner.Syncing(stateOf(netip.MustParseAddrPort("10.128.0.12:5353")))
	cleaner.Programmed(model.Result{}, nil)
	if _, err := cleaner.Settle(ctx); err != nil {
		panic(err)
	}
	s := cleaner.Stats()
	fmt.Println("stale:", s.Stale, "deleted:", s.Deleted, "failed:", s.Failed)
	// Output: stale: 1 deleted: 1 failed: 0
}

// What is missing, before anything depends on it.
func ExampleProbe() {
	ns := newNamespace()
	defer ns.Close()
	report, err := conntrack.Probe(context.Background(), conntrack.Config{NetNS: ns.FD()})
	if err != nil {
		panic(err)
	}
	for _, f := range report.Missing {
		fmt.Println("missing:", f)
	}
	fmt.Println("can work:", report.Err() == nil)
	// Output: can work: true
}

// stateOf returns a DNS service with these endpoints.
func stateOf(endpoints ...netip.AddrPort) model.State {
	vip := model.Frontend{Addr: netip.MustParseAddrPort("172.20.9.1:53")}
	s := model.State{
		Services:  model.ServiceMap{"default/dns": {Protocol: model.UDP, Frontends: []model.Frontend{vip}}},
		Endpoints: model.EndpointMap{},
	}
	for _, ep := range endpoints {
		s.Endpoints["default/dns"] = append(s.Endpoints["default/dns"], model.Endpoint{Addr: ep})
	}
	return s
}

// newNamespace returns a network namespace, so that the examples leave the machine's own alone.
func newNamespace() *lab.NetNS {
	ns, err := lab.NewNetNS("example")
	if err != nil {
		panic(err)
	}
	return ns
}

// addFlow pretends that a client's UDP packets have been translated.
func addFlow(ns *lab.NetNS, client, frontend, endpoint string) {
	c, err := timo.Dial(&netlink.Config{NetNS: ns.FD()})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	from, to, by := netip.MustParseAddrPort(client), netip.MustParseAddrPort(frontend), netip.MustParseAddrPort(endpoint)
	f := timo.NewFlow(model.UDP.Number(), 0, from.Addr(), to.Addr(), from.Port(), to.Port(), 120, 0)
	f.TupleReply.IP.SourceAddress, f.TupleReply.Proto.SourcePort = by.Addr(), by.Port()
	if err := c.Create(f); err != nil {
		panic(err)
	}
}

// noProgrammer stands for a backend.
type noProgrammer struct{ model.Programmer }

func (noProgrammer) Sync(context.Context, model.State) (model.Result, error) {
	return model.Result{}, nil
}

func (noProgrammer) Apply(context.Context, model.Diff) (model.Result, error) {
	return model.Result{}, nil
}
