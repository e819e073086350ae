package modeltest

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/headgate/headgate/model"
)

// A BigOption changes the services that [Big] makes.
type BigOption func(*model.Service, int)

// WithAffinity gives every service an affinity of three hours.
func WithAffinity(s *model.Service, _ int) { s.Affinity = 3 * time.Hour }

// WithRanges gives every service an external frontend, 100.64.x.y:80, that is restricted to three source ranges.
func WithRanges(s *model.Service, i int) {
	s.Frontends = append(s.Frontends, model.Frontend{Kind: model.External, Addr: netip.AddrPortFrom(offset("100.64.0.0", i), 80),
		SourceRanges: []netip.Prefix{pfx("203.0.113.0/25"), netip.PrefixFrom(offset("11.0.0.0", i), 32), netip.PrefixFrom(offset("100.128.0.0", 256*(i%10_000)), 24)}})
}

// WithNodePorts gives the first 45,000 services a node port each, from 20000 on.
func WithNodePorts(s *model.Service, i int) {
	if i < 45_000 {
		s.Frontends = append(s.Frontends, nodePort(uint16(20_000+i)))
	}
}

// WithLocalPolicy gives every service the external policy Local.
func WithLocalPolicy(s *model.Service, _ int) { s.ExternalTraffic = model.Local }

// Big returns a state of many TCP services with as many endpoints each, always the same for the same arguments, for
// benchmarks and tests of scale. Up to a million services have addresses of their own, 10.96.x.y:80 and on, and all
// endpoints together, up to 700,000, too: 10.244.x.y:8080 and on; every tenth endpoint is on this node.
// The names are those of [BigName].
func Big(services, endpoints int, opts ...BigOption) model.State {
	s := model.State{
		Node: nodeWith(func(n *model.Node) {
			n.Detector = model.LocalDetector{Prefixes: []netip.Prefix{pfx("10.244.0.0/14"), pfx("10.248.0.0/13")}}
			n.ServiceRanges = []netip.Prefix{pfx("10.96.0.0/12")}
		}),
		Services:  make(model.ServiceMap, services),
		Endpoints: make(model.EndpointMap, services),
	}
	for i := range services {
		svc := model.Service{Frontends: []model.Frontend{{Addr: netip.AddrPortFrom(offset("10.96.0.0", i+1), 80)}}}
		for _, o := range opts {
			o(&svc, i)
		}
		eps := make([]model.Endpoint, endpoints)
		for j := range eps {
			eps[j] = BigEndpoint(i*endpoints + j)
		}
		name := BigName(i)
		s.Services[name] = svc
		if endpoints > 0 {
			s.Endpoints[name] = eps
		}
	}
	return s
}

// BigName returns the name of the i-th service of [Big], counted from 0.
func BigName(i int) model.ServiceName {
	return model.ServiceName(fmt.Sprintf("ns-%02d/svc-%05d:http", i%100, i))
}

// BigEndpoint returns the i-th of all endpoints of [Big], counted from 0 over all services: those after the last one
// are free to be added.
func BigEndpoint(i int) model.Endpoint {
	const addresses = 700_000
	return model.Endpoint{Addr: netip.AddrPortFrom(offset("10.244.0.0", i%addresses+1), uint16(8080+i/addresses)), Local: i%10 == 0}
}

// offset returns the IPv4 address that lies n after base.
func offset(base string, n int) netip.Addr {
	b := addr(base).As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}
