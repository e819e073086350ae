package iptables

import (
	"context"
	"fmt"
	"sync"

	"github.com/headgate/headgate/internal/netns"
	"github.com/headgate/headgate/model"
)

// A Programmer makes the kernel hold a State by way of iptables. It is safe for concurrent use.
type Programmer struct {
	cfg      Config
	names    names
	variant  Variant
	features model.FeatureSet

	mu       sync.Mutex // guards what follows, and everything that is read or written
	ns       *netns.NetNS
	sides    []*side
	resolver *model.Resolver
	warnings []string // of New, for the first Result
	leftover *holding // what the other variant held at New, until the first Sync
	synced   bool
	closed   bool
	checks   checks
}

// A side is one family.
type side struct {
	*tools
	ability
	now   programmed
	marks marks
}

var _ model.Programmer = (*Programmer)(nil)

// New finds out which iptables there is and what it can do, and returns a Programmer. It writes nothing. The error
// wraps ErrInvalid for a Config that makes no sense, ErrNotSupported where the host lacks iptables, ErrPermission where
// the process may not use it: it says what the process needs.
func New(ctx context.Context, cfg Config) (*Programmer, error) {
	return newProgrammer(ctx, cfg, (*tools).learn)
}

// A learner finds out what the kernel and the programs can do: tools.learn, but in some tests.
type learner func(t *tools, ctx context.Context, cfg Config) (ability, error)

func newProgrammer(ctx context.Context, cfg Config, learn learner) (*Programmer, error) {
	cfg, err := cfg.settled()
	if err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	ns, err := netns.Open(cfg.NetNS)
	if err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	p := &Programmer{cfg: cfg, names: names{cfg.Prefix}, ns: ns}
	if err := p.open(ctx, learn); err != nil {
		ns.Close()
		return nil, fmt.Errorf("iptables: %w", p.variant.explain(err))
	}
	p.resolver = model.NewResolver(p.features)
	return p, nil
}

// open settles for a variant and makes the sides.
func (p *Programmer) open(ctx context.Context, learn learner) (err error) {
	f := &finder{cfg: p.cfg, ns: p.ns}
	p.variant, p.leftover, err = f.choose(ctx)
	if err != nil {
		return err
	}
	if err := p.variant.permitted(); err != nil {
		return err
	}
	if p.leftover.any() {
		p.warnings = append(p.warnings, fmt.Sprintf("iptables-%s holds rules too: iptables-%s does not list them, and packets meet both", p.variant.other(), p.variant))
	}
	common := features{randomFully: true, label: true, program: true}
	for _, fam := range p.cfg.Families {
		if fam == model.IPv6 && !hasIPv6(p.ns) {
			p.warnings = append(p.warnings, "the host has no IPv6: services are not programmed in it")
			continue
		}
		t, err := f.tools(ctx, fam, p.variant)
		if err != nil {
			return err
		}
		s := &side{tools: t}
		if s.ability, err = learn(t, ctx, p.cfg); err != nil {
			return err
		}
		common.label = common.label && s.label
		common.program = common.program && s.program
		p.sides = append(p.sides, s)
	}
	for _, s := range p.sides {
		s.ability.label, s.ability.program = common.label, common.program
	}
	p.features = featureSet(common, p.cfg)
	p.tell(p.warnings)
	return nil
}

func (p *Programmer) tell(warnings []string) {
	for _, w := range warnings {
		p.cfg.Logger.Warn(w, "backend", "iptables", "variant", p.variant.String())
	}
}

// Features says what this backend can do here. It needs nothing open.
func (p *Programmer) Features() model.FeatureSet { return p.features }

// Variant returns the variant that is used, Legacy or NFT.
func (p *Programmer) Variant() Variant { return p.variant }

// Close releases the namespace and leaves the rules in place.
func (p *Programmer) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	return p.ns.Close()
}

// begin starts a call that writes. It returns the errors with which nothing was done.
func (p *Programmer) begin(ctx context.Context, needsSync bool) error {
	switch {
	case p.closed:
		return model.ErrClosed
	case needsSync && !p.synced:
		return model.ErrNotSynced
	}
	p.synced = false // until it is known to be again
	if ctx.Err() != nil {
		return fmt.Errorf("iptables: %w", context.Cause(ctx))
	}
	return nil
}

// Sync makes the kernel hold want. It reads what is there and writes the chains that differ, so that after a
// restart with the same state it writes nothing.
func (p *Programmer) Sync(ctx context.Context, want model.State) (model.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.begin(ctx, false); err != nil {
		return model.Result{}, err
	}
	for _, s := range p.sides {
		if len(s.missing) > 0 {
			return model.Result{}, fmt.Errorf("iptables: %w", s.missing[0])
		}
	}
	w := p.newWork(ctx)
	w.all = true
	w.resolve = func(refused map[model.ServiceName]error) (*model.Delta, error) {
		return p.resolver.ResolveState(want, refused)
	}
	for name, svc := range want.Services {
		w.consider(name, svc, want.Endpoints[name])
	}
	err := w.whole()
	if err == nil {
		err = w.leaveOther()
	}
	return w.end(err)
}

// Apply programs a diff. It writes the chains that change, in one restore for each family.
func (p *Programmer) Apply(ctx context.Context, diff model.Diff) (model.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.begin(ctx, true); err != nil {
		return model.Result{}, err
	}
	w := p.newWork(ctx)
	w.resolve = func(refused map[model.ServiceName]error) (*model.Delta, error) {
		return p.resolver.Resolve(diff, refused)
	}
	for _, c := range diff.Changes {
		if c.After != nil {
			w.consider(c.Name, c.After.Service, c.After.Endpoints)
		}
	}
	return w.end(w.change())
}
