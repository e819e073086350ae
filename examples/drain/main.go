// Drain takes a server out of service without hurting anybody: it drains, its connections end, and then the flows of
// UDP, which never end by themselves, are forgotten:
//
//	sudo go run ./examples/drain
//
// All of it happens in network namespaces without names, which end with the program. Read run from the top; world.go
// builds the network.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/headgate/headgate/conntrack"
	"github.com/headgate/headgate/internal/example"
	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/nftables"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "drain:", example.Explain(err, "./examples/drain"))
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	world, err := buildWorld()
	if err != nil {
		return err
	}
	defer world.Close()
	b, err := newBalancer(ctx, world.Node.FD())
	if err != nil {
		return err
	}
	defer b.Close()

	// One server, with an open TCP connection and a UDP client that keeps its port.
	if err := b.balance(ctx, model.Endpoint{Addr: oldServer}); err != nil {
		return err
	}
	if err := world.connect(ctx); err != nil {
		return err
	}
	fmt.Printf("the connection is served by %s, the UDP flow by %s\n", world.conn.First().Name, world.flow.First().Name)

	if err := drain(ctx, world, b); err != nil {
		return err
	}
	return forget(ctx, world, b)
}

// drain takes the old server out as its connections allow.
func drain(ctx context.Context, w *world, b *balancer) error {
	// A draining server gets nothing new, and serves on what it has.
	if err := b.balance(ctx, model.Endpoint{Addr: oldServer, State: model.Draining}, model.Endpoint{Addr: newServer}); err != nil {
		return err
	}
	fresh, err := w.client.AskMany(ctx, lab.Query{Proto: lab.TCP, To: vip}, 100)
	if err != nil {
		return err
	}
	fmt.Printf("\nold drains: of %d new connections, new takes %d\n", fresh.Asked, fresh.ByName["new"])
	if err := errors.Join(ping(ctx, "the connection", w.conn), ping(ctx, "the UDP flow", w.flow)); err != nil {
		return err
	}

	// The connection ends, and who keeps count of connections knows that nobody needs the old server any more.
	if err := w.conn.Close(); err != nil {
		return err
	}
	fmt.Println("\nthe connection has ended: old goes")
	return b.program(ctx, model.Endpoint{Addr: newServer})
}

// forget forgets the flow of UDP. No rule names the old server now, but the kernel remembers where it sent the flow. As
// long as the client keeps sending, it remembers, and the client talks to a server that may be switched off any moment.
func forget(ctx context.Context, w *world, b *balancer) error {
	if err := ping(ctx, "the UDP flow", w.flow); err != nil {
		return err
	}
	flows, err := b.cleaner.Flows(ctx, model.FrontendKey{Protocol: model.UDP, Addr: vip})
	if err != nil {
		return err
	}
	for _, f := range flows {
		fmt.Printf("  remembered: %s -> %s, stale: %t\n", f.Client, f.Endpoint, f.Stale)
	}
	result, err := b.cleaner.Clean(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("\nforgotten flows: %d\n", result.Deleted)
	return ping(ctx, "the UDP flow", w.flow)
}

// ping asks once more over a flow that is open, and tells who answered.
func ping(ctx context.Context, what string, f *lab.Flow) error {
	answer, err := f.Ping(ctx, 0)
	if err == nil && answer.Verdict != lab.Answered {
		err = fmt.Errorf("%s: %s", what, answer.Verdict)
	}
	if err != nil {
		return err
	}
	fmt.Printf("  %s: served by %s\n", what, answer.Name)
	return nil
}

// A balancer is a programmer with the cleaner that forgets what its changes made stale. A model.Syncer does for a
// program that runs on what balance does for this one.
type balancer struct {
	tracker    model.Tracker
	programmer model.Programmer
	cleaner    *conntrack.Cleaner
}

func newBalancer(ctx context.Context, netns int) (*balancer, error) {
	b := &balancer{}
	var err error
	if b.programmer, err = nftables.New(ctx, nftables.Config{NetNS: netns}); err != nil {
		return nil, err
	}
	if b.cleaner, err = conntrack.New(ctx, conntrack.Config{NetNS: netns}); err != nil {
		return nil, errors.Join(err, b.programmer.Close())
	}
	for _, p := range []model.Protocol{model.TCP, model.UDP} {
		b.tracker.SetService(name(p), model.Service{Protocol: p, Frontends: []model.Frontend{{Addr: vip}}})
	}
	state := b.tracker.State()
	b.cleaner.Syncing(state)
	result, err := b.programmer.Sync(ctx, state)
	b.cleaner.Programmed(result, err)
	if err = errors.Join(err, result.Err()); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// Close leaves the rules in place.
func (b *balancer) Close() error { return errors.Join(b.programmer.Close(), b.cleaner.Close()) }

// balance programs the endpoints, and forgets what that made stale.
func (b *balancer) balance(ctx context.Context, endpoints ...model.Endpoint) error {
	if err := b.program(ctx, endpoints...); err != nil {
		return err
	}
	_, err := b.cleaner.Clean(ctx)
	return err
}

// program programs the endpoints, and tells the cleaner, who decides what became stale.
func (b *balancer) program(ctx context.Context, endpoints ...model.Endpoint) error {
	for _, p := range []model.Protocol{model.TCP, model.UDP} {
		b.tracker.SetEndpoints(name(p), endpoints)
	}
	diff := b.tracker.Diff()
	b.cleaner.Applying(diff)
	result, err := b.programmer.Apply(ctx, diff)
	b.cleaner.Programmed(result, err)
	return errors.Join(err, result.Err())
}
