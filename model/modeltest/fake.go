package modeltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/headgate/headgate/model"
)

// A Fake is a [model.Programmer] without a kernel, for tests of programs that embed one: it programs a pretended
// [Kernel], which can be looked into, sent packets through, damaged, and told to fail.
//
// It is honest. It resolves conflicts and rejects services like every backend, it fails like them, and it passes the
// suite that they pass, [Run].
type Fake struct {
	kernel   *Kernel
	table    string
	features model.FeatureSet

	// busy is held, by a value in it, while a call works: a lock that can be waited for with a context.
	busy chan struct{}
	// What follows is guarded by busy.
	resolver   *model.Resolver
	closed     bool
	generation uint64 // of the kernel, when the table was last known to hold what it should
	verified   bool   // the table was known to hold that

	synced atomic.Bool // the last write succeeded

	mu    sync.Mutex // guards calls
	calls Calls
}

// Calls counts the calls of a Fake, those that failed included.
type Calls struct{ Sync, Apply, Check, Cleanup, Probe, Close int }

// FakeConfig configures [NewFake]. The zero FakeConfig is ready to use.
type FakeConfig struct {
	// Table is the table of the kernel that the Fake owns; anything else found in it is deleted. Empty means "headgate".
	Table string
	// Features is what the Fake can do. Nil means everything but LeastConn.
	Features *model.FeatureSet
}

// NewFake returns a Fake that programs a kernel. It writes nothing.
func NewFake(k *Kernel, cfg FakeConfig) *Fake {
	f := &Fake{kernel: k, table: cfg.Table, features: allFeatures("fake"), busy: make(chan struct{}, 1)}
	f.features.Balances = slices.DeleteFunc(f.features.Balances, func(b model.Balance) bool { return b == model.LeastConn })
	if cfg.Table == "" {
		f.table = "headgate"
	}
	if cfg.Features != nil {
		f.features = *cfg.Features
	}
	f.resolver = model.NewResolver(f.features)
	return f
}

// Kernel returns the kernel that the Fake programs.
func (f *Fake) Kernel() *Kernel { return f.kernel }

