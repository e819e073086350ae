package ipvs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

// listRules returns what nft lists in a stand's namespace.
func listRules(t *testing.T, s *stand) string {
	t.Helper()
	var out []byte
	err := s.ns.Do(func() (err error) {
		out, err = exec.Command("nft", "-s", "list", "ruleset").CombinedOutput()
		return err
	})
	require.NoError(t, err, "%s", out)
	return string(out)
}

// two is a state of two services.
func two(eps ...model.Endpoint) model.State {
	s := drainState(model.TCP, eps...)
	s.Services["default/other:http"] = model.Service{Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("172.20.0.11:80")}}}
	s.Endpoints["default/other:http"] = eps
	return s
}

// What the kernel refuses is the fault of one service, which keeps the form that it had, and of no other.
func TestRefused(t *testing.T) {
	other := virtualKey{at: netip.MustParseAddrPort("172.20.0.11:80")}
	for name, c := range map[string]struct {
		refuse func(o *op) error
		change func(s *model.Service)
		want   error
		says   string
	}{
		"scheduler": {
			refuse: func(o *op) error {
				if o.kind <= editVirtual && o.spec.scheduler == "mh" {
					return unix.ENOENT
				}
				return nil
			},
			change: func(s *model.Service) { s.Balance = model.Maglev },
			want:   model.ErrNotSupported, says: "ip_vs_mh",
		},
		"memory": {
			refuse: func(o *op) error {
				if o.kind == addServer && o.key == web && o.server == epB.Addr {
					return unix.ENOMEM
				}
				return nil
			},
			want: unix.ENOMEM, says: "172.20.0.10:80, real server 10.128.0.12:8080",
		},
		"route": {
			refuse: func(o *op) error {
				if o.kind == addRoute && o.vip == netip.MustParseAddr("172.20.0.99") {
					return unix.EINVAL
				}
				return nil
			},
			change: func(s *model.Service) {
				s.Frontends = append(s.Frontends, model.Frontend{Addr: netip.MustParseAddrPort("172.20.0.99:80")})
			},
			want: unix.EINVAL, says: "route local 172.20.0.99",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t, Config{})
			ctx := context.Background()
			from := two(epA)
			_, err := s.Sync(ctx, from)
			require.NoError(t, err)
			before := s.k.listed(web)
			spec := s.k.virtual[web].spec
			s.k.refuse = c.refuse
			to := two(epA, epB)
			if c.change != nil {
				svc := to.Services[drained]
				c.change(&svc)
				to.Services[drained] = svc
			}
			check := func(res model.Result, err error) {
				t.Helper()
				require.NoError(t, err)
				require.Len(t, res.Rejected, 1)
				require.Equal(t, drained, res.Rejected[0].Service)
				require.ErrorIs(t, res.Rejected[0], c.want)
				require.Contains(t, res.Rejected[0].Error(), c.says)
				require.Equal(t, before, s.k.listed(web), "its last good form stays")
				require.Equal(t, spec, s.k.virtual[web].spec)
				require.Len(t, s.k.listed(other), 2, "the other is programmed")
				require.NotContains(t, s.k.vips, netip.MustParseAddr("172.20.0.99"))
				require.Len(t, s.k.virtual, 2)
				s.k.refuse = nil
				require.NoError(t, s.Check(ctx))
				s.k.refuse = c.refuse
			}
			res, err := s.Apply(ctx, model.DiffStates(from, to))
			check(res, err)
			res, err = s.Sync(ctx, to)
			check(res, err)
			s.k.refuse = nil
			res, err = s.Sync(ctx, to)
			require.NoError(t, err)
			require.NoError(t, res.Err())
			require.Len(t, s.k.listed(web), 2)
			require.NoError(t, s.Check(ctx))
		})
	}
}

// What the kernel will not take costs a service nothing that it has, not for a moment.
func TestRefusedTakesNothingAway(t *testing.T) {
	s := newStand(t, Config{})
	ctx := context.Background()
	from := drainState(model.TCP, epA)
	_, err := s.Sync(ctx, from)
	require.NoError(t, err)
	s.k.refuse = func(o *op) error {
		if o.kind == addServer {
			return unix.ENOMEM
		}
		return nil
	}
	s.k.watch = func(o *op) { t.Errorf("carried out: %s", o) }
	res, err := s.Apply(ctx, model.DiffStates(from, drainState(model.TCP, epB)))
	require.NoError(t, err)
	require.ErrorIs(t, res.Err(), unix.ENOMEM)
	require.Equal(t, map[string]int{epA.Addr.String(): 1}, s.k.listed(web))
}

