package conntrack

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// recorded returns a record that was told of states, one after the other, and the last task that came of it.
func recorded(t *testing.T, states ...model.State) (*record, *task) {
	t.Helper()
	r := newRecord([]model.Protocol{model.UDP})
	var last *task
	for i, s := range states {
		if i == 0 {
			r.begin(attempt{sync: true, state: s})
		} else {
			r.begin(attempt{diff: model.DiffStates(states[i-1], s)})
		}
		last = r.outcome(model.Result{}, nil)
	}
	return r, last
}

// asked returns what the kernel would be asked for a change, in words.
func asked(t *testing.T, from, to model.State) []string {
	t.Helper()
	r, task := recorded(t, from, to)
	looks, err := r.looks(task, false)
	require.NoError(t, err)
	var all []string
	for _, f := range looks {
		w := f.family.String()
		if f.dst.IsValid() || f.dport != 0 {
			w += " to " + words(f.dst, f.dport)
		}
		if f.src.IsValid() || f.sport != 0 {
			w += " from " + words(f.src, f.sport)
		}
		all = append(all, w)
	}
	return all
}

// words writes an address and port of which either may be missing.
func words(a netip.Addr, port uint16) string {
	if !a.IsValid() {
		return fmt.Sprintf("*:%d", port)
	}
	return netip.AddrPortFrom(a, port).String()
}

// TestLooks pins what the kernel is asked for each kind of change.
func TestLooks(t *testing.T) {
	svc := service(at(vip, 53), at(vip, 54), at(vip6, 53))
	svc.Frontends = append(svc.Frontends, nodePort(30053))
	both := state("dns", svc, endpoints(epA, epB, at(podA6, 5353), at(podB6, 5353))...)
	to := func(eps ...netip.AddrPort) model.State {
		return with(both, func(s *model.State) { s.Endpoints["dns"] = endpoints(eps...) })
	}
	deleted := with(both, func(s *model.State) { delete(s.Services, "dns") })
	none := to()
	for name, tc := range map[string]struct {
		from, to model.State
		want     []string
	}{
		"one endpoint goes":     {both, to(epB, at(podA6, 5353), at(podB6, 5353)), []string{"IPv4 from 10.128.0.11:5353"}},
		"one, one frontend":     {state("dns", service(at(vip, 53)), endpoints(epA, epB)...), state("dns", service(at(vip, 53)), endpoints(epB)...), []string{"IPv4 to 172.20.9.1:53 from 10.128.0.11:5353"}},
		"one of each family":    {both, to(epB, at(podB6, 5353)), []string{"IPv4 from 10.128.0.11:5353", "IPv6 from *:5353"}},
		"all go":                {both, none, []string{"IPv4 from 10.128.0.11:5353", "IPv4 from 10.128.0.12:5353", "IPv6 from *:5353"}},
		"more than frontends":   {to(epA, epB, epC, at(podA, 1), at(podB, 1)), to(epA), []string{"IPv4 to *:30053", "IPv4 to 172.20.9.1:53", "IPv4 to 172.20.9.1:54"}},
		"one comes":             {to(epA, at(podA6, 5353)), both, nil},
		"the first comes":       {none, to(epA), []string{"IPv4 to *:30053", "IPv4 to 172.20.9.1:53 from 172.20.9.1:53", "IPv4 to 172.20.9.1:54 from 172.20.9.1:54"}},
		"service goes":          {both, deleted, []string{"IPv4 to *:30053", "IPv4 to 172.20.9.1:53", "IPv4 to 172.20.9.1:54", "IPv6 to *:53", "IPv6 to *:30053"}},
		"service comes":         {deleted, to(epA), []string{"IPv4 to *:30053", "IPv4 to 172.20.9.1:53", "IPv4 to 172.20.9.1:54"}},
		"service comes empty":   {deleted, none, nil},
		"nothing":               {both, both, nil},
		"addresses of the node": {both, with(both, func(s *model.State) { s.Node.Addrs = []netip.Addr{node2, node6} }), []string{"IPv4 to 198.51.100.10:0", "IPv4 to 198.51.100.11:0"}},
	} {
		require.Equal(t, tc.want, asked(t, tc.from, tc.to), name)
	}
}

// TestRecordFollowsHandovers: what one service lets go and another takes in one change is there afterwards.
func TestRecordFollowsHandovers(t *testing.T) {
	with30053 := service()
	with30053.Frontends = append(with30053.Frontends, nodePort(30053))
	a := state("a", with30053, endpoints(epA)...)
	a.Services["b"] = service()
	b := with(a, func(s *model.State) { s.Services["a"], s.Services["b"] = service(), with30053 })
	for _, order := range [][]model.State{{a, b}, {b, a}, {a, b, a, b}} {
		r, _ := recorded(t, order...)
		require.Len(t, r.nodePorts, 2, "one a family")
		require.Equal(t, [2]int{1, 1}, r.counts[model.UDP])
	}
	r, _ := recorded(t, a, model.State{})
	require.Empty(t, r.nodePorts)
	require.Zero(t, r.counts)
}
