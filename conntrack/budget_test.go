package conntrack

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// The tests in this file pin how much is done for a change: requests, bytes, memory. None measures time.

// TestRequestsFollowTheChange: one endpoint of one service costs one request a look, whatever else there is, and what
// the kernel sends are the flows of that endpoint.
func TestRequestsFollowTheChange(t *testing.T) {
	for _, frontends := range []int{1, 2, 4, 16} {
		t.Run(fmt.Sprintf("%d frontends", frontends), func(t *testing.T) {
			svc := model.Service{Protocol: model.UDP}
			for i := range frontends {
				svc.Frontends = append(svc.Frontends, model.Frontend{Addr: at(addr("172.20.9.1"), uint16(53+i))})
			}
			before := state("dns", svc, endpoints(epA, epB)...)
			ns, c := begun(t, Config{}, before)
			var mine, others []entry
			for i := range 50 {
				mine = append(mine, entry{client: at(pod, uint16(10000+i)), to: at(vip, uint16(53+i%frontends)), from: epB})
				others = append(others, entry{client: at(pod, uint16(20000+i)), to: at(vip2, 53), from: epC})
			}
			put(t, ns, append(mine, others...)...)
			put(t, ns, entry{client: at(pod, 9999), to: at(vip, 53), from: epA})
			was := c.Stats()
			applied(c, model.DiffStates(before, with(before, func(s *model.State) { s.Endpoints["dns"] = endpoints(epB) })))
			require.Equal(t, 1, settle(t, c))
			is := c.Stats()
			require.Equal(t, 2, is.Looks-was.Looks)
			require.Equal(t, 3, is.Requests-was.Requests, "two listings and one batch of deletions")
			require.Equal(t, 1, is.Seen-was.Seen, "the flow in question alone")
			require.Less(t, is.BytesSent-was.BytesSent, uint64(500))
			require.Less(t, is.BytesReceived-was.BytesReceived, uint64(1000))
		})
	}
}

// TestNothingAskedForNothing: changes that make no flow stale ask the kernel nothing.
func TestNothingAskedForNothing(t *testing.T) {
	before := state("dns", service(at(vip, 53)), endpoints(epA)...)
	_, c := begun(t, Config{}, before)
	was := c.Stats()
	for name, after := range map[string]model.State{
		"endpoint added": with(before, func(s *model.State) { s.Endpoints["dns"] = endpoints(epA, epB) }),
		"draining":       with(before, func(s *model.State) { s.Endpoints["dns"][0].State = model.Draining }),
		"weight":         with(before, func(s *model.State) { s.Endpoints["dns"][0].Weight = 5 }),
		"affinity": with(before, func(s *model.State) {
			svc := s.Services["dns"]
			svc.Affinity = 5e9
			s.Services["dns"] = svc
		}),
		"TCP service": with(before, func(s *model.State) {
			s.Services["web"] = model.Service{Frontends: []model.Frontend{{Addr: at(vip, 80)}}}
			s.Endpoints["web"] = endpoints(epC)
		}),
	} {
		applied(c, model.DiffStates(before, after))
		requireOwed(t, c, false)
		require.Zero(t, settle(t, c), name)
		applied(c, model.DiffStates(after, before))
		settle(t, c) // back again: an endpoint goes
	}
	is := c.Stats()
	require.Equal(t, 2, is.Looks-was.Looks, "only where epB went again")
}

// TestManyChangesOneRequest: many frontends at once are one listing of the protocol.
func TestManyChangesOneRequest(t *testing.T) {
	before, after := model.State{Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}, model.State{}
	for i := range 100 {
		name := model.ServiceName(fmt.Sprint("s", i))
		before.Services[name] = service(at(netip.AddrFrom4([4]byte{172, 20, 1, byte(i)}), 53))
		before.Endpoints[name] = endpoints(epA)
	}
	ns, c := begun(t, Config{}, before)
	var flows []entry
	for i := range 250 {
		flows = append(flows, entry{client: at(pod, uint16(10000+i)), to: at(netip.AddrFrom4([4]byte{172, 20, 1, byte(i % 100)}), 53), from: epA})
	}
	put(t, ns, flows...)
	was := c.Stats()
	applied(c, model.DiffStates(before, after))
	require.Equal(t, 250, settle(t, c))
	is := c.Stats()
	require.Equal(t, 1+3+1, is.Requests-was.Requests, "a listing, deletions by the hundred, and the second look")
}

// TestMemoryDoesNotFollowTheTable: a comparison of a whole table allocates the same for 200 flows and for 1,400.
func TestMemoryDoesNotFollowTheTable(t *testing.T) {
	for _, whole := range []bool{false, true} {
		ns, c := begun(t, Config{NoKernelFilter: whole}, dns(epA))
		cost := func() uint64 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			synced(c, dns(epA))
			require.Zero(t, clean(t, c))
			runtime.ReadMemStats(&after)
			require.Zero(t, settle(t, c))
			return after.TotalAlloc - before.TotalAlloc
		}
		fill := func(first, n int) {
			flows := make([]entry, n)
			for i := range flows {
				flows[i] = entry{client: at(netip.AddrFrom4([4]byte{10, 9, byte((first + i) >> 8), byte(first + i)}), 1000), to: at(vip, 53), from: epA}
			}
			put(t, ns, flows...)
		}
		fill(0, 200)
		small := cost()
		fill(200, 1200)
		large := cost()
		require.Less(t, large, small+32<<10)
	}
}

// BenchmarkJudge is what one flow costs that is listed and right.
func BenchmarkJudge(b *testing.B) {
	r := newRecord([]model.Protocol{model.UDP})
	want := model.State{Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	for i := range 1000 {
		name := model.ServiceName(fmt.Sprint("s", i))
		want.Services[name] = service(at(netip.AddrFrom4([4]byte{172, 20, byte(i >> 8), byte(i)}), 53))
		want.Endpoints[name] = endpoints(epA, epB, epC)
	}
	r.begin(attempt{sync: true, state: want})
	task := r.outcome(model.Result{}, nil)
	j := judge{record: r, task: task}
	f := flow{proto: 17, client: at(pod, 1000), to: at(addr("172.20.1.7"), 53), from: epC, seen: at(pod, 1000)}
	b.ReportAllocs()
	for b.Loop() {
		if v, _ := j.of(&f); v != keep {
			b.Fatal("stale")
		}
	}
}