// A service of which the kernel does not even take what it took before is left out of a Sync, and it alone.
func TestRefusedAltogether(t *testing.T) {
	s := newStand(t, Config{})
	ctx := context.Background()
	state := two(epA)
	hashed := state.Services[drained]
	hashed.Balance = model.Maglev
	state.Services[drained] = hashed
	_, err := s.Sync(ctx, state)
	require.NoError(t, err)
	s.k.virtual = map[virtualKey]*pretendedService{}
	s.k.refuse = func(o *op) error {
		if o.kind == addVirtual && o.spec.scheduler == "mh" {
			return unix.ENOENT
		}
		return nil
	}
	for range 2 {
		res, err := s.Sync(ctx, state)
		require.NoError(t, err)
		require.Len(t, res.Rejected, 1)
		require.ErrorIs(t, res.Rejected[0], model.ErrNotSupported)
		require.Len(t, s.k.virtual, 1)
		require.Len(t, s.k.vips, 1)
		require.NoError(t, s.Check(ctx))
	}
	s.k.refuse = nil
	res, err := s.Sync(ctx, state)
	require.NoError(t, err)
	require.NoError(t, res.Err())
	require.Len(t, s.k.virtual, 2)
}

// B60: virtual services of others stay as they are, and a service of ours that wants their place is refused by name.
func TestForeign(t *testing.T) {
	s := newStand(t, Config{})
	ctx := context.Background()
	theirs := &pretendedService{spec: virtualSpec{scheduler: "wlc", flags: flagPersistent, timeout: 300, netmask: 0xffffff00},
		servers: []foundServer{{server: server{at: netip.MustParseAddrPort("192.0.2.9:80"), weight: 7, odd: true}}}}
	elsewhere := virtualKey{at: netip.MustParseAddrPort("10.103.97.1:6443")}
	s.k.virtual[web], s.k.virtual[elsewhere] = theirs, &pretendedService{spec: virtualSpec{scheduler: "rr"}}
	untouched := func() {
		t.Helper()
		require.Equal(t, virtualSpec{scheduler: "wlc", flags: flagPersistent, timeout: 300, netmask: 0xffffff00}, s.k.virtual[web].spec)
		require.Len(t, s.k.virtual[web].servers, 1)
		require.Contains(t, s.k.virtual, elsewhere)
		require.NotContains(t, s.k.vips, web.at.Addr())
	}
	state := two(epA)
	res, err := s.Sync(ctx, state)
	require.NoError(t, err)
	require.Len(t, res.Rejected, 1)
	require.ErrorIs(t, res.Rejected[0], model.ErrConflict)
	untouched()
	require.NoError(t, s.Check(ctx))
	s.restart(t, Config{})
	res, err = s.Sync(ctx, state)
	require.NoError(t, err)
	require.Len(t, res.Rejected, 1)
	untouched()
	// One that comes later is noticed when ours is to be made.
	later := virtualKey{at: netip.MustParseAddrPort("172.20.0.12:80")}
	s.k.virtual[later] = &pretendedService{spec: virtualSpec{scheduler: "rr"}}
	more := two(epA)
	more.Services["default/late:http"] = model.Service{Frontends: []model.Frontend{{Addr: later.at}}}
	res, err = s.Apply(ctx, model.DiffStates(state, more))
	require.NoError(t, err)
	require.ErrorIs(t, res.Err(), model.ErrConflict)
	require.Equal(t, model.ServiceName("default/late:http"), res.Rejected[0].Service)
	require.NoError(t, s.Cleanup(ctx))
	untouched()
	require.Contains(t, s.k.virtual, later)
	// It goes, and ours takes its place.
	delete(s.k.virtual, web)
	res, err = s.Sync(ctx, state)
	require.NoError(t, err)
	require.NoError(t, res.Err())
	require.Contains(t, s.k.vips, web.at.Addr())
	// Nor has a change to wait for a full Sync.
	res, err = s.Apply(ctx, model.DiffStates(state, more))
	require.NoError(t, err)
	require.ErrorIs(t, res.Err(), model.ErrConflict)
	delete(s.k.virtual, later)
	res, err = s.Apply(ctx, model.DiffStates(state, more))
	require.NoError(t, err)
	require.NoError(t, res.Err())
	require.Contains(t, s.record.virtual, later)
}

