package modeltest_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/stretchr/testify/require"
)

func state(names ...model.ServiceName) model.State {
	s := model.State{Node: modeltest.StageNode(), Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	for i, name := range names {
		s.Services[name] = model.Service{Frontends: []model.Frontend{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 20, 0, byte(i + 1)}), 80)}}}
		s.Endpoints[name] = []model.Endpoint{{Addr: netip.MustParseAddrPort("10.128.0.11:8080")}, {Addr: netip.MustParseAddrPort("10.128.0.12:8080")}}
	}
	return s
}

func fakeIn(k *modeltest.Kernel) *modeltest.Fake { return modeltest.NewFake(k, modeltest.FakeConfig{}) }

// send sends a packet from a pod and returns who answered, or the verdict.
func send(t *testing.T, k *modeltest.Kernel, to string) string {
	t.Helper()
	out, err := k.Send(modeltest.Packet{Kind: modeltest.FromPod, From: netip.MustParseAddr("10.128.0.100"), To: netip.MustParseAddrPort(to)})
	require.NoError(t, err)
	if out.Verdict != modeltest.Translated {
		return string(out.Verdict)
	}
	return out.Endpoint.String()
}

func TestKernelThatRefuses(t *testing.T) {
	ctx := t.Context()
	for _, c := range []struct{ says, means error }{
		{syscall.EPERM, model.ErrPermission}, {syscall.EACCES, model.ErrPermission}, {syscall.EBUSY, model.ErrBusy}, {syscall.EAGAIN, model.ErrBusy},
		{syscall.EOPNOTSUPP, model.ErrNotSupported}, {syscall.ENOBUFS, syscall.ENOBUFS}, {errors.New("on fire"), nil},
	} {
		t.Run(c.says.Error(), func(t *testing.T) {
			k := modeltest.NewKernel(modeltest.StageNode().Addrs...)
			f := fakeIn(k)
			k.FailNext(2, c.says)
			_, err := f.Sync(ctx, state("a"))
			require.ErrorIs(t, err, c.says)
			if c.means != nil {
				require.ErrorIs(t, err, c.means)
			}
			require.Empty(t, k.Objects(), "a refused transaction leaves nothing")
			require.ErrorIs(t, f.Check(ctx), model.ErrNotSynced)
			_, err = f.Sync(ctx, state("a"))
			require.Error(t, err, "the second of two")
			_, err = f.Sync(ctx, state("a"))
			require.NoError(t, err)
			k.FailNext(1, c.says)
			_, err = f.Apply(ctx, model.DiffStates(state("a"), state("a", "b")))
			require.ErrorIs(t, err, c.says)
			require.Equal(t, "10.128.0.1", send(t, k, "172.20.0.1:80")[:10], "what was there is there")
			require.Equal(t, "drop", send(t, k, "172.20.0.2:80"))
			_, err = f.Apply(ctx, model.Diff{})
			require.ErrorIs(t, err, model.ErrNotSynced)
			_, err = f.Sync(ctx, state("a", "b"))
			require.NoError(t, err)
			require.NoError(t, f.Check(ctx))
			require.Equal(t, modeltest.Commits{Committed: 2, Refused: 3, Objects: k.Commits().Objects}, k.Commits())
			k.FailNext(1, c.says)
			require.ErrorIs(t, f.Cleanup(ctx), c.says)
			require.NoError(t, f.Cleanup(ctx))
			require.Empty(t, k.Objects())
		})
	}
}

// The answer is lost after the kernel did it: nobody knows, and Sync finds out.
func TestKernelThatLosesTheAnswer(t *testing.T) {
	k := modeltest.NewKernel(modeltest.StageNode().Addrs...)
	f := fakeIn(k)
	_, err := f.Sync(t.Context(), state("a"))
	require.NoError(t, err)
	k.FailAfter(1, syscall.ENOBUFS)
	_, err = f.Apply(t.Context(), model.DiffStates(state("a"), state("a", "b")))
	require.ErrorIs(t, err, syscall.ENOBUFS)
	require.NotEqual(t, "drop", send(t, k, "172.20.0.2:80"), "it was done")
	_, err = f.Apply(t.Context(), model.Diff{})
	require.ErrorIs(t, err, model.ErrNotSynced)
	res, err := f.Sync(t.Context(), state("a", "b"))
	require.NoError(t, err)
	require.Zero(t, res.Written(), "what is there is adopted")
	require.NoError(t, f.Check(t.Context()))
}

