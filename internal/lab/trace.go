package lab

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// How Topology.Ask divides its time.
const (
	// quick is how long an answer may take before the node is watched.
	quick = 80 * time.Millisecond
	// grace is how long after its arrival at the node a packet may take to leave it. The kernel does all of that in one
	// go; the grace covers a machine that is stopped in between.
	grace = 100 * time.Millisecond
	// rounds is how many packets must vanish, each a flow of its own, until they count as dropped.
	rounds = 2
)

// Ask puts one question from the host or node that has q's source address, and finds out what became of
// the packet where nobody answers it. A source that nobody has is sent by the node itself.
//
// A drop is never concluded from silence alone: the node is watched, and the verdict is Dropped when the
// packet was seen to enter, while neither it nor an answer was seen to leave and connection tracking does not know it; twice.
// An error means that the question could not be put.
func (t *Topology) Ask(ctx context.Context, q Query) (Answer, error) {
	q = q.normal()
	if !q.Source.Addr().IsValid() {
		return Answer{}, fmt.Errorf("ask %s: the source address says who asks, and there is none", q)
	}
	n := t.Owner(q.Source.Addr())
	if n == nil {
		n = t.Node
	}
	first, err := n.exchange(q)
	if err != nil {
		return Answer{}, err
	}
	began := time.Now()
	a, decided, err := first.wait(ctx, began.Add(quick))
	if err == nil && !decided {
		tr := &trace{topo: t, asker: n, query: q, began: began, flows: []*traced{{exchange: first}}}
		a, err = tr.run(ctx)
	} else {
		a.Source = first.source()
		first.close()
	}
	if err != nil {
		return Answer{}, fmt.Errorf("ask %s from %s: %w", q, n.name, err)
	}
	return a, nil
}

// A trace follows a question that was not answered quickly. It asks again, over a new flow, while
// it watches the node.
type trace struct {
	topo  *Topology
	asker *NetNS
	query Query
	began time.Time
	flows []*traced // the first was not watched, the last is the one that counts
}

// A traced is one flow and what was seen of it.
type traced struct {
	exchange
	sent        time.Time
	fingerprint string
	entered     time.Time // when it was first seen to enter the node; zero if not yet
	left        *Packet   // how it left the node; nil if it did not
	replied     bool      // something came back for the asker
	tracked     *tracked  // what connection tracking says of it; nil if nothing
}

func (tr *trace) run(ctx context.Context) (a Answer, err error) {
	sniffer, err := tr.topo.Node.Sniff()
	if err != nil {
		return a, err
	}
	defer sniffer.Close()
	defer func() {
		for _, f := range tr.flows {
			f.close()
		}
	}()
	vanished := 0
	for time.Since(tr.began) < Patience {
		f, err := tr.next()
		if err != nil {
			return a, err
		}
		a, gone, err := tr.follow(ctx, sniffer, f)
		if err != nil || !gone {
			return a, err
		}
		if vanished++; vanished == rounds {
			return tr.verdict(f, Dropped), nil
		}
	}
	return tr.verdict(tr.flows[len(tr.flows)-1], TimedOut), nil
}

// next opens one more flow of the same question.
func (tr *trace) next() (*traced, error) {
	if tr.query.Source.Port() != 0 { // the port is taken as long as the flow before is there
		for _, f := range tr.flows {
			f.close()
		}
		tr.flows = nil
	}
	x, err := tr.asker.exchange(tr.query)
	if err != nil {
		return nil, err
	}
	f := &traced{exchange: x, sent: time.Now(), fingerprint: x.fingerprint()}
	if tr.asker == tr.topo.Node {
		f.entered = f.sent // sending and the rules of output are one system call
	}
	tr.flows = append(tr.flows, f)
	return f, nil
}

