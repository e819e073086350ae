package lab

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A Flow is a connection that stays open: for UDP a source port that is kept, for SCTP an association.
// Its methods may be called from several goroutines; the questions wait for each other.
type Flow struct {
	ns    *NetNS
	query Query
	first Answer

	mu     sync.Mutex // guards what follows
	x      exchange
	closed bool
}

// Open opens a flow from the namespace. It fails unless a server answers the first packet. ICMP has no flows.
func (n *NetNS) Open(ctx context.Context, q Query) (*Flow, error) {
	if q.Proto == ICMP {
		return nil, fmt.Errorf("open %s: there are no flows of it", q)
	}
	x, err := n.exchange(q)
	if err != nil {
		return nil, err
	}
	f := &Flow{ns: n, query: q, x: x}
	f.first, err = f.await(ctx, Patience)
	if err == nil && f.first.Verdict != Answered {
		err = fmt.Errorf("open %s from %s: %s", q, n.name, f.first.Verdict)
	}
	if err != nil {
		x.close()
		return nil, err
	}
	return f, nil
}

// Open opens a flow from the host or node that has q's source address.
func (t *Topology) Open(ctx context.Context, q Query) (*Flow, error) {
	n := t.Owner(q.Source.Addr())
	if n == nil {
		return nil, fmt.Errorf("open %s: nobody has the source address", q)
	}
	return n.Open(ctx, q)
}

// First is the answer with which the flow was opened: who serves it, and whom that one saw.
func (f *Flow) First() Answer { return f.first }

// Ping asks once more over the flow and waits up to patience, 0 meaning Patience. The verdict is Refused
// when the connection was reset, closed, or refused by ICMP; it is TimedOut when nothing came. An error means
// that the question could not be put.
func (f *Flow) Ping(ctx context.Context, patience time.Duration) (Answer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return Answer{}, fmt.Errorf("flow %s: %w", f.query, ErrClosed)
	}
	if err := f.x.again(); err != nil {
		return Answer{}, fmt.Errorf("flow %s: %w", f.query, err)
	}
	if patience == 0 {
		patience = Patience
	}
	return f.await(ctx, patience)
}

func (f *Flow) await(ctx context.Context, patience time.Duration) (Answer, error) {
	began := time.Now()
	a, decided, err := f.x.wait(ctx, began.Add(patience))
	if err != nil {
		return Answer{}, fmt.Errorf("flow %s from %s: %w", f.query, f.ns.name, err)
	}
	if !decided {
		a = Answer{Verdict: TimedOut, Took: time.Since(began)}
	}
	a.Source = f.x.source()
	return a, nil
}

// Close ends the flow at once: with a reset in TCP, an ABORT in SCTP. A second Close does nothing.
func (f *Flow) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.closed = true
		f.x.close()
	}
	return nil
}
