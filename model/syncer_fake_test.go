package model_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/conntrack"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

var _ model.Cleaner = (*conntrack.Cleaner)(nil)

// hasty is a configuration that waits for little.
var hasty = model.SyncerConfig{MinInterval: time.Millisecond, CheckPeriod: 10 * time.Millisecond, ResyncPeriod: 50 * time.Millisecond,
	Retry: model.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}, ServiceRetry: model.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}}

// patience is for machines that others use too.
const patience = 2 * time.Minute

// running starts a Syncer, which is stopped at the end of the test.
func running(t *testing.T, p model.Programmer, cfg model.SyncerConfig) *model.Syncer {
	t.Helper()
	s := model.NewSyncer(p, cfg)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
	})
	return s
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Whatever comes from many goroutines at once, over a kernel that fails and is damaged, ends in what is wanted.
func TestSyncerConcurrently(t *testing.T) {
	kernel := modeltest.NewKernel()
	fake := modeltest.NewFake(kernel, modeltest.FakeConfig{})
	s := running(t, fake, hasty)
	s.Ready()
	const writers, services, rounds = 6, 8, 120
	var mu sync.Mutex
	want := model.State{Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			chance := rand.New(rand.NewPCG(6, uint64(w)))
			for range rounds {
				i := w*services + chance.IntN(services)
				name := model.ServiceName(fmt.Sprintf("s%02d", i))
				mu.Lock()
				switch chance.IntN(4) {
				case 0:
					delete(want.Services, name)
					s.DeleteService(name)
				case 1:
					svc := model.Service{Protocol: model.Protocol(chance.IntN(2)), Frontends: []model.Frontend{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 80)}}}
					want.Services[name] = svc
					s.SetService(name, svc)
				default:
					eps := []model.Endpoint{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), byte(chance.IntN(200))}), 80)}}
					want.Endpoints[name] = eps
					s.SetEndpoints(name, eps)
				}
				mu.Unlock()
				time.Sleep(time.Duration(chance.IntN(500)) * time.Microsecond)
			}
		})
	}
	over := make(chan struct{})
	var trouble sync.WaitGroup
	trouble.Go(func() {
		chance := rand.New(rand.NewPCG(6, 99))
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Duration(chance.IntN(3000)) * time.Microsecond):
			}
			switch chance.IntN(5) {
			case 0:
				kernel.Flush()
			case 1:
				kernel.FailNext(1, syscall.ENOBUFS)
			case 2:
				kernel.FailAfter(1, syscall.ENOBUFS)
			case 3:
				kernel.FailService("s03", errors.New("no"))
			case 4:
				kernel.FailService("s03", nil)
			}
		}
	})
	trouble.Go(func() {
		for name, st := range s.Watch(within(t)) {
			if st.Phase == model.PhaseAbsent && st.Err != nil {
				t.Errorf("%s: %v", name, st)
			}
			select {
			case <-over:
				return
			default:
			}
		}
	})
	all.Wait()
	close(over)
	kernel.FailService("s03", nil)
	s.SetService("last", model.Service{}) // so that Watch looks up
	want.Services["last"] = model.Service{}
	trouble.Wait()

	ctx := within(t)
	require.NoError(t, s.Wait(ctx))
	expected := resolved(t, want).Forms()
	ok := func() bool { // a service that was refused, or a flush, takes its time
		return fake.Check(ctx) == nil && slices.EqualFunc(fake.Programmed(), expected, func(a, b *model.Resolved) bool {
			return a.Name == b.Name && a.Service.Equal(b.Service) && model.EqualEndpoints(a.Endpoints, b.Endpoints)
		})
	}
	for !ok() {
		require.NoError(t, ctx.Err(), "the kernel never came to hold what is wanted")
		time.Sleep(time.Millisecond)
	}
	for _, f := range expected {
		require.Equal(t, model.PhaseProgrammed, s.Status(f.Name).Phase, "%s: %v", f.Name, s.Status(f.Name))
	}
	require.Equal(t, len(expected), s.Overview().Services)
	require.Zero(t, s.Overview().Pending)
}

