// Demo shows the plugin at work, on a node that it makes for that:
//
//	cd examples/cni
//	sudo go run ./demo
//
// It builds the plugin, and bridge and host-local behind which it stands, and is the container runtime for them. All of
// it happens in network namespaces without names and in a temporary folder, which end with the program.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/headgate/headgate/examples/cni/internal/site"
	"github.com/headgate/headgate/internal/example"
	"github.com/headgate/headgate/internal/lab"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", example.Explain(err, "./demo"))
		os.Exit(1)
	}
}

// Where the service is reached: an address that exists nowhere but in the rules.
var vip = netip.MustParseAddrPort("10.96.0.10:80")

func run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "headgate-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := site.New(dir, filepath.Join(dir, "bin"), map[string]any{
		"services": map[string]any{"web": map[string]any{"frontends": []netip.AddrPort{vip}, "port": 8080}},
	})
	if err != nil {
		return err
	}
	defer s.Close()
	fmt.Println("building the plugins headgate, bridge and host-local")
	if err := site.Build(ctx, dir); err != nil {
		return err
	}
	containers, err := start(ctx, s)
	if err != nil {
		return err
	}
	for _, c := range containers {
		defer c.Close()
	}
	if err := damage(ctx, s, containers[0]); err != nil {
		return err
	}
	return stop(ctx, s, containers)
}

// start adds three containers, each with a port published on the node, and all of one service.
func start(ctx context.Context, s *site.Site) ([]*site.Container, error) {
	fmt.Printf("\nADD: three containers of the service web, each with its port 8080 published\n")
	var all []*site.Container
	for i, id := range []string{"alpha", "beta", "gamma"} {
		c, err := s.NewContainer(id, site.Port(8081+i, 8080))
		if err != nil {
			return all, err
		}
		all = append(all, c.Join("web"))
		if _, err := c.ServeAs(id, lab.TCP, netip.MustParseAddrPort("0.0.0.0:8080")); err != nil {
			return all, err
		}
		if _, err := s.Add(ctx, c); err != nil {
			return all, err
		}
		answer, err := s.Outside.Ask(ctx, lab.Query{Proto: lab.TCP, To: netip.AddrPortFrom(site.Node[0], uint16(8081+i))})
		if err != nil {
			return all, err
		}
		fmt.Printf("  %s has %s; somebody outside asks %s:%d: %s by %s, who sees %s\n",
			id, c.Addrs[0], site.Node[0], 8081+i, answer.Verdict, answer.Name, answer.Peer.Addr())
	}
	return all, ask(ctx, s)
}

// ask asks the service 60 times and tells who answered.
func ask(ctx context.Context, s *site.Site) error {
	got, err := s.Outside.AskMany(ctx, lab.Query{Proto: lab.TCP, To: vip}, 60)
	if err != nil {
		return err
	}
	fmt.Printf("  60 connections to %s:", vip)
	for _, name := range slices.Sorted(maps.Keys(got.ByName)) {
		fmt.Printf(" %s %d", name, got.ByName[name])
	}
	fmt.Printf(", failed %d\n", got.Refused+got.TimedOut)
	return nil
}

// damage lets somebody flush the node's rules. CHECK and STATUS notice, and the next command brings them back.
func damage(ctx context.Context, s *site.Site, c *site.Container) error {
	if err := s.Check(ctx, c); err != nil {
		return err
	}
	fmt.Printf("\nCHECK: all is well. Somebody flushes the rules of the node:\n")
	if out, err := s.Node.Command(ctx, "nft", "flush", "ruleset").CombinedOutput(); err != nil {
		return fmt.Errorf("nft flush ruleset: %w: %s", err, out)
	}
	check, status := s.Check(ctx, c), s.CNI.GetStatusNetworkList(ctx, s.List)
	if check == nil || status == nil {
		return errors.New("nobody noticed")
	}
	fmt.Printf("  CHECK:  %v\n  STATUS: %v\n", check, status)
	if err := s.CNI.GCNetworkList(ctx, s.List, &libcni.GCArgs{ValidAttachments: site.Attachments("alpha", "beta", "gamma")}); err != nil {
		return err
	}
	fmt.Println("after a GC, in which all three are valid:")
	return errors.Join(s.Check(ctx, c), ask(ctx, s))
}

// stop deletes one container as it should be, and leaves the others to the garbage collection.
func stop(ctx context.Context, s *site.Site, all []*site.Container) error {
	fmt.Println("\nDEL: alpha goes")
	if err := errors.Join(s.Del(ctx, all[0]), ask(ctx, s)); err != nil {
		return err
	}
	fmt.Println("\nGC: only gamma is valid")
	args := &libcni.GCArgs{ValidAttachments: site.Attachments("gamma")}
	if err := errors.Join(s.CNI.GCNetworkList(ctx, s.List, args), ask(ctx, s)); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(s.StateDir(), "attachments"))
	fmt.Printf("\nwhat the plugin has kept:\n%s", text)
	return err
}
