package modeltest

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

// settle waits until the kernel holds what is wanted, and requires that packets and statuses say so.
func (s *storm) settle(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.holds(ctx, t, s.first, s.want)
	s.predicted(ctx, t, s.first, s.want, append(s.g.flows(s.pick(3, 12)), toStill))
	if s.second != nil {
		s.holds(ctx, t, s.second, s.apart())
		s.predicted(ctx, t, s.second, s.apart(), []flow{toApart})
	}
}

func (s *storm) pick(real, pretended int) int {
	if s.w.NetNS() < 0 {
		return pretended
	}
	return real
}

// holds waits until an instance's kernel holds what is wanted.
func (s *storm) holds(ctx context.Context, t *testing.T, i *instance, want model.State) {
	t.Helper()
	require.NoError(t, i.Wait(ctx))
	for {
		err := i.p.Check(ctx)
		if err == nil && s.told(i, want) == nil {
			return
		}
		if ctx.Err() != nil {
			require.NoError(t, err, "Check never finds that the kernel holds what is wanted: %+v", i.Overview())
			require.NoError(t, s.told(i, want), "the status of a service")
		}
		time.Sleep(time.Millisecond)
	}
}

// told says what is wrong with the status of the services.
func (s *storm) told(i *instance, want model.State) error {
	holders := map[model.FrontendKey]model.ServiceName{}
	conflicts := map[model.FrontendKey]model.ServiceName{}
	for name, svc := range want.Services {
		st := i.Status(name)
		switch {
		case name == badName && st.Phase == model.PhaseRejected:
			continue
		case name != badName && st.Phase == model.PhaseProgrammed:
		case name != badName && st.Phase == model.PhaseConflicting && len(st.Conflicts) > 0:
		default:
			return fmt.Errorf("%s is %v", name, st)
		}
		for _, key := range keysOf(svc) {
			j := slices.IndexFunc(st.Conflicts, func(c model.ConflictError) bool { return c.Frontend == key })
			if j >= 0 {
				conflicts[key] = st.Conflicts[j].Holder
				continue
			}
			if other, taken := holders[key]; taken {
				return fmt.Errorf("%s: both %s and %s say that they hold it", key, other, name)
			}
			holders[key] = name
		}
	}
	for key, holder := range conflicts {
		if holders[key] != holder {
			return fmt.Errorf("%s: %q is said to hold it, and %q does", key, string(holder), string(holders[key]))
		}
	}
	return nil
}

// keysOf returns what a service that makes sense claims.
func keysOf(svc model.Service) []model.FrontendKey {
	var keys []model.FrontendKey
	for _, f := range normal(svc).Frontends {
		keys = append(keys, model.FrontendKey{Protocol: svc.Protocol, Addr: f.Addr})
	}
	return keys
}

// normal returns the normal form of a service that makes sense.
func normal(svc model.Service) model.Service {
	r := model.NewResolver(allFeatures("normal"))
	d, err := r.ResolveState(model.State{Services: model.ServiceMap{"x": svc}}, nil)
	if err != nil || len(d.Changes) != 1 {
		return svc
	}
	return d.Changes[0].After.Service
}

// predicted requires that packets meet what is wanted, conflicts as the statuses say that they were settled.
func (s *storm) predicted(ctx context.Context, t *testing.T, i *instance, want model.State, flows []flow) {
	t.Helper()
	settled := model.State{Node: want.Node, Services: model.ServiceMap{}, Endpoints: want.Endpoints}
	for name, svc := range want.Services {
		if name == badName {
			continue
		}
		conflicts := i.Status(name).Conflicts
		svc = normal(svc)
		svc.Frontends = slices.DeleteFunc(slices.Clone(svc.Frontends), func(f model.Frontend) bool {
			key := model.FrontendKey{Protocol: svc.Protocol, Addr: f.Addr}
			return slices.ContainsFunc(conflicts, func(c model.ConflictError) bool { return c.Frontend == key })
		})
		settled.Services[name] = svc
	}
	r := &rig{h: s.h, ctx: ctx, w: s.w, p: i.p, mirror: model.NewResolver(s.h.features)}
	r.pretend(t, settled)
	if s.load != nil {
		s.load.mu.Lock()
		defer s.load.mu.Unlock()
	}
	r.predicted(t, flows...)
}

// A load sends without pause, and remembers the first connection that did not reach one of its endpoints.
type load struct {
	gate   sync.Mutex // held while it sends, and by who pauses it
	mu     sync.Mutex // held while anybody sends
	sent   atomic.Int64
	lost   chan error
	cancel context.CancelFunc
	done   chan struct{}
}

func startLoad(w World, p Packet, allowed ...model.Endpoint) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{lost: make(chan error, 1), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for ctx.Err() == nil {
			if err := l.send(ctx, w, p, allowed); err != nil && ctx.Err() == nil {
				l.lost <- err
				return
			}
			runtime.Gosched()
		}
	}()
	return l
}

func (l *load) send(ctx context.Context, w World, p Packet, allowed []model.Endpoint) error {
	l.gate.Lock()
	defer l.gate.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	out, err := w.Send(ctx, p, 2)
	if err != nil {
		return err
	}
	for _, o := range out {
		if !isAny(o, allowed) {
			return fmt.Errorf("after %d connections: %s", l.sent.Load(), describe(o))
		}
		l.sent.Add(1)
	}
	return nil
}

func (l *load) pause()  { l.gate.Lock() }
func (l *load) resume() { l.gate.Unlock() }

// require requires that nothing was lost.
func (l *load) require(t *testing.T) {
	t.Helper()
	select {
	case err := <-l.lost:
		require.NoError(t, err, "a connection to the service that nobody harms was lost")
	default:
	}
}

func (l *load) stop() {
	l.cancel()
	<-l.done
}

// A growth watches what must not grow.
type growth struct {
	steps   int
	samples []stock
}

// A stock is how much the process has of what must not grow.
type stock struct{ heap, descriptors, goroutines int }

// sample takes stock now and then.
func (g *growth) sample() {
	if g.steps++; g.steps%5 != 0 {
		return
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fds, _ := os.ReadDir("/proc/self/fd")
	g.samples = append(g.samples, stock{int(m.HeapAlloc), len(fds), runtime.NumGoroutine()})
}

// check requires that the last third of the samples holds no more than the first did.
func (g *growth) check(t *testing.T) {
	t.Helper()
	third := len(g.samples) / 3
	if third < 4 {
		t.Logf("too few steps to say whether anything grows: %d", g.steps)
		return
	}
	compare := func(what string, of func(stock) int, slack int) {
		most, least := 0, 1<<62
		for _, s := range g.samples[:third] {
			most = max(most, of(s))
		}
		for _, s := range g.samples[len(g.samples)-third:] {
			least = min(least, of(s))
		}
		require.LessOrEqual(t, least, most+slack, "%s grow: %v", what, g.samples)
	}
	compare("bytes of memory", func(s stock) int { return s.heap }, 4<<20)
	compare("descriptors", func(s stock) int { return s.descriptors }, 2)
	compare("goroutines", func(s stock) int { return s.goroutines }, 4)
}
