package modeltest

import "github.com/headgate/headgate/model"

// Which endpoints serve: their states, traffic policies, topology hints, and none at all.

func stateScenarios() []Scenario {
	one := func(eps ...model.Endpoint) model.State {
		return stateOf(StageNode(),
			service("default/s:http", model.Service{Frontends: at(internal("172.20.0.70:80"), nodePort(30070))}, eps...))
	}
	return []Scenario{{
		Name:  "draining-beside-ready",
		Doc:   "While one endpoint is Ready, those that are Draining or NotReady get no new connection.",
		State: one(here("10.128.0.11:8080"), draining(here("10.128.0.12:8080")), notReady(there("10.128.1.21:8080"))),
		Packets: []Expectation{
			pod.to("172.20.0.70:80").reaches("10.128.0.11:8080"),
			outside.to("198.51.100.10:30070").hidden("10.128.0.11:8080"),
		},
	}, {
		Name:  "draining-alone",
		Doc:   "Without a Ready endpoint the Draining ones serve, wherever they are; NotReady ones never do.",
		State: one(draining(here("10.128.0.11:8080")), draining(there("10.128.1.21:8080")), notReady(here("10.128.0.12:8080"))),
		Packets: []Expectation{
			pod.to("172.20.0.70:80").reaches("10.128.0.11:8080", "10.128.1.21:8080"),
			outside.to("198.51.100.10:30070").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
		},
	}, {
		Name:  "not-ready-alone",
		Doc:   "A service whose endpoints are all NotReady refuses.",
		State: one(notReady(here("10.128.0.11:8080")), notReady(there("10.128.1.21:8080"))),
		Packets: []Expectation{
			pod.to("172.20.0.70:80").refused(),
			theNode.to("172.20.0.70:80").refused(),
			outside.to("198.51.100.10:30070").refused(),
		},
	}}
}

