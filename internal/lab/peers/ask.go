package peers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// A Query is one question: from whom, to whom.
type Query struct {
	// Link names the link that the question comes in by; it is made if there is none of that name. Empty: a process
	// of the node asks.
	Link string
	// Source is where the question comes from, whoever has that address. Port 0: one that was not used lately.
	// No address: the one that the kernel gives to a process of the node that binds none.
	Source netip.AddrPort
	Proto  Protocol
	// To is where it goes; the port means nothing for ICMP.
	To netip.AddrPort
}

// A Fate is what became of a question.
type Fate struct {
	Verdict Verdict
	// At is where the question arrived, if it did, and By the link by which it left the node, empty for the node itself.
	At netip.AddrPort
	By string
	// Peer is the source that was seen there.
	Peer netip.AddrPort
	// Source is where the question came from.
	Source netip.AddrPort
	// Answered says that an answer came back to where the question came from, as if from where it was sent to.
	Answered bool
	// Reset says that a refusal was one of the protocol's own, not an ICMP error.
	Reset bool
	// Trace has every packet that was seen, in order.
	Trace Trace
}

// A Verdict is the kernel's on a question.
type Verdict uint8

// The verdicts.
const (
	Dropped  Verdict = iota // nothing was seen of it
	Refused                 // an error came back
	Arrived                 // somebody got it
	Confused                // what was seen contradicts itself
)

var verdictNames = [...]string{"dropped", "refused", "arrived", "confused"}

func (v Verdict) String() string { return verdictNames[v] }

// Ask puts one question and says what became of it. An error means that the question could not be put.
func (w *World) Ask(ctx context.Context, q Query) (f Fate, err error) {
	if err := ctx.Err(); err != nil {
		return Fate{}, err
	}
	err = w.do(func() error {
		x, err := w.exchange(q)
		if err != nil {
			return err
		}
		if err := x.send(x.question); err != nil {
			return err
		}
		if err := w.settle(x.see); err != nil {
			return err
		}
		f = x.fate()
		return nil
	})
	if err != nil {
		return Fate{}, fmt.Errorf("ask %s %s from %s: %w", q.Proto, q.To, q.Source, err)
	}
	return f, nil
}

// The source ports that are given away: ten thousands of questions later they come round again.
const firstPort, lastPort = 20000, 60999

// An exchange is one question and what is seen of it.
type exchange struct {
	w        *World
	entry    *link // nil: the node asks
	question packet

	trace                      Trace
	arrived, answers, refusals []Sighting
	strays                     int  // answers that look wrong to the client
	reset                      bool // a refusal was one of the protocol's own
	keep                       bool // the client does not end the connection that the answer opens
}

// exchange prepares a question.
func (w *World) exchange(q Query) (*exchange, error) {
	x := &exchange{w: w}
	source, to := q.Source, q.To
	switch {
	case q.Proto.number(false) == 0:
		return nil, fmt.Errorf("no such protocol: %q", string(q.Proto))
	case !to.Addr().IsValid():
		return nil, errors.New("no destination")
	case source.Addr().IsValid() && source.Addr().Is6() != to.Addr().Is6():
		return nil, errors.New("source and destination are of two families")
	case q.Link != "":
		var err error
		if x.entry, err = w.link(q.Link); err != nil {
			return nil, err
		}
	case !source.Addr().IsValid():
		a, err := w.local.source(to.Addr())
		if err != nil {
			return nil, err
		}
		source = netip.AddrPortFrom(a, source.Port())
	}
	if !source.Addr().IsValid() {
		return nil, errors.New("no source")
	}
	w.token++
	// Tokens are far apart, so that no sequence number of one exchange looks like that of another.
	x.question = packet{proto: q.Proto, part: question, token: w.token << 8, id: uint16(w.token)}
	x.question.seq = x.question.token
	if q.Proto == ICMP {
		source, to = netip.AddrPortFrom(source.Addr(), 0), netip.AddrPortFrom(to.Addr(), 0)
	} else if source.Port() == 0 {
		if w.port++; w.port > lastPort {
			w.port = firstPort
		}
		source = netip.AddrPortFrom(source.Addr(), w.port)
	}
	x.question.src, x.question.dst = source, to
	return x, nil
}

// send sends a packet of the client.
func (x *exchange) send(p packet) error {
	if x.entry == nil {
		return x.w.local.send(p)
	}
	return x.entry.send(p.encode())
}

// toClient reports whether a packet is for the client, and from where the client expects it.
func (x *exchange) toClient(p packet) bool {
	return p.dst == x.question.src && p.src == x.question.dst
}

// see plays everybody's part towards one packet.
func (x *exchange) see(s Sighting) error {
	p := s.packet
	x.trace = append(x.trace, s)
	switch {
	case p.part == report:
		if p.about.src == x.question.src && p.about.dst == x.question.dst && p.dst.Addr() == x.question.src.Addr() {
			x.refusals = append(x.refusals, s)
		}
	case p.token != x.question.token:
	case p.part == question:
		x.arrived = append(x.arrived, s)
		return x.respond(s)
	case p.part == answer && x.toClient(p):
		x.answers = append(x.answers, s)
		// Connection tracking, and whoever balances, forgets the flow soon if it was a connection and ended. A process of
		// the node has its kernel say that.
		if (p.proto == TCP || p.proto == SCTP) && x.entry != nil && !x.keep {
			if p.proto == TCP {
				if err := x.send(p.next(confirm)); err != nil {
					return err
				}
			}
			return x.send(p.next(refusal))
		}
	case p.part == refusal && x.toClient(p):
		x.refusals, x.reset = append(x.refusals, s), true
	case p.part == answer:
		x.strays++
	}
	return nil
}

// respond answers a question for the endpoint that it reached.
func (x *exchange) respond(s Sighting) error {
	if s.link != "" {
		l, err := x.w.link(s.link)
		if err != nil {
			return err
		}
		return l.send(s.packet.answered().encode())
	}
	if s.packet.proto == SCTP {
		return x.w.local.send(s.packet.answered()) // not every kernel has it
	}
	return nil // the node's kernel says something by itself
}

// fate sums up what was seen.
func (x *exchange) fate() Fate {
	f := Fate{Source: x.question.src, Trace: x.trace, Reset: x.reset, Answered: len(x.answers) > 0}
	for _, s := range x.trace {
		if s.broken {
			f.Verdict = Confused
		}
	}
	if len(x.arrived) > 0 {
		at := x.arrived[0]
		f.At, f.Peer, f.By = at.packet.dst, at.packet.src, at.link
	}
	here := len(x.arrived) > 0 && f.By == ""
	switch {
	case f.Verdict == Confused, len(x.arrived) > 1, x.strays > 0,
		len(x.arrived) == 0 && len(x.answers) > 0,
		len(x.arrived) == 1 && len(x.refusals) > 0 && !here:
		f.Verdict = Confused
	case len(x.arrived) == 1:
		f.Verdict = Arrived
		// Where nobody listens the node's kernel answers with a refusal: the way back is open.
		f.Answered = f.Answered || here && len(x.refusals) > 0
	case len(x.refusals) > 0:
		f.Verdict = Refused
	default:
		f.Verdict = Dropped
	}
	return f
}
