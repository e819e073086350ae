package modeltest

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

// Chaos is what [RunChaos] does to a Target beside changing what is wanted, restarting, and doing the damage that the
// Target itself names. What is nil is not done.
type Chaos struct {
	// Duration is how long it goes on. 0 means three seconds.
	Duration time.Duration
	// Disturb are ways to get in the Programmer's way for a while, by name: to hold a lock that it needs, say. Each
	// returns what ends it. Nothing of the Programmer's may be harmed.
	Disturb map[string]func(tb testing.TB, w World) (end func())
	// Fail are ways to make some of its next writes fail, by name.
	Fail map[string]func(tb testing.TB, w World)
	// Child returns the command of another process that programs the world's node until it is killed: see
	// [ChaosCommand].
	Child func(tb testing.TB, w World) *exec.Cmd
	// Overlooks says that Check may overlook damage for a while, because looking closely costs too much to be done often,
	// or because it was done in the middle of a change. Then a Resync follows all damage.
	Overlooks bool
	// Timeout bounds each call of the Programmer. 0 means ten seconds.
	Timeout time.Duration
}

// Always calls do again and again, for Chaos.Disturb, until what it returns is called.
func Always(do func()) (end func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-over:
				return
			default:
				do()
			}
		}
	}()
	return func() {
		close(over)
		<-done
	}
}

// RunChaos drives the Programmers of a target with a [model.Syncer], changes what is wanted by chance and from several
// goroutines, and gets in their way: with damage, failures, disturbances, restarts, processes killed in the middle, and
// a second instance beside the first. After each step it requires that the kernel comes to hold what is wanted, that
// packets meet it, and that each service's status is the truth; all the while that connections to a service that nobody
// harms find it; and in the end that neither memory nor descriptors nor goroutines have grown.
func RunChaos(t *testing.T, target Target, c Chaos) {
	t.Helper()
	if c.Duration == 0 {
		c.Duration = 3 * time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	h := &harness{target: target, root: t.Name() + "/"}
	h.learn(t)
	w := h.world(t, StageNode())
	s := &storm{h: h, c: c, w: w, g: h.generator(t), counts: map[string]int{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last steps, the oldest first: %s", strings.Join(s.trail, ", "))
		}
	})
	s.begin(t)
	defer s.end(t)
	for deadline := time.Now().Add(c.Duration); time.Now().Before(deadline); {
		s.step(t)
	}
	s.growth.check(t)
	s.load.require(t)
	var done []string
	for _, name := range slices.Sorted(maps.Keys(s.counts)) {
		done = append(done, fmt.Sprintf("%d × %s", s.counts[name], name))
	}
	t.Logf("%s; %d connections meanwhile", strings.Join(done, ", "), s.load.sent.Load())
}

// generator returns a generator for what the target can do.
func (h *harness) generator(t *testing.T) *generator {
	t.Helper()
	return &generator{chance: h.seeded(t), balances: h.features.Balances, hashPort: h.features.HashPort, floor: h.features.AffinityFloor}
}

// The service that nobody harms, one that never makes sense, one that the kernel is told to refuse, and that of the
// second instance.
const (
	stillName  model.ServiceName = "still"
	badName    model.ServiceName = "bad"
	poisonName model.ServiceName = "poison"
	apartName  model.ServiceName = "apart"
)

var (
	toStill = pod.to("172.20.0.90:80")
	toApart = outside.to("192.0.2.90:80")
)

// A storm is one RunChaos.
type storm struct {
	h    *harness
	c    Chaos
	w    World
	g    *generator
	want model.State // what is wanted, by what the Syncer was told

	first, second *instance
	load          *load
	growth        growth
	counts        map[string]int // of steps, by name
	trail         []string       // the last steps
}

// An instance is a Syncer at work with a Programmer.
type instance struct {
	*model.Syncer
	p    model.Programmer
	stop context.CancelFunc
	done chan error
}

func (s *storm) config() model.SyncerConfig {
	cfg := model.SyncerConfig{
		MinInterval: time.Millisecond, CheckPeriod: 200 * time.Millisecond, ResyncPeriod: 5 * time.Second, Timeout: s.c.Timeout,
		Retry: model.Backoff{Min: 5 * time.Millisecond, Max: 200 * time.Millisecond}, ServiceRetry: model.Backoff{Min: 5 * time.Millisecond, Max: 200 * time.Millisecond},
	}
	if s.w.NetNS() < 0 {
		cfg.CheckPeriod = 5 * time.Millisecond
	}
	return cfg
}

// start starts an instance that wants a state.
func (s *storm) start(t *testing.T, program func(testing.TB, World) model.Programmer, want model.State, grace time.Duration) *instance {
	t.Helper()
	i := &instance{p: program(t, s.w), done: make(chan error, 1)}
	cfg := s.config()
	cfg.StopGrace = grace
	i.Syncer = model.NewSyncer(i.p, cfg)
	require.NoError(t, i.Replace(want))
	ctx, stop := context.WithCancel(context.Background())
	i.stop = stop
	go func() { i.done <- i.Run(ctx) }()
	return i
}

// end stops an instance. The rules stay.
func (i *instance) end(t *testing.T) {
	t.Helper()
	i.stop()
	require.NoError(t, <-i.done, "Run")
	require.NoError(t, i.p.Close(), "Close")
}

// begin programs the first state.
func (s *storm) begin(t *testing.T) {
	s.want = s.g.state()
	s.alwaysWanted()
	sensible(&s.want)
	if w, ok := s.w.(Preparer); ok {
		apart := map[model.ServiceName][]model.Endpoint{"drawn": drawnEndpoints, apartName: {epB}}
		w.Prepare(t, model.State{Node: StageNode(), Endpoints: apart}, []Packet{toStill.p, toApart.p})
	}
	s.first = s.start(t, s.h.target.New, s.want, 0)
	if s.h.target.Second != nil {
		s.second = s.start(t, s.h.target.Second, s.apart(), 0)
	}
	s.settle(t)
	s.load = startLoad(s.w, toStill.p, epA, epC)
}

// alwaysWanted adds the services that are always there.
func (s *storm) alwaysWanted() {
	s.want.Services[stillName] = model.Service{Frontends: at(internal("172.20.0.90:80"))}
	s.want.Endpoints[stillName] = []model.Endpoint{epA, epC}
	s.want.Services[badName] = model.Service{Frontends: at(internal("172.20.0.91:0"))}
	s.want.Services[poisonName] = model.Service{Frontends: at(internal("172.20.0.92:80"))}
}

// apart is what the second instance wants.
func (s *storm) apart() model.State {
	node := nodeWith(func(n *model.Node) { n.ServiceRanges = nil })
	return stateOf(node, service(apartName, model.Service{Frontends: at(external("192.0.2.90:80"))}, epB))
}

func (s *storm) end(t *testing.T) {
	if s.load != nil {
		s.load.stop()
	}
	for _, i := range []*instance{s.first, s.second} {
		if i != nil {
			i.end(t)
		}
	}
}

// sensible takes what makes no sense out of a state, but for the service that never does.
func sensible(s *model.State) {
	for name, svc := range s.Services {
		if name == badName {
			continue
		}
		svc.Frontends = slices.DeleteFunc(slices.Clone(svc.Frontends), func(f model.Frontend) bool { return f.Addr.Port() == 0 })
		s.Services[name] = svc
	}
}
