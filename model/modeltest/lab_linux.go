package modeltest

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/internal/lab/peers"
	"github.com/headgate/headgate/model"
)

// NewLab returns a World of real packets: a network namespace with the node's addresses, whose kernel routes, tracks
// connections and obeys the rules under test. Everybody else is played by this process at the other ends of the node's
// links, with whatever addresses packets and endpoints name, over TCP, UDP, SCTP and ICMP:
//
//   - pods on the node send over the link "veth-pod", everybody else over "uplink", a packet's Iface over a link of
//     that name;
//   - the endpoint that a connection reaches answers, and a connection whose answer does not come back is an error;
//   - a process of the node that sends from its primary address binds no address: the kernel chooses.
//
// Nothing is concluded from silence: see package peers in internal/lab. The World is also a [Connector] over TCP and
// UDP, an [Addresser] and a [Preparer]. It needs root, without which the test is skipped; it is closed by tb.Cleanup.
func NewLab(tb testing.TB, node model.Node) World {
	tb.Helper()
	lab.NeedRoot(tb)
	cfg := peers.Config{Addrs: slices.Clone(node.Primary), Pods: labPods}
	for _, a := range node.Addrs {
		if !slices.Contains(cfg.Addrs, a) {
			cfg.Addrs = append(cfg.Addrs, a)
		}
	}
	w, err := peers.New(cfg)
	if err != nil {
		tb.Fatalf("modeltest: %v", err)
	}
	tb.Cleanup(func() {
		if err := w.Close(); err != nil {
			tb.Errorf("modeltest: close the lab: %v", err)
		}
	})
	l := &labWorld{World: w, own: cfg.Addrs}
	for _, family := range model.Families {
		if i := slices.IndexFunc(cfg.Addrs, func(a netip.Addr) bool { return model.FamilyOf(a) == family }); i >= 0 {
			l.primary = append(l.primary, cfg.Addrs[i])
		}
	}
	l.Prepare(tb, model.State{Node: node}, nil)
	return l
}

// labPods are routed to the link of the pods on the node. Others are pods because they send over that link.
var labPods = []netip.Prefix{
	netip.MustParsePrefix("10.128.0.0/24"), netip.MustParsePrefix("fd10:128:0:a::/64"), netip.MustParsePrefix("2001:db8:46::a80:0/120"),
}

// A labWorld is a peers.World in the terms of this package.
type labWorld struct {
	*peers.World
	own, primary []netip.Addr // the node's addresses
}

// NetNS is the descriptor of the node's namespace.
func (l *labWorld) NetNS() int { return l.World.NetNS().FD() }

// Prepare does what node ports on loopback need of an administrator.
func (l *labWorld) Prepare(tb testing.TB, s model.State, _ []Packet) {
	tb.Helper()
	if !s.Node.NodePorts.Loopback {
		return
	}
	if err := l.World.NetNS().Sysctl("net/ipv4/conf/all/route_localnet", "1"); err != nil {
		tb.Fatalf("modeltest: %v", err)
	}
}

// Send opens n new connections.
func (l *labWorld) Send(ctx context.Context, p Packet, n int) ([]Outcome, error) {
	q, err := l.query(p)
	if err != nil {
		return nil, err
	}
	outcomes := make([]Outcome, n)
	for i := range outcomes {
		f, err := l.Ask(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("packet %q: %w", p.Name, err)
		}
		if outcomes[i], err = outcomeOf(f, q.To); err != nil {
			return nil, fmt.Errorf("packet %q: %w", p.Name, err)
		}
	}
	return outcomes, nil
}

// query turns a packet into the question that stands for it.
func (l *labWorld) query(p Packet) (peers.Query, error) {
	q := peers.Query{Link: p.Iface, Source: netip.AddrPortFrom(p.From, p.FromPort), Proto: peers.Protocol(p.Proto.String()), To: p.To}
	if p.ICMP {
		q.Proto = peers.ICMP
	}
	switch p.Kind {
	case FromPod:
		if q.Link == "" {
			q.Link = peers.PodLink
		}
	case FromRemotePod, FromOutside:
		if q.Link == "" {
			q.Link = peers.Uplink
		}
	case FromNode:
		q.Link = ""
		// To an address of its own the kernel would choose that same address.
		if slices.Contains(l.primary, p.From) && !slices.Contains(l.own, p.To.Addr()) {
			q.Source = netip.AddrPortFrom(netip.Addr{}, p.FromPort)
		}
	case FromVIP:
		q.Link = ""
	default:
		return q, fmt.Errorf("packet %q: no such source: %q", p.Name, p.Kind)
	}
	return q, nil
}

// outcomeOf judges what became of a question to an address and port.
func outcomeOf(f peers.Fate, to netip.AddrPort) (Outcome, error) {
	switch f.Verdict {
	case peers.Dropped:
		return Outcome{Verdict: Dropped}, nil
	case peers.Refused:
		return Outcome{Verdict: Refused}, nil
	case peers.Arrived:
	default:
		return Outcome{}, fmt.Errorf("what was seen contradicts itself: %s", f.Trace)
	}
	if f.At == to || f.At.Port() == 0 && f.At.Addr() == to.Addr() {
		return Outcome{Verdict: Untouched, Source: f.Peer.Addr()}, nil
	}
	if !f.Answered {
		return Outcome{}, fmt.Errorf("%s was reached from %s, but the client got no answer: %s", f.At, f.Peer, f.Trace)
	}
	return Outcome{Verdict: Translated, Endpoint: f.At, Source: f.Peer.Addr()}, nil
}

// Open opens one connection.
func (l *labWorld) Open(ctx context.Context, p Packet) (Connection, error) {
	q, err := l.query(p)
	if err != nil {
		return nil, err
	}
	c, err := l.Dial(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("packet %q: %w", p.Name, err)
	}
	return labConn{c}, nil
}

type labConn struct{ *peers.Conn }

// Endpoint is who accepted the connection.
func (c labConn) Endpoint() netip.AddrPort { return c.At() }

// endWithUs makes the kernel kill a command when this process ends.
func endWithUs(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