// A restart never empties, and what was deleted while nobody watched goes with the first Sync.
func TestRestartTakesOver(t *testing.T) {
	kernel := modeltest.NewKernel()
	state := modeltest.Big(20, 3)
	t.Run("first process", func(t *testing.T) {
		first := running(t, modeltest.NewFake(kernel, modeltest.FakeConfig{}), hasty)
		require.NoError(t, first.Replace(state))
		require.NoError(t, first.Wait(within(t)))
	})
	before := kernel.String()
	written := kernel.Commits().Objects

	second := running(t, modeltest.NewFake(kernel, modeltest.FakeConfig{}), model.SyncerConfig{CheckPeriod: -1})
	for name, svc := range state.Services {
		second.SetService(name, svc)
	}
	require.Equal(t, before, kernel.String(), "half of it is known: nothing is touched")
	for name, eps := range state.Endpoints {
		second.SetEndpoints(name, eps)
	}
	require.NoError(t, second.SetNode(state.Node))
	gone := modeltest.BigName(7)
	second.DeleteService(gone)
	second.Ready()
	require.NoError(t, second.Wait(within(t)))
	require.NotEqual(t, before, kernel.String())
	require.Less(t, kernel.Commits().Objects-written, 20, "and all that is the same is left as it is")
}

// While a Syncer goes from one backend to another and back, every new connection finds its service.
func TestSwitchUnderLoad(t *testing.T) {
	node := modeltest.StageNode()
	node.ServiceRanges = nil
	world := modeltest.NewFakeWorld(node)
	state := model.State{Node: node,
		Services:  model.ServiceMap{"web": {Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("172.20.0.10:80")}}}},
		Endpoints: model.EndpointMap{"web": {{Addr: netip.MustParseAddrPort("10.128.0.11:8080")}}}}
	backend := func(table string) *modeltest.Fake {
		return modeltest.NewFake(world.Kernel, modeltest.FakeConfig{Table: table})
	}
	s := running(t, backend("a"), hasty)
	require.NoError(t, s.Replace(state))
	require.NoError(t, s.Wait(within(t)))

	over := make(chan struct{})
	lost := make(chan error, 1)
	var sent atomic.Int64
	go func() {
		p := modeltest.Packet{Kind: modeltest.FromPod, From: netip.MustParseAddr("10.128.0.100"), To: netip.MustParseAddrPort("172.20.0.10:80")}
		for {
			select {
			case <-over:
				lost <- nil
				return
			default:
			}
			out, err := world.Send(context.Background(), p, 1)
			if err == nil && out[0].Verdict != modeltest.Translated {
				err = fmt.Errorf("after %d connections: %s", sent.Load(), out[0].Verdict)
			}
			if err != nil {
				lost <- err
				return
			}
			sent.Add(1)
		}
	}()
	here, there := "a", "b"
	for i := range 40 {
		next, old := backend(there), s.Programmer()
		if i%5 == 4 {
			world.Kernel.FailNext(1, syscall.ENOBUFS) // which a repair by the Syncer may take instead
		}
		sw, err := s.Switch(within(t), next)
		if i%5 != 4 {
			require.NoError(t, err)
		}
		if sw.Active {
			require.NoError(t, old.Close())
			here, there = there, here
		}
		s.SetEndpoints("web", []model.Endpoint{{Addr: netip.AddrPortFrom(netip.MustParseAddr("10.128.0.11"), uint16(8080+i))}})
	}
	for sent.Load() < 1000 && len(lost) == 0 {
		time.Sleep(time.Millisecond)
	}
	close(over)
	require.NoError(t, <-lost)
	require.NoError(t, s.Wait(within(t)))
	require.NoError(t, s.Programmer().Check(within(t)))
	tables := map[string]bool{}
	for _, o := range world.Objects() {
		tables[o.Table] = true
	}
	require.Equal(t, map[string]bool{here: true}, tables, "nothing of the other one is left")
}
