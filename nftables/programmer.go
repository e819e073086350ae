package nftables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// A Programmer programs nftables in one network namespace. It is safe for concurrent use; calls wait for each other.
type Programmer struct {
	cfg Config

	// mu guards everything below.
	mu       sync.Mutex
	netns    *os.File // held open, to dial again after an error
	socket   *socket  // nil after an error
	resolver *model.Resolver
	record   *record // what the kernel holds; nil before the first Sync and while nobody knows
	kernel   witness
	memory   memory
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
	netns, err := openNetNS(cfg.NetNS)
	if err != nil {
		return nil, fmt.Errorf("nftables: network namespace: %w", err)
	}
	p := &Programmer{cfg: cfg, netns: netns, resolver: model.NewResolver(features)}
	report, err := p.Probe(ctx)
	if err == nil {
		err = report.Err()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nftables: %w", err), p.Close())
	}
	return p, nil
}

// openNetNS returns a descriptor of our own for a namespace: a copy of the one given or, for 0, one of that in which
// the calling thread is. It returns nil for the namespace of the process, which needs no entering: CAP_NET_ADMIN is then
// enough, where entering takes CAP_SYS_ADMIN.
func openNetNS(fd int) (*os.File, error) {
	if fd != 0 {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(dup), "netns"), nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	process, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	if os.SameFile(thread, process) {
		return nil, nil
	}
	return os.Open("/proc/thread-self/ns/net")
}

// inNetNS runs f inside the Programmer's namespace, on a thread that is nobody else's meanwhile.
func (p *Programmer) inNetNS(f func() error) error {
	done := make(chan error, 1)
	go p.enter(f, done)
	return <-done
}