func policyScenarios() []Scenario {
	mixed := []model.Endpoint{here("10.128.0.11:8080"), there("10.128.1.21:8080")}
	all := at(internal("172.20.0.60:80"), external("192.0.2.10:80"), nodePort(30060))
	svc := func(eps ...model.Endpoint) part {
		return service("default/el:http", model.Service{ExternalTraffic: model.Local, Frontends: all}, eps...)
	}
	il := func(eps ...model.Endpoint) part {
		return service("default/il:http", model.Service{InternalTraffic: model.Local, Frontends: all}, eps...)
	}
	return []Scenario{{
		Name: "internal-local",
		Doc:  "Internal policy Local: the internal frontend is served by this node's endpoints, the others by all.",
		State: stateOf(StageNode(),
			il(mixed...)),
		Packets: []Expectation{
			pod.to("172.20.0.60:80").reaches("10.128.0.11:8080"),
			theNode.to("172.20.0.60:80").hidden("10.128.0.11:8080"),
			outside.to("172.20.0.60:80").hidden("10.128.0.11:8080"),
			outside.to("192.0.2.10:80").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
			outside.to("198.51.100.10:30060").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
		},
	}, {
		Name:  "internal-local-none-here",
		Doc:   "Internal policy Local without an endpoint on this node: dropped, while the other frontends are served.",
		State: stateOf(StageNode(), il(there("10.128.1.21:8080"))),
		Packets: []Expectation{
			pod.to("172.20.0.60:80").dropped(),
			theNode.to("172.20.0.60:80").dropped(),
			outside.to("192.0.2.10:80").hidden("10.128.1.21:8080"),
			outside.to("198.51.100.10:30060").hidden("10.128.1.21:8080"),
		},
	}, {
		Name:  "internal-local-draining-here",
		Doc:   "Internal policy Local: a Draining endpoint here serves though Ready ones are elsewhere.",
		State: stateOf(StageNode(), il(draining(here("10.128.0.11:8080")), notReady(here("10.128.0.12:8080")), there("10.128.1.21:8080"))),
		Packets: []Expectation{
			pod.to("172.20.0.60:80").reaches("10.128.0.11:8080"),
			outside.to("192.0.2.10:80").hidden("10.128.1.21:8080"),
		},
	}, {
		Name: "external-local",
		Doc: "External policy Local: outside clients keep their address and reach this node's endpoints; pods and the node " +
			"itself take the short cut to all of them.",
		State: stateOf(StageNode(), svc(mixed...)),
		Packets: []Expectation{
			outside.to("192.0.2.10:80").reaches("10.128.0.11:8080"),
			outside.to("198.51.100.10:30060").reaches("10.128.0.11:8080"),
			pod.to("192.0.2.10:80").reaches("10.128.0.11:8080", "10.128.1.21:8080").unless(DiffLocalShortCut),
			pod.to("198.51.100.10:30060").reaches("10.128.0.11:8080", "10.128.1.21:8080").unless(DiffLocalShortCut),
			remotePod.to("192.0.2.10:80").reaches("10.128.0.11:8080", "10.128.1.21:8080").unless(DiffLocalShortCut),
			remotePod.to("198.51.100.10:30060").reaches("10.128.0.11:8080", "10.128.1.21:8080").unless(DiffLocalShortCut),
			theNode.to("192.0.2.10:80").hidden("10.128.0.11:8080", "10.128.1.21:8080").unless(DiffLocalShortCut),
			theNode.to("198.51.100.10:30060").hidden("10.128.0.11:8080", "10.128.1.21:8080").unless(DiffLocalShortCut),
			pod.to("172.20.0.60:80").reaches("10.128.0.11:8080", "10.128.1.21:8080"),
			outside.to("172.20.0.60:80").hidden("10.128.0.11:8080", "10.128.1.21:8080"),
		},
	}, {
		Name:  "external-local-none-here",
		Doc:   "External policy Local without an endpoint here: outside clients are dropped, pods and the node still served.",
		State: stateOf(StageNode(), svc(there("10.128.1.21:8080"))),
		Packets: []Expectation{
			outside.to("192.0.2.10:80").dropped(),
			outside.to("198.51.100.10:30060").dropped(),
			pod.to("192.0.2.10:80").reaches("10.128.1.21:8080").unless(DiffLocalShortCut),
			pod.to("198.51.100.10:30060").reaches("10.128.1.21:8080").unless(DiffLocalShortCut),
			theNode.to("192.0.2.10:80").hidden("10.128.1.21:8080").unless(DiffLocalShortCut),
			theNode.to("198.51.100.10:30060").hidden("10.128.1.21:8080").unless(DiffLocalShortCut),
			outside.to("172.20.0.60:80").hidden("10.128.1.21:8080"),
		},
	}, {
		Name: "external-local-draining-here",
		Doc:  "External policy Local: outside clients reach a Draining endpoint here, the short cut the Ready ones elsewhere.",
		State: stateOf(StageNode(),
			svc(draining(here("10.128.0.11:8080")), notReady(here("10.128.0.12:8080")), there("10.128.1.21:8080"))),
		Packets: []Expectation{
			outside.to("192.0.2.10:80").reaches("10.128.0.11:8080"),
			outside.to("198.51.100.10:30060").reaches("10.128.0.11:8080"),
			pod.to("192.0.2.10:80").reaches("10.128.1.21:8080").unless(DiffLocalShortCut),
			theNode.to("192.0.2.10:80").hidden("10.128.1.21:8080").unless(DiffLocalShortCut),
		},
	}, {
		Name:  "external-local-without-endpoints",
		Doc:   "External policy Local and no endpoint anywhere: refused for everybody.",
		State: stateOf(StageNode(), svc()),
		Packets: []Expectation{
			outside.to("192.0.2.10:80").refused(),
			outside.to("198.51.100.10:30060").refused(),
			pod.to("192.0.2.10:80").refused(),
			pod.to("198.51.100.10:30060").refused(),
			theNode.to("192.0.2.10:80").refused(),
			theNode.to("198.51.100.10:30060").refused(),
			pod.to("172.20.0.60:80").refused(),
		},
	}, {
		Name:  "external-local-without-detector",
		Doc:   "External policy Local where no pods are recognised: only the node itself takes the short cut.",
		State: stateOf(nodeWith(func(n *model.Node) { n.Detector = model.LocalDetector{} }), svc(mixed...)),
		Packets: []Expectation{
			outside.to("192.0.2.10:80").reaches("10.128.0.11:8080"),
			pod.to("192.0.2.10:80").reaches("10.128.0.11:8080"),
			remotePod.to("198.51.100.10:30060").reaches("10.128.0.11:8080"),
			theNode.to("192.0.2.10:80").hidden("10.128.0.11:8080", "10.128.1.21:8080").unless(DiffLocalShortCut),
		},
	}, {
		Name: "both-policies-local",
		Doc:  "Both policies Local, both families, with and without endpoints here.",
		State: stateOf(StageNode(),
			service("default/ll:http", model.Service{InternalTraffic: model.Local, ExternalTraffic: model.Local,
				Frontends: at(internal("172.20.0.61:80"), internal("[fd20:96::61]:80"), external("192.0.2.11:80"), external("[2001:db8:c::11]:80"), nodePort(30061))},
				here("10.128.0.11:8080"), there("10.128.1.21:8080"), there("[fd10:128:0:b::21]:8080"))),
		Packets: []Expectation{
			pod.to("172.20.0.61:80").reaches("10.128.0.11:8080"),
			outside.to("192.0.2.11:80").reaches("10.128.0.11:8080"),
			pod.to("[fd20:96::61]:80").dropped(),
			outside.to("[2001:db8:c::11]:80").dropped(),
			outside.to("[2001:db8:a::10]:30061").dropped(),
			pod.to("[2001:db8:c::11]:80").reaches("[fd10:128:0:b::21]:8080").unless(DiffLocalShortCut),
			theNode.to("[2001:db8:a::10]:30061").hidden("[fd10:128:0:b::21]:8080").unless(DiffLocalShortCut),
		},
	}}
}