// Ours are known again, with affinity and without, though the table that lists them is gone and a new Programmer knows
// nothing; and what others have put at our addresses meanwhile is known as theirs.
func TestTableLost(t *testing.T) {
	for _, clean := range []bool{false, true} {
		s := newStand(t, Config{})
		ctx := context.Background()
		state := two(epA)
		state.Services[drained] = model.Service{Affinity: time.Hour, Frontends: state.Services[drained].Frontends}
		_, err := s.Sync(ctx, state)
		require.NoError(t, err)
		persistent, plain := virtualKey{at: netip.MustParseAddrPort("172.20.0.10:8443")}, virtualKey{at: netip.MustParseAddrPort("172.20.0.10:8444")}
		s.k.virtual[persistent] = &pretendedService{spec: virtualSpec{scheduler: "rr", flags: flagPersistent, timeout: 60, netmask: math.MaxUint32}}
		s.k.virtual[plain] = &pretendedService{spec: virtualSpec{scheduler: "rr", netmask: math.MaxUint32}}
		out, err := s.ns.Command(ctx, "nft", "flush", "ruleset").CombinedOutput()
		require.NoError(t, err, "%s", out)
		s.restart(t, Config{})
		s.k.sent = nil
		if clean {
			require.NoError(t, s.Cleanup(ctx))
			require.Len(t, s.k.virtual, 2)
			require.Empty(t, s.k.vips)
		} else {
			res, err := s.Sync(ctx, state)
			require.NoError(t, err)
			require.NoError(t, res.Err())
			require.Empty(t, s.k.sent, "what is equal is not touched")
			require.Len(t, s.k.virtual, 4)
		}
		require.Contains(t, s.k.virtual, persistent)
		require.Contains(t, s.k.virtual, plain)
	}
}

// Without the module there are no virtual services left to remove, but there are routes and the table.
func TestCleanupWithoutModule(t *testing.T) {
	s := newStand(t, Config{})
	ctx := context.Background()
	_, err := s.Sync(ctx, two(epA))
	require.NoError(t, err)
	s.k.virtual, s.k.unloaded = map[virtualKey]*pretendedService{}, true
	require.ErrorIs(t, s.Check(ctx), model.ErrDrift)
	_, err = s.Sync(ctx, two(epA))
	require.ErrorIs(t, err, model.ErrNotSupported)
	for _, leave := range []func() error{
		func() error { return s.Cleanup(ctx) },
		func() error { _, err := s.Retire(ctx); return err },
	} {
		require.NoError(t, leave())
		require.Empty(t, s.k.vips)
		require.NotContains(t, listRules(t, s), "headgate")
		s.k.unloaded = false
		_, err = s.Sync(ctx, two(epA))
		require.NoError(t, err)
		require.Len(t, s.k.vips, 2)
		s.restart(t, Config{})
		s.k.virtual, s.k.unloaded = map[virtualKey]*pretendedService{}, true
	}
}

// B61: no address of a host is made local: not this node's, which it has already, not one that is configured as another's.
func TestHosts(t *testing.T) {
	s := newStand(t, Config{Hosts: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}})
	ctx := context.Background()
	state := drainState(model.TCP, epA)
	at := func(name model.ServiceName, addr string) {
		state.Services[name] = model.Service{Frontends: []model.Frontend{{Kind: model.External, Addr: netip.MustParseAddrPort(addr)}}}
		state.Endpoints[name] = []model.Endpoint{epA}
	}
	s.k.ifaddrs[netip.MustParseAddr("192.0.2.10")] = true // nobody has told us of this one
	at("untold", "192.0.2.10:443")
	at("another-node", "198.51.100.20:443")
	res, err := s.Sync(ctx, state)
	require.NoError(t, err)
	require.Len(t, res.Rejected, 1)
	require.Equal(t, model.ServiceName("another-node"), res.Rejected[0].Service)
	require.ErrorIs(t, res.Rejected[0], model.ErrNotSupported)
	require.Contains(t, res.Rejected[0].Error(), "198.51.100.20")
	require.Equal(t, map[netip.Addr]netip.Addr{web.at.Addr(): netip.MustParseAddr("198.51.100.10")}, s.k.vips)
	require.Contains(t, s.k.virtual, virtualKey{at: netip.MustParseAddrPort("192.0.2.10:443")}, "the node's own address serves all the same")

	// An address that the node gets later is given back, and one that it loses is made local.
	s.k.ifaddrs[web.at.Addr()] = true
	delete(s.k.ifaddrs, netip.MustParseAddr("192.0.2.10"))
	_, err = s.Sync(ctx, state)
	require.NoError(t, err)
	require.Equal(t, map[netip.Addr]netip.Addr{netip.MustParseAddr("192.0.2.10"): netip.MustParseAddr("198.51.100.10")}, s.k.vips)
	require.NoError(t, s.Check(ctx))
}

