package ipvs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/netns"
	"github.com/headgate/headgate/internal/nft"
	"github.com/headgate/headgate/model"
)

// A Programmer programs IPVS in one network namespace. It is safe for concurrent use; calls wait for each other.
// It is a [model.Drainer].
type Programmer struct {
	cfg      Config
	features model.FeatureSet

	// mu guards everything below.
	mu       sync.Mutex
	netns    *netns.NetNS // held open, to dial again after an error
	kernel   kernel
	table    *nft.Table
	resolver *model.Resolver
	record   *record // what the kernel holds; nil before the first Sync and while nobody knows
	last     *record // what it held when that was last known, while record is nil
	node     model.Node
	verified time.Time // when every real server was last compared
	// quiescent says that a client with affinity is led away from a server that drains.
	quiescent bool
	// left says that another backend has taken over: what is recorded is there for open connections alone.
	left   bool
	closed bool

	now       func() time.Time
	pretended bool // the kernel is a pretended one, in a test
}

// New probes the kernel and returns a Programmer. It writes nothing. The error wraps [model.ErrInvalid] for a
// configuration that makes no sense, [model.ErrPermission] without CAP_NET_ADMIN in the namespace, and
// [model.ErrNotSupported] where the kernel has no IPVS, where net.ipv4.vs.conntrack is not set and may not be, or where
// the kernel lacks something else; [Programmer.Probe] says more.
func New(ctx context.Context, cfg Config) (*Programmer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ns, err := netns.Open(cfg.NetNS)
	if err != nil {
		return nil, fmt.Errorf("ipvs: %w", err)
	}
	p := newProgrammer(cfg, ns, nil)
	report, err := p.Probe(ctx)
	if err == nil {
		err = report.Err()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ipvs: %w", err), p.Close())
	}
	return p, nil
}

// newProgrammer returns a Programmer that has not asked the kernel anything. With no kernel it is that of the namespace.
func newProgrammer(cfg Config, ns *netns.NetNS, k kernel) *Programmer {
	p := &Programmer{cfg: cfg, features: featuresOf(cfg), netns: ns, kernel: k, now: time.Now}
	if p.pretended = k != nil; !p.pretended {
		p.kernel = newNamespace(ns, &p.cfg)
	}
	p.resolver = model.NewResolver(p.features)
	p.table = nft.NewTable(p.tableConfig())
	return p
}

func (p *Programmer) tableConfig() nft.Config {
	return nft.Config{Name: p.cfg.Table, NetNS: p.netns, Sets: sets(), Timeout: p.cfg.Timeout, VerifyInterval: p.cfg.VerifyInterval,
		Ruleset: func(node model.Node, fam model.Family) nft.Ruleset {
			if p.left {
				return p.cfg.retiredRules(node, fam)
			}
			return p.cfg.rules(node, fam)
		},
		Trace: func(batch []byte) {
			if p.cfg.Trace != nil {
				p.cfg.Trace(unix.NETLINK_NETFILTER, batch)
			}
		}}
}

// Features says what this backend can do.
func (p *Programmer) Features() model.FeatureSet { return p.features }

// Sync makes the kernel hold want and nothing else of ours. It reads what is there and touches only what differs, the
// table excepted, which is written anew in one transaction. See [model.Programmer].
func (p *Programmer) Sync(ctx context.Context, want model.State) (model.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return model.Result{}, model.ErrClosed
	}
	w := &work{p: p, fresh: true, all: true}
	started := time.Now()
	if err := p.begin(ctx); err != nil {
		return w.res, p.fail(err)
	}
	w.res.AddStep("read", started)
	return w.attempt(ctx, func(refused map[model.ServiceName]error) (*model.Delta, error) {
		return p.resolver.ResolveState(want, refused)
	})
}

// begin sees to it that the sysctls are as they must be, and reads what the kernel holds.
func (p *Programmer) begin(ctx context.Context) (err error) {
	if err := p.sysctls(); err != nil {
		return err
	}
	p.left = false
	p.record, err = p.adopt(ctx)
	return err
}

// Apply programs a diff. See [model.Programmer].
func (p *Programmer) Apply(ctx context.Context, diff model.Diff) (model.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return model.Result{}, model.ErrClosed
	case p.record == nil || p.left:
		return model.Result{}, model.ErrNotSynced
	}
	w := &work{p: p}
	return w.attempt(ctx, func(refused map[model.ServiceName]error) (*model.Delta, error) {
		return p.resolver.Resolve(diff, refused)
	})
}

// fail notes that nobody knows what the kernel holds.
func (p *Programmer) fail(err error) error {
	p.forget()
	p.table.Forget()
	p.kernel.close()
	return fmt.Errorf("ipvs: %w", err)
}

// forget notes that nobody knows what the kernel holds.
func (p *Programmer) forget() {
	if p.record != nil {
		p.last, p.record = p.record, nil
	}
}

// Cleanup removes everything ours, and cuts the connections that it serves; see [Programmer.Retire] for leaving without
// that. See [model.Programmer].
func (p *Programmer) Cleanup(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return model.ErrClosed
	}
	return p.cleanup(ctx)
}

func (p *Programmer) cleanup(ctx context.Context) error {
	p.left = false
	p.resolver.Reset()
	rec, err := p.adopt(ctx)
	if err != nil && !errors.Is(err, errNoModule) { // without the module there are no virtual services
		return p.fail(err)
	}
	p.record = rec
	var res model.Result
	var virtual, routes []op
	for k := range rec.virtual {
		virtual = append(virtual, op{kind: delVirtual, key: k})
	}
	for a := range rec.routes {
		routes = append(routes, op{kind: delRoute, vip: a})
	}
	for _, ops := range [][]op{routes, virtual} {
		if refused, err := p.do(ctx, ops, &res); err != nil || len(refused) > 0 {
			return p.fail(errors.Join(append(errorsOf(refused), err)...))
		}
	}
	p.record, p.last = nil, nil
	if err := p.table.Cleanup(ctx); err != nil {
		return p.fail(err)
	}
	return nil
}

func errorsOf(refused map[model.ServiceName]error) (errs []error) {
	for _, err := range refused {
		errs = append(errs, err)
	}
	return errs
}

// Close releases the sockets and leaves everything in place. See [model.Programmer].
func (p *Programmer) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.record = nil
	p.table.Close()
	p.kernel.close()
	return p.netns.Close()
}
