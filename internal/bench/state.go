package main

import (
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// What modeltest.Big has addresses for.
const (
	maxServices  = 1_000_000
	maxEndpoints = 2_000_000
)

// state returns what is to be programmed.
func (c config) state() model.State {
	return modeltest.Big(c.services, c.endpoints, func(s *model.Service, i int) {
		if i < c.affinity {
			modeltest.WithAffinity(s, i)
		}
		if i < c.restricted {
			restrict(s, i)
		}
	})
}

// restrict limits the service's only frontend to the pods and, so that no two services are alike, a network of its own.
func restrict(s *model.Service, i int) {
	own := netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})
	s.Frontends[0].SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.240.0.0/12"), netip.PrefixFrom(own, 32)}
}

// track returns a Tracker that alone holds the state.
func (c config) track() *model.Tracker {
	t := new(model.Tracker)
	t.Replace(c.state())
	runtime.GC() // of what Big made
	return t
}

// Of each kind so many changes are measured, or as many as fit into the time allowed, but a few in any case.
const (
	changes       = 100
	fewestChanges = 3
	changesTime   = time.Second / 2
)

// A churn makes changes of one endpoint each, to services all over the place where there are enough of them.
type churn struct {
	config
	held map[model.ServiceName][]model.Endpoint
}

// newChurn returns a churn that begins with the endpoints of the state.
func newChurn(c config, s model.State) *churn { return &churn{c, s.Endpoints} }

// An edit is one change: a service gets other endpoints.
type edit struct {
	name      model.ServiceName
	endpoints []model.Endpoint
}

// add returns the n-th change of those that add one endpoint.
func (c *churn) add(n int) edit {
	return c.set(n, func(eps []model.Endpoint) []model.Endpoint {
		return append(eps, modeltest.BigEndpoint(c.services*c.config.endpoints+n))
	})
}

// remove returns the n-th change of those that remove an endpoint, the first that the service has. The first of each
// service is on this node, which some backends have to write more about, and the next is not: so each service shall lose
// only one, or removals would not be alike however many services there are.
func (c *churn) remove(n int) edit {
	return c.set(n, func(eps []model.Endpoint) []model.Endpoint { return eps[1:] })
}

func (c *churn) set(n int, to func([]model.Endpoint) []model.Endpoint) edit {
	name := modeltest.BigName(n * max(1, c.services/changes) % c.services)
	c.held[name] = to(slices.Clone(c.held[name]))
	return edit{name, c.held[name]}
}
