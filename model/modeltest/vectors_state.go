package modeltest

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/headgate/headgate/model"
)

func (f familyJSON) model() model.Family {
	if f == "ipv6" {
		return model.IPv6
	}
	return model.IPv4
}

func (p protoJSON) model() model.Protocol {
	for _, m := range model.Protocols {
		if string(p) == m.String() {
			return m
		}
	}
	return model.TCP // not said
}

func (p policyJSON) model() model.TrafficPolicy {
	if p == "local" {
		return model.Local
	}
	return model.Cluster
}

// portName names the model's service that a port of theirs becomes: "web/tcp", or "web:http/tcp" if the port has a name.
// The number is not part of it: another number under the same name is the same port changed.
func portName(service, port string, proto protoJSON) model.ServiceName {
	if port != "" {
		service += ":" + port
	}
	return model.ServiceName(fmt.Sprintf("%s/%s", service, proto.model()))
}

// state translates a step.
func (b stepBody) state(node nodeJSON) model.State {
	return model.State{Node: node.model(), Services: servicesOf(b.Services), Endpoints: endpointsOf(b.Endpoints)}
}

func (n nodeJSON) model() model.Node {
	m := model.Node{
		Name: n.Name, Zone: n.Zone, Addrs: n.LocalIPs, Primary: []netip.Addr{n.NodeIP},
		// Loopback in the list is a prefix like others: it does not opt in.
		NodePorts:     model.NodePortScope{Prefixes: plain(n.NodePortAddresses)},
		ServiceRanges: plain(n.ServiceCIDRs),
		MasqueradeAll: n.MasqueradeAll,
	}
	switch n.DetectLocal.Mode {
	case "iface-prefix":
		m.Detector.Interfaces = n.DetectLocal.Values
	case "cluster-cidr": // the first of each family counts
		seen := map[model.Family]bool{}
		for _, v := range n.DetectLocal.Values {
			p := netip.MustParsePrefix(v)
			if f := model.FamilyOf(p.Addr()); !seen[f] {
				seen[f] = true
				m.Detector.Prefixes = append(m.Detector.Prefixes, p)
			}
		}
	}
	return m
}

func plain(ps []prefixJSON) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range ps {
		out = append(out, p.Prefix)
	}
	return out
}

// servicesOf turns each port of each service into a service of the model. Those to be skipped are left out.
func servicesOf(services []serviceJSON) model.ServiceMap {
	m := model.ServiceMap{}
	for _, s := range services {
		if s.Skip != "" {
			continue
		}
		for _, p := range s.Ports {
			m[portName(s.Name, p.Name, p.Proto)] = s.port(p)
		}
	}
	return m
}

func (s serviceJSON) port(p servicePortJSON) model.Service {
	m := model.Service{
		Protocol:        p.Proto.model(),
		Frontends:       s.frontends(p),
		InternalTraffic: s.InternalPolicy.model(), ExternalTraffic: s.ExternalPolicy.model(),
	}
	if s.Affinity.Type == "client-ip" {
		m.Affinity = time.Duration(s.Affinity.TimeoutSeconds) * time.Second
	}
	return m
}

// frontends lists the places where a port is reached. A family in which the service has no cluster IP has none.
func (s serviceJSON) frontends(p servicePortJSON) []model.Frontend {
	var out []model.Frontend
	taken := map[netip.Addr]bool{}
	add := func(kind model.FrontendKind, a netip.Addr, ranges []netip.Prefix) {
		sameFamily := func(c netip.Addr) bool { return c.Is6() == a.Is6() }
		if taken[a] || !slices.ContainsFunc(s.ClusterIPs, sameFamily) {
			return
		}
		taken[a] = true
		port := p.Port
		if kind == model.NodePort {
			port = p.NodePort
		}
		out = append(out, model.Frontend{Kind: kind, Addr: netip.AddrPortFrom(a, port), SourceRanges: ranges})
	}
	for _, a := range s.ClusterIPs {
		add(model.Internal, a, nil)
	}
	// Before the external addresses: one that is both has the ranges.
	for _, lb := range s.LBIPs {
		if lb.Mode != "proxy" {
			add(model.External, lb.IP, plain(s.SourceRanges))
		}
	}
	for _, a := range s.ExternalIPs {
		add(model.External, a, nil)
	}
	if p.NodePort != 0 {
		add(model.NodePort, netip.IPv4Unspecified(), nil)
		add(model.NodePort, netip.IPv6Unspecified(), nil)
	}
	return out
}

func endpointsOf(endpoints []endpointJSON) model.EndpointMap {
	m := model.EndpointMap{}
	for _, e := range endpoints {
		if e.Ignored != "" {
			continue
		}
		name := portName(e.Service, e.PortName, e.Proto)
		m[name] = append(m[name], model.Endpoint{
			Addr: netip.AddrPortFrom(e.IP, e.Port), State: e.state(), Local: e.Local, Zones: e.ZoneHints, Nodes: e.NodeHints,
		})
	}
	return m
}

func (e endpointJSON) state() model.EndpointState {
	unless := func(b *bool) bool { return b == nil || *b }
	switch {
	case unless(e.Ready):
		return model.Ready // even while it terminates
	case unless(e.Serving) && e.Terminating:
		return model.Draining
	}
	return model.NotReady
}

// packet translates a packet that is sent in a state.
func (p packetJSON) packet(s model.State) VectorPacket {
	v := VectorPacket{
		Packet: Packet{
			Name: p.Name, Kind: SourceKind(p.From.Kind), From: p.From.IP, Iface: p.From.Iface,
			Proto: p.To.Proto.model(), ICMP: p.To.Proto == "icmp", To: netip.AddrPortFrom(p.To.IP, p.To.Port),
		},
		SameAs: p.Expect.SameBackendAs, Samples: p.Samples, Wait: time.Duration(p.WaitMS) * time.Millisecond,
		raw: p,
	}
	c := vectorCase{state: s, packet: v.Packet, raw: p}
	v.Want = c.want()
	v.other = c.others()
	return v
}

// want translates an expectation. It is false for the verdicts that no packet of ours meets.
func (e expectJSON) want(from netip.Addr) (Want, bool) {
	w := Want{Verdict: Verdict(e.Verdict), Endpoints: slices.Clone(e.Endpoints), One: e.Sticky}
	slices.SortFunc(w.Endpoints, netip.AddrPort.Compare)
	switch w.Verdict {
	case Translated, Dropped, Refused, Untouched:
	default:
		return Want{}, false
	}
	if e.Masq != nil {
		w.Masqueraded = *e.Masq
	}
	for at, masq := range e.MasqByEndpoint {
		if masq != (at.Addr() == from) { // an endpoint that is the client goes without saying
			w.Mixed = append(w.Mixed, at)
		}
	}
	slices.SortFunc(w.Mixed, netip.AddrPort.Compare)
	return w, true
}
