package model

import (
	"net/netip"
	"slices"
)

// An EndpointState says whether an endpoint serves. The zero EndpointState is Ready.
type EndpointState uint8

// The states of an endpoint.
const (
	// Ready serves.
	Ready EndpointState = iota
	// Draining still serves its open connections, and new ones only where no endpoint in question is Ready.
	Draining
	// NotReady never serves.
	NotReady
)

var stateNames = [...]string{Ready: "ready", Draining: "draining", NotReady: "not ready"}

func (s EndpointState) String() string { return nameOf(stateNames[:], s, "state") }

// An Endpoint is one real server behind a service.
type Endpoint struct {
	Addr  netip.AddrPort
	State EndpointState
	// Local says that the endpoint is on this node.
	Local bool
	// Zones and Nodes are topology hints: the zones and the nodes whose clients it should serve. See [Select].
	Zones, Nodes []string
	// Weight is its share of new connections relative to the service's other endpoints. 0 reads as 1; an endpoint
	// that shall get none is Draining.
	Weight uint16
}

// Equal reports whether e and o are the same, hints in the same order. A Weight of 0 differs from one of 1 here.
func (e Endpoint) Equal(o Endpoint) bool {
	return e.Addr == o.Addr && e.State == o.State && e.Local == o.Local && e.Weight == o.Weight &&
		slices.Equal(e.Zones, o.Zones) && slices.Equal(e.Nodes, o.Nodes)
}

// EqualEndpoints reports whether two lists hold equal endpoints in the same order.
func EqualEndpoints(a, b []Endpoint) bool {
	return (len(a) == len(b) && len(a) > 0 && &a[0] == &b[0]) || slices.EqualFunc(a, b, Endpoint.Equal)
}

// cloneEndpoints returns a copy that shares no memory with eps.
func cloneEndpoints(eps []Endpoint) []Endpoint {
	if len(eps) == 0 {
		return nil
	}
	out := slices.Clone(eps)
	for i := range out {
		out[i].Zones, out[i].Nodes = slices.Clone(out[i].Zones), slices.Clone(out[i].Nodes)
	}
	return out
}
