package modeltest

import "github.com/headgate/headgate/model"

// Node ports: on which addresses, and what else may claim the same address and port.

func nodePortScenarios() []Scenario {
	one := func(port uint16, eps ...model.Endpoint) part {
		return service("default/np:http", model.Service{Frontends: at(internal("172.20.0.30:80"), nodePort(port))}, eps...)
	}
	e1, e2 := here("10.128.0.11:8080"), there("10.128.1.21:8080")
	scope := func(s model.NodePortScope) model.Node {
		return nodeWith(func(n *model.Node) { n.NodePorts = s })
	}
	return []Scenario{{
		Name:  "node-port-everywhere",
		Doc:   "By default a node port answers on every address of the node but loopback, and on no other.",
		State: stateOf(StageNode(), one(30080, e1, e2)),
		Packets: []Expectation{
			outside.to("198.51.100.10:30080").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			outside.to("198.51.101.10:30080").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			outside.to("192.0.2.77:30080").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			pod.to("198.51.100.10:30080").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			remotePod.to("198.51.100.10:30080").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			theNode.to("198.51.100.10:30080").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			theNode.to("198.51.101.10:30080").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			podAt("10.128.0.11").to("198.51.100.10:30080").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			pod.to("198.51.100.20:30080").untouched(),
			loopback.to("127.0.0.1:30080").untouched(),
			outside.to("198.51.100.10:80").untouched(),
			outside.over(model.UDP, "198.51.100.10:30080").untouched(),
			outside.to("[2001:db8:a::10]:30080").refused(),
			loopback.to("[::1]:30080").untouched(),
			pod.to("172.20.0.30:30080").refused().unless(DiffOtherPorts),
		},
	}, {
		Name:  "node-port-primary",
		Doc:   "Node ports on the node's primary addresses alone.",
		State: stateOf(scope(model.NodePortScope{Primary: true}), one(30080, e1, here("[fd10:128:0:a::11]:8080"))),
		Packets: []Expectation{
			outside.to("198.51.100.10:30080").hidden("10.128.0.11:8080"),
			outside.to("[2001:db8:a::10]:30080").hidden("[fd10:128:0:a::11]:8080"),
			theNode.to("198.51.100.10:30080").hidden("10.128.0.11:8080"),
			outside.to("198.51.101.10:30080").untouched(),
			outside.to("192.0.2.77:30080").untouched(),
			outside.to("[2001:db8:b::10]:30080").untouched(),
			pod.to("198.51.101.10:30080").untouched(),
		},
	}, {
		Name: "node-port-prefixes",
		Doc:  "Node ports on the node's addresses in given prefixes; addresses in them that are not the node's are left alone.",
		State: stateOf(scope(model.NodePortScope{Prefixes: prefixes("198.51.100.0/24", "198.51.101.0/24", "2001:db8:a::/64")}),
			one(30080, e1, here("[fd10:128:0:a::11]:8080"))),
		Packets: []Expectation{
			outside.to("198.51.100.10:30080").hidden("10.128.0.11:8080"),
			outside.to("198.51.101.10:30080").hidden("10.128.0.11:8080"),
			outside.to("192.0.2.77:30080").untouched(),
			pod.to("198.51.100.20:30080").untouched(),
			outside.to("[2001:db8:a::10]:30080").hidden("[fd10:128:0:a::11]:8080"),
			outside.to("[2001:db8:b::10]:30080").untouched(),
		},
	}, {
		Name: "node-port-one-family-limited",
		Doc:  "Prefixes of one family do not limit the other.",
		State: stateOf(scope(model.NodePortScope{Prefixes: prefixes("198.51.101.0/24")}),
			one(30080, e1, here("[fd10:128:0:a::11]:8080"))),
		Packets: []Expectation{
			outside.to("198.51.101.10:30080").hidden("10.128.0.11:8080"),
			outside.to("198.51.100.10:30080").untouched(),
			outside.to("[2001:db8:a::10]:30080").hidden("[fd10:128:0:a::11]:8080"),
			outside.to("[2001:db8:b::10]:30080").hidden("[fd10:128:0:a::11]:8080"),
		},
	}, {
		Name: "node-port-primary-and-prefixes",
		Doc:  "The primary addresses and a prefix, one on top of the other; the prefix of length 0 opens its whole family.",
		State: stateOf(scope(model.NodePortScope{Primary: true, Prefixes: prefixes("192.0.2.77/32", "::/0")}),
			one(30080, e1, here("[fd10:128:0:a::11]:8080"))),
		Packets: []Expectation{
			outside.to("198.51.100.10:30080").hidden("10.128.0.11:8080"),
			outside.to("192.0.2.77:30080").hidden("10.128.0.11:8080"),
			outside.to("198.51.101.10:30080").untouched(),
			outside.to("[2001:db8:b::10]:30080").hidden("[fd10:128:0:a::11]:8080"),
		},
	}, {
		Name: "node-port-loopback",
		Doc: "Node ports on IPv4 loopback, for processes of the node alone, beside the primary addresses. The backend's " +
			"configuration must let it set route_localnet.",
		State: stateOf(scope(model.NodePortScope{Primary: true, Loopback: true}),
			one(30080, e1, e2, here("[fd10:128:0:a::11]:8080")),
			service("default/dns:udp", model.Service{Protocol: model.UDP, Frontends: at(nodePort(30053))}, here("10.128.0.11:1053"))),
		Packets: []Expectation{
			loopback.to("127.0.0.1:30080").hidden("10.128.0.11:8080", "10.128.1.21:8080").unless(DiffLoopback),
			loopback.over(model.UDP, "127.0.0.1:30053").hidden("10.128.0.11:1053").unless(DiffLoopback),
			loopback.to("127.0.0.2:30080").hidden("10.128.0.11:8080", "10.128.1.21:8080").unless(DiffLoopback),
			loopback.to("127.0.0.1:30081").untouched(),
			loopback.to("[::1]:30080").untouched(),
			outside.to("127.0.0.1:30080").dropped(),
			outside.to("198.51.100.10:30080").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			outside.to("198.51.101.10:30080").untouched(),
		},
	}, {
		Name: "node-port-two-protocols",
		Doc:  "The same number for TCP, UDP and SCTP belongs to different services.",
		State: stateOf(StageNode(),
			service("default/t:http", model.Service{Frontends: at(nodePort(30090))}, here("10.128.0.11:8080")),
			service("default/u:dns", model.Service{Protocol: model.UDP, Frontends: at(nodePort(30090))}, here("10.128.0.12:1053")),
			service("default/v:sctp", model.Service{Protocol: model.SCTP, Frontends: at(nodePort(30090))}, there("10.128.1.21:3053"))),
		Packets: []Expectation{
			outside.to("198.51.100.10:30090").hidden("10.128.0.11:8080"),
			outside.over(model.UDP, "198.51.100.10:30090").hidden("10.128.0.12:1053"),
			outside.over(model.SCTP, "198.51.100.10:30090").hidden("10.128.1.21:3053"),
		},
	}, {
		Name: "node-port-ipv4-only",
		Doc:  "A node port of one family leaves the number to another service in the other.",
		State: stateOf(StageNode(),
			service("default/four:http", model.Service{Frontends: at(model.Frontend{Kind: model.NodePort, Addr: ap("0.0.0.0:30004")})},
				here("10.128.0.11:8080"), here("[fd10:128:0:a::11]:8080")),
			service("default/six:http", model.Service{Frontends: at(model.Frontend{Kind: model.NodePort, Addr: ap("[::]:30004")})},
				there("10.128.1.21:8080"), there("[fd10:128:0:b::21]:8080"))),
		Packets: []Expectation{
			outside.to("198.51.100.10:30004").hidden("10.128.0.11:8080"),
			outside.to("[2001:db8:a::10]:30004").hidden("[fd10:128:0:b::21]:8080"),
		},
	}, {
		Name: "external-at-node-address",
		Doc: "An external frontend at one of the node's addresses, with a port that is another service's node port: it wins " +
			"there, and the node port has the other addresses.",
		State: stateOf(StageNode(),
			service("default/explicit:http", model.Service{Frontends: at(external("198.51.100.10:30080"))}, here("10.128.0.12:8081")),
			one(30080, e1)),
		Packets: []Expectation{
			outside.to("198.51.100.10:30080").hidden("10.128.0.12:8081"),
			theNode.to("198.51.100.10:30080").hidden("10.128.0.12:8081"),
			outside.to("198.51.101.10:30080").hidden("10.128.0.11:8080"),
			outside.to("192.0.2.77:30080").hidden("10.128.0.11:8080"),
		},
	}, {
		Name: "external-at-node-address-without-endpoints",
		Doc:  "The explicit frontend wins over the node port even though it can only refuse.",
		State: stateOf(StageNode(),
			service("default/explicit:http", model.Service{Frontends: at(external("198.51.100.10:30080"))}),
			one(30080, e1)),
		Packets: []Expectation{
			outside.to("198.51.100.10:30080").refused(),
			outside.to("198.51.101.10:30080").hidden("10.128.0.11:8080"),
		},
	}}
}