// Calls returns how often each method was called.
func (f *Fake) Calls() Calls {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// Programmed returns what is programmed, as far as the Fake knows, sorted by name.
func (f *Fake) Programmed() []*model.Resolved {
	f.busy <- struct{}{}
	defer f.done()
	return f.resolver.Forms()
}

// Features implements [model.Programmer].
func (f *Fake) Features() model.FeatureSet {
	features := f.features
	features.Balances, features.Differences = slices.Clone(features.Balances), slices.Clone(features.Differences)
	return features
}

// begin counts a call and waits for its turn. If it returns nil, done must be called.
func (f *Fake) begin(ctx context.Context, count *int) error {
	f.mu.Lock()
	*count++
	f.mu.Unlock()
	select {
	case f.busy <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := ctx.Err()
	if f.closed {
		err = model.ErrClosed
	}
	if err != nil {
		f.done()
	}
	return err
}

func (f *Fake) done() { <-f.busy }

// Sync implements [model.Programmer]: it compares the whole table with what is wanted, and writes what differs.
func (f *Fake) Sync(ctx context.Context, want model.State) (model.Result, error) {
	if err := f.begin(ctx, &f.calls.Sync); err != nil {
		return model.Result{}, f.failed(err)
	}
	defer f.done()
	start := time.Now()
	var held objects
	look := func() error {
		held = f.read()
		return nil
	}
	look()
	read := model.Step{Name: "read", Took: time.Since(start)}
	diff := func(refused, dropped refusals) (*model.Delta, error) {
		s := want
		if len(dropped) > 0 {
			s.Services = without(want.Services, dropped)
		}
		return f.resolver.ResolveState(s, refused)
	}
	plan := func(d *model.Delta) []op { return steps(held, f.after(d)) }
	res, err := f.write(ctx, job{diff, plan, look})
	if err != nil {
		return model.Result{}, f.failed(err)
	}
	res.Steps = slices.Insert(res.Steps, 0, read)
	return res, nil
}

// read reads the table.
func (f *Fake) read() objects {
	held, generation := f.kernel.read(f.table)
	f.generation = generation
	all := make(objects, len(held))
	for key, value := range held {
		all[key] = object{value: value}
	}
	return all
}

// without returns the services less those that were dropped.
func without(all model.ServiceMap, dropped refusals) model.ServiceMap {
	left := model.ServiceMap{}
	for name, s := range all {
		if dropped[name] == nil {
			left[name] = s
		}
	}
	return left
}

// Apply implements [model.Programmer]: what it looks at and writes follows the diff.
func (f *Fake) Apply(ctx context.Context, d model.Diff) (model.Result, error) {
	if err := f.begin(ctx, &f.calls.Apply); err != nil {
		return model.Result{}, f.failed(err)
	}
	defer f.done()
	if !f.synced.Load() {
		return model.Result{}, model.ErrNotSynced
	}
	if err := f.verify(); err != nil { // which looks at everything, if somebody else wrote
		return model.Result{}, f.failed(err)
	}
	diff := func(refused, dropped refusals) (*model.Delta, error) {
		if len(dropped) == 0 {
			return f.resolver.Resolve(d, refused)
		}
		less := model.Diff{Node: d.Node}
		for _, c := range d.Changes {
			if dropped[c.Name] == nil {
				less.Changes = append(less.Changes, c)
			}
		}
		for name := range dropped {
			less.Changes = append(less.Changes, model.Change{Name: name})
		}
		return f.resolver.Resolve(less, refused)
	}
	res, err := f.write(ctx, job{diff, f.plan, f.verify})
	return res, f.failed(err)
}

// failed makes of an error that nothing is known of the kernel any more, but for those that say nothing was done.
func (f *Fake) failed(err error) error {
	if err != nil && !errors.Is(err, model.ErrNotSynced) && !errors.Is(err, model.ErrClosed) {
		f.synced.Store(false)
	}
	return err
}

// Check implements [model.Programmer]. While nobody writes to the kernel it compares one number.
func (f *Fake) Check(ctx context.Context) error {
	if err := f.begin(ctx, &f.calls.Check); err != nil {
		return err
	}
	defer f.done()
	if !f.synced.Load() {
		return model.ErrNotSynced
	}
	return f.verify()
}

// verify reports whether the table holds what it should.
func (f *Fake) verify() error {
	if f.verified && f.kernel.Generation() == f.generation {
		return nil
	}
	held := f.read()
	want := objects{}
	want.renderNode(f.resolver.Node())
	for _, r := range f.resolver.Forms() {
		want.render(r, f.resolver.Node())
	}
	var found []string
	for key, o := range want {
		if h, ok := held[key]; !ok {
			found = append(found, fmt.Sprintf("%s is gone", key))
		} else if !sameValue(h.value, o.value) {
			found = append(found, fmt.Sprintf("%s is %s", key, text(h.value)))
		}
	}
	for key := range held {
		if _, ok := want[key]; !ok {
			found = append(found, fmt.Sprintf("%s is not ours", key))
		}
	}
	f.verified = len(found) == 0
	if f.verified {
		return nil
	}
	slices.Sort(found)
	if len(found) > 3 {
		found = append(found[:3], fmt.Sprintf("and %d more", len(found)-3))
	}
	return fmt.Errorf("%w: %s", model.ErrDrift, strings.Join(found, "; "))
}

// Cleanup implements [model.Programmer].
func (f *Fake) Cleanup(ctx context.Context) error {
	if err := f.begin(ctx, &f.calls.Cleanup); err != nil {
		return f.failed(err)
	}
	defer f.done()
	f.resolver.Reset()
	f.synced.Store(false)
	for range 100 {
		held := f.read()
		if len(held) == 0 {
			return nil
		}
		err := f.commit(ctx, steps(held, nil))
		if !errors.Is(err, errGeneration) {
			return f.failed(meaning(err))
		}
	}
	return f.failed(meaning(errGeneration))
}

// Probe implements [model.Programmer]. A pretended kernel lacks nothing.
func (f *Fake) Probe(ctx context.Context) (model.Report, error) {
	if err := f.begin(ctx, &f.calls.Probe); err != nil {
		return model.Report{}, err
	}
	defer f.done()
	return model.Report{Backend: f.features.Backend}, nil
}

// Close implements [model.Programmer].
func (f *Fake) Close() error {
	f.mu.Lock()
	f.calls.Close++
	f.mu.Unlock()
	f.busy <- struct{}{}
	defer f.done()
	f.closed = true
	return nil
}

// meaning turns what the kernel says into what a caller can decide by.
func meaning(err error) error {
	for _, m := range [...]struct{ cause, means error }{
		{syscall.EPERM, model.ErrPermission}, {syscall.EACCES, model.ErrPermission}, {syscall.EBUSY, model.ErrBusy}, {syscall.EAGAIN, model.ErrBusy},
		{errGeneration, model.ErrBusy}, {syscall.ENOENT, model.ErrDrift}, {syscall.EEXIST, model.ErrDrift}, {syscall.EOPNOTSUPP, model.ErrNotSupported},
	} {
		if errors.Is(err, m.cause) {
			return fmt.Errorf("%w: %w", m.means, err)
		}
	}
	return err
}