func TestKernelThatHangs(t *testing.T) {
	k := modeltest.NewKernel(modeltest.StageNode().Addrs...)
	f := fakeIn(k)
	k.Hang(2)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := f.Sync(ctx, state("a"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Empty(t, k.Objects())

	// While one call hangs, another one waits no longer than its own context lets it.
	hanging, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := f.Sync(hanging, state("a"))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the call that hung: %v", err)
		}
	})
	require.Eventually(t, func() bool { return f.Calls().Sync == 2 && k.Commits().Refused == 1 }, time.Minute, time.Millisecond)
	short, cancel2 := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel2()
	for errors.Is(f.Check(short), model.ErrNotSynced) { // until the hanging call has its turn
		require.NoError(t, short.Err())
	}
	require.ErrorIs(t, f.Check(short), context.DeadlineExceeded)
	stop()
	wg.Wait()
	_, err = f.Sync(t.Context(), state("a"))
	require.NoError(t, err)
}

// A service of which the kernel will not even take back what it had is left out, and nobody else.
func TestKernelThatRefusesAService(t *testing.T) {
	no := errors.New("no")
	k := modeltest.NewKernel(modeltest.StageNode().Addrs...)
	f := fakeIn(k)
	_, err := f.Sync(t.Context(), state("a", "b", ""))
	require.NoError(t, err)
	k.FailService("b", no)
	k.FailService("", no)
	k.Flush()
	res, err := f.Sync(t.Context(), state("a", "b", ""))
	require.NoError(t, err)
	require.Len(t, res.Rejected, 2)
	for i, name := range []model.ServiceName{"", "b"} {
		require.Equal(t, name, res.Rejected[i].Service)
		require.ErrorIs(t, res.Rejected[i], no)
		require.Equal(t, "commit", res.Rejected[i].Op)
	}
	require.NoError(t, f.Check(t.Context()))
	require.Equal(t, "drop", send(t, k, "172.20.0.2:80"))
	require.NotEqual(t, "drop", send(t, k, "172.20.0.1:80"))
	require.Len(t, f.Programmed(), 1)
	k.FailService("b", nil)
	k.FailService("", nil)
	res, err = f.Sync(t.Context(), state("a", "b", ""))
	require.NoError(t, err)
	require.Empty(t, res.Rejected)
	require.Len(t, f.Programmed(), 3)
}

// Who would take over a frontend and is refused waits; the next in line has it.
func TestKernelThatRefusesASuccessor(t *testing.T) {
	k := modeltest.NewKernel(modeltest.StageNode().Addrs...)
	f := fakeIn(k)
	s := state("a", "b", "c")
	for name, svc := range s.Services {
		svc.Frontends = append(svc.Frontends, model.Frontend{Addr: netip.MustParseAddrPort("172.20.9.9:80")})
		s.Services[name] = svc
	}
	s.Endpoints["c"] = s.Endpoints["c"][:1]
	_, err := f.Sync(t.Context(), s)
	require.NoError(t, err)
	k.FailService("b", errors.New("no"))
	res, err := f.Apply(t.Context(), model.Diff{Changes: []model.Change{{Name: "a"}}})
	require.NoError(t, err)
	require.Equal(t, []model.ServiceName{"c"}, res.Promoted)
	require.Len(t, res.Rejected, 1)
	require.Equal(t, model.ServiceName("b"), res.Rejected[0].Service)
	require.Equal(t, "10.128.0.11:8080", send(t, k, "172.20.9.9:80"))
	require.NotEqual(t, "drop", send(t, k, "172.20.0.2:80"), "b keeps what it had")
	require.NoError(t, f.Check(t.Context()))
}

// Check compares one number as long as nobody writes, and looks when somebody did.
func TestCheckSaysWhatDiffers(t *testing.T) {
	k := modeltest.NewKernel(modeltest.StageNode().Addrs...)
	f := fakeIn(k)
	_, err := f.Sync(t.Context(), state("a"))
	require.NoError(t, err)
	k.Put("theirs", "something", "of theirs")
	require.NoError(t, f.Check(t.Context()))
	require.NoError(t, k.Delete("headgate", `member "a" cluster 10.128.0.11:8080`))
	err = f.Check(t.Context())
	require.ErrorIs(t, err, model.ErrDrift)
	require.ErrorContains(t, err, `member "a" cluster 10.128.0.11:8080 is gone`)
	_, err = f.Apply(t.Context(), model.DiffStates(state("a"), state("a", "b")))
	require.ErrorIs(t, err, model.ErrDrift, "a diff is not applied to something unknown")
	_, err = f.Apply(t.Context(), model.Diff{})
	require.ErrorIs(t, err, model.ErrNotSynced)
	_, err = f.Sync(t.Context(), state("a", "b"))
	require.NoError(t, err)
	require.ErrorIs(t, k.Delete("headgate", "nonsense"), syscall.ENOENT)
	require.ErrorIs(t, k.Delete("nobody", "nonsense"), syscall.ENOENT)
	require.Contains(t, k.String(), "theirs: something: of theirs")
}

