package modeltest

import (
	"net/netip"

	"github.com/headgate/headgate/model"
)

// Where a service answers: internal frontends, families and protocols.

func internalScenarios() []Scenario {
	return []Scenario{{
		Name: "internal-one-endpoint",
		Doc: "One internal frontend with one endpoint on another port: it answers everybody, its other ports refuse, " +
			"and traffic that concerns no service is left alone.",
		State: stateOf(StageNode(),
			service("default/web:http", model.Service{Frontends: at(internal("172.20.0.10:80"))}, here("10.128.0.11:8080"))),
		Packets: []Expectation{
			pod.to("172.20.0.10:80").reaches("10.128.0.11:8080"),
			remotePod.to("172.20.0.10:80").reaches("10.128.0.11:8080"),
			theNode.to("172.20.0.10:80").hidden("10.128.0.11:8080"),
			outside.to("172.20.0.10:80").hidden("10.128.0.11:8080"),
			podAt("10.128.0.11").to("172.20.0.10:80").hidden("10.128.0.11:8080"),
			pod.to("172.20.0.10:81").refused().unless(DiffOtherPorts),
			pod.over(model.UDP, "172.20.0.10:80").refused().unless(DiffOtherPorts),
			theNode.to("172.20.0.10:81").refused().unless(DiffOtherPorts),
			outside.to("172.20.0.10:8080").refused().unless(DiffOtherPorts),
			pod.pings("172.20.0.10").refused().unless(DiffOtherPorts),
			pod.to("172.20.0.250:80").dropped().unless(DiffServiceRanges),
			theNode.to("172.20.0.250:80").dropped().unless(DiffServiceRanges),
			pod.to("10.128.0.11:8080").untouched(),
			pod.to("10.128.1.22:8080").untouched(),
			outside.to("198.51.100.10:80").untouched(),
		},
	}, {
		Name: "internal-endpoints-here-and-there",
		Doc:  "Endpoints on this node and on others share the connections, and each is reached on its own port.",
		State: stateOf(StageNode(),
			service("default/web:http", model.Service{Frontends: at(internal("172.20.0.13:80"))},
				here("10.128.0.11:8080"), there("10.128.1.21:9090"), there("10.128.2.31:8080"))),
		Packets: []Expectation{
			pod.to("172.20.0.13:80").reaches("10.128.0.11:8080", "10.128.1.21:9090", "10.128.2.31:8080"),
			theNode.to("172.20.0.13:80").hidden("10.128.0.11:8080", "10.128.1.21:9090", "10.128.2.31:8080"),
			remotePod.to("172.20.0.13:80").reaches("10.128.0.11:8080", "10.128.1.21:9090", "10.128.2.31:8080"),
			podAt("10.128.0.11").to("172.20.0.13:80").reaches("10.128.0.11:8080", "10.128.1.21:9090", "10.128.2.31:8080"),
		},
	}, {
		Name: "internal-without-service-ranges",
		Doc:  "Without service ranges, addresses that no service owns are left alone.",
		State: stateOf(nodeWith(func(n *model.Node) { n.ServiceRanges = nil }),
			service("default/web:http", model.Service{Frontends: at(internal("172.20.0.10:80"))}, here("10.128.0.11:8080"))),
		Packets: []Expectation{
			pod.to("172.20.0.10:80").reaches("10.128.0.11:8080"),
			pod.to("172.20.0.10:81").refused().unless(DiffOtherPorts),
			pod.to("172.20.0.250:80").untouched(),
			theNode.to("172.20.0.250:80").untouched(),
		},
	}, {
		Name: "internal-many-endpoints",
		Doc:  "Twenty endpoints: more than fit a flat list in some backends.",
		State: stateOf(StageNode(),
			service("default/wide:http", model.Service{Frontends: at(internal("172.20.0.14:80"))}, twenty()...)),
		Packets: []Expectation{
			pod.to("172.20.0.14:80").reaches(texts(twenty())...),
			outside.to("172.20.0.14:80").hidden(texts(twenty())...),
		},
	}}
}

// twenty returns twenty endpoints: ten ports on each of two pods.
func twenty() []model.Endpoint {
	var eps []model.Endpoint
	for port := uint16(8001); port <= 8010; port++ {
		eps = append(eps,
			model.Endpoint{Addr: netip.AddrPortFrom(addr("10.128.0.11"), port), Local: true},
			model.Endpoint{Addr: netip.AddrPortFrom(addr("10.128.1.21"), port)})
	}
	return eps
}

