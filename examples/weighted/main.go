// Weighted rolls out a new version by weights, and makes two nodes choose alike:
//
//	sudo go run ./examples/weighted
//
// All of it happens in network namespaces without names, which end with the program. Read canary for the roll-out and
// sameChoice for Maglev; world.go builds the networks.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"

	"github.com/headgate/headgate/internal/example"
	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

func main() {
	ctx := context.Background()
	err := canary(ctx)
	if err == nil {
		err = sameChoice(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "weighted:", example.Explain(err, "./examples/weighted"))
		os.Exit(1)
	}
}

// canary moves a service from one version to the next: a tenth of the connections, half of them, all.
func canary(ctx context.Context) error {
	node, err := newNode(ctx, 1, "stable", "canary")
	if err != nil {
		return err
	}
	defer node.Close()
	const connections = 1000
	var old *lab.Flow
	for _, percent := range []uint16{0, 10, 50, 100} {
		err := node.program(ctx, model.Service{}, node.share("stable", 100-percent), node.share("canary", percent))
		if err != nil {
			return err
		}
		got, err := node.clients.AskMany(ctx, question(node.addrs[0]), connections)
		if err != nil {
			return err
		}
		fmt.Printf("canary at %3d %%: of %d connections, stable took %d, canary %d, %d failed\n",
			percent, got.Asked, got.ByName["stable"], got.ByName["canary"], got.Refused+got.TimedOut)
		if old == nil {
			if old, err = node.clients.Open(ctx, question(node.addrs[0])); err != nil {
				return err
			}
			defer old.Close()
		}
	}
	// Weights are about new connections alone.
	answer, err := old.Ping(ctx, 0)
	fmt.Printf("a connection that was opened before the roll-out: %s by %s\n", answer.Verdict, answer.Name)
	return err
}

// share returns an endpoint with a share of the new connections. A weight of 0 reads as 1: an endpoint that shall get
// none is draining. It goes on serving the connections that it has.
func (n *node) share(name string, percent uint16) model.Endpoint {
	e := model.Endpoint{Addr: n.servers[name], Weight: percent}
	if percent == 0 {
		e.State = model.Draining
	}
	return e
}

// sameChoice lets the same clients come in by two nodes that know nothing of each other. Maglev sends each client to
// the same server from both; and when a server leaves, the others keep nearly all of their clients.
func sameChoice(ctx context.Context) error {
	servers := []string{"a", "b", "c", "d", "e"}
	var before, after [2]map[client]string // who serves, by node
	for i := range before {
		node, err := newNode(ctx, 200, servers...)
		if err != nil {
			return err
		}
		defer node.Close()
		maglev := model.Service{Balance: model.Maglev}
		if err := node.program(ctx, maglev, node.endpoints(servers)...); err != nil {
			return err
		}
		if before[i], err = node.choices(ctx); err != nil {
			return err
		}
		if err := node.program(ctx, maglev, node.endpoints(servers[1:])...); err != nil {
			return err
		}
		if after[i], err = node.choices(ctx); err != nil {
			return err
		}
	}
	fmt.Printf("\nMaglev on two nodes: %d of %d clients get the same server from both\n", agreeing(before[0], before[1]), len(before[0]))
	maps.DeleteFunc(before[0], func(_ client, name string) bool { return name == servers[0] }) // they have to move
	fmt.Printf("server %s leaves: of the %d clients of the others, %d stay where they were\n",
		servers[0], len(before[0]), agreeing(before[0], after[0]))
	fmt.Printf("without it: %d of %d clients get the same server from both\n", agreeing(after[0], after[1]), len(after[0]))
	return nil
}

// agreeing counts the clients of a that have the same server in b.
func agreeing(a, b map[client]string) int {
	n := 0
	for c, name := range a {
		if b[c] == name {
			n++
		}
	}
	return n
}
