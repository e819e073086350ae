package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/headgate/headgate/iptables"
	"github.com/headgate/headgate/ipvs"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/nftables"
)

// backends are those that there are, the preferred one first. Each owns objects under fileproxy's own name, so that other
// programs that embed headgate may run beside it.
func backends(setSysctls bool) []model.Candidate {
	return []model.Candidate{
		{Name: "nftables", New: func(ctx context.Context) (model.Programmer, error) {
			return nftables.New(ctx, nftables.Config{Table: "fileproxy", SetSysctls: setSysctls})
		}},
		{Name: "iptables", New: func(ctx context.Context) (model.Programmer, error) {
			return iptables.New(ctx, iptables.Config{Prefix: "FILEPROXY", RejectOtherPorts: true, SetSysctls: setSysctls})
		}},
		{Name: "ipvs", New: func(ctx context.Context) (model.Programmer, error) {
			return ipvs.New(ctx, ipvs.Config{Table: "fileproxy-ipvs", SetSysctls: setSysctls})
		}},
	}
}

// named returns the backends that a name stands for: all for "auto".
func named(all []model.Candidate, name string) ([]model.Candidate, error) {
	names := []string{"auto"}
	for _, c := range all {
		if c.Name == name {
			return []model.Candidate{c}, nil
		}
		names = append(names, c.Name)
	}
	if name == "auto" {
		return all, nil
	}
	return nil, fmt.Errorf("no backend %q; there is %s", name, strings.Join(names, ", "))
}

// choose takes the first backend that can work here, and says why others cannot and what stands in its way.
func choose(ctx context.Context, candidates []model.Candidate, log *slog.Logger) (model.Choice, error) {
	choice, err := model.FirstSupported(ctx, candidates...)
	if err != nil {
		return choice, err
	}
	for _, r := range choice.Refused {
		log.Info("backend cannot work here", "backend", r.Name, "why", r.Err)
	}
	log.Info("backend chosen", "backend", choice.Name)
	for _, w := range choice.Report.Warnings {
		log.Warn("in the way of some traffic", "what", w.What, "why", w.Err, "remedy", w.Remedy)
	}
	return choice, nil
}

// cleanup removes everything that fileproxy has ever written with any of the backends that work here.
func cleanup(ctx context.Context, candidates []model.Candidate, log *slog.Logger) error {
	var errs []error
	for _, c := range candidates {
		p, err := c.New(ctx)
		if errors.Is(err, model.ErrNotSupported) {
			log.Info("backend cannot work here: nothing to remove", "backend", c.Name, "why", err)
			continue
		}
		if err == nil {
			err = errors.Join(p.Cleanup(ctx), p.Close())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove what %s has: %w", c.Name, err))
			continue
		}
		log.Info("removed", "backend", c.Name)
	}
	return errors.Join(errs...)
}

// retire removes what an earlier run wrote with another backend, now that the rules of this one are in place. What open
// connections still need stays until they end.
func retire(ctx context.Context, c model.Candidate, log *slog.Logger) error {
	p, err := c.New(ctx)
	if err != nil {
		return err
	}
	defer p.Close()
	d, ok := p.(model.Drainer)
	if !ok {
		return p.Cleanup(ctx)
	}
	remains, err := d.Retire(ctx)
	for tick := time.Tick(time.Second); err == nil && len(remains) > 0; remains, err = d.Drain(ctx) {
		log.Debug("waiting for open connections", "backend", c.Name, "remaining", len(remains))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick:
		}
	}
	return err
}