func hintScenarios() []Scenario {
	z1, z2, z3 := "zone-1", "zone-2", "zone-3"
	a, b, c := here("10.128.0.11:8080"), there("10.128.1.21:8080"), there("10.128.2.31:8080")
	svc := func(eps ...model.Endpoint) part {
		return service("default/tp:http", model.Service{Frontends: at(internal("172.20.0.100:80"))}, eps...)
	}
	cast := func(name, doc string, node model.Node, eps []model.Endpoint, reached ...string) Scenario {
		return Scenario{Name: name, Doc: doc, State: stateOf(node, svc(eps...)),
			Packets: []Expectation{pod.to("172.20.0.100:80").reaches(reached...)}}
	}
	return []Scenario{
		cast("hints-zone", "Every Ready endpoint has zones and one names this node's: those that do.", StageNode(),
			[]model.Endpoint{forZones(a, z1), forZones(b, z2, z1), forZones(c, z3)}, "10.128.0.11:8080", "10.128.1.21:8080"),
		cast("hints-zone-missing", "One Ready endpoint without zones: all.", StageNode(),
			[]model.Endpoint{forZones(a, z1), forZones(b, z2), c}, "10.128.0.11:8080", "10.128.1.21:8080", "10.128.2.31:8080"),
		cast("hints-zone-not-ready-ignored", "Endpoints that are not Ready are not asked for their zones.", StageNode(),
			[]model.Endpoint{forZones(a, z1), forZones(b, z2), notReady(c)}, "10.128.0.11:8080"),
		cast("hints-zone-elsewhere", "No endpoint names this node's zone: all.", StageNode(),
			[]model.Endpoint{forZones(a, z2), forZones(b, z3)}, "10.128.0.11:8080", "10.128.1.21:8080"),
		cast("hints-zone-unknown", "The node does not know its zone: all.", nodeWith(func(n *model.Node) { n.Zone = "" }),
			[]model.Endpoint{forZones(a, z1), forZones(b, z2)}, "10.128.0.11:8080", "10.128.1.21:8080"),
		cast("hints-node", "Every Ready endpoint has nodes and one names this node: those that do, whatever the zones say.", StageNode(),
			[]model.Endpoint{forZones(forNodes(a, "node-b"), z1), forZones(forNodes(b, "node-a", "node-c"), z2)}, "10.128.1.21:8080"),
		cast("hints-node-elsewhere", "No endpoint names this node, but some name its zone: those.", StageNode(),
			[]model.Endpoint{forZones(forNodes(a, "node-b"), z1), forZones(forNodes(b, "node-c"), z2)}, "10.128.0.11:8080"),
		cast("hints-draining", "The Draining endpoints that stand in ignore hints.", StageNode(),
			[]model.Endpoint{draining(forZones(a, z1)), draining(forZones(b, z2))}, "10.128.0.11:8080", "10.128.1.21:8080"),
		{
			Name: "hints-and-local-policy",
			Doc:  "Policy Local ignores hints: outside clients reach every endpoint here, pods those that are hinted.",
			State: stateOf(StageNode(),
				service("default/tl:http", model.Service{ExternalTraffic: model.Local, Frontends: at(internal("172.20.0.101:80"), nodePort(30101))},
					forZones(here("10.128.0.11:8080"), z1), forZones(here("10.128.0.12:8080"), z2), forZones(there("10.128.1.21:8080"), z1))),
			Packets: []Expectation{
				pod.to("172.20.0.101:80").reaches("10.128.0.11:8080", "10.128.1.21:8080"),
				outside.to("198.51.100.10:30101").reaches("10.128.0.11:8080", "10.128.0.12:8080"),
				pod.to("198.51.100.10:30101").reaches("10.128.0.11:8080", "10.128.1.21:8080").unless(DiffLocalShortCut),
				podAt("10.128.0.12").to("198.51.100.10:30101").reaches("10.128.0.11:8080", "10.128.1.21:8080").unless(DiffLocalShortCut),
			},
		},
	}
}

