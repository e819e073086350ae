package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/headgate/headgate/model"
)

// Check reports whether the kernel still holds what was last written: the table's structure, every virtual service and
// every route, the sysctls that services rely on; and, at most once in [Config.VerifyInterval], every real server. See [model.Programmer].
func (p *Programmer) Check(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return model.ErrClosed
	case p.record == nil || p.left:
		return model.ErrNotSynced
	}
	if err := p.check(ctx); err != nil {
		return fmt.Errorf("ipvs: check: %w", err)
	}
	return nil
}

func (p *Programmer) check(ctx context.Context) error {
	services, err := p.kernel.services(ctx)
	if errors.Is(err, errNoModule) {
		return fmt.Errorf("%w: %w", model.ErrDrift, err) // it was unloaded, with all that was in it
	}
	if err != nil {
		return err
	}
	for k, v := range p.record.virtual {
		switch is, there := services[k]; {
		case !there:
			return drift("virtual service %s %s is gone", k.proto, k.at)
		case is != v.spec:
			return drift("virtual service %s %s was changed", k.proto, k.at)
		}
	}
	routes, err := p.kernel.routes(ctx)
	if err != nil {
		return err
	}
	if err := compareRoutes(p.record.routes, routes); err != nil {
		return err
	}
	if err := p.table.Check(ctx); err != nil {
		return err
	}
	if err := p.sysctlsHold(); err != nil {
		return err
	}
	now := p.now()
	if p.cfg.VerifyInterval < 0 || now.Sub(p.verified) < p.cfg.VerifyInterval {
		return nil
	}
	found, err := p.kernel.servers(ctx, slices.Collect(maps.Keys(p.record.virtual)))
	if err != nil {
		return err
	}
	for k, v := range p.record.virtual {
		if err := compareServers(k, v, found[k]); err != nil {
			return err
		}
	}
	p.verified = now
	return nil
}

func compareRoutes(want, is map[netip.Addr]netip.Addr) error {
	for a, src := range want {
		switch found, there := is[a]; {
		case !there:
			return drift("the route that makes %s local is gone", a)
		case found != src:
			return drift("the route that makes %s local was changed", a)
		}
	}
	for a := range is {
		if _, ours := want[a]; !ours {
			return drift("a route of somebody else with our protocol number makes %s local", a)
		}
	}
	return nil
}

func compareServers(k virtualKey, want *virtual, found []foundServer) error {
	for _, f := range found {
		switch i, there := want.find(f.at); {
		case !there:
			return drift("virtual service %s %s has real server %s of somebody else", k.proto, k.at, f.at)
		case f.odd || f.weight != want.servers[i].weight:
			return drift("virtual service %s %s: real server %s was changed", k.proto, k.at, f.at)
		}
	}
	if len(found) < len(want.servers) {
		return drift("virtual service %s %s lacks %d real servers", k.proto, k.at, len(want.servers)-len(found))
	}
	return nil
}

func drift(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{model.ErrDrift}, args...)...)
}
