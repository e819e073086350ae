// Quickstart balances HTTP requests over three servers and shows each step of it:
//
//	sudo go run ./examples/quickstart
//	sudo go run ./examples/quickstart -backend iptables
//	sudo go run ./examples/quickstart -backend ipvs
//
// Client, node and servers live in network namespaces without names, which end with the program: it changes nothing on
// the machine that it runs on. Read run from the top; world.go builds the network around it, traffic.go asks.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/example"
	"github.com/headgate/headgate/iptables"
	"github.com/headgate/headgate/ipvs"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/nftables"
)

// A backend is one way to program the kernel. All that follows is the same for each of them.
type backend struct {
	open func(ctx context.Context, netns int) (model.Programmer, error)
	// list is what an administrator types to see the rules.
	list []string
}

var backends = map[string]backend{
	"iptables":        overIptables(iptables.Auto, "iptables-save"), // whichever variant this host uses
	"iptables-legacy": overIptables(iptables.Legacy, "iptables-legacy-save"),
	"iptables-nft":    overIptables(iptables.NFT, "iptables-nft-save"),
	"ipvs": {
		open: func(ctx context.Context, netns int) (model.Programmer, error) {
			return ipvs.New(ctx, ipvs.Config{NetNS: netns, SetSysctls: true}) // those of the namespace alone
		},
		list: []string{"sh", "-c", "ipvsadm -Ln; ip route show table local proto 104; nft list ruleset"},
	},
	"nftables": {
		open: func(ctx context.Context, netns int) (model.Programmer, error) {
			return nftables.New(ctx, nftables.Config{NetNS: netns})
		},
		list: []string{"nft", "list", "ruleset"},
	},
}

func overIptables(v iptables.Variant, list string) backend {
	return backend{
		open: func(ctx context.Context, netns int) (model.Programmer, error) {
			return iptables.New(ctx, iptables.Config{NetNS: netns, Variant: v})
		},
		list: []string{list},
	}
}

func main() {
	names := strings.Join(slices.Sorted(maps.Keys(backends)), ", ")
	name := flag.String("backend", "nftables", "how to program the kernel: "+names)
	flag.Parse()
	b, ok := backends[*name]
	err := fmt.Errorf("no backend %q; there is %s", *name, names)
	if ok {
		fmt.Printf("headgate's quickstart, with %s\n", *name)
		err = run(context.Background(), b)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", example.Explain(err, "./examples/quickstart"))
		os.Exit(1)
	}
}

// The service: who asks 10.96.0.10 is answered by one of the servers.
const web model.ServiceName = "shop/web:http"

var vip = netip.MustParseAddrPort("10.96.0.10:80")

func run(ctx context.Context, b backend) error {
	world, err := buildWorld("alpha", "beta", "gamma")
	if err != nil {
		return err
	}
	defer world.Close()

	// A Programmer writes rules into one network namespace: here the node's, between the client and the servers.
	lb, err := b.open(ctx, world.Node.FD())
	if err != nil {
		return err
	}
	defer lb.Close()

	// A Tracker gathers what shall be balanced. The first Sync makes the kernel hold all of it.
	var tracker model.Tracker
	tracker.SetService(web, model.Service{Frontends: []model.Frontend{{Addr: vip}}})
	tracker.SetEndpoints(web, world.endpoints("alpha", "beta", "gamma"))
	result, err := lb.Sync(ctx, tracker.State())
	if err = errors.Join(err, result.Err()); err != nil {
		return err
	}
	fmt.Printf("\n%s is now served by three servers. Written to the kernel:\n  %v\n", vip, result)

	const requests = 300
	fmt.Printf("\n%d requests to %s were answered by\n", requests, vip)
	answers := world.ask(ctx, requests)
	fmt.Print(answers)
	if answers.failed > 0 {
		return fmt.Errorf("%d of %d requests failed: %w", answers.failed, requests, answers.err)
	}

	// From now on each change is a Diff, and costs what it changes. Nobody who is asking meanwhile notices.
	fmt.Printf("\ngamma leaves and comes back, while four clients keep asking:\n")
	load := world.startLoad(ctx, 4)
	err = churn(ctx, lb, &tracker, world)
	answers = load.stop()
	if err != nil {
		return err
	}
	fmt.Printf("  %d requests meanwhile, %d failed\n", answers.total(), answers.failed)
	if answers.failed > 0 {
		return fmt.Errorf("%d requests failed: %w", answers.failed, answers.err)
	}

	fmt.Printf("\nWhat the kernel holds (%s):\n%s", strings.Join(b.list, " "), list(ctx, world, b))

	if err := lb.Cleanup(ctx); err != nil {
		return err
	}
	fmt.Println("\nCleaned up: nothing of it is left.")
	return nil
}

// churn removes gamma and adds it again, several times, and tells the first time what that took.
func churn(ctx context.Context, lb model.Programmer, tracker *model.Tracker, w *world) error {
	for n := range 20 {
		servers, what := []string{"alpha", "beta"}, "removed"
		if n%2 == 1 {
			servers, what = []string{"alpha", "beta", "gamma"}, "added"
		}
		tracker.SetEndpoints(web, w.endpoints(servers...))
		result, err := lb.Apply(ctx, tracker.Diff())
		if err = errors.Join(err, result.Err()); err != nil {
			return err
		}
		if n < 2 {
			fmt.Printf("  %s: %v\n", what, result)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

// list returns the rules of the node as an administrator sees them.
func list(ctx context.Context, w *world, b backend) string {
	out, err := w.Node.Command(ctx, b.list[0], b.list[1:]...).Output()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Sprintf("  %s is not installed; headgate does without it\n", b.list[0])
	}
	if err != nil {
		return fmt.Sprintf("  %v\n", err)
	}
	return string(out)
}
