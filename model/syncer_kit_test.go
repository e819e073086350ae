package model

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A scripted is a Programmer that writes down how it is called and does as it is told. What it holds it resolves as
// every backend does.
type scripted struct {
	began time.Time

	mu       sync.Mutex // guards what follows
	resolver *Resolver
	log      []string // one line for each call that was begun, with the time since the start
	ended    []string
	states   []State // of each Sync that succeeded
	synced   bool
	closed   bool
	took     time.Duration // how long a call takes
	fail     []error       // of the next calls of Sync and Apply; nil, that one succeeds
	checks   []error       // of the next calls of Check
	refuse   map[ServiceName]error
	warnings []string
	drains   []Drain
	cleanup  error
	probe    error
	hang     int // so many calls wait for the end of their context
}

func newScripted(name string) *scripted {
	all := []Balance{Random, RoundRobin, SourceHash, Maglev}
	return &scripted{began: time.Now(), resolver: NewResolver(FeatureSet{Backend: name, HashPort: true, Balances: all}), refuse: map[ServiceName]error{}}
}

// begin writes a call down and waits as long as it takes.
func (p *scripted) begin(ctx context.Context, format string, args ...any) error {
	p.mu.Lock()
	p.log = append(p.log, fmt.Sprintf("%v %s", time.Since(p.began), fmt.Sprintf(format, args...)))
	took, hang, closed := p.took, p.hang > 0, p.closed
	if hang {
		p.hang--
	}
	p.mu.Unlock()
	if closed {
		return ErrClosed
	}
	var done <-chan time.Time
	if !hang {
		done = time.After(took)
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *scripted) next(errs *[]error) error {
	if len(*errs) == 0 {
		return nil
	}
	err := (*errs)[0]
	*errs = (*errs)[1:]
	return err
}

func (p *scripted) finish(err error, resolve func(map[ServiceName]error) (*Delta, error)) (Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = append(p.ended, fmt.Sprintf("%v", time.Since(p.began)))
	if err == nil {
		err = p.next(&p.fail)
	}
	if err != nil {
		p.synced = false
		return Result{}, err
	}
	d, err := resolve(p.refuse)
	if err != nil {
		return Result{}, err
	}
	p.resolver.Commit(d)
	return Result{Changed: len(d.Changes), Rejected: d.Rejected, Promoted: d.Promoted, Warnings: p.warnings}, nil
}

func (p *scripted) Sync(ctx context.Context, want State) (Result, error) {
	err := p.begin(ctx, "sync %s", strings.Join(sortedNames(want.Services), " "))
	res, err := p.finish(err, func(refused map[ServiceName]error) (*Delta, error) { return p.resolver.ResolveState(want, refused) })
	if err == nil {
		p.mu.Lock()
		p.synced = true
		p.states = append(p.states, want)
		p.mu.Unlock()
	}
	return res, err
}

func (p *scripted) Apply(ctx context.Context, diff Diff) (Result, error) {
	var changes []string
	if diff.Node != nil {
		changes = append(changes, "node")
	}
	for _, c := range diff.Changes {
		sign := ""
		if c.After == nil {
			sign = "-"
		}
		changes = append(changes, sign+string(c.Name))
	}
	err := p.begin(ctx, "apply %s", strings.Join(changes, " "))
	p.mu.Lock()
	synced := p.synced
	p.mu.Unlock()
	if err == nil && !synced {
		return Result{}, ErrNotSynced
	}
	return p.finish(err, func(refused map[ServiceName]error) (*Delta, error) { return p.resolver.Resolve(diff, refused) })
}

func (p *scripted) Check(ctx context.Context) error {
	err := p.begin(ctx, "check")
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(err, p.next(&p.checks))
}

func (p *scripted) Cleanup(ctx context.Context) error {
	err := p.begin(ctx, "cleanup")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resolver.Reset()
	p.synced = false
	return errors.Join(err, p.cleanup)
}

func (p *scripted) Probe(context.Context) (Report, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := Report{Backend: p.resolver.features.Backend}
	if p.probe != nil {
		r.Missing = []Finding{{What: "something", Err: p.probe}}
	}
	return r, nil
}

func (p *scripted) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return nil
}

