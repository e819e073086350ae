package modeltest

import "github.com/headgate/headgate/model"

// Who may come in, and which source address an endpoint sees.

func rangeScenarios() []Scenario {
	ep := here("10.128.0.11:8080")
	six := here("[fd10:128:0:a::11]:8080")
	return []Scenario{{
		Name: "ranges",
		Doc: "Source ranges on one external frontend: others are dropped there, pods and the node included, while the " +
			"service's other frontends and other services on the same address are open.",
		State: stateOf(StageNode(),
			service("default/lbr:http", model.Service{Frontends: at(internal("172.20.0.51:80"), external("192.0.2.10:80", "203.0.113.0/25"),
				external("192.0.2.11:80"), nodePort(30051))}, ep),
			service("default/open:http", model.Service{Frontends: at(external("192.0.2.10:81"))}, here("10.128.0.12:8080"))),
		Packets: []Expectation{
			outside.to("192.0.2.10:80").hidden("10.128.0.11:8080"),
			otherOutside.to("192.0.2.10:80").dropped(),
			pod.to("192.0.2.10:80").dropped(),
			remotePod.to("192.0.2.10:80").dropped(),
			theNode.to("192.0.2.10:80").dropped(),
			otherOutside.to("192.0.2.11:80").hidden("10.128.0.11:8080"),
			otherOutside.to("198.51.100.10:30051").hidden("10.128.0.11:8080"),
			otherOutside.to("172.20.0.51:80").hidden("10.128.0.11:8080"),
			otherOutside.to("192.0.2.10:81").hidden("10.128.0.12:8080"),
		},
	}, {
		Name: "ranges-with-node",
		Doc: "Ranges that hold the node's primary address: the node may come in, and so may what an external address of the " +
			"service sends to itself or to another one of them.",
		State: stateOf(StageNode(),
			service("default/lbr:http", model.Service{Frontends: at(internal("172.20.0.51:80"), external("192.0.2.10:80", "198.51.100.0/24", "203.0.113.0/25"),
				external("192.0.2.11:80", "198.51.100.0/24", "203.0.113.0/25"))}, ep)),
		Packets: []Expectation{
			theNode.to("192.0.2.10:80").hidden("10.128.0.11:8080"),
			outside.to("192.0.2.11:80").hidden("10.128.0.11:8080"),
			otherOutside.to("192.0.2.11:80").dropped(),
			vipAt("192.0.2.10").to("192.0.2.10:80").hidden("10.128.0.11:8080").unless(DiffLoopedVIP),
			vipAt("192.0.2.11").to("192.0.2.10:80").hidden("10.128.0.11:8080").unless(DiffLoopedVIP),
		},
	}, {
		Name: "ranges-for-pods",
		Doc:  "Ranges that hold pods but no outside client.",
		State: stateOf(StageNode(),
			service("default/lbr:http", model.Service{Frontends: at(external("192.0.2.10:80", "10.128.0.0/14"))}, ep)),
		Packets: []Expectation{
			pod.to("192.0.2.10:80").hidden("10.128.0.11:8080"),
			remotePod.to("192.0.2.10:80").hidden("10.128.0.11:8080"),
			outside.to("192.0.2.10:80").dropped(),
			theNode.to("192.0.2.10:80").dropped(),
		},
	}, {
		Name: "ranges-both-families",
		Doc:  "Ranges of both families on frontends of both: each counts its own.",
		State: stateOf(StageNode(),
			service("default/lbr:http", model.Service{Frontends: at(external("192.0.2.10:80", "203.0.113.0/25", "2001:db8:e::/64"),
				external("[2001:db8:c::10]:80", "203.0.113.0/25", "2001:db8:e::/64"))}, ep, six)),
		Packets: []Expectation{
			outside.to("192.0.2.10:80").hidden("10.128.0.11:8080"),
			otherOutside.to("192.0.2.10:80").dropped(),
			outside.to("[2001:db8:c::10]:80").hidden("[fd10:128:0:a::11]:8080"),
			otherOutside.to("[2001:db8:c::10]:80").dropped(),
		},
	}, {
		Name: "ranges-other-family-only",
		Doc:  "Ranges of the other family alone: nobody may come in.",
		State: stateOf(StageNode(),
			service("default/lbr:http", model.Service{Frontends: at(internal("172.20.0.51:80"), external("192.0.2.10:80", "2001:db8:e::/64"),
				external("[2001:db8:c::10]:80", "203.0.113.0/24"))}, ep, six)),
		Packets: []Expectation{
			outside.to("192.0.2.10:80").dropped(),
			pod.to("192.0.2.10:80").dropped(),
			theNode.to("192.0.2.10:80").dropped(),
			outside.to("[2001:db8:c::10]:80").dropped(),
			pod.to("172.20.0.51:80").reaches("10.128.0.11:8080"),
		},
	}, {
		Name: "ranges-everybody",
		Doc:  "A prefix of length 0 means everybody of its family; the other family has none then, and nobody comes in.",
		State: stateOf(StageNode(),
			service("default/lbr:http", model.Service{Frontends: at(external("192.0.2.10:80", "0.0.0.0/0", "203.0.113.0/25"),
				external("[2001:db8:c::10]:80", "0.0.0.0/0"), external("[2001:db8:c::11]:80", "::/0"))}, ep, six)),
		Packets: []Expectation{
			outside.to("192.0.2.10:80").hidden("10.128.0.11:8080"),
			otherOutside.to("192.0.2.10:80").hidden("10.128.0.11:8080"),
			outside.to("[2001:db8:c::10]:80").dropped(),
			otherOutside.to("[2001:db8:c::11]:80").hidden("[fd10:128:0:a::11]:8080"),
		},
	}, {
		Name: "ranges-overlapping",
		Doc:  "Nested, overlapping, adjacent and repeated ranges, with host bits, up to the top of both address spaces.",
		State: stateOf(StageNode(),
			service("default/lbr:http", model.Service{Frontends: at(
				external("192.0.2.10:80", "203.0.113.0/25", "203.0.113.0/26", "203.0.113.5/32", "203.0.113.7/25", "203.0.113.0/25",
					"10.128.0.0/15", "10.130.0.0/15", "240.0.0.0/4", "255.255.255.255/32", "128.0.0.0/32"),
				external("[2001:db8:c::10]:80", "2001:db8:e::/64", "2001:db8:e::5/128", "ff00::/8", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"))},
				ep, six)),
		Packets: []Expectation{
			outside.to("192.0.2.10:80").hidden("10.128.0.11:8080"),
			pod.to("192.0.2.10:80").hidden("10.128.0.11:8080"),
			otherOutside.to("192.0.2.10:80").dropped(),
			outside.to("[2001:db8:c::10]:80").hidden("[fd10:128:0:a::11]:8080"),
			otherOutside.to("[2001:db8:c::10]:80").dropped(),
		},
	}, {
		Name: "ranges-without-endpoints",
		Doc:  "Ranges and no endpoint: those outside the ranges are dropped, those inside refused.",
		State: stateOf(StageNode(),
			service("default/lbr:http", model.Service{Frontends: at(external("192.0.2.10:80", "203.0.113.0/25"))})),
		Packets: []Expectation{
			outside.to("192.0.2.10:80").refused(),
			otherOutside.to("192.0.2.10:80").dropped(),
		},
	}, {
		Name: "ranges-everywhere",
		Doc:  "Ranges on an internal frontend and on a node port count there like anywhere else.",
		State: stateOf(StageNode(),
			service("default/lbr:http", model.Service{Frontends: at(internal("172.20.0.51:80", "10.128.0.0/24"), nodePort(30051, "203.0.113.0/25"))}, ep)),
		Packets: []Expectation{
			pod.to("172.20.0.51:80").reaches("10.128.0.11:8080"),
			remotePod.to("172.20.0.51:80").dropped(),
			theNode.to("172.20.0.51:80").dropped(),
			outside.to("172.20.0.51:80").dropped(),
			outside.to("198.51.100.10:30051").hidden("10.128.0.11:8080"),
			otherOutside.to("198.51.100.10:30051").dropped(),
			otherOutside.to("198.51.101.10:30051").dropped(),
			pod.to("198.51.100.10:30051").dropped(),
		},
	}, {
		Name: "ranges-external-local",
		Doc:  "Ranges and policy Local: the ranges are checked against the client's own address, which the endpoint sees.",
		State: stateOf(StageNode(),
			service("default/lbr:http", model.Service{ExternalTraffic: model.Local, Frontends: at(external("192.0.2.10:80", "203.0.113.0/25", "10.128.1.0/24"))},
				ep, there("10.128.1.21:8080"))),
		Packets: []Expectation{
			outside.to("192.0.2.10:80").reaches("10.128.0.11:8080"),
			otherOutside.to("192.0.2.10:80").dropped(),
			pod.to("192.0.2.10:80").dropped(),
			theNode.to("192.0.2.10:80").dropped(),
			remotePod.to("192.0.2.10:80").reaches("10.128.0.11:8080", "10.128.1.21:8080").unless(DiffLocalShortCut),
		},
	}}
}

func masqueradeScenarios() []Scenario {
	matrix := func(change func(*model.Node)) model.State {
		return stateOf(nodeWith(change),
			service("default/m1:http", model.Service{Frontends: at(internal("172.20.1.1:80"), external("192.0.2.10:80"), nodePort(31001))},
				here("10.128.0.41:8080"), there("10.128.1.41:8080")),
			service("default/m2:http", model.Service{ExternalTraffic: model.Local, Frontends: at(internal("172.20.1.2:80"), external("192.0.2.11:80"), nodePort(31002))},
				here("10.128.0.42:8080"), there("10.128.1.42:8080")))
	}
	m1, m2, local2 := []string{"10.128.0.41:8080", "10.128.1.41:8080"}, []string{"10.128.0.42:8080", "10.128.1.42:8080"}, "10.128.0.42:8080"
	return []Scenario{{
		Name:  "masquerade",
		Doc:   "Who is masqueraded by default: by kind of frontend, policy and source.",
		State: matrix(func(*model.Node) {}),
		Packets: []Expectation{
			pod.to("172.20.1.1:80").reaches(m1...),
			remotePod.to("172.20.1.1:80").reaches(m1...),
			theNode.to("172.20.1.1:80").hidden(m1...),
			outside.to("172.20.1.1:80").hidden(m1...),
			pod.to("192.0.2.10:80").hidden(m1...),
			theNode.to("192.0.2.10:80").hidden(m1...),
			outside.to("192.0.2.10:80").hidden(m1...),
			pod.to("198.51.100.10:31001").hidden(m1...),
			outside.to("198.51.100.10:31001").hidden(m1...),
			pod.to("172.20.1.2:80").reaches(m2...),
			theNode.to("172.20.1.2:80").hidden(m2...),
			pod.to("192.0.2.11:80").reaches(m2...).unless(DiffLocalShortCut),
			theNode.to("192.0.2.11:80").hidden(m2...).unless(DiffLocalShortCut),
			outside.to("192.0.2.11:80").reaches(local2),
			outside.to("198.51.100.10:31002").reaches(local2),
		},
	}, {
		Name:  "masquerade-all",
		Doc:   "Everybody is masqueraded, except where policy Local keeps the client's address.",
		State: matrix(func(n *model.Node) { n.MasqueradeAll = true }),
		Packets: []Expectation{
			pod.to("172.20.1.1:80").hidden(m1...),
			remotePod.to("172.20.1.1:80").hidden(m1...),
			theNode.to("172.20.1.1:80").hidden(m1...),
			outside.to("172.20.1.1:80").hidden(m1...),
			pod.to("192.0.2.10:80").hidden(m1...),
			pod.to("172.20.1.2:80").hidden(m2...),
			pod.to("192.0.2.11:80").reaches(m2...).unless(DiffLocalShortCut),
			theNode.to("192.0.2.11:80").hidden(m2...).unless(DiffLocalShortCut),
			outside.to("192.0.2.11:80").reaches(local2),
			outside.to("198.51.100.10:31002").reaches(local2),
		},
	}, {
		Name: "masquerade-without-detector",
		Doc: "Where pods are not recognised, internal frontends masquerade nobody but an endpoint that reaches itself; " +
			"external ones everybody.",
		State: matrix(func(n *model.Node) { n.Detector = model.LocalDetector{} }),
		Packets: []Expectation{
			pod.to("172.20.1.1:80").reaches(m1...),
			remotePod.to("172.20.1.1:80").reaches(m1...),
			outside.to("172.20.1.1:80").reaches(m1...),
			podAt("10.128.0.41").to("172.20.1.1:80").reaches(m1...),
			vipAt("172.20.1.1").to("172.20.1.1:80").hidden(m1...).unless(DiffLoopedVIP),
			pod.to("192.0.2.10:80").hidden(m1...),
			outside.to("198.51.100.10:31001").hidden(m1...),
			outside.to("192.0.2.11:80").reaches(local2),
			pod.to("192.0.2.11:80").reaches(local2),
		},
	}, {
		Name:  "masquerade-detector-of-one-family",
		Doc:   "A detector of IPv4 alone: in IPv6 nobody is recognised and nobody masqueraded at internal frontends.",
		State: oneFamilyDetector(),
		Packets: []Expectation{
			pod.to("172.20.1.3:80").reaches("10.128.0.43:8080"),
			outside.to("172.20.1.3:80").hidden("10.128.0.43:8080"),
			pod.to("[fd20:96::103]:80").reaches("[fd10:128:0:a::11]:8080"),
			outside.to("[fd20:96::103]:80").reaches("[fd10:128:0:a::11]:8080"),
		},
	}, {
		Name:  "masquerade-by-interface",
		Doc:   "Pods recognised by the interface that they come in on: the same addresses over the wire are outside.",
		State: matrix(func(n *model.Node) { n.Detector = model.LocalDetector{Interfaces: []string{"veth-"}} }),
		Packets: []Expectation{
			pod.to("172.20.1.1:80").reaches(m1...),
			remotePod.to("172.20.1.1:80").hidden(m1...),
			theNode.to("172.20.1.1:80").hidden(m1...),
			outside.to("172.20.1.1:80").hidden(m1...),
			pod.to("192.0.2.11:80").reaches(m2...).unless(DiffLocalShortCut),
			pod.to("198.51.100.10:31002").reaches(m2...).unless(DiffLocalShortCut),
			remotePod.to("198.51.100.10:31002").reaches(local2),
			outside.to("192.0.2.11:80").reaches(local2),
		},
	}, {
		Name: "keep-client-address",
		Doc: "KeepClientAddress: at external frontends and node ports with policy Cluster, endpoints on this node see the " +
			"client, those elsewhere an address of the node.",
		State: stateOf(nodeWith(func(n *model.Node) { n.KeepClientAddress = true }),
			service("default/keep:http", model.Service{Frontends: at(internal("172.20.1.4:80"), external("192.0.2.12:80"), nodePort(31004))}, here("10.128.0.41:8080")),
			service("default/hide:http", model.Service{Frontends: at(internal("172.20.1.5:80"), external("192.0.2.12:81"), nodePort(31005))}, there("10.128.1.41:8080"))),
		Packets: []Expectation{
			outside.to("192.0.2.12:80").reaches("10.128.0.41:8080"),
			outside.to("198.51.100.10:31004").reaches("10.128.0.41:8080"),
			pod.to("192.0.2.12:80").reaches("10.128.0.41:8080"),
			podAt("10.128.0.41").to("192.0.2.12:80").hidden("10.128.0.41:8080"),
			theNode.to("192.0.2.12:80").reaches("10.128.0.41:8080"),
			outside.to("172.20.1.4:80").hidden("10.128.0.41:8080"),
			outside.to("192.0.2.12:81").hidden("10.128.1.41:8080"),
			outside.to("198.51.100.10:31005").hidden("10.128.1.41:8080"),
			pod.to("192.0.2.12:81").hidden("10.128.1.41:8080"),
		},
	}}
}

func oneFamilyDetector() model.State {
	n := nodeWith(func(n *model.Node) { n.Detector.Prefixes = prefixes("10.128.0.0/14") })
	return stateOf(n, service("default/m3:http", model.Service{Frontends: at(internal("172.20.1.3:80"), internal("[fd20:96::103]:80"))},
		here("10.128.0.43:8080"), here("[fd10:128:0:a::11]:8080")))
}