func texts(eps []model.Endpoint) []string {
	out := make([]string, len(eps))
	for i, e := range eps {
		out[i] = e.Addr.String()
	}
	return out
}

func familyScenarios() []Scenario {
	return []Scenario{{
		Name: "three-protocols",
		Doc:  "TCP, UDP and SCTP on one address and port are three frontends of three services.",
		State: stateOf(StageNode(),
			service("kube-system/dns:tcp", model.Service{Frontends: at(internal("172.20.0.12:53"))}, here("10.128.0.11:2053"), there("10.128.1.21:2053")),
			service("kube-system/dns:udp", model.Service{Protocol: model.UDP, Frontends: at(internal("172.20.0.12:53"))}, here("10.128.0.11:1053"), there("10.128.1.21:1053")),
			service("kube-system/dns:sctp", model.Service{Protocol: model.SCTP, Frontends: at(internal("172.20.0.12:53"))}, here("10.128.0.11:3053"))),
		Packets: []Expectation{
			pod.to("172.20.0.12:53").reaches("10.128.0.11:2053", "10.128.1.21:2053"),
			pod.over(model.UDP, "172.20.0.12:53").reaches("10.128.0.11:1053", "10.128.1.21:1053"),
			theNode.over(model.UDP, "172.20.0.12:53").hidden("10.128.0.11:1053", "10.128.1.21:1053"),
			outside.over(model.UDP, "172.20.0.12:53").hidden("10.128.0.11:1053", "10.128.1.21:1053"),
			podAt("10.128.0.11").over(model.UDP, "172.20.0.12:53").reaches("10.128.0.11:1053", "10.128.1.21:1053"),
			pod.over(model.SCTP, "172.20.0.12:53").reaches("10.128.0.11:3053"),
			outside.over(model.SCTP, "172.20.0.12:53").hidden("10.128.0.11:3053"),
			pod.over(model.UDP, "172.20.0.12:54").refused().unless(DiffOtherPorts),
			pod.over(model.SCTP, "172.20.0.12:54").refused().unless(DiffOtherPorts),
		},
	}, {
		Name: "ipv6-only",
		Doc:  "A service with IPv6 frontends and endpoints alone: internal, external and node port.",
		State: stateOf(StageNode(),
			service("default/six:http", model.Service{Frontends: at(internal("[fd20:96::10]:80"), external("[2001:db8:c::10]:80"),
				model.Frontend{Kind: model.NodePort, Addr: ap("[::]:30006")})},
				here("[fd10:128:0:a::11]:8080"), there("[fd10:128:0:b::21]:8080"))),
		Packets: []Expectation{
			pod.to("[fd20:96::10]:80").reaches("[fd10:128:0:a::11]:8080", "[fd10:128:0:b::21]:8080"),
			remotePod.to("[fd20:96::10]:80").reaches("[fd10:128:0:a::11]:8080", "[fd10:128:0:b::21]:8080"),
			theNode.to("[fd20:96::10]:80").hidden("[fd10:128:0:a::11]:8080", "[fd10:128:0:b::21]:8080"),
			outside.to("[fd20:96::10]:80").hidden("[fd10:128:0:a::11]:8080", "[fd10:128:0:b::21]:8080"),
			podAt("fd10:128:0:a::11").to("[fd20:96::10]:80").reaches("[fd10:128:0:a::11]:8080", "[fd10:128:0:b::21]:8080"),
			outside.to("[2001:db8:c::10]:80").hidden("[fd10:128:0:a::11]:8080", "[fd10:128:0:b::21]:8080"),
			pod.to("[2001:db8:c::10]:80").hidden("[fd10:128:0:a::11]:8080", "[fd10:128:0:b::21]:8080"),
			outside.to("[2001:db8:a::10]:30006").hidden("[fd10:128:0:a::11]:8080", "[fd10:128:0:b::21]:8080"),
			outside.to("[2001:db8:b::10]:30006").hidden("[fd10:128:0:a::11]:8080", "[fd10:128:0:b::21]:8080"),
			outside.to("198.51.100.10:30006").untouched(),
			pod.to("[fd20:96::10]:81").refused().unless(DiffOtherPorts),
			pod.pings("fd20:96::10").refused().unless(DiffOtherPorts),
			pod.to("[fd20:96::fa]:80").dropped().unless(DiffServiceRanges),
		},
	}, {
		Name: "dual-stack",
		Doc:  "One service of both families: each frontend uses the endpoints of its own family.",
		State: stateOf(StageNode(),
			service("default/both:http", model.Service{Frontends: at(internal("172.20.2.1:80"), internal("[fd20:96::21]:80"),
				external("192.0.2.10:80"), external("[2001:db8:c::10]:80"), nodePort(30201))},
				here("10.128.0.11:8080"), there("10.128.1.21:8080"), here("[fd10:128:0:a::11]:8080"), there("[fd10:128:0:b::21]:8080"))),
		Packets: []Expectation{
			pod.to("172.20.2.1:80").reaches("10.128.0.11:8080", "10.128.1.21:8080"),
			pod.to("[fd20:96::21]:80").reaches("[fd10:128:0:a::11]:8080", "[fd10:128:0:b::21]:8080"),
			outside.to("192.0.2.10:80").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			outside.to("[2001:db8:c::10]:80").hidden("[fd10:128:0:a::11]:8080", "[fd10:128:0:b::21]:8080"),
			outside.to("198.51.100.10:30201").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			outside.to("[2001:db8:a::10]:30201").hidden("[fd10:128:0:a::11]:8080", "[fd10:128:0:b::21]:8080"),
		},
	}, {
		Name: "dual-stack-endpoints-of-one-family",
		Doc:  "A service of both families whose endpoints are IPv6 alone: the IPv4 frontends refuse.",
		State: stateOf(StageNode(),
			service("default/half:http", model.Service{Frontends: at(internal("172.20.2.2:80"), internal("[fd20:96::22]:80"), nodePort(30202))},
				here("[fd10:128:0:a::11]:8080"))),
		Packets: []Expectation{
			pod.to("172.20.2.2:80").refused(),
			outside.to("198.51.100.10:30202").refused(),
			pod.to("[fd20:96::22]:80").reaches("[fd10:128:0:a::11]:8080"),
			outside.to("[2001:db8:a::10]:30202").hidden("[fd10:128:0:a::11]:8080"),
		},
	}}
}