func (p *scripted) Features() FeatureSet { return p.resolver.features }

// A drainer is a scripted that is a Drainer.
type drainer struct{ *scripted }

func (p drainer) Drain(ctx context.Context) ([]Drain, error) {
	err := p.begin(ctx, "drain")
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.drains), err
}

func (p drainer) Retire(ctx context.Context) ([]Drain, error) {
	err := p.begin(ctx, "retire")
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.drains), errors.Join(err, p.cleanup)
}

// set changes what the Programmer is told to do.
func (p *scripted) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// calls returns, and forgets, how it was called so far, without the checks.
func (p *scripted) calls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := slices.DeleteFunc(p.log, func(c string) bool { return strings.HasSuffix(c, " check") })
	p.log = nil
	return calls
}

// holds returns the endpoints of a service that are programmed; nil if it is not.
func (p *scripted) holds(name ServiceName) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	form := p.resolver.Form(name)
	if form == nil {
		return nil
	}
	out := []string{}
	for _, e := range form.Endpoints {
		out = append(out, e.Addr.String())
	}
	return out
}

func sortedNames(m ServiceMap) []string {
	var out []string
	for name := range m {
		out = append(out, string(name))
	}
	slices.Sort(out)
	return out
}

// A bench is a Syncer with a scripted Programmer, in a bubble of time.
type bench struct {
	*Syncer
	p    *scripted
	t    *testing.T
	done chan error
	stop context.CancelFunc
}

// quiet is a configuration in which nothing happens by itself.
var quiet = SyncerConfig{MinInterval: -1, CheckPeriod: -1, ResyncPeriod: -1}

// bubble runs a test in a bubble of time, with a Syncer that is not running yet.
func bubble(t *testing.T, cfg SyncerConfig, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newScripted("scripted")
		b := &bench{Syncer: NewSyncer(p, cfg), p: p}
		b.random = func() float64 { return 0.5 }
		b.t = t
		test(t, b)
	})
}

// start starts Run, with an empty state that is complete.
func (b *bench) start() {
	b.t.Helper()
	b.Ready()
	b.run()
	synctest.Wait()
	require.Equal(b.t, []string{"0s sync "}, b.p.calls())
}

func (b *bench) run() {
	ctx, stop := context.WithCancel(context.Background())
	b.stop, b.done = stop, make(chan error, 1)
	go func() { b.done <- b.Run(ctx) }()
	b.t.Cleanup(func() {
		stop()
		require.NoError(b.t, <-b.done)
	})
}

// together makes changes that are programmed in one go: nobody may call the Programmer meanwhile.
func (b *bench) together(changes func()) {
	b.turn <- struct{}{}
	changes()
	<-b.turn
}

// after lets time pass, and all settle.
func (b *bench) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// svc returns a service with frontends at the given addresses.
func svc(addrs ...string) Service {
	var s Service
	for _, a := range addrs {
		s.Frontends = append(s.Frontends, Frontend{Addr: netip.MustParseAddrPort(a)})
	}
	return s
}

func eps(addrs ...string) []Endpoint {
	var out []Endpoint
	for _, a := range addrs {
		out = append(out, Endpoint{Addr: netip.MustParseAddrPort(a)})
	}
	return out
}

// stateOf returns a state of services, with one endpoint each.
func stateOf(services ServiceMap) State {
	s := State{Services: services, Endpoints: EndpointMap{}}
	for i, name := range slices.Sorted(maps.Keys(services)) {
		s.Endpoints[name] = eps(fmt.Sprintf("10.244.0.%d:80", i+1))
	}
	return s
}

var errBroken = errors.New("broken")
