package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/internal/passed"
	"github.com/headgate/headgate/iptables"
	"github.com/headgate/headgate/model"
)

// iptablesBackend is the backend iptables in one of its variants.
func iptablesBackend(v iptables.Variant) backend {
	return backend{
		open: func(ctx context.Context, ns *lab.NetNS, trace func(...[]byte)) (model.Programmer, error) {
			cfg := iptables.Config{NetNS: ns.FD(), Variant: v}
			if trace != nil {
				cfg.Trace = func(f model.Family, stdin []byte) { trace(heading(f), stdin) }
			}
			return iptables.New(ctx, cfg)
		},
		floor:  func(ns *lab.NetNS) (floor, error) { return newRestoreTool(ns, v) },
		split:  splitScripts,
		noop:   func(ctx context.Context, ns *lab.NetNS) (time.Duration, error) { return noopRestore(ns, v) },
		passed: func(ctx context.Context, cfg config) (int, error) { return rulesPassed(ctx, cfg, v) },
	}
}

// heading is a comment, as iptables-restore reads it, with which each piece begins: it says for which family it is.
func heading(f model.Family) []byte { return fmt.Appendf(nil, "# bench: %s\n", f) }

// familyOf returns the family of a piece.
func familyOf(piece []byte) (model.Family, error) {
	for _, f := range model.Families {
		if bytes.HasPrefix(piece, heading(f)) {
			return f, nil
		}
	}
	return 0, errors.New("a piece does not say for which family it is")
}

// splitScripts cuts a stream of pieces in front of each heading.
func splitScripts(stream []byte) (pieces [][]byte, err error) {
	for len(stream) > 0 {
		if _, err := familyOf(stream); err != nil {
			return nil, err
		}
		end := len(stream)
		for _, f := range model.Families {
			if i := bytes.Index(stream[1:], heading(f)); i >= 0 {
				end = min(end, 1+i)
			}
		}
		pieces, stream = append(pieces, stream[:end]), stream[end:]
	}
	return pieces, nil
}

// A restoreTool has iptables-restore read pieces from a file.
type restoreTool struct {
	ns      *lab.NetNS
	variant iptables.Variant
	dir     string
	// The piece that is prepared.
	file   *os.File
	family model.Family
}

func newRestoreTool(ns *lab.NetNS, v iptables.Variant) (*restoreTool, error) {
	dir, err := os.MkdirTemp("", "headgate-bench")
	return &restoreTool{ns: ns, variant: v, dir: dir}, err
}

// tool names a program of the variant: "-restore" or "-save".
func tool(f model.Family, v iptables.Variant, what string) string {
	return map[model.Family]string{model.IPv4: "iptables-", model.IPv6: "ip6tables-"}[f] + v.String() + what
}

func (r *restoreTool) prepare(piece []byte) (err error) {
	if r.file != nil {
		r.file.Close() // only read from
	}
	if r.family, err = familyOf(piece); err != nil {
		return err
	}
	path := filepath.Join(r.dir, "piece")
	if err = os.WriteFile(path, piece, 0o600); err != nil {
		return err
	}
	r.file, err = os.Open(path)
	return err
}

func (r *restoreTool) send([]byte) error {
	cmd := r.ns.Command(context.Background(), tool(r.family, r.variant, "-restore"), "--noflush", "-w", "60")
	cmd.Stdin = r.file
	_, err := cmd.Output()
	return err
}

func (r *restoreTool) Close() error {
	if r.file != nil {
		r.file.Close() // only read from
	}
	return os.RemoveAll(r.dir)
}

// noopRestore measures the least change of the nat table as it is: an empty chain is emptied. The legacy variant takes
// the whole table from the kernel for it, and gives it back.
func noopRestore(ns *lab.NetNS, v iptables.Variant) (time.Duration, error) {
	r, err := newRestoreTool(ns, v)
	if err != nil {
		return 0, err
	}
	piece := append(heading(model.IPv4), "*nat\n:HEADGATE-CANARY - [0:0]\nCOMMIT\n"...)
	took, err := send(r, [][]byte{piece})
	return took, errors.Join(err, r.Close())
}

// rulesPassed returns the most rules that the first packet of a connection passes to the last of as many addresses as
// there are services, as many node ports, and a tenth as many ports of one address, by the kernel's counters.
func rulesPassed(ctx context.Context, cfg config, v iptables.Variant) (int, error) {
	ways, err := passed.Measure(ctx, min(cfg.services, passed.MaxCrowd), tool(model.IPv4, v, "-save"),
		func(ctx context.Context, node *lab.NetNS, s model.State) error {
			prog, err := iptables.New(ctx, iptables.Config{NetNS: node.FD(), Variant: v})
			if err != nil {
				return err
			}
			defer prog.Close()
			result, err := prog.Sync(ctx, s)
			return errors.Join(err, result.Err())
		})
	most := 0
	for _, w := range ways {
		most = max(most, w.Rules)
	}
	return most, err
}
