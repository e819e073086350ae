package modeltest

import (
	"time"

	"github.com/headgate/headgate/model"
)

// How connections are spread, and affinity.

func balanceScenarios() []Scenario {
	three := []model.Endpoint{here("10.128.0.11:8080"), here("10.128.0.12:8080"), there("10.128.1.21:8080")}
	six := []model.Endpoint{here("[fd10:128:0:a::11]:8080"), there("[fd10:128:0:b::21]:8080")}
	svc := func(s model.Service, eps ...model.Endpoint) model.State {
		s.Frontends = at(internal("172.20.0.80:80"), internal("[fd20:96::80]:80"), external("192.0.2.10:80"), nodePort(30080))
		return stateOf(StageNode(), service("default/lb:http", s, append(eps, six...)...))
	}
	weighted := []model.Endpoint{weighing(1, three[0]), weighing(2, three[1]), weighing(5, three[2])}
	spread := func() []Expectation {
		return []Expectation{
			pod.to("172.20.0.80:80").reaches(texts(three)...),
			outside.to("192.0.2.10:80").hidden(texts(three)...),
			outside.to("198.51.100.10:30080").hidden(texts(three)...),
			pod.to("[fd20:96::80]:80").reaches(texts(six)...),
		}
	}
	hashed := func() []Expectation {
		all := spread()
		for i := range all {
			all[i] = all[i].onOne()
		}
		return append(all, theNode.to("172.20.0.80:80").hidden(texts(three)...).onOne(), remotePod.to("172.20.0.80:80").reaches(texts(three)...).onOne())
	}
	return []Scenario{
		{Name: "balance-weights", Doc: "By chance, in proportion to the weights 1, 2 and 5.",
			State: svc(model.Service{}, weighted...), Packets: spread()},
		{Name: "balance-round-robin", Doc: "In turn.",
			State: svc(model.Service{Balance: model.RoundRobin}, three...), Packets: spread()},
		{Name: "balance-round-robin-weights", Doc: "In turn, in proportion to the weights 1, 2 and 5.",
			State: svc(model.Service{Balance: model.RoundRobin}, weighted...), Packets: spread()},
		{Name: "balance-least-conn", Doc: "To the endpoint with the fewest open connections.",
			State: svc(model.Service{Balance: model.LeastConn}, three...), Packets: []Expectation{
				pod.to("172.20.0.80:80").among(false, texts(three)...),
				outside.to("192.0.2.10:80").among(true, texts(three)...),
			}},
		{Name: "balance-source-hash", Doc: "By a hash of the client's address: each client always reaches the same endpoint.",
			State: svc(model.Service{Balance: model.SourceHash}, three...), Packets: hashed()},
		{Name: "balance-source-hash-weights", Doc: "By a hash of the client's address, in proportion to the weights 1, 2 and 5.",
			State: svc(model.Service{Balance: model.SourceHash}, weighted...), Packets: hashed()},
		{Name: "balance-source-hash-port", Doc: "By a hash of the client's address and port: the connections of one client are spread.",
			State: svc(model.Service{Balance: model.SourceHash, HashPort: true}, three...), Packets: spread()},
		{Name: "balance-maglev", Doc: "By a Maglev table over the client's address.",
			State: svc(model.Service{Balance: model.Maglev}, three...), Packets: hashed()},
		{Name: "balance-maglev-port", Doc: "By a Maglev table over the client's address and port.",
			State: svc(model.Service{Balance: model.Maglev, HashPort: true}, three...), Packets: spread()},
	}
}

func affinityScenarios() []Scenario {
	eps := []model.Endpoint{here("10.128.0.11:8080"), here("10.128.0.12:8080"), there("10.128.1.21:8080")}
	six := []model.Endpoint{here("[fd10:128:0:a::11]:8080"), there("[fd10:128:0:b::21]:8080")}
	fronts := at(internal("172.20.0.110:80"), internal("[fd20:96::110]:80"), external("192.0.2.10:80"), nodePort(30110))
	return []Scenario{{
		Name: "affinity",
		Doc:  "Each client stays with one endpoint, whichever frontend it uses, in both families.",
		State: stateOf(StageNode(),
			service("default/aff:http", model.Service{Affinity: 3 * time.Hour, Frontends: fronts}, append(eps, six...)...)),
		Packets: []Expectation{
			pod.to("172.20.0.110:80").reaches(texts(eps)...).onOne(),
			remotePod.to("172.20.0.110:80").reaches(texts(eps)...).onOne(),
			theNode.to("172.20.0.110:80").hidden(texts(eps)...).onOne(),
			outside.to("192.0.2.10:80").hidden(texts(eps)...).onOne(),
			otherOutside.to("198.51.100.10:30110").hidden(texts(eps)...).onOne(),
			pod.to("[fd20:96::110]:80").reaches(texts(six)...).onOne(),
		},
	}, {
		Name: "affinity-protocols",
		Doc:  "Affinity of UDP and SCTP services; each service has its own.",
		State: stateOf(StageNode(),
			service("default/aff:dns", model.Service{Protocol: model.UDP, Affinity: 10 * time.Minute, Frontends: at(internal("172.20.0.111:53"))},
				here("10.128.0.11:1053"), there("10.128.1.21:1053")),
			service("default/aff:sctp", model.Service{Protocol: model.SCTP, Affinity: 10 * time.Minute, Frontends: at(internal("172.20.0.111:53"))},
				here("10.128.0.11:3053"), there("10.128.1.21:3053"))),
		Packets: []Expectation{
			pod.over(model.UDP, "172.20.0.111:53").reaches("10.128.0.11:1053", "10.128.1.21:1053").onOne(),
			outside.over(model.UDP, "172.20.0.111:53").hidden("10.128.0.11:1053", "10.128.1.21:1053").onOne(),
			pod.over(model.SCTP, "172.20.0.111:53").reaches("10.128.0.11:3053", "10.128.1.21:3053").onOne(),
		},
	}, {
		Name: "affinity-external-local",
		Doc:  "Affinity and policy Local: outside clients stay with an endpoint here, pods with any.",
		State: stateOf(StageNode(),
			service("default/aff:http", model.Service{Affinity: time.Hour, ExternalTraffic: model.Local, Frontends: fronts}, eps...)),
		Packets: []Expectation{
			outside.to("192.0.2.10:80").reaches("10.128.0.11:8080", "10.128.0.12:8080").onOne(),
			outside.to("198.51.100.10:30110").reaches("10.128.0.11:8080", "10.128.0.12:8080").onOne(),
			pod.to("172.20.0.110:80").reaches(texts(eps)...).onOne(),
		},
	}, {
		Name: "affinity-draining",
		Doc:  "Affinity keeps nobody on endpoints that are not usable: one Ready, one Draining, one NotReady.",
		State: stateOf(StageNode(),
			service("default/aff:http", model.Service{Affinity: time.Hour, Frontends: fronts},
				draining(eps[0]), notReady(eps[1]), eps[2])),
		Packets: []Expectation{
			pod.to("172.20.0.110:80").reaches("10.128.1.21:8080"),
			outside.to("192.0.2.10:80").hidden("10.128.1.21:8080"),
		},
	}, {
		Name: "affinity-without-endpoints",
		Doc:  "A service with affinity and nobody to serve refuses like any other.",
		State: stateOf(StageNode(),
			service("default/aff:http", model.Service{Affinity: time.Hour, Frontends: fronts}, notReady(eps[0]))),
		Packets: []Expectation{
			pod.to("172.20.0.110:80").refused(),
			outside.to("192.0.2.10:80").refused(),
			outside.to("198.51.100.10:30110").refused(),
		},
	}}
}
