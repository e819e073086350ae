package modeltest

import (
	"math/rand/v2"
	"time"

	"github.com/headgate/headgate/model"
)

// A generator makes states by chance out of few addresses, so that services collide and endpoints are shared.
type generator struct {
	chance   *rand.Rand
	balances []model.Balance
	hashPort bool
	floor    time.Duration
}

// The addresses from which a generator draws.
var (
	drawnFrontends = at(
		internal("172.20.0.10:80"), internal("172.20.0.10:81"), internal("172.20.0.11:80"), internal("[fd20:96::10]:80"),
		external("192.0.2.10:80"), external("192.0.2.11:80"), external("192.0.2.77:80"), external("198.51.100.10:30010"), external("[2001:db8:c::10]:80"),
		nodePort(30010), nodePort(30011))
	drawnEndpoints = []model.Endpoint{
		here("10.128.0.11:8080"), here("10.128.0.12:8080"), here("10.128.0.11:8081"), there("10.128.1.21:8080"), there("10.128.2.31:8080"),
		here("[fd10:128:0:a::11]:8080"), there("[fd10:128:0:b::21]:8080")}
	drawnRanges = prefixes("203.0.113.0/24", "203.0.113.0/25", "203.0.113.128/25", "203.0.113.5/32", "10.128.0.0/14", "198.51.100.0/24",
		"240.0.0.0/4", "0.0.0.0/0", "2001:db8:e::/64", "::/0", "ff00::/8")
)

func (g *generator) one(in int) bool { return g.chance.IntN(in) == 0 }

// some returns every element with a chance of one in n, in any order.
func some[T any](g *generator, n int, all []T) []T {
	var out []T
	for _, i := range g.chance.Perm(len(all)) {
		if g.one(n) {
			out = append(out, all[i])
		}
	}
	return out
}

func (g *generator) name() model.ServiceName {
	return []model.ServiceName{"", "a", "b", "c", "default/web:http", "default/web:https", `"; flush ruleset`}[g.chance.IntN(7)]
}

func (g *generator) service() model.Service {
	s := model.Service{Frontends: some(g, 4, drawnFrontends)}
	for i := range s.Frontends {
		if g.one(3) {
			s.Frontends[i].SourceRanges = some(g, 3, drawnRanges)
		}
	}
	if g.one(5) {
		s.Protocol = model.UDP
	}
	if g.one(3) {
		s.Balance = g.balances[g.chance.IntN(len(g.balances))]
		s.HashPort = g.hashPort && g.one(2)
	}
	if g.one(4) {
		s.Affinity = max(time.Minute, g.floor)
	}
	if g.one(3) {
		s.InternalTraffic = model.Local
	}
	if g.one(3) {
		s.ExternalTraffic = model.Local
	}
	if g.one(12) {
		s.Frontends = append(s.Frontends, model.Frontend{}) // no sense: to be rejected
	}
	return s
}

func (g *generator) endpoints() []model.Endpoint {
	if g.one(6) {
		return nil
	}
	eps := some(g, 2, drawnEndpoints)
	hinted := g.one(4)
	for i := range eps {
		if g.one(3) {
			eps[i].State = model.EndpointState(g.chance.IntN(3))
		}
		if g.one(4) {
			eps[i].Weight = uint16(g.chance.IntN(4))
		}
		if hinted {
			eps[i].Zones = some(g, 2, []string{"zone-1", "zone-2"})
		}
	}
	return eps
}

func (g *generator) node() model.Node {
	return nodeWith(func(n *model.Node) {
		n.MasqueradeAll = g.one(4)
		n.KeepClientAddress = g.one(4)
		if g.one(3) {
			n.Zone = "zone-2"
		}
		if g.one(3) {
			n.Detector = model.LocalDetector{}
		} else if g.one(3) {
			n.Detector = model.LocalDetector{Interfaces: []string{"veth-"}}
		}
		n.NodePorts.Primary = g.one(3)
		if g.one(3) {
			n.NodePorts.Prefixes = prefixes("198.51.101.0/24", "2001:db8:b::/64")
		}
		if g.one(3) {
			n.ServiceRanges = nil
		}
		if g.one(4) {
			n.Primary = addrs("198.51.101.10", "2001:db8:b::10")
		}
	})
}

func (g *generator) state() model.State {
	s := stateOf(StageNode())
	for range 4 {
		name := g.name()
		s.Services[name], s.Endpoints[name] = g.service(), g.endpoints()
	}
	return s
}

// mutate returns a state that differs in a few things; the given one stays.
func (g *generator) mutate(s model.State) model.State {
	next := model.State{Node: s.Node, Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	for name, svc := range s.Services {
		next.Services[name] = svc
	}
	for name, eps := range s.Endpoints {
		next.Endpoints[name] = eps
	}
	for range 1 + g.chance.IntN(3) {
		name := g.name()
		switch g.chance.IntN(8) {
		case 0, 1:
			next.Services[name] = g.service()
		case 2:
			delete(next.Services, name)
		case 3:
			next.Node = g.node()
		case 4:
			next.Services[name], next.Endpoints[name] = g.service(), g.endpoints()
		default:
			next.Endpoints[name] = g.endpoints()
		}
	}
	return next
}

// flows returns packets by chance, from everybody to everywhere.
func (g *generator) flows(n int) []flow {
	from := []client{pod, remotePod, theNode, outside, otherOutside, podAt("10.128.0.11")}
	to := []string{"172.20.0.10:80", "172.20.0.10:81", "172.20.0.11:80", "172.20.0.12:80", "192.0.2.10:80", "192.0.2.11:80", "192.0.2.77:80",
		"198.51.100.10:30010", "198.51.100.10:30011", "198.51.101.10:30010", "[fd20:96::10]:80", "[2001:db8:c::10]:80", "[2001:db8:a::10]:30010"}
	out := make([]flow, n)
	for i := range out {
		c, a := from[g.chance.IntN(len(from))], to[g.chance.IntN(len(to))]
		if ap(a).Addr().Is6() && c.name == "pod 10.128.0.11" {
			c = podAt("fd10:128:0:a::11")
		}
		proto := model.TCP
		if g.one(5) {
			proto = model.UDP
		}
		out[i] = c.over(proto, a)
	}
	return out
}
