package nftables

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/headgate/headgate/internal/netns"
	"github.com/headgate/headgate/internal/nft"
	"github.com/headgate/headgate/model"
)

// A Programmer programs nftables in one network namespace. It is safe for concurrent use; calls wait for each other.
type Programmer struct {
	cfg Config

	// mu guards everything below.
	mu       sync.Mutex
	netns    *netns.NetNS
	table    *nft.Table
	resolver *model.Resolver
	loopback bool // node ports answer on loopback, as last programmed
	closed   bool
}

// New probes the kernel and returns a Programmer. It writes nothing. The error wraps [model.ErrInvalid] for a
// configuration that makes no sense, [model.ErrPermission] without CAP_NET_ADMIN in the namespace, and
// [model.ErrNotSupported] where the kernel lacks something; [Programmer.Probe] says more.
func New(ctx context.Context, cfg Config) (*Programmer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ns, err := netns.Open(cfg.NetNS)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	p := &Programmer{cfg: cfg, netns: ns, resolver: model.NewResolver(features)}
	p.table = nft.NewTable(p.tableConfig())
	report, err := p.Probe(ctx)
	if err == nil {
		err = report.Err()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nftables: %w", err), p.Close())
	}
	return p, nil
}

func (p *Programmer) tableConfig() nft.Config {
	return nft.Config{Name: p.cfg.Table, NetNS: p.netns, Sets: sets, Timeout: p.cfg.Timeout, VerifyInterval: p.cfg.VerifyInterval, Trace: p.cfg.Trace,
		Ruleset: func(node model.Node, fam model.Family) nft.Ruleset { return p.cfg.rules(node, fam) }}
}

// Features says what this backend can do.
func (p *Programmer) Features() model.FeatureSet { return features }

// Sync makes the kernel hold want and nothing else in our tables. See [model.Programmer].
func (p *Programmer) Sync(ctx context.Context, want model.State) (model.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return model.Result{}, model.ErrClosed
	}
	resolve := func(refused map[model.ServiceName]error) (*model.Delta, error) {
		return p.resolver.ResolveState(want, refused)
	}
	return p.attempt(resolve, func(delta *model.Delta, res *model.Result) (map[model.ServiceName]error, error) {
		return p.table.Sync(ctx, nft.Input{Node: delta.Node, Forms: p.resolver.FormsAfter(delta)}, res)
	})
}

// Apply programs a diff. See [model.Programmer].
func (p *Programmer) Apply(ctx context.Context, diff model.Diff) (model.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return model.Result{}, model.ErrClosed
	case !p.table.Known():
		return model.Result{}, model.ErrNotSynced
	}
	resolve := func(refused map[model.ServiceName]error) (*model.Delta, error) {
		return p.resolver.Resolve(diff, refused)
	}
	return p.attempt(resolve, func(delta *model.Delta, res *model.Result) (map[model.ServiceName]error, error) {
		return p.table.Apply(ctx, nft.Input{Node: delta.Node, Changes: delta.Changes}, res)
	})
}

// attempt programs until the kernel takes it, leaving out the services that cannot be programmed.
func (p *Programmer) attempt(resolve func(refused map[model.ServiceName]error) (*model.Delta, error),
	program func(*model.Delta, *model.Result) (map[model.ServiceName]error, error)) (res model.Result, err error) {
	var refused map[model.ServiceName]error
	for {
		delta, err := resolve(refused)
		if err != nil {
			return res, p.fail(err)
		}
		more, err := program(delta, &res)
		switch {
		case err != nil:
			return res, p.fail(err)
		case len(more) > 0:
			if refused, err = p.resolver.LeaveOut(refused, more, !p.table.Known()); err != nil {
				return res, p.fail(err)
			}
			continue
		}
		p.resolver.Commit(delta)
		p.loopback = delta.Node.NodePorts.Loopback
		res.Rejected, res.Promoted = delta.Rejected, delta.Promoted
		return res, p.sysctls()
	}
}

// Check reports whether the kernel still holds what was last written. If nobody has committed anything to nftables
// since, it costs one question; else it compares tables, chains, sets and rules and, at most once in
// [Config.VerifyInterval], every element.
func (p *Programmer) Check(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return model.ErrClosed
	case !p.table.Known():
		return model.ErrNotSynced
	}
	if err := p.table.Check(ctx); err != nil {
		return fmt.Errorf("nftables: check: %w", err)
	}
	return nil
}

// fail notes that nobody knows what the kernel holds.
func (p *Programmer) fail(err error) error {
	p.table.Forget()
	return fmt.Errorf("nftables: %w", err)
}

// Cleanup deletes our tables, whoever wrote them. See [model.Programmer].
func (p *Programmer) Cleanup(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return model.ErrClosed
	}
	p.resolver.Reset()
	if err := p.table.Cleanup(ctx); err != nil {
		return p.fail(err)
	}
	return nil
}

// Close releases the socket and leaves the rules in place. See [model.Programmer].
func (p *Programmer) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.table.Close()
	return p.netns.Close()
}