func externalScenarios() []Scenario {
	return []Scenario{{
		Name: "external-cluster",
		Doc: "External frontends with policy Cluster, on other ports than the internal one, at an address that nobody has " +
			"and at one that the node has. Their other ports are left alone.",
		State: stateOf(StageNode(),
			service("default/x:http", model.Service{Frontends: at(internal("172.20.0.40:80"), external("192.0.2.130:8081"), external("192.0.2.77:8082"))},
				here("10.128.0.11:8080"), there("10.128.1.21:8080"))),
		Packets: []Expectation{
			outside.to("192.0.2.130:8081").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			pod.to("192.0.2.130:8081").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			remotePod.to("192.0.2.130:8081").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			theNode.to("192.0.2.130:8081").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			outside.to("192.0.2.77:8082").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			pod.to("192.0.2.77:8082").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			theNode.to("192.0.2.77:8082").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			pod.to("172.20.0.40:80").reaches("10.128.0.11:8080", "10.128.1.21:8080"),
			pod.to("172.20.0.40:8081").refused().unless(DiffOtherPorts),
			outside.to("192.0.2.130:80").untouched().unless(DiffExternalOtherPorts),
			outside.over(model.UDP, "192.0.2.130:8081").untouched().unless(DiffExternalOtherPorts),
			outside.to("192.0.2.77:80").untouched(),
		},
	}, {
		Name: "external-shared-address",
		Doc:  "One external address, two services on two ports and a third with another protocol: nobody's port is left alone.",
		State: stateOf(StageNode(),
			service("default/a:http", model.Service{Frontends: at(external("192.0.2.130:80"))}, here("10.128.0.11:8080")),
			service("default/b:http", model.Service{Frontends: at(external("192.0.2.130:81"))}, here("10.128.0.12:8081")),
			service("default/c:dns", model.Service{Protocol: model.UDP, Frontends: at(external("192.0.2.130:80"))}, there("10.128.1.21:1053"))),
		Packets: []Expectation{
			outside.to("192.0.2.130:80").hidden("10.128.0.11:8080"),
			outside.to("192.0.2.130:81").hidden("10.128.0.12:8081"),
			outside.over(model.UDP, "192.0.2.130:80").hidden("10.128.1.21:1053"),
			outside.to("192.0.2.130:82").untouched().unless(DiffExternalOtherPorts),
			outside.over(model.UDP, "192.0.2.130:81").untouched().unless(DiffExternalOtherPorts),
			outside.over(model.SCTP, "192.0.2.130:80").untouched().unless(DiffExternalOtherPorts),
		},
	}}
}
