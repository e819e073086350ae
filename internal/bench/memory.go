package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/headgate/headgate/internal/lab"
)

// peakMemoryOfChild asks another process of this program for its peakMemory: this one records and sends again.
func peakMemoryOfChild(ctx context.Context, cfg config) (int, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-memory", "-backend", cfg.backend, "-variant", cfg.variant,
		"-services", strconv.Itoa(cfg.services), "-endpoints", strconv.Itoa(cfg.endpoints),
		"-affinity", strconv.Itoa(cfg.affinity), "-restricted", strconv.Itoa(cfg.restricted))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strconv.Atoi(strings.TrimSpace(string(out)))
}

// peakMemory does what an embedder does, and nothing else, and returns the most memory in bytes that this process has
// had resident so far.
func peakMemory(ctx context.Context, b backend, cfg config) (int, error) {
	ns, err := lab.NewNetNS("memory")
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	prog, err := b.open(ctx, ns, nil)
	if err != nil {
		return 0, err
	}
	defer prog.Close()
	tracker := cfg.track()
	want := tracker.State()
	if _, err := prog.Sync(ctx, want); err != nil {
		return 0, err
	}
	e := newChurn(cfg, want).add(0)
	tracker.SetEndpoints(e.name, e.endpoints)
	if _, err := prog.Apply(ctx, tracker.Diff()); err != nil {
		return 0, err
	}
	return highWater()
}

// highWater reads VmHWM, see proc_pid_status(5).
func highWater() (int, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		var kib int
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/self/status has no VmHWM")
}
