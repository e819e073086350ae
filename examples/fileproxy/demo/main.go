// Demo shows fileproxy at work, in network namespaces of its own, with nothing to configure and nothing left behind:
//
//	sudo go run ./demo
//
// It builds fileproxy, runs it on a node between a client and three servers, and does to it what happens in real life.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/example"
	"github.com/headgate/headgate/internal/lab"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", example.Explain(err, "./demo"))
		os.Exit(1)
	}
}

// file returns what the services' file says, with these endpoints.
func file(endpoints ...string) string {
	return "services:\n  shop/web:\n    frontends: [{internal: 10.96.0.10:80}]\n    endpoints:\n    - " + strings.Join(endpoints, "\n    - ") + "\n"
}

const (
	alpha = "address: 10.0.1.1:8080"
	beta  = "address: 10.0.1.2:8080"
	gamma = "address: 10.0.1.3:8080"
)

func run(ctx context.Context) (err error) {
	s, err := setUp(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()

	s.say("alpha and beta serve")
	s.write(file(alpha, beta))
	daemon := s.fileproxy("-file", s.path("services.yaml"), "-backend", "auto", "-log-level", "warn", "-within", "10m")
	daemon.Stdout, daemon.Stderr = os.Stdout, os.Stdout
	s.do(daemon.Start)
	s.expect("alpha", "beta")
	s.status()

	s.say("gamma comes, alpha drains")
	s.write(file(alpha+"\n      state: draining", beta, gamma))
	s.expect("beta", "gamma")

	s.say("somebody breaks the file: nothing changes, and status says why")
	s.write(file(beta, gamma) + "   shop/new: {}\n")
	s.until(func() bool { return strings.Contains(s.print("status"), "NO GOOD") })
	s.status()
	s.expect("beta", "gamma")

	s.say("somebody breaks one service: the others are programmed")
	s.write(file("adress: 10.0.1.1:8080") + "  shop/new:\n    frontends: [{internal: 10.96.0.11:80}]\n    endpoints: [{address: 10.0.1.1:8080}]\n")
	s.until(func() bool { return strings.Contains(s.print("status"), "shop/new  programmed") })
	s.status()
	s.expect("beta", "gamma")

	s.say("what becomes of a connection?")
	fmt.Print(s.print("explain", "10.96.0.10:80", "-from", "203.0.113.7", "-interface", "uplink1"))

	s.say("somebody flushes all rules; SIGHUP brings them back (so would the next check)")
	s.do(s.Node.Command(ctx, "nft", "flush", "ruleset").Run)
	s.do(func() error { return daemon.Process.Signal(unix.SIGHUP) })
	s.expect("beta", "gamma")

	s.say("it is stopped: the rules stay, and work")
	s.do(func() error { return daemon.Process.Signal(unix.SIGTERM) })
	s.do(daemon.Wait)
	s.expect("beta", "gamma")

	s.say("and are removed when asked")
	cleanup := s.fileproxy("-cleanup")
	cleanup.Stderr = os.Stdout
	s.do(cleanup.Run)
	return s.err
}

// A stage is the network in which the demo takes place, and the folder that it uses:
//
//	client 203.0.113.7 --- node 192.0.2.1 --- alpha 10.0.1.1, beta 10.0.1.2, gamma 10.0.1.3
type stage struct {
	*lab.Topology
	ctx context.Context
	dir string
	err error // the first; nothing is done after it
}

func setUp(ctx context.Context) (s *stage, err error) {
	s = &stage{ctx: ctx}
	spec := lab.Spec{
		Node:  []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Hosts: []lab.Host{{Name: "client", Place: lab.Far, Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.7")}}},
	}
	names := []string{"alpha", "beta", "gamma"}
	for i, name := range names {
		spec.Hosts = append(spec.Hosts, lab.Host{Name: name, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(i + 1)})}})
	}
	if s.Topology, err = lab.Build(spec); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "fileproxy-demo"); err != nil {
		return nil, errors.Join(err, s.Topology.Close())
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", s.path("fileproxy"), "github.com/headgate/headgate/examples/fileproxy")
	build.Stderr = os.Stderr
	s.do(build.Run)
	for _, name := range names {
		s.do(func() error {
			_, err := s.Host(name).ServeAs(name, lab.TCP, netip.MustParseAddrPort("0.0.0.0:8080"))
			return err
		})
	}
	if s.err != nil {
		return nil, errors.Join(s.err, s.Close())
	}
	return s, nil
}

// Close ends the namespaces, with all that runs in them.
func (s *stage) Close() error { return errors.Join(s.Topology.Close(), os.RemoveAll(s.dir)) }

func (s *stage) path(name string) string { return filepath.Join(s.dir, name) }

// do does something, unless something else has failed.
func (s *stage) do(f func() error) {
	if s.err == nil {
		s.err = f()
	}
}

func (s *stage) say(what string) {
	if s.err == nil {
		fmt.Printf("\n=== %s\n", what)
	}
}

// write replaces the services' file by renaming another one over it.
func (s *stage) write(text string) {
	s.do(func() error { return os.WriteFile(s.path("new"), []byte(text), 0o644) })
	s.do(func() error { return os.Rename(s.path("new"), s.path("services.yaml")) })
}

// fileproxy prepares one on the node.
func (s *stage) fileproxy(args ...string) *lab.Cmd {
	return s.Node.Command(s.ctx, s.path("fileproxy"), append(args, "-dir", s.dir)...)
}

// print returns what a subcommand prints.
func (s *stage) print(args ...string) string {
	out, err := s.fileproxy(args...).CombinedOutput()
	if err != nil {
		return string(out) + err.Error() + "\n"
	}
	return string(out)
}

func (s *stage) status() {
	if s.err == nil {
		fmt.Print(s.print("status"))
	}
}

// until waits until something is so.
func (s *stage) until(is func() bool) {
	const patience = 30 * time.Second
	for begin := time.Now(); s.err == nil && !is(); time.Sleep(50 * time.Millisecond) {
		if time.Since(begin) > patience {
			s.err = fmt.Errorf("waited in vain; the status is\n%s", s.print("status"))
		}
	}
}

// expect waits until these servers answer the client and nobody else, and prints how often each did.
func (s *stage) expect(names ...string) {
	var tally lab.Tally
	s.until(func() bool {
		q := lab.Query{Proto: lab.TCP, To: netip.MustParseAddrPort("10.96.0.10:80")}
		probe, cancel := context.WithTimeout(s.ctx, 500*time.Millisecond) // one that nobody answers
		defer cancel()
		if a, err := s.Host("client").Ask(probe, q); err != nil || a.Verdict != lab.Answered {
			return false
		}
		var err error
		tally, err = s.Host("client").AskMany(s.ctx, q, 100)
		return err == nil && slices.Equal(slices.Sorted(maps.Keys(tally.ByName)), names)
	})
	if s.err == nil {
		fmt.Printf("100 connections to 10.96.0.10:80: %v\n", tally.ByName)
	}
}
