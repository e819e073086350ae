package ipvs

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

const services = 6

// A chooser makes states by chance out of few addresses, so that services collide and endpoints are shared.
type chooser struct{ *rand.Rand }

func (c chooser) node() model.Node {
	n := model.Node{Name: "node", Addrs: []netip.Addr{netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("2001:db8:a::10")}}
	if c.IntN(2) == 0 {
		n.Addrs = append(n.Addrs, netip.MustParseAddr("198.51.101.10"))
	}
	if c.IntN(3) == 0 {
		n.Primary = []netip.Addr{netip.MustParseAddr("198.51.101.10")}
	}
	return n
}

// service returns a service with frontends that no other number has, but at the same addresses; its explicit frontend at
// an address of the node hides the node port of the next one.
func (c chooser) service(number int) model.Service {
	s := model.Service{Protocol: model.Protocol(c.IntN(3)), Balance: model.Balance(c.IntN(5)), InternalTraffic: model.TrafficPolicy(c.IntN(2)),
		ExternalTraffic: model.TrafficPolicy(c.IntN(2)), HashPort: c.IntN(2) == 0}
	if c.IntN(3) == 0 {
		s.Affinity = time.Duration(1+c.IntN(3)) * time.Hour
	}
	seen := map[netip.AddrPort]bool{}
	for range c.IntN(4) {
		at := func(addr string, port int) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(port))
		}
		next := (number + 1) % services
		f := []model.Frontend{
			{Addr: at("172.20.0.10", 80+number)}, {Addr: at("172.20.0.10", 180+number)}, {Addr: at("fd20:96::10", 80+number)},
			{Kind: model.External, Addr: at("192.0.2.10", 80+number)}, {Kind: model.External, Addr: at("198.51.100.10", 30010+next)},
			{Kind: model.NodePort, Addr: netip.AddrPortFrom(netip.Addr{}, uint16(30010+number))},
			{Kind: model.NodePort, Addr: netip.AddrPortFrom(netip.Addr{}, uint16(30110+number))},
		}[c.IntN(7)]
		if !seen[f.Addr] {
			s.Frontends = append(s.Frontends, f)
		}
		seen[f.Addr] = true
	}
	return s
}

func (c chooser) endpoints() (eps []model.Endpoint) {
	for _, a := range []string{"10.128.0.11:8080", "10.128.0.12:8080", "10.128.0.11:8081", "10.128.1.21:8080", "[fd10::11]:8080", "[fd10::12]:8080"} {
		if c.IntN(2) == 0 {
			eps = append(eps, model.Endpoint{Addr: netip.MustParseAddrPort(a), Local: c.IntN(2) == 0, Weight: uint16(c.IntN(4)), State: model.EndpointState(c.IntN(3))})
		}
	}
	return eps
}

func (c chooser) change(s *model.State) {
	number := c.IntN(services)
	name := model.ServiceName(fmt.Sprintf("svc-%d", number))
	switch c.IntN(6) {
	case 0:
		delete(s.Services, name)
	case 1:
		s.Node = c.node()
	case 2:
		s.Endpoints[name] = c.endpoints()
	default:
		s.Services[name], s.Endpoints[name] = c.service(number), c.endpoints()
	}
}

// An exerciser plans and pretends to carry out, without a table.
type exerciser struct {
	t        *testing.T
	cfg      Config
	resolver *model.Resolver
	rec      *record
	k        *pretended
	now      time.Time
}

func newExerciser(t *testing.T) *exerciser {
	cfg, err := Config{}.withDefaults()
	require.NoError(t, err)
	e := &exerciser{t: t, cfg: cfg, resolver: model.NewResolver(featuresOf(cfg)), rec: newRecord(), k: pretend(), now: time.Unix(1, 0)}
	for _, a := range []string{"198.51.100.10", "198.51.101.10", "2001:db8:a::10"} {
		e.k.ifaddrs[netip.MustParseAddr(a)] = true
	}
	e.rec.hosts = e.k.ifaddrs
	return e
}

