package modeltest

import (
	"testing"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// All of the node may change while services stay.
var nodeChecks = []check{
	{"every-field", everyNodeField},
	{"address-comes-and-goes", addressComesAndGoes},
	{"address-comes-and-goes-untold", addressUntold},
	{"zero-node", zeroNode},
}

func everyNodeField(t *testing.T, h *harness) {
	parts := []part{
		web(forZones(epA, "zone-1"), forZones(epC, "zone-2")),
		service("default/el:http", model.Service{ExternalTraffic: model.Local, Frontends: at(external("192.0.2.12:80"), nodePort(30012))}, epB, epC),
		service("default/lbr:http", model.Service{Frontends: at(external("192.0.2.13:80", "198.51.101.0/24"), external("192.0.2.14:80", "198.51.101.0/24"))}, epA),
		service("default/nodes:http", model.Service{Frontends: at(internal("172.20.0.12:80"))}, forNodes(epA, "node-a"), forNodes(epC, "node-b")),
		service("default/six:http", model.Service{Frontends: at(internal("[fd20:96::10]:80"), nodePort(30016))}, here("[fd10:128:0:a::11]:8080")),
	}
	flows := append(toWeb(),
		outside.to("198.51.101.10:30010"), pod.to("192.0.2.12:80"), outside.to("192.0.2.12:80"), pod.to("198.51.100.10:30012"),
		remotePod.to("172.20.0.10:80"), remotePod.to("198.51.100.10:30012"), pod.to("172.20.0.250:80"), pod.to("10.96.0.250:80"),
		pod.to("172.20.0.12:80"), outside.to("[2001:db8:a::10]:30016"), outside.to("[2001:db8:b::10]:30016"), outside.to("[fd20:96::10]:80"),
		theNode.to("192.0.2.13:80"), vipAt("192.0.2.14").to("192.0.2.13:80"))
	for _, c := range []struct {
		name   string
		change func(*model.Node)
	}{
		{"zone", func(n *model.Node) { n.Zone = "zone-2" }},
		{"zone-unknown", func(n *model.Node) { n.Zone = "" }},
		{"name", func(n *model.Node) { n.Name = "node-b" }},
		{"primary", func(n *model.Node) { n.Primary = addrs("198.51.101.10", "2001:db8:b::10") }},
		{"primary-in-scope", func(n *model.Node) {
			n.Primary, n.NodePorts.Primary = addrs("198.51.101.10", "2001:db8:b::10"), true
		}},
		{"scope-primary", func(n *model.Node) { n.NodePorts.Primary = true }},
		{"scope-prefixes", func(n *model.Node) { n.NodePorts.Prefixes = prefixes("198.51.101.0/24") }},
		{"scope-none-of-a-family", func(n *model.Node) { n.Primary, n.NodePorts.Primary = addrs("198.51.100.10"), true }},
		{"detector-none", func(n *model.Node) { n.Detector = model.LocalDetector{} }},
		{"detector-other-prefix", func(n *model.Node) { n.Detector.Prefixes = prefixes("10.128.0.0/24", "fd10:128:0:a::/64") }},
		{"detector-interfaces", func(n *model.Node) { n.Detector = model.LocalDetector{Interfaces: []string{"veth-"}} }},
		{"detector-both", func(n *model.Node) {
			n.Detector = model.LocalDetector{Interfaces: []string{"veth-"}, Prefixes: prefixes("10.128.1.0/24")}
		}},
		{"detector-many", func(n *model.Node) {
			n.Detector.Prefixes = prefixes("10.128.0.0/24", "10.128.0.0/16", "10.128.1.0/24", "240.0.0.0/4", "fd10:128::/48", "ff00::/8")
		}},
		{"service-ranges-none", func(n *model.Node) { n.ServiceRanges = nil }},
		{"service-ranges-other", func(n *model.Node) { n.ServiceRanges = prefixes("10.96.0.0/12") }},
		{"service-ranges-overlapping", func(n *model.Node) {
			n.ServiceRanges = prefixes("10.96.0.0/12", "172.20.0.0/16", "172.20.0.0/24", "fd20:96::/112", "fd20:96::/64")
		}},
		{"masquerade-all", func(n *model.Node) { n.MasqueradeAll = true }},
		{"keep-client-address", func(n *model.Node) { n.KeepClientAddress = true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := h.rig(t, StageNode())
			from, to := stateOf(StageNode(), parts...), stateOf(nodeWith(c.change), parts...)
			r.sync(t, from)
			r.to(t, from, to)
			require.NoError(t, r.p.Check(r.ctx))
			r.predicted(t, flows...)
			if r.pretended() {
				r.restart(t)
				r.sync(t, to)
				r.predicted(t, flows...)
			}
			r.to(t, to, from)
			require.NoError(t, r.p.Check(r.ctx))
			r.predicted(t, flows...)
		})
	}
}

// An address that the node gets serves node ports once the Programmer is told.
func addressComesAndGoes(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	w, ok := r.w.(Addresser)
	if !ok {
		t.Skip("the world cannot give its node addresses")
	}
	without, with := StageNode(), StageNode()
	with.Addrs = append(with.Addrs, addr("198.51.100.33"))
	from, to := stateOf(without, web(epA)), stateOf(with, web(epA))
	r.sync(t, from)
	require.NoError(t, w.AddAddr(addr("198.51.100.33")))
	r.to(t, from, to)
	r.meets(t, outside.to("198.51.100.33:30010").hidden("10.128.0.11:8080"), outside.to("198.51.100.10:30010").hidden("10.128.0.11:8080"))
	require.NoError(t, w.DelAddr(addr("198.51.100.33")))
	r.to(t, to, from)
	r.meets(t, pod.to("198.51.100.33:30010").untouched(), outside.to("198.51.100.10:30010").hidden("10.128.0.11:8080"))
	require.NoError(t, r.p.Check(r.ctx))
}

// A backend that asks the kernel serves a new address without being told.
func addressUntold(t *testing.T, h *harness) {
	h.same(t, DiffNodePortAddrs)
	r := h.rig(t, StageNode())
	w, ok := r.w.(Addresser)
	if !ok {
		t.Skip("the world cannot give its node addresses")
	}
	r.sync(t, stateOf(StageNode(), web(epA)))
	require.NoError(t, w.AddAddr(addr("198.51.100.33")))
	r.meets(t, outside.to("198.51.100.33:30010").hidden("10.128.0.11:8080"))
	require.NoError(t, w.DelAddr(addr("198.51.100.33")))
	r.meets(t, pod.to("198.51.100.33:30010").untouched())
	require.NoError(t, r.p.Check(r.ctx))
}

// The zero Node, but for the addresses without which there is no world.
func zeroNode(t *testing.T, h *harness) {
	node := model.Node{Addrs: StageNode().Addrs}
	r := h.rig(t, node)
	r.sync(t, stateOf(node, web(epA, epC), service("default/el:http", model.Service{ExternalTraffic: model.Local, Frontends: at(external("192.0.2.12:80"))}, epB)))
	r.predicted(t, append(toWeb(), pod.to("192.0.2.12:80"), outside.to("192.0.2.12:80"), pod.to("172.20.0.250:80"))...)
}
