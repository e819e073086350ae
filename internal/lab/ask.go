package lab

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// A Verdict is what became of a packet.
type Verdict int

const (
	// TimedOut: nothing came back in time, and nothing more is known.
	TimedOut Verdict = iota
	// Answered: a server answered.
	Answered
	// Refused: a reset, an ABORT or an ICMP error came back.
	Refused
	// Dropped: the packet reached the node, or was made there, and never left it nor arrived at anybody
	// in it.
	Dropped
	// Passed: the packet left the node with its destination unchanged, and nobody answered.
	Passed
	// Unanswered: the node translated the packet and sent it on, and no answer came back. Name and
	// Peer are the destination and the source that it left with.
	Unanswered
)

func (v Verdict) String() string {
	names := [...]string{"timed out", "answered", "refused", "dropped", "passed", "unanswered"}
	if v < 0 || int(v) >= len(names) {
		return fmt.Sprintf("verdict %d", int(v))
	}
	return names[v]
}

// An Answer is what one question brought.
type Answer struct {
	Verdict Verdict
	// Name is the server's name, by default the address and port that it was asked at.
	Name string
	// Peer is the source that the server saw.
	Peer netip.AddrPort
	// Source is the address and port that the question was sent from.
	Source netip.AddrPort
	// By is who refused, where an ICMP message did. A kernel that speaks SCTP does not tell it of SCTP.
	By netip.Addr
	// Err is the errno of a refusal.
	Err error
	// Took is the time from the first packet to the verdict; for TCP, to the end of the handshake.
	Took time.Duration
	// Retransmitted counts the TCP segments that the client had to send again.
	Retransmitted int
}

func (a Answer) String() string {
	s := fmt.Sprintf("%s after %v, asked from %s", a.Verdict, a.Took.Round(time.Microsecond), a.Source)
	switch a.Verdict {
	case Answered:
		s = fmt.Sprintf("answered by %s, who saw %s, asked from %s", a.Name, a.Peer, a.Source)
	case Passed, Unanswered:
		s += fmt.Sprintf(", sent on to %s as from %s", a.Name, a.Peer)
	case Refused:
		s += fmt.Sprintf(": %v", a.Err)
		if a.By.IsValid() {
			s += fmt.Sprintf(", by %s", a.By)
		}
	}
	return s
}

// Masqueraded reports whether the server saw another source address than the client's own.
func (a Answer) Masqueraded() bool { return a.Peer.Addr() != a.Source.Addr() }

// Patience is how long a NetNS's Ask waits: long enough for two retransmissions of a SYN.
const Patience = 4 * time.Second

// Ask puts one question over a fresh connection or flow from the namespace and waits up to Patience.
// An error means that the question could not be put, never that it was not answered.
func (n *NetNS) Ask(ctx context.Context, q Query) (Answer, error) {
	x, err := n.exchange(q)
	if err != nil {
		return Answer{}, err
	}
	defer x.close()
	began := time.Now()
	a, decided, err := x.wait(ctx, began.Add(Patience))
	if err != nil {
		return Answer{}, fmt.Errorf("ask %s from %s: %w", q, n.name, err)
	}
	if !decided {
		a = Answer{Verdict: TimedOut, Took: time.Since(began)}
	}
	a.Source = x.source()
	return a, nil
}
