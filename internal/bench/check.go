package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"text/tabwriter"
	"time"
)

// A bar is a promise about a ratio that does not depend on how fast the machine is, or about memory.
type bar struct {
	what string
	// ratio computes it from the reports of the runs that it needs.
	ratio func(r map[string]*report) float64
	// most is what is allowed; 0: the ratio is told for information.
	most float64
}

// churnInCheck is for how long services change.
const churnInCheck = 10 * time.Second

// noise is how much two figures that shall be the same may differ.
const noise = 1.5

// errMissed says that a bar was missed; which, has been printed.
var errMissed = errors.New("missed")

// A check is the runs and the bars of one backend.
type check struct {
	runs []namedRun
	bars []bar
}

type namedRun struct {
	name string
	config
}

// checks returns the check of each backend that has one.
func checks() map[string]check {
	return map[string]check{"iptables -variant legacy": iptablesCheck(
		bar{"10,000 × 10: endpoint added / a restore that changes nothing", func(r map[string]*report) float64 {
			return r["big"].ApplyMicroseconds / 1e6 / r["big"].NoopRestoreSeconds
		}, 1.2},
		bar{"10,000 × 10: endpoint removed / a restore that changes nothing", func(r map[string]*report) float64 {
			return r["big"].RemoveMicroseconds / 1e6 / r["big"].NoopRestoreSeconds
		}, 1.2},
	), "iptables -variant nft": iptablesCheck(
		bar{"10,000 × 10: endpoint added / floor of the first sync", func(r map[string]*report) float64 {
			return r["big"].ApplyMicroseconds / 1e6 / r["big"].FloorSeconds
		}, 0.1},
		bar{"10,000 × 10: endpoint removed / floor of the first sync", func(r map[string]*report) float64 {
			return r["big"].RemoveMicroseconds / 1e6 / r["big"].FloorSeconds
		}, 0.1},
	), "ipvs": {
		runs: []namedRun{
			{"plain", config{services: 1000, endpoints: 10}},
			{"big", config{services: 10000, endpoints: 10, alone: true}},
			{"few", config{services: 10, endpoints: 10, alone: true}},
		},
		bars: []bar{
			{"1,000 × 10: first sync / one request at a time through moby/ipvs, addresses on a dummy device",
				func(r map[string]*report) float64 { return r["plain"].SyncSeconds / r["plain"].PeerSyncSeconds }, 1. / 3},
			{"1,000 × 10: first sync / ipvsadm --restore and ip -batch",
				func(r map[string]*report) float64 { return r["plain"].SyncSeconds / r["plain"].RestoreSeconds }, 1},
			{"1,000 × 10: first sync / floor",
				func(r map[string]*report) float64 { return r["plain"].SyncSeconds / r["plain"].FloorSeconds }, 0},
			{"endpoint added, 1,000 services / 10 services",
				func(r map[string]*report) float64 { return r["plain"].ApplyMicroseconds / r["few"].ApplyMicroseconds }, noise},
			{"endpoint added, 10,000 services / 10 services",
				func(r map[string]*report) float64 { return r["big"].ApplyMicroseconds / r["few"].ApplyMicroseconds }, noise},
			{"endpoint removed, 1,000 services / 10 services",
				func(r map[string]*report) float64 { return r["plain"].RemoveMicroseconds / r["few"].RemoveMicroseconds }, noise},
			{"endpoint removed, 10,000 services / 10 services",
				func(r map[string]*report) float64 { return r["big"].RemoveMicroseconds / r["few"].RemoveMicroseconds }, noise},
		},
	}, "nftables": {
		runs: []namedRun{
			{"big", config{services: 10000, endpoints: 10, connect: 2000, churn: churnInCheck}},
			{"small", config{services: 100, endpoints: 10}},
			{"few", config{services: 10, endpoints: 10, connect: 2000}},
			{"plain", config{services: 1000, endpoints: 10}},
			{"affine", config{services: 1000, endpoints: 10, affinity: 1000}},
			{"restricted", config{services: 10000, endpoints: 10, restricted: 10000}},
		},
		bars: []bar{
			{"10,000 × 10: first sync / floor",
				func(r map[string]*report) float64 { return r["big"].SyncSeconds / r["big"].FloorSeconds }, 1.5},
			// What wall time is worth where others use the machine too.
			{"10,000 × 10: first sync / floor, CPU time",
				func(r map[string]*report) float64 { return r["big"].SyncCPUSeconds / r["big"].floorCPUSeconds }, 0},
			{"10,000 × 10: endpoint added / floor",
				func(r map[string]*report) float64 {
					return r["big"].ApplyMicroseconds / r["big"].ApplyFloorMicroseconds
				}, 3},
			{"10,000 × 10: endpoint removed / floor",
				func(r map[string]*report) float64 {
					return r["big"].RemoveMicroseconds / r["big"].RemoveFloorMicroseconds
				}, 3},
			{"10,000 × 10: transactions of a removal",
				func(r map[string]*report) float64 { return float64(r["big"].removeTransactions) }, 2},
			{"endpoint added, 10,000 services / 100 services",
				func(r map[string]*report) float64 { return r["big"].ApplyMicroseconds / r["small"].ApplyMicroseconds }, noise},
			{"endpoint removed, 10,000 services / 100 services",
				func(r map[string]*report) float64 { return r["big"].RemoveMicroseconds / r["small"].RemoveMicroseconds }, noise},
			{"10,000 × 10: restart / first sync",
				func(r map[string]*report) float64 { return r["big"].RestartSeconds / r["big"].SyncSeconds }, 1.1},
			{"1,000 × 10: first sync, all with affinity / none",
				func(r map[string]*report) float64 { return r["affine"].SyncSeconds / r["plain"].SyncSeconds }, 3},
			{"10,000 × 10: first sync, all restricted / none",
				func(r map[string]*report) float64 { return r["restricted"].SyncSeconds / r["big"].SyncSeconds }, 2},
			{"10 services: connect, last VIP / direct",
				func(r map[string]*report) float64 { return r["few"].ConnectRatio }, 1.05},
			{"10,000 services: connect, last VIP / direct",
				func(r map[string]*report) float64 { return r["big"].ConnectRatio }, 1.05},
			// Both kinds of dials cross the same rules, so their ratio does not show what all of them cost: this does.
			{"connect to the last VIP, 10,000 services / 10 services",
				func(r map[string]*report) float64 { return r["big"].VIPP50Microseconds / r["few"].VIPP50Microseconds }, noise},
			// The Syncer gathers changes for 100 ms.
			{"10,000 × 10, 1 % changing every second: applies / what MinInterval allows",
				func(r map[string]*report) float64 {
					return float64(r["big"].Applies) / float64(churnInCheck/(100*time.Millisecond))
				}, 1.1},
			{"10,000 × 10, 1 % changing every second: p99 from call to programmed / MinInterval",
				func(r map[string]*report) float64 { return r["big"].P99Milliseconds / 100 }, 0},
			{"10,000 × 10: peak memory, MB",
				func(r map[string]*report) float64 { return float64(r["big"].PeakRSSBytes) / 1e6 }, 150},
		},
	}}
}

