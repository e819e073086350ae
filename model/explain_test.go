package model_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// able is what a backend can do that can do everything.
var able = model.FeatureSet{Backend: "test", HashPort: true,
	Balances: []model.Balance{model.Random, model.RoundRobin, model.LeastConn, model.SourceHash, model.Maglev}}

func resolved(t *testing.T, s model.State) *model.Resolver {
	t.Helper()
	r := model.NewResolver(able)
	d, err := r.ResolveState(s, nil)
	require.NoError(t, err)
	r.Commit(d)
	return r
}

func TestExplainScenarios(t *testing.T) {
	asked := 0
	for _, sc := range modeltest.Scenarios() {
		r := resolved(t, sc.State)
		for _, p := range sc.Packets {
			if p.ICMP {
				continue
			}
			asked++
			require.NoError(t, p.Want.Explained(p.Packet, r.Explain(p.Query(), nil)))
		}
	}
	require.Greater(t, asked, 300)
}

// Explain and Predict were written apart: they agree on services and packets made by chance too.
func TestExplainPredicts(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 6))
	pick := func(all ...string) string { return all[chance.IntN(len(all))] }
	clients := []modeltest.Packet{
		{Kind: modeltest.FromPod, From: netip.MustParseAddr("10.128.0.11")}, {Kind: modeltest.FromRemotePod, From: netip.MustParseAddr("10.128.1.21")},
		{Kind: modeltest.FromNode, From: netip.MustParseAddr("198.51.100.10")}, {Kind: modeltest.FromNode, From: netip.MustParseAddr("127.0.0.1")},
		{Kind: modeltest.FromOutside, From: netip.MustParseAddr("203.0.113.5")}, {Kind: modeltest.FromVIP, From: netip.MustParseAddr("192.0.2.10")},
	}
	for range 400 {
		s := model.State{Node: modeltest.StageNode(), Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
		node := &s.Node
		node.MasqueradeAll, node.KeepClientAddress, node.NodePorts.Loopback = chance.IntN(4) == 0, chance.IntN(3) == 0, chance.IntN(2) == 0
		node.NodePorts.Primary = chance.IntN(4) == 0
		if chance.IntN(4) == 0 {
			node.Detector = model.LocalDetector{}
		} else if chance.IntN(3) == 0 {
			node.Detector = model.LocalDetector{Interfaces: []string{"veth-"}}
		}
		for i := range 3 {
			name := model.ServiceName(fmt.Sprint("s", i))
			svc := model.Service{InternalTraffic: model.TrafficPolicy(chance.IntN(2)), ExternalTraffic: model.TrafficPolicy(chance.IntN(2))}
			for range chance.IntN(3) {
				f := model.Frontend{Kind: model.FrontendKind(chance.IntN(2)), Addr: netip.MustParseAddrPort(pick("172.20.0.10:80", "172.20.0.10:81", "192.0.2.10:80", "198.51.100.10:30010"))}
				if chance.IntN(3) == 0 {
					f = model.Frontend{Kind: model.NodePort, Addr: netip.AddrPortFrom(netip.Addr{}, 30010)}
				}
				if chance.IntN(3) == 0 {
					f.SourceRanges = []netip.Prefix{netip.MustParsePrefix(pick("203.0.113.0/24", "10.128.0.0/14", "198.51.100.0/24", "2001:db8::/32"))}
				}
				svc.Frontends = append(svc.Frontends, f)
			}
			for range chance.IntN(4) {
				s.Endpoints[name] = append(s.Endpoints[name], model.Endpoint{
					Addr:  netip.MustParseAddrPort(pick("10.128.0.11:8080", "10.128.0.12:8080", "10.128.1.21:8080", "198.51.100.10:8080")),
					State: model.EndpointState(chance.IntN(3)), Local: chance.IntN(2) == 0})
			}
			s.Services[name] = svc
		}
		r := resolved(t, s)
		for _, p := range clients {
			for _, to := range []string{"172.20.0.10:80", "172.20.0.10:81", "172.20.0.11:80", "192.0.2.10:80", "192.0.2.10:81", "198.51.100.10:30010", "198.51.101.10:30010", "127.0.0.1:30010"} {
				p.To = netip.MustParseAddrPort(to)
				if p.Kind == modeltest.FromVIP && !vips(r)[p.From] {
					continue // nothing tells such a packet from any other
				}
				p.Name = fmt.Sprintf("%s %s to %s", p.Kind, p.From, to)
				require.NoError(t, modeltest.Predict(s.Node, r.Forms(), p).Explained(p, r.Explain(p.Query(), nil)), p.Name)
			}
		}
	}
}

// vips are the addresses of all frontends.
func vips(r *model.Resolver) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, form := range r.Forms() {
		for _, f := range form.Frontends {
			all[f.Addr.Addr()] = true
		}
	}
	return all
}

func TestExplanationReads(t *testing.T) {
	s := model.State{
		Node:      model.Node{Primary: []netip.Addr{netip.MustParseAddr("198.51.100.10")}, Addrs: []netip.Addr{netip.MustParseAddr("198.51.100.10")}},
		Services:  model.ServiceMap{"shop/web:http": {Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.10:80")}, {Kind: model.NodePort, Addr: netip.AddrPortFrom(netip.Addr{}, 30080)}}}},
		Endpoints: model.EndpointMap{"shop/web:http": {{Addr: netip.MustParseAddrPort("10.244.0.1:8080")}, {Addr: netip.MustParseAddrPort("10.244.0.2:8080"), State: model.NotReady}}},
	}
	r := resolved(t, s)
	e := r.Explain(model.Query{To: netip.MustParseAddrPort("198.51.100.10:30080"), From: netip.MustParseAddr("203.0.113.5"), Interface: "eth0"}, nil)
	e.Path = []model.Hop{{Where: "ip headgate chain node-ports", Rule: "vmap @node-ports"}}
	require.Equal(t, `tcp 198.51.100.10:30080 from 203.0.113.5 (eth0): balanced: random over 1 of 2 endpoints, policy cluster
  service shop/web:http, node port 0.0.0.0:30080
  endpoint 10.244.0.1:8080, sees the node
  ip headgate chain node-ports: vmap @node-ports`, e.String())
	require.Equal(t, "test", e.Backend)

	e = r.Explain(model.Query{To: netip.MustParseAddrPort("10.96.0.10:80")}, nil)
	require.Equal(t, "tcp 10.96.0.10:80 from the node: balanced: random over 1 of 2 endpoints, policy cluster\n"+
		"  service shop/web:http, internal 10.96.0.10:80\n  endpoint 10.244.0.1:8080, sees the client", e.String())
	e = r.Explain(model.Query{To: netip.MustParseAddrPort("10.96.0.10:443"), Protocol: model.UDP}, nil)
	require.Equal(t, "udp 10.96.0.10:443 from the node: refused: 10.96.0.10 is a virtual address, and no service is at this port and protocol", e.String())

	// Whoever can ask the kernel says what the node's addresses are.
	to := model.Query{To: netip.MustParseAddrPort("198.51.100.11:30080"), From: netip.MustParseAddr("203.0.113.5"), Interface: "eth0"}
	require.Equal(t, model.FateUntouched, r.Explain(to, nil).Fate)
	require.Equal(t, model.FateBalanced, r.Explain(to, func(netip.Addr) bool { return true }).Fate)
	require.Equal(t, model.FateUntouched, r.Explain(model.Query{To: netip.MustParseAddrPort("[2001:db8::1]:80")}, nil).Fate, "an address family in which the node has none")
}
