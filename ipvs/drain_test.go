package ipvs

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

const drained = model.ServiceName("default/drained:http")

// drainState is one service at one address, with endpoints.
func drainState(proto model.Protocol, eps ...model.Endpoint) model.State {
	node := model.Node{Name: "node", Addrs: []netip.Addr{netip.MustParseAddr("198.51.100.10")}}
	return model.State{Node: node,
		Services:  model.ServiceMap{drained: {Protocol: proto, Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("172.20.0.10:80")}}}},
		Endpoints: model.EndpointMap{drained: eps}}
}

func endpointsAt(addrs ...netip.AddrPort) (eps []model.Endpoint) {
	for _, a := range addrs {
		eps = append(eps, model.Endpoint{Addr: a})
	}
	return eps
}

// Where headgate means to do otherwise than the cases say, and why.
var otherwise = map[string]struct {
	why   string
	after map[string]int
}{
	"gt-sctp":            {"an association is as good as a connection of TCP: it goes on", map[string]int{"10.128.0.11:9000": 0}},
	"gt-service-deleted": {"open connections go on as they do with the other backends", map[string]int{"10.128.0.11:80": 0}},
}

// What becomes of real servers that are no longer wanted, and of those that are wanted again.
func TestTermination(t *testing.T) {
	seen := 0
	for _, c := range modeltest.TerminationCases() {
		t.Run(c.ID, func(t *testing.T) {
			s := newStand(t, Config{})
			ctx := context.Background()
			k := virtualKey{proto: c.Protocol, at: netip.MustParseAddrPort("172.20.0.10:80")}
			var before []netip.AddrPort
			for _, d := range c.Before {
				before = append(before, d.Addr)
			}
			_, err := s.Sync(ctx, drainState(c.Protocol, endpointsAt(before...)...))
			require.NoError(t, err)
			for _, d := range c.Before {
				s.k.connect(t, k, d.Addr, d.Active, d.Inactive)
			}
			wanted := drainState(c.Protocol, endpointsAt(c.Wanted...)...)
			if c.Gone {
				wanted.Services = nil
			}
			if c.Periodic { // it drains already
				_, err = s.Sync(ctx, wanted)
				require.NoError(t, err)
			}
			for _, d := range c.Before {
				for i := range s.k.virtual[k].servers {
					if f := &s.k.virtual[k].servers[i]; f.at == d.Addr {
						f.weight = uint32(d.Weight)
					}
				}
			}
			if c.FirstSync {
				s.restart(t, Config{})
			}
			if c.Periodic {
				_, err = s.Drain(ctx)
			} else {
				_, err = s.Sync(ctx, wanted)
			}
			require.NoError(t, err)

			after := map[string]int{}
			for _, d := range c.After {
				after[d.Addr.String()] = d.Weight
			}
			if o, ok := otherwise[c.ID]; ok {
				seen++
				t.Log(o.why)
				after = o.after
			}
			if len(after) == 0 {
				require.Empty(t, s.k.listed(k))
			} else {
				require.Equal(t, after, s.k.listed(k))
			}
			drains, err := s.Drain(ctx)
			require.NoError(t, err)
			var draining []netip.AddrPort
			for _, d := range drains {
				require.Equal(t, drained, d.Service)
				draining = append(draining, d.Endpoint)
			}
			if _, ok := otherwise[c.ID]; !ok {
				require.Equal(t, c.Draining, draining)
			}
		})
	}
	require.Equal(t, len(otherwise), seen)
}

var (
	epA = model.Endpoint{Addr: netip.MustParseAddrPort("10.128.0.11:8080")}
	epB = model.Endpoint{Addr: netip.MustParseAddrPort("10.128.0.12:8080")}
	web = virtualKey{at: netip.MustParseAddrPort("172.20.0.10:80")}
)