func (p *Programmer) enter(f func() error, done chan<- error) {
	runtime.LockOSThread()
	switch {
	case p.netns == nil:
		// Unless its own thread is locked elsewhere, a goroutine runs in the namespace of the process.
		defer runtime.UnlockOSThread()
		done <- f()
	case unix.Gettid() == unix.Getpid():
		// The process's first thread must stay where it is, for it does not end with its goroutine. While this one
		// holds it, another runs elsewhere.
		defer runtime.UnlockOSThread()
		other := make(chan error)
		go p.enter(f, other)
		done <- <-other
	default:
		err := unix.Setns(int(p.netns.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		done <- err // still locked: the thread ends with the goroutine
	}
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
	old := p.record
	p.record = nil
	if old == nil {
		old = newRecord(want.Node)
	}
	started := time.Now()
	res, err := p.attempt(ctx, func(refused map[model.ServiceName]error, exact bool) (*plan, *model.Delta, error) {
		delta, err := p.resolver.ResolveState(want, refused)
		if err != nil {
			return nil, nil, err
		}
		found, err := p.structures(ctx)
		if err != nil {
			return nil, nil, err
		}
		next := newPlan(p.cfg, old, delta.Node, started, exact, &p.memory)
		planSync(next, found, p.resolver.FormsAfter(delta))
		return next, delta, nil
	})
	if err == nil {
		p.tidy(ctx, &res)
	}
	return res, err
}

// Apply programs a diff. See [model.Programmer].
func (p *Programmer) Apply(ctx context.Context, diff model.Diff) (model.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return model.Result{}, model.ErrClosed
	case p.record == nil:
		return model.Result{}, model.ErrNotSynced
	}
	old := p.record
	started := time.Now()
	return p.attempt(ctx, func(refused map[model.ServiceName]error, exact bool) (*plan, *model.Delta, error) {
		delta, err := p.resolver.Resolve(diff, refused)
		if err != nil {
			return nil, nil, err
		}
		next := newPlan(p.cfg, old, delta.Node, started, exact, &p.memory)
		planApply(next, delta, p.resolver)
		return next, delta, nil
	})
}

// planApply plans a delta against what the kernel holds.
func planApply(p *plan, delta *model.Delta, r *model.Resolver) {
	changes := delta.Changes
	if delta.NodeChanged {
		p.frame()
		// What a service needs may depend on the node even where its own form does not.
		changes = make([]model.ResolvedChange, 0, r.Len())
		for _, f := range r.FormsAfter(delta) {
			changes = append(changes, model.ResolvedChange{Name: f.Name, Before: r.Form(f.Name), After: f})
		}
		for _, c := range delta.Changes {
			if c.After == nil {
				changes = append(changes, c)
			}
		}
	}
	for _, c := range changes {
		p.change(c)
	}
	p.sweep()
	p.finish()
}

// attempt plans and commits until the kernel takes it, leaving out the services that cannot be programmed.
func (p *Programmer) attempt(ctx context.Context, plan func(map[model.ServiceName]error, bool) (*plan, *model.Delta, error)) (model.Result, error) {
	var res model.Result
	var refused map[model.ServiceName]error
	exact := false
	for tries := 0; ; tries++ {
		start := time.Now()
		next, delta, err := plan(refused, exact)
		if err != nil {
			return res, p.fail(err)
		}
		res.Steps = step(res.Steps, "plan", start)
		if len(next.refused) > 0 {
			for name, err := range next.refused {
				put(&refused, name, err)
			}
			continue
		}
		start = time.Now()
		err = p.commitPlan(ctx, next, &res)
		res.Steps = step(res.Steps, "commit", start)
		if err == nil {
			p.resolver.Commit(delta)
			p.record = next.commit()
			res.Added, res.Changed, res.Deleted = next.batch.added, next.batch.changed, next.batch.deleted
			res.Rejected, res.Promoted = delta.Rejected, delta.Promoted
			p.pruneAgain(ctx, next, &res)
			return res, p.sysctls()
		}
		again, err := p.judge(ctx, next, err, &refused, &exact, tries)
		if !again {
			return res, p.fail(err)
		}
	}
}

// step adds to the time that a step took.
func step(steps []model.Step, name string, since time.Time) []model.Step {
	took := time.Since(since)
	for i := range steps {
		if steps[i].Name == name {
			steps[i].Took += took
			return steps
		}
	}
	return append(steps, model.Step{Name: name, Took: took})
}

// fail notes that nobody knows what the kernel holds.
func (p *Programmer) fail(err error) error {
	if errors.Is(err, model.ErrInvalid) {
		return fmt.Errorf("nftables: %w", err) // nothing was done
	}
	p.record = nil
	p.hangUp()
	return fmt.Errorf("nftables: %w", err)
}

// hangUp closes the socket; the next exchange opens a fresh one.
func (p *Programmer) hangUp() {
	if p.socket != nil {
		_ = p.socket.close()
		p.socket = nil
	}
}

// exchange runs one exchange with the kernel over a socket that is known to be in order.
func (p *Programmer) exchange(ctx context.Context, do func(s *socket) error) error {
	if p.socket == nil {
		if err := p.inNetNS(func() (err error) { p.socket, err = dial(); return err }); err != nil {
			return err
		}
	}
	err := p.socket.within(ctx, p.cfg.Timeout, func() error { return do(p.socket) })
	var no *refusal
	if err != nil && !errors.As(err, &no) || p.socket.spent {
		p.hangUp()
	}
	return err
}

// structures reads what our tables consist of.
func (p *Programmer) structures(ctx context.Context) (found [2]structure, err error) {
	err = p.exchange(ctx, func(s *socket) error {
		for _, fam := range model.Families {
			if found[fam], err = s.readStructure(p.cfg.Table, fam); err != nil {
				return fmt.Errorf("reading table %s: %w", p.cfg.Table, meaning(err))
			}
		}
		return nil
	})
	return found, err
}

// Cleanup deletes our tables, whoever wrote them. See [model.Programmer].
func (p *Programmer) Cleanup(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return model.ErrClosed
	}
	p.record = nil
	p.resolver.Reset()
	for _, fam := range model.Families {
		b := newBatch(p.cfg.Table)
		b.write(sectionTables, func(w *wire) { w.deleteTable(p.cfg.Table, fam) })
		buf, last := b.bytes(0)
		err := p.exchange(ctx, func(s *socket) error {
			_, err := s.commit(buf, messageSeq(buf), last)
			return err
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return p.fail(fmt.Errorf("cleaning up: %w", meaning(err)))
		}
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
	p.record = nil
	p.hangUp()
	if p.netns == nil {
		return nil
	}
	return p.netns.Close()
}
