// Bench measures one backend against the kernel below it and prints one JSON object.
//
//	go run ./internal/bench -backend nftables -services 10000 -endpoints 10 -connect 2000
//	go run ./internal/bench -backend iptables -variant legacy -services 10000 -endpoints 10 -connect 2000
//
// It needs root, works in network namespaces of its own that end with it, and touches nothing else. Each figure is the
// median of -runs runs, and in each the best of three repetitions of this: a first Sync into an empty namespace, the
// same bytes sent raw into another empty one (the floor: what the kernel itself needs), a restart, and a hundred changes
// of each kind, each followed by its floor. What a repetition does is in pair.go, what becomes of it in measure.go.
//
//	sync_seconds, sync_cpu_seconds   the first Sync of a new Programmer: wall time, and CPU time of this process and of
//	                                 the programs that it ran
//	floor_seconds                    the bytes of that very Sync sent again over a raw socket; of iptables, read from a
//	                                 file by iptables-restore
//	apply_microseconds               one endpoint added: Tracker, Diff and Apply
//	apply_floor_microseconds         the bytes of that Apply sent again, into a namespace that holds the same
//	remove_microseconds, remove_floor_microseconds
//	                                 the same for one endpoint removed, the first of its service
//	restart_seconds                  Sync of a new Programmer where the kernel already holds all of it
//	cleanup_seconds                  Cleanup of another new Programmer
//	peak_rss_bytes                   VmHWM of a process that did nothing but fill a Tracker, Sync and Apply
//	objects                          objects that the first Sync wrote
//	rules_passed                     of iptables: the most rules that the first packet of a connection passes, see rulesPassed
//	noop_restore_seconds             of iptables: an iptables-restore that changes nothing, of the nat table as it is
//	direct_…, vip_…, connect_ratio   with -connect, see measureConnect
//	churn_…                          with -churn, see churnReport
//	peer_sync_seconds, restore_seconds
//	                                 of IPVS: the same state over moby/ipvs, one request at a time, with addresses on a
//	                                 dummy device; and by ipvsadm --restore and ip -batch; see measurePeers
//
// With -conntrack it measures package conntrack instead, see conntrackResult.
//
// With -check it measures what the bars of the backend speak of and exits 1 if one is missed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", explain(err))
		}
		os.Exit(1)
	}
}

// explain adds what to do about an error, where that is known.
func explain(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w\nIt makes network namespaces and programs the kernel: run it as root", err)
	}
	return err
}

// A config says what to measure.
type config struct {
	backend, variant    string
	services, endpoints int
	affinity            int           // so many of the services have affinity
	restricted          int           // so many of the services have source ranges
	connect             int           // dials of each kind and round; 0: none
	churn               time.Duration // 0: none
	runs                int
	dump                string
	alone               bool // without peers: a bar does not ask for them
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var cfg config
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&cfg.backend, "backend", "nftables", "backend to measure: "+strings.Join(backendNames(), ", "))
	flags.StringVar(&cfg.variant, "variant", "", "of a backend that has several: which")
	flags.IntVar(&cfg.services, "services", 1000, "services")
	flags.IntVar(&cfg.endpoints, "endpoints", 10, "endpoints of each service")
	flags.IntVar(&cfg.affinity, "affinity", 0, "give so many of the services affinity")
	flags.IntVar(&cfg.restricted, "restricted", 0, "give so many of the services source ranges")
	flags.IntVar(&cfg.connect, "connect", 0, "time so many TCP connections to the last service, and as many directly to its endpoints, in each of five rounds")
	flags.DurationVar(&cfg.churn, "churn", 0, "for so long, let one in a hundred services change every second, by way of a Syncer")
	flags.IntVar(&cfg.runs, "runs", 3, "runs, of three repetitions each, of which the figures are medians")
	flags.StringVar(&cfg.dump, "dump", "", "write the bytes of the first Sync to this `file`, for -replay")
	replay := flags.String("replay", "", "send what -dump wrote to this `file` into an empty namespace and print how long the kernel needed")
	check := flags.Bool("check", false, "measure the bars of the backend and say which are missed")
	flows := flags.Bool("conntrack", false, "measure forgetting the stale flows of one change among many others, instead of a backend")
	all := flags.Int("flows", 250000, "with -conntrack: flows in the table")
	stale := flags.Int("stale", 1000, "with -conntrack: stale ones among them")
	memory := flags.Bool("memory", false, "print the peak memory of this process in bytes, having done nothing but fill a Tracker, Sync and Apply")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	b, ok := backends()[cfg.choice()]
	if !ok {
		return fmt.Errorf("no backend %q; there is %s", cfg.choice(), strings.Join(backendNames(), ", "))
	}
	if err := cfg.check(); err != nil {
		return err
	}
	switch {
	case *flows:
		r, err := benchConntrack(*all, *stale)
		if err != nil {
			return fmt.Errorf("conntrack: %w", err)
		}
		return json.NewEncoder(stdout).Encode(r)
	case *check:
		return checkBars(ctx, b, cfg, stdout)
	case *memory:
		peak, err := peakMemory(ctx, b, cfg)
		if err == nil {
			fmt.Fprintln(stdout, peak)
		}
		return err
	case *replay != "":
		return replayFile(b, *replay, cfg.runs, stdout)
	}
	r, err := measure(ctx, b, cfg)
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(r)
}

// choice is what was written behind -backend to choose the backend.
func (c config) choice() string {
	if c.variant == "" {
		return c.backend
	}
	return c.backend + " -variant " + c.variant
}

func (c config) check() error {
	switch {
	case c.services < 1 || c.services > maxServices:
		return fmt.Errorf("-services must be between 1 and %d", maxServices)
	case c.endpoints < 1 || c.services*c.endpoints > maxEndpoints:
		return fmt.Errorf("-endpoints must be at least 1, and %d in all at most", maxEndpoints)
	case min(c.affinity, c.restricted) < 0 || max(c.affinity, c.restricted) > c.services:
		return fmt.Errorf("-affinity and -restricted count services, of which there are %d", c.services)
	case c.connect < 0 || c.churn < 0 || c.runs < 1:
		return errors.New("-connect and -churn must not be negative, nor -runs less than 1")
	}
	return nil
}