func (e *exerciser) carryOut(ops []op) {
	e.t.Helper()
	failed, _, err := e.k.burst(e.t.Context(), ops)
	require.NoError(e.t, err)
	require.Empty(e.t, failed, "the kernel holds something else than is recorded")
	for i := range ops {
		e.rec.done(&ops[i])
	}
}

// to makes the pretended kernel hold a state, by what changed or, with all set, by looking at everything.
func (e *exerciser) to(from, to model.State, all bool) {
	e.t.Helper()
	delta, err := e.resolver.Resolve(model.DiffStates(from, to), nil)
	require.NoError(e.t, err)
	p := &Programmer{cfg: e.cfg, resolver: e.resolver, record: e.rec, node: from.Node}
	w := &work{p: p, all: all, names: map[model.ServiceName]bool{}, keys: map[virtualKey]bool{}}
	v := newView(&p.cfg, e.resolver, delta, w.names)
	w.touch(v, delta)
	next := newPlan(e.rec, e.now, time.Minute)
	if all {
		next.sweep()
	}
	for k := range w.keys {
		next.change(k, v.want(k))
	}
	next.route(v, w.keys)
	e.rec.nodePorts = v.nodePorts
	e.carryOut(next.virtual)
	e.carryOut(append(next.comes, next.leaves...))
	e.carryOut(next.routes)
	e.end(next, to.Node)
	e.resolver.Commit(delta)
}

func (e *exerciser) end(next *plan, node model.Node) {
	e.t.Helper()
	found, err := e.k.servers(e.t.Context(), next.count)
	require.NoError(e.t, err)
	for _, k := range next.count {
		e.carryOut(next.drained(k, found[k], false))
	}
	e.carryOut(next.routesEnd(node))
}

// content is all that the pretended kernel holds.
func (e *exerciser) content() string {
	var out []string
	for k, v := range e.k.virtual {
		line := fmt.Sprintf("%s %s %+v", k.proto, k.at, v.spec)
		slices.SortFunc(v.servers, func(a, b foundServer) int { return a.at.Compare(b.at) })
		for _, f := range v.servers {
			line += fmt.Sprintf(" %s=%d", f.at, f.weight)
		}
		out = append(out, line)
	}
	for a, src := range e.k.vips {
		out = append(out, fmt.Sprintf("local %s src %s", a, src))
	}
	slices.Sort(out)
	return fmt.Sprintf("%q", out)
}