// iptablesCheck returns the runs of the backend iptables and its bars: those of both variants, and those of changes.
func iptablesCheck(changes ...bar) check {
	return check{
		runs: []namedRun{
			{"big", config{services: 10000, endpoints: 10, connect: 2000}},
			{"few", config{services: 10, endpoints: 10, connect: 2000}},
		},
		bars: append(changes,
			bar{"10,000 × 10: first sync / floor",
				func(r map[string]*report) float64 { return r["big"].SyncSeconds / r["big"].FloorSeconds }, 1.3},
			bar{"10,000 × 10: first sync / floor, CPU time",
				func(r map[string]*report) float64 { return r["big"].SyncCPUSeconds / r["big"].floorCPUSeconds }, 0},
			bar{"10,000 × 10: restart / first sync",
				func(r map[string]*report) float64 { return r["big"].RestartSeconds / r["big"].SyncSeconds }, 0},
			bar{"10,000 addresses, 10,000 node ports, 1,000 ports of one address: most rules passed",
				func(r map[string]*report) float64 { return float64(r["big"].RulesPassed) }, 70},
			bar{"10,000 services: connect, last VIP / direct",
				func(r map[string]*report) float64 { return r["big"].ConnectRatio }, 1.1},
			bar{"connect to the last VIP, 10,000 services / 10 services",
				func(r map[string]*report) float64 { return r["big"].VIPP50Microseconds / r["few"].VIPP50Microseconds }, noise},
			bar{"10,000 × 10: peak memory, MB",
				func(r map[string]*report) float64 { return float64(r["big"].PeakRSSBytes) / 1e6 }, 0},
		),
	}
}

// checkBars makes the runs of a backend, prints their reports and then each bar with what was measured. The error is
// errMissed if one was missed.
func checkBars(ctx context.Context, b backend, cfg config, out io.Writer) error {
	c, ok := checks()[cfg.choice()]
	if !ok {
		return fmt.Errorf("backend %s has no bars", cfg.choice())
	}
	reports := map[string]*report{}
	for _, run := range c.runs {
		run.backend, run.variant, run.config.runs = cfg.backend, cfg.variant, cfg.runs
		debug.FreeOSMemory() // each run begins alike
		r, err := measure(ctx, b, run.config)
		if err != nil {
			return fmt.Errorf("run %q: %w", run.name, err)
		}
		reports[run.name] = r
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %s\n", run.name, line)
	}
	return judge(c.bars, reports, out)
}

// judge prints a line for each bar.
func judge(bars []bar, reports map[string]*report, out io.Writer) error {
	var missed error
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, b := range bars {
		ratio, allowed, verdict := b.ratio(reports), fmt.Sprintf("at most %.2f", b.most), "ok"
		switch {
		case b.most == 0:
			allowed, verdict = "", "for information"
		case !(ratio <= b.most): // so is what is no number
			verdict, missed = "MISSED", errMissed
		}
		fmt.Fprintf(table, "%s\t%.2f\t%s\t%s\n", b.what, ratio, allowed, verdict)
	}
	return errors.Join(table.Flush(), missed)
}