// follow waits until the flow is decided, or gone: dropped, as far as can be seen.
func (tr *trace) follow(ctx context.Context, sniffer *Sniffer, f *traced) (a Answer, gone bool, err error) {
	const slice = 5 * time.Millisecond
	deadline := tr.began.Add(Patience)
	for time.Now().Before(deadline) {
		for _, x := range tr.flows {
			wait := time.Now()
			if x == f {
				wait = wait.Add(slice)
			}
			a, decided, err := x.wait(ctx, wait)
			if err != nil || decided {
				a.Source = x.source()
				return a, false, err
			}
		}
		seen, err := sniffer.Drain()
		if err != nil {
			return a, false, err
		}
		for _, p := range seen {
			tr.note(f, p)
		}
		if v, hopeless := tr.hopeless(f); hopeless {
			return tr.verdict(f, v), false, nil
		}
		if tr.isGone(f) {
			return a, true, nil
		}
	}
	return tr.verdict(f, tr.fate(f)), false, nil
}

// note takes down what one packet at the node says of a flow.
func (tr *trace) note(f *traced, p Packet) {
	src, dst := f.source(), tr.query.To
	switch {
	case p.flow(tr.query.Proto, dst, src):
		f.replied = true
	case !p.Out && p.flow(tr.query.Proto, src, dst):
		if f.entered.IsZero() {
			f.entered = time.Now()
		}
		if f.fingerprint == "" {
			f.fingerprint = p.fingerprint()
		}
	case p.Out && p.Link != "lo" && f.left == nil && (p.same(f.fingerprint) || p.flow(tr.query.Proto, src, dst)):
		f.left = &p
	}
}

// onward is the destination and the source with which a flow's packet went on from the node, as far as is known.
func (f *traced) onward() (endpoint, peer netip.AddrPort, known bool) {
	switch {
	case f.left != nil:
		return f.left.Dst, f.left.Src, true
	case f.tracked != nil:
		return f.tracked.endpoint, f.tracked.peer, true
	}
	return endpoint, peer, false
}

// hopeless reports whether nobody can answer a packet any more that the node let go on, and its verdict.
func (tr *trace) hopeless(f *traced) (Verdict, bool) {
	endpoint, _, known := f.onward()
	switch {
	case !known:
		return TimedOut, false
	case endpoint == tr.query.To:
		return Passed, f.left != nil && f.left.Link == WireLink && !tr.topo.Wire.servesForeign(tr.query.To.Addr())
	}
	// The answer to an address that nobody has cannot arrive. A handshake of TCP is answered by the
	// kernel at the other end, which needs no patience.
	spoofed := tr.topo.Owner(f.source().Addr()) == nil
	return Unanswered, spoofed || tr.query.Proto == TCP && !f.replied && time.Since(f.entered) > 10*grace
}

// isGone reports whether a flow's packet disappeared in the node.
func (tr *trace) isGone(f *traced) bool {
	if _, _, known := f.onward(); known || f.entered.IsZero() || time.Since(f.entered) < grace {
		return false
	}
	if f.denied() {
		return true
	}
	flow, active := tr.topo.Node.track(tr.query.Proto, f.source(), tr.query.To)
	if f.tracked = flow; flow != nil || f.replied {
		return false
	}
	// Without connection tracking nothing tells a datagram that waits for a slow server in the node
	// from a dropped one: wait longer. A handshake of TCP is answered by the kernel.
	return active || tr.query.Proto == TCP || time.Since(f.entered) > 5*grace
}

// fate is the verdict on a flow that nobody answered until the end.
func (tr *trace) fate(f *traced) Verdict {
	endpoint, _, known := f.onward()
	switch {
	case known && endpoint != tr.query.To:
		return Unanswered
	case f.left != nil:
		return Passed
	}
	return TimedOut
}

func (tr *trace) verdict(f *traced, v Verdict) Answer {
	a := Answer{Verdict: v, Source: f.source(), Took: time.Since(tr.began)}
	if endpoint, peer, known := f.onward(); known {
		a.Name, a.Peer = endpoint.String(), peer
	}
	return a
}

// servesForeign reports whether a server answers at an address that the namespace does not have.
func (n *NetNS) servesForeign(a netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.foreign[a] > 0
}