// Applying what changed gives what programming the result from nothing gives, if nothing has connections; and once
// they have ended, if something had.
func TestPlanProperty(t *testing.T) {
	for seed := range uint64(40) {
		c := chooser{rand.New(rand.NewPCG(seed, 1))}
		e := newExerciser(t)
		state := model.State{Node: c.node(), Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
		from := model.State{}
		for step := range 60 {
			e.to(from, state, c.IntN(6) == 0)
			if c.IntN(3) == 0 {
				for k, v := range e.k.virtual { // connections come and go
					for _, f := range v.servers {
						e.k.connect(t, k, f.at, c.IntN(2), c.IntN(2))
					}
				}
			}
			from = model.State{Node: state.Node, Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
			for name, s := range state.Services {
				from.Services[name], from.Endpoints[name] = s, state.Endpoints[name]
			}
			if step%10 == 9 {
				for k, v := range e.k.virtual {
					for _, f := range v.servers {
						e.k.connect(t, k, f.at, 0, 0)
					}
				}
				next := newPlan(e.rec, e.now, time.Minute)
				for k := range e.rec.draining {
					next.count = append(next.count, k)
					next.routesGo[k.at.Addr()] = true
				}
				e.end(next, state.Node)
				require.Empty(t, e.rec.draining, "seed %d step %d", seed, step)
				fresh := newExerciser(t)
				fresh.to(model.State{}, state, true)
				require.Equal(t, fresh.content(), e.content(), "seed %d step %d", seed, step)
				require.NoError(t, compareRoutes(e.rec.routes, e.k.vips))
				for k, v := range e.rec.virtual {
					require.Equal(t, v.spec, e.k.virtual[k].spec)
					require.NoError(t, compareServers(k, v, e.k.virtual[k].servers))
				}
			}
			c.change(&state)
		}
	}
}

func TestSchedulers(t *testing.T) {
	for _, c := range []struct {
		s     model.Service
		equal bool
		name  string
		flags uint32
	}{
		{model.Service{}, true, "rr", 0},
		{model.Service{}, false, "wrr", 0},
		{model.Service{Balance: model.RoundRobin, HashPort: true}, true, "rr", 0},
		{model.Service{Balance: model.LeastConn}, true, "lc", 0},
		{model.Service{Balance: model.LeastConn}, false, "wlc", 0},
		{model.Service{Balance: model.SourceHash}, false, "sh", flagFallback},
		{model.Service{Balance: model.Maglev, HashPort: true}, true, "mh", flagFallback | flagHashPort},
	} {
		name, flags := scheduler(&c.s, c.equal)
		require.Equal(t, c.name, name)
		require.Equal(t, c.flags, flags)
	}
}

// The weights of hashed services fit into the buckets, and everybody has one.
func TestHashWeights(t *testing.T) {
	eps := func(weights ...uint16) (out []model.Endpoint) {
		for _, w := range weights {
			out = append(out, model.Endpoint{Weight: w})
		}
		return out
	}
	require.Equal(t, []uint32{1, 1}, weightsOf(model.SourceHash, eps(1000, 1000)))
	require.Equal(t, []uint32{1, 3}, weightsOf(model.SourceHash, eps(7, 21)))
	require.Equal(t, []uint32{1, 254}, weightsOf(model.SourceHash, eps(1, 65535)))
	for _, many := range []int{255, 256} {
		weights := append(make([]uint16, 0, many), 65535)
		for len(weights) < many {
			weights = append(weights, 1)
		}
		sum := uint32(0)
		for _, w := range weightsOf(model.SourceHash, eps(weights...)) {
			require.Positive(t, w)
			sum += w
		}
		require.LessOrEqual(t, sum, uint32(hashBuckets), "somebody would get nothing")
	}
	require.Equal(t, []uint32{7, 21}, weightsOf(model.Random, eps(7, 21)))
	require.Empty(t, weightsOf(model.SourceHash, nil))
}

func BenchmarkChangeOfOneEndpoint(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmarkChange(b, n) })
	}
}

func benchmarkChange(b *testing.B, n int) {
	cfg, err := Config{}.withDefaults()
	require.NoError(b, err)
	r := model.NewResolver(featuresOf(cfg))
	state := model.State{Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	for i := range n {
		name := model.ServiceName(fmt.Sprint(i))
		a := netip.AddrFrom4([4]byte{172, 20, byte(i >> 8), byte(i)})
		state.Services[name] = model.Service{Frontends: []model.Frontend{{Addr: netip.AddrPortFrom(a, 80)}}}
		state.Endpoints[name] = []model.Endpoint{epA}
	}
	delta, err := r.ResolveState(state, nil)
	require.NoError(b, err)
	r.Commit(delta)
	p := &Programmer{cfg: cfg, resolver: r, record: newRecord()}
	p.record.hosts = map[netip.Addr]bool{}
	changes := [2]model.Diff{}
	for i, eps := range [][]model.Endpoint{{epA, epB}, {epA}} {
		changes[i].Changes = []model.Change{{Name: "3", After: &model.Entry{Service: state.Services["3"], Endpoints: eps}}}
	}
	for i := 0; b.Loop(); i++ {
		delta, err := r.Resolve(changes[i%2], nil)
		if err != nil {
			b.Fatal(err)
		}
		w := &work{p: p, names: map[model.ServiceName]bool{}, keys: map[virtualKey]bool{}}
		v := newView(&p.cfg, r, delta, w.names)
		w.touch(v, delta)
		next := newPlan(p.record, time.Time{}, time.Minute)
		for k := range w.keys {
			next.change(k, v.want(k))
		}
		next.route(v, w.keys)
		r.Commit(delta)
	}
}
