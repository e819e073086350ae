package modeltest

import (
	"context"
	"net/netip"
	"testing"

	"github.com/headgate/headgate/model"
)

// A Target is a backend under test.
type Target struct {
	// Name is the backend's name, "nftables" say.
	Name string
	// New returns a Programmer for a world that NewWorld made. It may be called several times for one world: what the
	// earlier Programmers wrote is still there, as after a restart.
	New func(tb testing.TB, w World) model.Programmer
	// NewWorld returns a fresh world; it is closed by tb.Cleanup. Nil means real namespaces, see NewLab.
	NewWorld func(tb testing.TB, node model.Node) World
}

// A World is where packets go: a set of real network namespaces, or the pretended ones of a Fake.
type World interface {
	// Send opens n new connections, one after the other, each as p says, and reports what became of each.
	Send(ctx context.Context, p Packet, n int) ([]Outcome, error)
	// NetNS is the file descriptor of the namespace of the node, where the rules are programmed; -1 in a pretended world.
	NetNS() int
}

// A SourceKind says where a packet comes from.
type SourceKind string

// The kinds of sources, named as in testdata/vectors.json.
const (
	FromPod       SourceKind = "pod"        // a pod on this node
	FromRemotePod SourceKind = "remote-pod" // a pod of another node, arriving over the wire
	FromNode      SourceKind = "node"       // a process of this node
	FromOutside   SourceKind = "external"   // a client outside, arriving over the wire
	FromVIP       SourceKind = "vip-loop"   // this node, with a virtual address as the source
)

// A Packet is the first packet of a new connection.
type Packet struct {
	Name  string
	Kind  SourceKind
	From  netip.Addr
	Iface string // the node's interface that it comes in on; empty: what Kind suggests
	Proto model.Protocol
	ICMP  bool // an echo request instead of Proto; To has no port then
	To    netip.AddrPort
	// FromPort fixes the source port. 0 leaves it to the kernel.
	FromPort uint16
}

// A Verdict is what becomes of a packet, named as in testdata/vectors.json.
type Verdict string

// The verdicts.
const (
	Translated Verdict = "dnat"   // it reached an endpoint
	Dropped    Verdict = "drop"   // discarded in silence
	Refused    Verdict = "reject" // actively refused: a reset or an ICMP error
	Untouched  Verdict = "none"   // it went where the node's routing sends it, untranslated
)

// An Outcome is what became of one connection.
type Outcome struct {
	Verdict  Verdict
	Endpoint netip.AddrPort // who answered, if Translated
	Source   netip.Addr     // the source address that the endpoint saw
}