// B55: a real server that was drained before a restart serves again, and one that somebody changed is put right.
// B56: nothing is drained or removed before the first Sync.
func TestRestart(t *testing.T) {
	s := newStand(t, Config{})
	ctx := context.Background()
	state := drainState(model.TCP, epA, epB)
	_, err := s.Sync(ctx, state)
	require.NoError(t, err)
	for i := range s.k.virtual[web].servers {
		f := &s.k.virtual[web].servers[i]
		f.weight, f.odd, f.active = 0, true, 3
	}
	s.k.virtual[web].spec.scheduler = "lc"
	s.k.sent = nil
	s.restart(t, Config{})
	require.Empty(t, s.k.sent)
	_, err = s.Sync(ctx, state)
	require.NoError(t, err)
	require.Equal(t, map[string]int{epA.Addr.String(): 1, epB.Addr.String(): 1}, s.k.listed(web))
	require.Equal(t, "rr", s.k.virtual[web].spec.scheduler)
	for _, f := range s.k.virtual[web].servers {
		require.False(t, f.odd)
	}
	s.k.sent = nil
	s.restart(t, Config{})
	_, err = s.Sync(ctx, state)
	require.NoError(t, err)
	require.Empty(t, s.k.sent, "what is equal is not touched")
}

// B71: after an error nothing is taken for granted, and the next Sync mends everything.
func TestBrokenExchange(t *testing.T) {
	s := newStand(t, Config{})
	ctx := context.Background()
	state := two(epA)
	_, err := s.Sync(ctx, state)
	require.NoError(t, err)
	s.k.broken = os.ErrDeadlineExceeded
	_, err = s.Apply(ctx, model.DiffStates(state, two(epB)))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = s.Apply(ctx, model.Diff{})
	require.ErrorIs(t, err, model.ErrNotSynced)
	_, err = s.Sync(ctx, two(epB))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorIs(t, s.Cleanup(ctx), os.ErrDeadlineExceeded)
	s.k.broken = nil
	_, err = s.Sync(ctx, two(epB))
	require.NoError(t, err)
	require.Equal(t, map[string]int{epB.Addr.String(): 1}, s.k.listed(web))
	require.NoError(t, s.Check(ctx))
}

// What the kernel does not hold any more while a change is made is drift, not anybody's fault.
func TestDriftInApply(t *testing.T) {
	s := newStand(t, Config{})
	ctx := context.Background()
	state := drainState(model.TCP, epA)
	_, err := s.Sync(ctx, state)
	require.NoError(t, err)
	delete(s.k.virtual, web)
	_, err = s.Apply(ctx, model.DiffStates(state, drainState(model.TCP, epA, epB)))
	require.ErrorIs(t, err, model.ErrDrift)
	_, err = s.Sync(ctx, drainState(model.TCP, epA, epB))
	require.NoError(t, err)
	require.Len(t, s.k.listed(web), 2)
}

// B64, B66: affinity where it would lead clients astray, and where it is too short or too long, is refused.
func TestAffinityRefused(t *testing.T) {
	s := newStand(t, Config{})
	ctx := context.Background()
	with := func(d time.Duration) model.State {
		state := drainState(model.TCP, epA)
		state.Services[drained] = model.Service{Affinity: d, Frontends: state.Services[drained].Frontends}
		return state
	}
	for d, ok := range map[time.Duration]bool{time.Minute - 1: false, time.Minute: true, longestAffinity: true, longestAffinity + 1: false} {
		res, err := s.Sync(ctx, with(d))
		require.NoError(t, err)
		if ok {
			require.NoError(t, res.Err(), d)
			require.Equal(t, uint32(d/time.Second), s.k.virtual[web].spec.timeout)
		} else {
			require.ErrorIs(t, res.Err(), model.ErrNotSupported, d)
		}
	}
	_, err := s.Sync(ctx, with(0))
	require.NoError(t, err)
	s.quiescent = false
	res, err := s.Apply(ctx, model.DiffStates(with(0), with(time.Hour)))
	require.NoError(t, err)
	require.ErrorIs(t, res.Err(), model.ErrNotSupported)
	require.Contains(t, res.Err().Error(), "net.ipv4.vs.expire_quiescent_template")
}