// Several Programmers and somebody else write to one kernel at once; each finds its own and leaves the others'.
func TestSharedKernel(t *testing.T) {
	k := modeltest.NewKernel(modeltest.StageNode().Addrs...)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			f := modeltest.NewFake(k, modeltest.FakeConfig{Table: fmt.Sprintf("table-%d", i)})
			for j := range 30 {
				s := state(model.ServiceName(fmt.Sprintf("s-%d", j%3)))
				if _, err := f.Sync(t.Context(), s); err != nil {
					t.Errorf("Sync: %v", err)
				}
				if _, err := f.Apply(t.Context(), model.DiffStates(s, state("a", "b"))); err != nil {
					t.Errorf("Apply: %v", err)
				}
				if err := f.Check(t.Context()); err != nil {
					t.Errorf("Check: %v", err)
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 100 {
			k.Put("theirs", "counter", fmt.Sprint(i))
		}
	})
	wg.Wait()
	tables := map[string]int{}
	for _, o := range k.Objects() {
		tables[o.Table]++
	}
	require.Len(t, tables, 5)
	require.Equal(t, tables["table-0"], tables["table-3"])
	require.Equal(t, 1, tables["theirs"])
}

func TestFakeFeatures(t *testing.T) {
	k := modeltest.NewKernel()
	f := modeltest.NewFake(k, modeltest.FakeConfig{Features: &model.FeatureSet{Backend: "tiny", Balances: []model.Balance{model.Random}}})
	s := state("a")
	svc := s.Services["a"]
	svc.Balance = model.RoundRobin
	s.Services["a"] = svc
	res, err := f.Sync(t.Context(), s)
	require.NoError(t, err)
	require.ErrorIs(t, res.Err(), model.ErrNotSupported)
	require.Equal(t, "tiny", res.Rejected[0].Backend)
	features := f.Features()
	features.Balances[0] = model.Maglev
	require.Equal(t, model.Random, f.Features().Balances[0], "what was handed out is the caller's own")
}

// Packets that cannot be are errors, so that a test does not pass for a mistake in it.
func TestImpossiblePackets(t *testing.T) {
	k := modeltest.NewKernel(netip.MustParseAddr("198.51.100.10"))
	to, four, six := netip.MustParseAddrPort("172.20.0.1:80"), netip.MustParseAddr("10.128.0.1"), netip.MustParseAddr("fd00::1")
	for name, p := range map[string]modeltest.Packet{
		"no source":             {Kind: modeltest.FromPod, To: to},
		"no destination":        {Kind: modeltest.FromPod, From: four},
		"two families":          {Kind: modeltest.FromPod, From: six, To: to},
		"the node of another":   {Kind: modeltest.FromNode, From: four, To: to},
		"a pod with the node's": {Kind: modeltest.FromPod, From: netip.MustParseAddr("198.51.100.10"), To: to},
	} {
		p.Name = name
		_, err := k.Send(p)
		require.ErrorContains(t, err, name)
	}
	w := modeltest.NewFakeWorld(modeltest.StageNode())
	_, err := w.Open(t.Context(), modeltest.Packet{Name: "nobody", Kind: modeltest.FromPod, From: four, To: to})
	require.ErrorContains(t, err, "none")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.Send(gone, modeltest.Packet{Kind: modeltest.FromPod, From: four, To: to}, 1)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, k.AddAddr(netip.MustParseAddr("198.51.100.10")), syscall.EEXIST)
	require.Error(t, k.DelAddr(four))
}

// One endpoint among 100,000 writes one object, and the whole is quick enough for tests of scale.
func TestFakeAtScale(t *testing.T) {
	k := modeltest.NewKernel()
	f := fakeIn(k)
	s := modeltest.Big(10_000, 10)
	tr := model.NewTracker(s.Node)
	tr.Replace(s)
	res, err := f.Sync(t.Context(), tr.State())
	require.NoError(t, err)
	require.Equal(t, 1+10_000*(1+1+10)+10_000, res.Added, "settings; a group, a frontend and ten members each; one in ten is here")
	tr.SetEndpoints(modeltest.BigName(77), append(s.Endpoints[modeltest.BigName(77)][:10:10], modeltest.BigEndpoint(100_001)))
	res, err = f.Apply(t.Context(), tr.Diff())
	require.NoError(t, err)
	require.Equal(t, 1, res.Written())
	require.Equal(t, 1, res.Transactions)
	require.Len(t, strings.Split(fmt.Sprint(res.Steps), "} {"), 3)
	require.NoError(t, f.Check(t.Context()))
	restarted := fakeIn(k)
	res, err = restarted.Sync(t.Context(), tr.State())
	require.NoError(t, err)
	require.Zero(t, res.Written())
}