func sharedScenarios() []Scenario {
	return []Scenario{{
		Name: "shared-virtual-address",
		Doc:  "One internal address, two services on two ports.",
		State: stateOf(StageNode(),
			service("default/a:http", model.Service{Frontends: at(internal("172.20.0.15:80"))}, here("10.128.0.11:8080")),
			service("default/a:https", model.Service{Frontends: at(internal("172.20.0.15:443"))}, there("10.128.1.21:8443"))),
		Packets: []Expectation{
			pod.to("172.20.0.15:80").reaches("10.128.0.11:8080"),
			pod.to("172.20.0.15:443").reaches("10.128.1.21:8443"),
			pod.to("172.20.0.15:8080").refused().unless(DiffOtherPorts),
		},
	}, {
		Name: "shared-endpoint",
		Doc:  "Three services share one endpoint, on one port and on another; it reaches itself through each.",
		State: stateOf(StageNode(),
			service("default/a:http", model.Service{Frontends: at(internal("172.20.0.15:80"))}, here("10.128.0.11:8080")),
			service("default/b:http", model.Service{Frontends: at(internal("172.20.0.16:80"))}, here("10.128.0.11:8081"), there("10.128.1.21:8081")),
			service("default/c:http", model.Service{Frontends: at(external("192.0.2.10:80")), ExternalTraffic: model.Local}, here("10.128.0.11:8080"))),
		Packets: []Expectation{
			pod.to("172.20.0.15:80").reaches("10.128.0.11:8080"),
			pod.to("172.20.0.16:80").reaches("10.128.0.11:8081", "10.128.1.21:8081"),
			outside.to("192.0.2.10:80").reaches("10.128.0.11:8080"),
			podAt("10.128.0.11").to("172.20.0.15:80").hidden("10.128.0.11:8080"),
			podAt("10.128.0.11").to("192.0.2.10:80").hidden("10.128.0.11:8080"),
		},
	}, {
		Name: "hairpin",
		Doc:  "An endpoint reaches itself through every kind of frontend, with policy Local, where nothing else is masqueraded.",
		State: stateOf(StageNode(),
			service("default/hp:http", model.Service{ExternalTraffic: model.Local,
				Frontends: at(internal("172.20.0.20:80"), external("192.0.2.10:80"), nodePort(30020), internal("[fd20:96::20]:80"))},
				here("10.128.0.11:8080"), here("[fd10:128:0:a::11]:8080")),
			service("default/hp:udp", model.Service{Protocol: model.UDP, Frontends: at(internal("172.20.0.20:53"))}, here("10.128.0.11:1053"))),
		Packets: []Expectation{
			podAt("10.128.0.11").to("172.20.0.20:80").hidden("10.128.0.11:8080"),
			podAt("10.128.0.11").to("192.0.2.10:80").hidden("10.128.0.11:8080"),
			podAt("10.128.0.11").to("198.51.100.10:30020").hidden("10.128.0.11:8080"),
			podAt("10.128.0.11").over(model.UDP, "172.20.0.20:53").hidden("10.128.0.11:1053"),
			podAt("fd10:128:0:a::11").to("[fd20:96::20]:80").hidden("[fd10:128:0:a::11]:8080"),
			podAt("10.128.0.12").to("172.20.0.20:80").reaches("10.128.0.11:8080"),
			podAt("10.128.0.12").to("192.0.2.10:80").reaches("10.128.0.11:8080"),
			podAt("10.128.0.12").to("198.51.100.10:30020").reaches("10.128.0.11:8080"),
		},
	}, {
		Name: "host-network-endpoint",
		Doc: "An endpoint at the node's own address, and one at another node's. What comes in from elsewhere is delivered " +
			"here without being masqueraded, since it is not sent on; the node reaches itself.",
		State: stateOf(StageNode(),
			service("default/host:http", model.Service{Frontends: at(internal("172.20.0.21:80"), external("192.0.2.10:80"), nodePort(30021))},
				here("198.51.100.10:8080")),
			service("default/hosts:http", model.Service{Frontends: at(internal("172.20.0.22:80"))}, there("198.51.100.20:8080"))),
		Packets: []Expectation{
			pod.to("172.20.0.21:80").reaches("198.51.100.10:8080"),
			theNode.to("172.20.0.21:80").hidden("198.51.100.10:8080"),
			theNode.to("198.51.100.10:30021").hidden("198.51.100.10:8080"),
			theNode.to("192.0.2.10:80").hidden("198.51.100.10:8080"),
			outside.to("172.20.0.21:80").reaches("198.51.100.10:8080").unless(DiffMasqueradeLocal),
			outside.to("192.0.2.10:80").reaches("198.51.100.10:8080").unless(DiffMasqueradeLocal),
			outside.to("198.51.100.10:30021").reaches("198.51.100.10:8080").unless(DiffMasqueradeLocal),
			pod.to("172.20.0.22:80").reaches("198.51.100.20:8080"),
			theNode.to("172.20.0.22:80").hidden("198.51.100.20:8080"),
		},
	}}
}