// More endpoints than a hashing scheduler has buckets for would leave some without clients.
func TestTooManyToHash(t *testing.T) {
	s := newStand(t, Config{})
	for balance, most := range map[model.Balance]int{model.SourceHash: 256, model.Maglev: 4093} {
		state := drainState(model.TCP)
		state.Services[drained] = model.Service{Balance: balance, Frontends: state.Services[drained].Frontends}
		for i := range most + 1 {
			a := netip.AddrFrom4([4]byte{10, 128, byte(i >> 8), byte(i)})
			state.Endpoints[drained] = append(state.Endpoints[drained], model.Endpoint{Addr: netip.AddrPortFrom(a, 8080)})
		}
		res, err := s.Sync(t.Context(), state)
		require.NoError(t, err)
		require.ErrorIs(t, res.Err(), model.ErrNotSupported)
		state.Endpoints[drained] = state.Endpoints[drained][1:]
		res, err = s.Sync(t.Context(), state)
		require.NoError(t, err)
		require.NoError(t, res.Err())
		require.Len(t, s.k.listed(web), most)
	}
}

// No packet could meet a virtual service that the table does not know of: not while it comes, not while it goes.
func TestTableKnowsFirstAndForgetsLast(t *testing.T) {
	s := newStand(t, Config{})
	ctx := context.Background()
	state := drainState(model.TCP, epA)
	steps := 0
	s.k.watch = func(o *op) {
		steps++
		listed := listRules(t, s)
		switch {
		case o.kind >= addRoute:
			require.Contains(t, set(listed, "virtual-ips"), o.vip.String(), "%s", o)
		default:
			require.Contains(t, set(listed, "virtual-services"), fmt.Sprintf("%s . %s . %d", o.key.at.Addr(), o.key.proto, o.key.at.Port()), "%s", o)
		}
	}
	_, err := s.Sync(ctx, state)
	require.NoError(t, err)
	none := model.State{Node: state.Node}
	_, err = s.Apply(ctx, model.DiffStates(state, none))
	require.NoError(t, err)
	_, err = s.Apply(ctx, model.DiffStates(none, state))
	require.NoError(t, err)
	require.Greater(t, steps, 7)
	require.NoError(t, s.Cleanup(ctx))
}

// set returns what is listed of a set.
func set(ruleset, name string) string {
	_, from, _ := strings.Cut(ruleset, "set "+name+" {")
	body, _, _ := strings.Cut(from, "\n\t}")
	return body
}

// B72: a kernel without IPVS is named for what it lacks, in the model's terms.
func TestNewWithoutIPVS(t *testing.T) {
	lab.NeedRoot(t)
	if _, err := os.Stat("/proc/net/ip_vs"); err == nil {
		t.Skip("the kernel has IPVS: runs on hosts without")
	}
	_, err := New(context.Background(), Config{})
	require.ErrorIs(t, err, model.ErrNotSupported)
	require.Contains(t, err.Error(), "ip_vs")
	var f model.Finding
	require.True(t, errors.As(err, &f))
	require.Equal(t, "ip_vs", f.What)
	require.Contains(t, f.Remedy, "modprobe ip_vs")
}

func TestConfig(t *testing.T) {
	for name, cfg := range map[string]Config{
		"labels":   {BalancedLabel: 7, MasqueradeLabel: 7},
		"label":    {BalancedLabel: 128},
		"affinity": {AffinitySize: -1},
		"protocol": {RouteProtocol: 4},
		"number":   {RouteProtocol: 256},
		"timeout":  {Timeout: -1},
		"table":    {Table: "a b"},
		"host":     {Hosts: []netip.Prefix{{}}},
	} {
		_, err := New(context.Background(), cfg)
		require.ErrorIs(t, err, model.ErrInvalid, name)
	}
}
