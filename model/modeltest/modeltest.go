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

	// What follows is optional; the suite skips, by name, what it cannot ask for without.

	// Second is like New, for another instance of the backend, whose objects are apart from those of New: in a table
	// of another name, say.
	Second func(tb testing.TB, w World) model.Programmer
	// Snapshot returns, as text, all that the node's kernel holds and a Programmer could have written or harmed,
	// whoever wrote it. It must be the same as long as nobody writes: without counters, timers, handles, flows.
	Snapshot func(tb testing.TB, w World) string
	// Plant puts things of other owners beside ours: tables, chains, rules, sets, routes, virtual services.
	Plant func(tb testing.TB, w World)
	// Damage are ways to harm what a Programmer has written, by name: "flush", "delete table". Each must be such that
	// Check notices it at once.
	Damage map[string]func(tb testing.TB, w World) error
	// Refuse makes the kernel refuse, with err, what is written for the named service until it is called with a nil err.
	// What it took before it still takes. The suite asks for syscall.EINVAL and the service default/api:http, whose new
	// endpoint is 10.128.0.12:8080, so that a hook may spoil just that on its way to a real kernel.
	Refuse func(tb testing.TB, w World, name model.ServiceName, err error)
	// Skip names subtests of the suite, as in "external-local/pod to 192.0.2.10:80 tcp", that are not to be run because
	// of a difference: the value is the ID of one that the backend's FeatureSet documents.
	Skip map[string]string
	// Seed repeats what the suite does by chance. 0 means another chance each time; the seed is logged.
	Seed uint64
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