// The deadline of what drains is kept in the kernel: a restart neither forgets nor extends it.
func TestDeadlineSurvivesRestart(t *testing.T) {
	cfg := Config{DrainDeadline: time.Hour}
	s := newStand(t, cfg)
	ctx := context.Background()
	_, err := s.Sync(ctx, drainState(model.TCP, epA, epB))
	require.NoError(t, err)
	s.k.connect(t, web, epA.Addr, 2, 1)
	_, err = s.Sync(ctx, drainState(model.TCP, epB))
	require.NoError(t, err)
	drains, err := s.Drain(ctx)
	require.NoError(t, err)
	until := s.clock.Add(time.Hour)
	require.Equal(t, []model.Drain{{Service: drained, Endpoint: epA.Addr, Connections: 3, Until: until}}, drains)

	s.clock = s.clock.Add(20 * time.Minute) // the kernel's clock stands still, so what is left is an hour still
	s.restart(t, cfg)
	_, err = s.Sync(ctx, drainState(model.TCP, epB))
	require.NoError(t, err)
	drains, err = s.Drain(ctx)
	require.NoError(t, err)
	require.Len(t, drains, 1)
	require.WithinDuration(t, s.clock.Add(time.Hour), drains[0].Until, time.Minute)

	s.clock = s.clock.Add(61 * time.Minute)
	drains, err = s.Drain(ctx)
	require.NoError(t, err)
	require.Empty(t, drains)
	require.Equal(t, map[string]int{epB.Addr.String(): 1}, s.k.listed(web))
	require.NoError(t, s.Check(ctx))
}

// An endpoint that is still listed has no deadline; one that serves again does not drain.
func TestDrainingEndpoint(t *testing.T) {
	s := newStand(t, Config{})
	ctx := context.Background()
	_, err := s.Sync(ctx, drainState(model.TCP, epA, epB))
	require.NoError(t, err)
	s.k.connect(t, web, epA.Addr, 1, 0)
	draining := epA
	draining.State = model.Draining
	_, err = s.Sync(ctx, drainState(model.TCP, draining, epB))
	require.NoError(t, err)
	s.clock = s.clock.Add(1000 * time.Hour)
	drains, err := s.Drain(ctx)
	require.NoError(t, err)
	require.Equal(t, []model.Drain{{Service: drained, Endpoint: epA.Addr, Connections: 1}}, drains)
	require.Equal(t, map[string]int{epA.Addr.String(): 0, epB.Addr.String(): 1}, s.k.listed(web))

	_, err = s.Sync(ctx, drainState(model.TCP, epA, epB))
	require.NoError(t, err)
	require.Equal(t, map[string]int{epA.Addr.String(): 1, epB.Addr.String(): 1}, s.k.listed(web))
	drains, err = s.Drain(ctx)
	require.NoError(t, err)
	require.Empty(t, drains)
	require.NoError(t, s.Check(ctx))
}

// An endpoint that is listed again while it drains has no deadline any more, whatever a restart finds, and a fresh one
// once it is listed no more.
func TestDeadlineTakenBack(t *testing.T) {
	cfg := Config{DrainDeadline: time.Hour}
	s := newStand(t, cfg)
	ctx := context.Background()
	draining := epA
	draining.State = model.Draining
	listed, unlisted := drainState(model.TCP, draining, epB), drainState(model.TCP, epB)
	_, err := s.Sync(ctx, listed)
	require.NoError(t, err)
	require.Equal(t, map[string]int{epB.Addr.String(): 1}, s.k.listed(web), "what never served need not drain")
	_, err = s.Sync(ctx, drainState(model.TCP, epA, epB))
	require.NoError(t, err)
	s.k.connect(t, web, epA.Addr, 1, 0)
	from := drainState(model.TCP, epA, epB)
	for _, to := range []model.State{unlisted, listed, unlisted} {
		_, err = s.Apply(ctx, model.DiffStates(from, to))
		require.NoError(t, err)
		from = to
		require.NoError(t, s.Check(ctx))
		drains, err := s.Drain(ctx)
		require.NoError(t, err)
		require.Len(t, drains, 1)
		if len(to.Endpoints[drained]) == 2 {
			require.Zero(t, drains[0].Until)
			require.NotContains(t, set(listRules(t, s), "draining"), epA.Addr.Addr().String())
		} else {
			require.Equal(t, s.clock.Add(time.Hour), drains[0].Until)
			require.Contains(t, set(listRules(t, s), "draining"), epA.Addr.Addr().String())
		}
		s.clock = s.clock.Add(30 * time.Minute)
	}
}

