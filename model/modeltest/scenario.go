package modeltest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/headgate/headgate/model"
)

// A Scenario is a named state of the field and what packets meet in it: a golden ruleset for a backend's plan, and
// traffic for its rules.
type Scenario struct {
	// Name is unique, in lower case with hyphens, fit for a file name.
	Name string
	// Doc says in a sentence or two what the scenario is about.
	Doc   string
	State model.State
	// Packets are sent one after the other; each stands alone but for affinity.
	Packets []Expectation
	// Rejected names the services that a first Sync reports, sorted.
	Rejected []model.ServiceName
}

// An Expectation is a packet and what becomes of it.
type Expectation struct {
	Packet
	Want Want
	// Unless names the differences (see [model.FeatureSet]) with which something else becomes of it.
	Unless []string
}

// A Want is what shall become of the connections that a packet opens.
type Want struct {
	Verdict Verdict
	// Endpoints are, if Translated, exactly those that answer, sorted.
	Endpoints []netip.AddrPort
	// One says that all connections of this client go to the same one of them, Some that not all of them need answer.
	One, Some bool
	// Masqueraded says that endpoints see an address of the node instead of the client's. An endpoint that is the
	// client itself does in any case. Mixed are those for which it is the other way round.
	Masqueraded bool
	Mixed       []netip.AddrPort
}

func (w Want) String() string {
	if w.Verdict != Translated {
		return string(w.Verdict)
	}
	s := fmt.Sprintf("%s %v", w.Verdict, w.Endpoints)
	switch {
	case w.One:
		s += ", one for all"
	case w.Some:
		s += ", some of them"
	}
	if w.Masqueraded {
		s += ", masqueraded"
	}
	if len(w.Mixed) > 0 {
		s += fmt.Sprintf(" but not so for %v", w.Mixed)
	}
	return s
}

// Scenarios returns every scenario, always in the same order. The result is the caller's own.
func Scenarios() []Scenario {
	all := slices.Concat(
		internalScenarios(), familyScenarios(), externalScenarios(), nodePortScenarios(), sharedScenarios(),
		stateScenarios(), policyScenarios(), hintScenarios(), emptyScenarios(), balanceScenarios(), affinityScenarios(),
		rangeScenarios(), masqueradeScenarios(), oddScenarios(),
	)
	seen := map[string]bool{}
	for _, s := range all {
		if seen[s.Name] || s.Name == "" || strings.Trim(s.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			panic(fmt.Sprintf("modeltest: scenario %q: the name is taken or unfit for a file", s.Name))
		}
		seen[s.Name] = true
	}
	return all
}

// A client is where packets of a scenario come from: one host with an address of each family.
type client struct {
	name   string
	kind   SourceKind
	v4, v6 netip.Addr
}

// Who sends. Each has addresses of both families where it makes sense.
var (
	pod          = client{"pod", FromPod, addr("10.128.0.100"), addr("fd10:128:0:a::100")}
	remotePod    = client{"remote pod", FromRemotePod, addr("10.128.1.100"), addr("fd10:128:0:b::100")}
	theNode      = client{"node", FromNode, addr("198.51.100.10"), addr("2001:db8:a::10")}
	loopback     = client{"loopback", FromNode, addr("127.0.0.1"), addr("::1")}
	outside      = client{"outside", FromOutside, addr("203.0.113.5"), addr("2001:db8:e::5")}
	otherOutside = client{"other outside", FromOutside, addr("203.0.113.200"), addr("2001:db8:e:1::5")}
)

// podAt is the pod on this node that has an address: an endpoint as a client.
func podAt(a string) client {
	return client{"pod " + a, FromPod, addr(a), addr(a)}
}

// vipAt is the node sending with a virtual address as its source.
func vipAt(a string) client {
	return client{"vip " + a, FromVIP, addr(a), addr(a)}
}

// A flow is a packet whose fate is still to be said.
type flow struct{ p Packet }

// to returns a TCP packet to an address and port.
func (c client) to(a string) flow { return c.over(model.TCP, a) }

// over returns a packet of a protocol to an address and port.
func (c client) over(proto model.Protocol, a string) flow {
	to := ap(a)
	from := c.v4
	if to.Addr().Is6() {
		from = c.v6
	}
	return flow{Packet{
		Name: fmt.Sprintf("%s to %s %s", c.name, a, proto),
		Kind: c.kind, From: from, Proto: proto, To: to,
	}}
}

// pings returns an ICMP echo request to an address.
func (c client) pings(a string) flow {
	f := c.over(model.TCP, netip.AddrPortFrom(addr(a), 0).String())
	f.p.ICMP, f.p.Name = true, fmt.Sprintf("%s pings %s", c.name, a)
	return f
}

// reaches says that the endpoints see the client's own address.
func (f flow) reaches(eps ...string) Expectation { return f.balanced(false, eps) }

// hidden says that the endpoints see an address of the node.
func (f flow) hidden(eps ...string) Expectation { return f.balanced(true, eps) }

// among says that only some of the endpoints need answer.
func (f flow) among(masqueraded bool, eps ...string) Expectation {
	e := f.balanced(masqueraded, eps)
	e.Want.Some = true
	return e
}

func (f flow) balanced(masqueraded bool, eps []string) Expectation {
	w := Want{Verdict: Translated, Masqueraded: masqueraded}
	for _, e := range eps {
		w.Endpoints = append(w.Endpoints, ap(e))
	}
	slices.SortFunc(w.Endpoints, netip.AddrPort.Compare)
	return Expectation{Packet: f.p, Want: w}
}

func (f flow) refused() Expectation { return Expectation{Packet: f.p, Want: Want{Verdict: Refused}} }
func (f flow) dropped() Expectation { return Expectation{Packet: f.p, Want: Want{Verdict: Dropped}} }
func (f flow) untouched() Expectation {
	return Expectation{Packet: f.p, Want: Want{Verdict: Untouched}}
}

// onOne says that all of the client's connections go to one endpoint.
func (e Expectation) onOne() Expectation { e.Want.One = true; return e }

// unless names differences with which something else happens.
func (e Expectation) unless(ids ...string) Expectation { e.Unless = append(e.Unless, ids...); return e }

// packets lists the packets of expectations.
func packets(es []Expectation) []Packet {
	out := make([]Packet, len(es))
	for i, e := range es {
		out[i] = e.Packet
	}
	return out
}
