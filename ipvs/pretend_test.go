package ipvs

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/internal/netns"
)

// A pretended kernel behaves like IPVS and the routing tables, as far as can be seen from here. It lets tests count
// connections that nobody has opened, and refuse what a real kernel does not refuse.
type pretended struct {
	virtual map[virtualKey]*pretendedService
	vips    map[netip.Addr]netip.Addr
	ifaddrs map[netip.Addr]bool
	// refuse, if not nil, may refuse a request.
	refuse func(o *op) error
	// broken is the error of every exchange.
	broken error
	// halfOpen are connections to every real server that are open, though inactive.
	halfOpen int
	// unloaded says that there is no IPVS.
	unloaded bool
	// sent has every request that was carried out.
	sent []op
	// counted has every virtual service whose real servers were listed.
	counted []virtualKey
	// late has virtual services that come after one has looked for them.
	late map[virtualKey]bool
	// watch, if not nil, is called after every request.
	watch func(o *op)
}

type pretendedService struct {
	spec    virtualSpec
	servers []foundServer
}

func pretend() *pretended {
	return &pretended{virtual: map[virtualKey]*pretendedService{}, vips: map[netip.Addr]netip.Addr{}, ifaddrs: map[netip.Addr]bool{}}
}

func (p *pretended) services(context.Context) (map[virtualKey]virtualSpec, error) {
	out := map[virtualKey]virtualSpec{}
	for k, v := range p.virtual {
		out[k] = v.spec
	}
	if p.unloaded {
		return nil, errNoModule
	}
	return out, p.broken
}

func (p *pretended) exist(_ context.Context, keys []virtualKey) (map[virtualKey]bool, error) {
	there := map[virtualKey]bool{}
	for _, k := range keys {
		there[k] = p.virtual[k] != nil && !p.late[k]
	}
	return there, p.broken
}

func (p *pretended) servers(_ context.Context, keys []virtualKey) (map[virtualKey][]foundServer, error) {
	found := map[virtualKey][]foundServer{}
	p.counted = append(p.counted, keys...)
	for _, k := range keys {
		if v := p.virtual[k]; v != nil {
			found[k] = slices.Clone(v.servers)
		}
	}
	return found, p.broken
}

func (p *pretended) routes(context.Context) (map[netip.Addr]netip.Addr, error) {
	return maps.Clone(p.vips), p.broken
}

func (p *pretended) addrs(context.Context) (map[netip.Addr]bool, [2]netip.Addr, error) {
	return maps.Clone(p.ifaddrs), [2]netip.Addr{}, p.broken
}

func (p *pretended) close() {}

func (p *pretended) burst(ctx context.Context, ops []op) (map[int]error, traffic, error) {
	failed := map[int]error{}
	if err := ctx.Err(); err != nil {
		return nil, traffic{}, err
	}
	for i := range ops {
		o := &ops[i]
		var err error
		if p.refuse != nil {
			err = p.refuse(o)
		}
		if err == nil {
			err = p.carryOut(o)
		}
		if err != nil {
			failed[i] = err
			continue
		}
		p.sent = append(p.sent, *o)
		if p.watch != nil {
			p.watch(o)
		}
	}
	return failed, traffic{1, len(ops)}, p.broken
}

func (p *pretended) carryOut(o *op) error {
	v := p.virtual[o.key]
	at := -1
	if v != nil {
		at = slices.IndexFunc(v.servers, func(f foundServer) bool { return f.at == o.server })
	}
	_, routed := p.vips[o.vip]
	switch {
	case o.kind == addVirtual && v != nil, o.kind == addServer && at >= 0, o.kind == addRoute && routed:
		return unix.EEXIST
	case o.kind != addVirtual && o.kind < addRoute && v == nil, o.kind == delRoute && !routed:
		return unix.ESRCH
	case (o.kind == editServer || o.kind == delServer) && at < 0:
		return unix.ENOENT
	}
	switch o.kind {
	case addVirtual:
		p.virtual[o.key] = &pretendedService{spec: o.spec}
	case editVirtual:
		v.spec = o.spec
	case delVirtual:
		delete(p.virtual, o.key)
	case addServer:
		v.servers = append([]foundServer{{server: server{at: o.server, weight: o.weight}}}, v.servers...)
	case editServer:
		v.servers[at].weight, v.servers[at].odd = o.weight, false
	case delServer:
		v.servers = slices.Delete(v.servers, at, at+1)
	case addRoute, editRoute:
		p.vips[o.vip] = o.src
	case delRoute:
		delete(p.vips, o.vip)
	}
	return nil
}

// connect opens and ends connections to a real server.
func (p *pretended) connect(tb testing.TB, k virtualKey, at netip.AddrPort, active, inactive int) {
	tb.Helper()
	require.NotNil(tb, p.virtual[k], "no virtual service %v", k)
	for i := range p.virtual[k].servers {
		if f := &p.virtual[k].servers[i]; f.at == at {
			f.active, f.inactive = active, inactive
			return
		}
	}
	tb.Fatalf("no real server %s", at)
}

// listed returns the real servers of a virtual service with their weights, as ipvsadm lists them.
func (p *pretended) listed(k virtualKey) map[string]int {
	v := p.virtual[k]
	if v == nil {
		return nil
	}
	out := map[string]int{}
	for _, f := range v.servers {
		out[f.at.String()] = int(f.weight)
	}
	return out
}

// A stand is a Programmer over a pretended kernel, with a real table in a network namespace of its own.
type stand struct {
	*Programmer
	k     *pretended
	ns    *lab.NetNS
	clock time.Time
}

func newStand(t *testing.T, cfg Config) *stand {
	t.Helper()
	lab.NeedRoot(t)
	s := &stand{k: pretend(), ns: lab.StartNetNS(t, "stand"), clock: time.Now()}
	s.k.ifaddrs[netip.MustParseAddr("198.51.100.10")] = true
	s.restart(t, cfg)
	return s
}

// restart makes a new Programmer that knows nothing.
func (s *stand) restart(t *testing.T, cfg Config) {
	t.Helper()
	cfg, err := cfg.withDefaults()
	require.NoError(t, err)
	ns, err := netns.Open(s.ns.FD())
	require.NoError(t, err)
	s.Programmer = newProgrammer(cfg, ns, s.k)
	s.Programmer.now = func() time.Time { return s.clock }
	t.Cleanup(func() { require.NoError(t, s.Programmer.Close()) })
}

func (p *pretended) open(_ context.Context, keys []virtualKey) (map[virtualKey]int, bool, error) {
	counts := map[virtualKey]int{}
	for _, k := range keys {
		for _, f := range p.virtual[k].servers {
			counts[k] += f.active + p.halfOpen
		}
	}
	return counts, false, p.broken
}