// A service that is gone stays while connections are open, and its address stays local; then both go.
func TestServiceGone(t *testing.T) {
	for name, end := range map[string]func(*stand, *testing.T){
		"connections ended": func(s *stand, t *testing.T) { s.k.connect(t, web, epA.Addr, 0, 7) },
		"deadline":          func(s *stand, _ *testing.T) { s.clock = s.clock.Add(16 * time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t, Config{})
			ctx := context.Background()
			state := drainState(model.TCP, epA, epB)
			_, err := s.Sync(ctx, state)
			require.NoError(t, err)
			require.Contains(t, s.k.vips, web.at.Addr())
			s.k.connect(t, web, epA.Addr, 1, 0)
			none := model.State{Node: state.Node}
			_, err = s.Apply(ctx, model.DiffStates(state, none))
			require.NoError(t, err)
			require.Equal(t, map[string]int{epA.Addr.String(): 0, epB.Addr.String(): 0}, s.k.listed(web))
			require.Contains(t, s.k.vips, web.at.Addr())
			require.NoError(t, s.Check(ctx))
			s.k.connect(t, web, epA.Addr, 0, 1)
			s.k.halfOpen = 1
			drains, err := s.Drain(ctx)
			require.NoError(t, err)
			require.Len(t, drains, 1, "the client may have no more to say, and still listen")
			s.k.halfOpen = 0
			s.k.connect(t, web, epA.Addr, 1, 0)
			end(s, t)
			drains, err = s.Drain(ctx)
			require.NoError(t, err)
			require.Empty(t, drains)
			require.Empty(t, s.k.virtual)
			require.Empty(t, s.k.vips)
			require.NoError(t, s.Check(ctx))
		})
	}
}

// One that comes back while it drains is served again.
func TestServiceBack(t *testing.T) {
	s := newStand(t, Config{})
	ctx := context.Background()
	state := drainState(model.TCP, epA)
	_, err := s.Sync(ctx, state)
	require.NoError(t, err)
	s.k.connect(t, web, epA.Addr, 1, 0)
	none := model.State{Node: state.Node}
	_, err = s.Apply(ctx, model.DiffStates(state, none))
	require.NoError(t, err)
	res, err := s.Apply(ctx, model.DiffStates(none, state))
	require.NoError(t, err)
	require.NoError(t, res.Err())
	require.Equal(t, map[string]int{epA.Addr.String(): 1}, s.k.listed(web))
	require.Empty(t, s.record.draining)
	require.NoError(t, s.Check(ctx))
}

// Leaving keeps every connection, also one that is only being opened, and then nothing is left.
func TestRetire(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		s := newStand(t, Config{})
		ctx := context.Background()
		_, err := s.Sync(ctx, drainState(model.TCP, epA, epB))
		require.NoError(t, err)
		s.k.connect(t, web, epA.Addr, 0, 1)
		if restarted {
			s.restart(t, Config{})
		}
		drains, err := s.Retire(ctx)
		require.NoError(t, err)
		require.Len(t, drains, 1)
		require.Equal(t, 1, drains[0].Connections)
		require.Equal(t, map[string]int{epA.Addr.String(): 0, epB.Addr.String(): 0}, s.k.listed(web))
		_, err = s.Apply(ctx, model.Diff{})
		require.ErrorIs(t, err, model.ErrNotSynced)
		require.ErrorIs(t, s.Check(ctx), model.ErrNotSynced)
		again, err := s.Drain(ctx)
		require.NoError(t, err)
		require.Len(t, again, 1)
		s.k.connect(t, web, epA.Addr, 0, 0)
		again, err = s.Drain(ctx)
		require.NoError(t, err)
		require.Empty(t, again)
		require.Empty(t, s.k.virtual)
		require.Empty(t, s.k.vips)
		require.NotContains(t, listRules(t, s), "headgate")
		// And back.
		_, err = s.Sync(ctx, drainState(model.TCP, epA))
		require.NoError(t, err)
		require.NoError(t, s.Check(ctx))
	}
}

// Real servers get weight 0 before anything is removed, and what comes comes first.
func TestOrder(t *testing.T) {
	s := newStand(t, Config{})
	ctx := context.Background()
	from := drainState(model.TCP, epA)
	_, err := s.Sync(ctx, from)
	require.NoError(t, err)
	s.k.sent = nil
	_, err = s.Apply(ctx, model.DiffStates(from, drainState(model.TCP, epB)))
	require.NoError(t, err)
	var kinds []opKind
	for _, o := range s.k.sent {
		kinds = append(kinds, o.kind)
	}
	require.Equal(t, []opKind{addServer, editServer, delServer}, kinds)
	require.True(t, slices.IsSortedFunc(kinds, func(a, b opKind) int { return int(a) - int(b) }))
}
