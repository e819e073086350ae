package model

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// A ServiceName identifies a service: any text that is unique among the services of one node, "default/web:http" say.
// It appears in every error about the service and, shortened where a tool sets a limit, beside the rules in the kernel.
type ServiceName string

// A Family is an address family. The zero Family is IPv4.
type Family uint8

// The address families.
const (
	IPv4 Family = iota
	IPv6
)

// Families lists both address families, in the order in which they index arrays such as [Resolved.Selections].
var Families = [...]Family{IPv4, IPv6}

// FamilyOf returns the family of addr; an IPv4 address written as an IPv6 one counts as IPv6 here, as it does on the wire.
func FamilyOf(addr netip.Addr) Family {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}

// Unspecified returns the address 0.0.0.0 or ::, which in a [Frontend] of kind NodePort stands for every node-port
// address of the family.
func (f Family) Unspecified() netip.Addr {
	if f == IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// Bits returns the length of an address of the family: 32 or 128.
func (f Family) Bits() int {
	if f == IPv4 {
		return 32
	}
	return 128
}

func (f Family) String() string {
	if f == IPv4 {
		return "IPv4"
	}
	return "IPv6"
}

// A Protocol is a transport protocol. The zero Protocol is TCP.
type Protocol uint8

// The transport protocols that can be balanced.
const (
	TCP Protocol = iota
	UDP
	SCTP
)

// Protocols lists every Protocol.
var Protocols = [...]Protocol{TCP, UDP, SCTP}

var protocolNames = [...]string{TCP: "tcp", UDP: "udp", SCTP: "sctp"}

// Number returns the protocol's number in an IP header, as IANA assigned it; 0 for a Protocol that is none of the constants.
func (p Protocol) Number() uint8 {
	numbers := [...]uint8{TCP: 6, UDP: 17, SCTP: 132}
	if int(p) >= len(numbers) {
		return 0
	}
	return numbers[p]
}

// String returns the protocol's name in lower case, as the kernel's tools write it.
func (p Protocol) String() string { return nameOf(protocolNames[:], p, "protocol") }

// A Balance is the way in which new connections are spread over the endpoints. The zero Balance is Random.
// Which of them a backend can do is in its [FeatureSet]; the others are refused per service with [ErrNotSupported].
type Balance uint8

// The ways of balancing.
const (
	// Random picks by chance, in proportion to the weights.
	Random Balance = iota
	// RoundRobin takes the endpoints in turn, in proportion to the weights.
	RoundRobin
	// LeastConn picks the endpoint with the fewest open connections relative to its weight.
	LeastConn
	// SourceHash picks by a hash of the client's address, so that a client stays with its endpoint as long as the
	// endpoints stay the same, and every node with the same endpoints and seed picks the same one.
	SourceHash
	// Maglev is SourceHash with a guarantee for changes: when an endpoint comes or goes, few clients of the others move.
	Maglev
)

var balanceNames = [...]string{Random: "random", RoundRobin: "round-robin", LeastConn: "least-conn", SourceHash: "source-hash", Maglev: "maglev"}

func (b Balance) String() string { return nameOf(balanceNames[:], b, "balance") }

// A TrafficPolicy says which endpoints serve. The zero TrafficPolicy is Cluster.
type TrafficPolicy uint8

// The traffic policies.
const (
	// Cluster lets every usable endpoint serve, or those that topology hints prefer for this node.
	Cluster TrafficPolicy = iota
	// Local lets only the endpoints on this node serve. For external frontends the client's address is kept.
	Local
)

var policyNames = [...]string{Cluster: "cluster", Local: "local"}

func (p TrafficPolicy) String() string { return nameOf(policyNames[:], p, "policy") }

// A FrontendKind says what sort of address a frontend is, on which its policy and its masquerading depend.
// The zero FrontendKind is Internal.
type FrontendKind uint8

// The kinds of frontends.
const (
	// Internal is a virtual address for clients inside: InternalTraffic applies.
	Internal FrontendKind = iota
	// External is an address for clients outside, such as a load balancer's: ExternalTraffic applies.
	External
	// NodePort is a port on every node-port address of the node (see [NodePortScope]): ExternalTraffic applies.
	NodePort
)

var kindNames = [...]string{Internal: "internal", External: "external", NodePort: "node port"}

func (k FrontendKind) String() string { return nameOf(kindNames[:], k, "frontend kind") }

// nameOf returns the name of an enumeration's value, or what and its number where it has none.
func nameOf[T ~uint8](names []string, v T, what string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s %d", what, v)
}

// A Service is a set of virtual addresses, its frontends, that are balanced over one set of endpoints.
// The zero Service is a valid TCP service that nobody can reach.
type Service struct {
	Protocol  Protocol
	Frontends []Frontend
	Balance   Balance
	// HashPort makes SourceHash and Maglev hash the client's port along with its address, so that the connections of
	// one client are spread. It means nothing for the other ways of balancing.
	HashPort bool
	// Affinity keeps a client address on one endpoint until this much time has passed since its last new connection,
	// whichever frontend it uses. 0 is off. Less than a second and more than [MaxAffinity] are refused.
	Affinity time.Duration
	// InternalTraffic is the policy of Internal frontends, ExternalTraffic that of External and NodePort frontends.
	InternalTraffic, ExternalTraffic TrafficPolicy
}

// MaxAffinity is the longest Affinity of a service: what every backend's timers can hold.
const MaxAffinity = 366 * 24 * time.Hour

// Equal reports whether s and o are the same, frontends in the same order.
func (s Service) Equal(o Service) bool {
	return s.Protocol == o.Protocol && s.Balance == o.Balance && s.HashPort == o.HashPort && s.Affinity == o.Affinity &&
		s.InternalTraffic == o.InternalTraffic && s.ExternalTraffic == o.ExternalTraffic &&
		slices.EqualFunc(s.Frontends, o.Frontends, Frontend.Equal)
}

// Policy returns the traffic policy that applies to frontends of the given kind.
func (s Service) Policy(kind FrontendKind) TrafficPolicy {
	if kind == Internal {
		return s.InternalTraffic
	}
	return s.ExternalTraffic
}

// clone returns a copy that shares no memory with s.
func (s Service) clone() Service {
	s.Frontends = slices.Clone(s.Frontends)
	for i := range s.Frontends {
		s.Frontends[i].SourceRanges = slices.Clone(s.Frontends[i].SourceRanges)
	}
	return s
}

// A Frontend is one place where a service is reached.
type Frontend struct {
	Kind FrontendKind
	// Addr is the address and port. A NodePort has a port and no address (netip.AddrPortFrom(netip.Addr{}, 30080)),
	// or 0.0.0.0 or :: to answer in that family alone.
	Addr netip.AddrPort
	// SourceRanges limits who may come in to the clients with a source address in one of these prefixes. Empty means
	// everybody. Prefixes of the other family are ignored, but if there are prefixes and none is of the frontend's
	// family, nobody comes in. A prefix of length 0 means everybody of its family.
	SourceRanges []netip.Prefix
}

// Equal reports whether f and o are the same, source ranges in the same order.
func (f Frontend) Equal(o Frontend) bool {
	return f.Kind == o.Kind && f.Addr == o.Addr && slices.Equal(f.SourceRanges, o.SourceRanges)
}

// Family returns the family in which a normalised frontend answers.
func (f Frontend) Family() Family { return FamilyOf(f.Addr.Addr()) }

// Restricted reports whether only some addresses may come in.
func (f Frontend) Restricted() bool { return len(f.SourceRanges) > 0 }

func (f Frontend) String() string {
	if f.Kind == NodePort && !f.Addr.Addr().IsValid() {
		return fmt.Sprintf("%s %d", f.Kind, f.Addr.Port())
	}
	return f.Kind.String() + " " + f.Addr.String()
}

// A FrontendKey is what may belong to one service only: an address, port and protocol, or, with the address 0.0.0.0
// or ::, a node port of that family.
type FrontendKey struct {
	Protocol Protocol
	Addr     netip.AddrPort
}

func (k FrontendKey) String() string {
	if k.Addr.Addr().IsUnspecified() {
		return fmt.Sprintf("%s node port %d (%s)", k.Protocol, k.Addr.Port(), FamilyOf(k.Addr.Addr()))
	}
	return fmt.Sprintf("%s %s", k.Protocol, k.Addr)
}