func emptyScenarios() []Scenario {
	fronts := at(internal("172.20.0.90:80"), internal("[fd20:96::90]:80"), external("192.0.2.10:80"), external("[2001:db8:c::90]:80"), nodePort(30190))
	return []Scenario{{
		Name:  "no-services",
		Doc:   "Nothing to balance: what a backend writes in any case. Addresses in the service ranges are dropped.",
		State: stateOf(StageNode()),
		Packets: []Expectation{
			pod.to("172.20.0.90:80").dropped().unless(DiffServiceRanges),
			theNode.to("[fd20:96::90]:80").dropped().unless(DiffServiceRanges),
			outside.to("198.51.100.10:30190").untouched(),
			pod.to("10.128.1.21:8080").untouched(),
		},
	}, {
		Name: "no-endpoints",
		Doc: "Services without endpoints refuse on every frontend and protocol, from everywhere, the node included; the same " +
			"port at an address without node ports is left alone.",
		State: stateOf(nodeWith(func(n *model.Node) { n.NodePorts.Primary = true }),
			service("default/none:http", model.Service{Frontends: fronts}),
			service("default/none:dns", model.Service{Protocol: model.UDP, Frontends: at(internal("172.20.0.90:53"), external("192.0.2.10:53"), nodePort(30153))}),
			service("default/none:sctp", model.Service{Protocol: model.SCTP, Frontends: at(internal("172.20.0.90:9"))})),
		Packets: []Expectation{
			pod.to("172.20.0.90:80").refused(),
			remotePod.to("172.20.0.90:80").refused(),
			theNode.to("172.20.0.90:80").refused(),
			outside.to("172.20.0.90:80").refused(),
			pod.to("[fd20:96::90]:80").refused(),
			theNode.to("[fd20:96::90]:80").refused(),
			pod.over(model.UDP, "172.20.0.90:53").refused(),
			theNode.over(model.UDP, "172.20.0.90:53").refused(),
			pod.over(model.SCTP, "172.20.0.90:9").refused(),
			outside.to("192.0.2.10:80").refused(),
			pod.to("192.0.2.10:80").refused(),
			theNode.to("192.0.2.10:80").refused(),
			outside.over(model.UDP, "192.0.2.10:53").refused(),
			outside.to("[2001:db8:c::90]:80").refused(),
			outside.to("198.51.100.10:30190").refused(),
			pod.to("198.51.100.10:30190").refused(),
			theNode.to("198.51.100.10:30190").refused(),
			outside.to("[2001:db8:a::10]:30190").refused(),
			outside.over(model.UDP, "198.51.100.10:30153").refused(),
			outside.to("198.51.101.10:30190").untouched(),
			theNode.to("198.51.101.10:30190").untouched(),
			outside.to("198.51.100.10:80").untouched(),
		},
	}}
}
