package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// A Load is traffic that goes on while something changes. The zero value of a field is a good choice for all but Query.
type Load struct {
	// Query is the question that every connection puts. Its source port must be 0.
	Query Query
	// Workers is how many connections are under way at once; 0 means 4.
	Workers int
	// Rate limits the new connections per second, of all workers together; 0 means no limit.
	Rate int
	// Flows is how many more connections are opened before the change and kept open. Each is asked again
	// and again, and must stay with its server.
	Flows int
	// Pause is how long each of these rests between two questions; 0 means 10 ms.
	Pause time.Duration
	// Slow is how long an answer may take; 0 means 500 ms. A lost SYN takes a second or more.
	Slow time.Duration
}

func (l Load) withDefaults() Load {
	if l.Workers == 0 {
		l.Workers = 4
	}
	if l.Pause == 0 {
		l.Pause = 10 * time.Millisecond
	}
	if l.Slow == 0 {
		l.Slow = 500 * time.Millisecond
	}
	return l
}

// A Report is what a Load met. The Tally counts the short connections.
type Report struct {
	Tally
	// Failures are the first of what went wrong; Failed counts all.
	Failures []Failure
	Failed   int
	// Slow counts the answers, of short connections, that took longer than the Load's Slow.
	Slow int
	// Pings counts the answers over the flows that were kept open.
	Pings int
	// Took is how long the change took.
	Took time.Duration
}

// A Failure is one connection that failed, or one flow that was cut or moved.
type Failure struct {
	// At is the time since the change began, negative before.
	At     time.Duration
	Reason string
}

// maxFailures is how many failures a Report spells out.
const maxFailures = 10

// Err is nil when no connection failed, none was slow, no SYN was sent twice and no flow was cut or moved.
func (r Report) Err() error {
	var wrong []string
	if r.Failed > 0 {
		wrong = append(wrong, fmt.Sprintf("%d failed", r.Failed))
	}
	if r.Slow > 0 {
		wrong = append(wrong, fmt.Sprintf("%d slow, the slowest %v", r.Slow, r.Slowest))
	}
	if r.Retransmitted > 0 {
		wrong = append(wrong, fmt.Sprintf("%d sent their SYN again", r.Retransmitted))
	}
	if wrong == nil {
		return nil
	}
	text := fmt.Sprintf("of %d connections and %d pings: %s", r.Asked, r.Pings, strings.Join(wrong, ", "))
	for _, f := range r.Failures {
		text += fmt.Sprintf("\n\tat %v: %s", f.At.Round(time.Millisecond), f.Reason)
	}
	return errors.New(text)
}

// Load runs traffic from the host or node that has the query's source address, calls change while it flows, and
// goes on until every worker has connected once more after it. The error is that of change, or says that the
// traffic could not be started; what the traffic met is in the Report.
func (t *Topology) Load(ctx context.Context, l Load, change func(context.Context) error) (Report, error) {
	n := t.Owner(l.Query.Source.Addr())
	if n == nil {
		return Report{}, fmt.Errorf("load %s: nobody has the source address", l.Query)
	}
	return n.Load(ctx, l, change)
}

// Load runs traffic from the namespace, as Topology.Load does.
func (n *NetNS) Load(ctx context.Context, l Load, change func(context.Context) error) (Report, error) {
	r := &running{ns: n, load: l.withDefaults(), done: make(chan struct{}), began: time.Now()}
	r.report.Tally = Tally{ByName: map[string]int{}, ByPeer: map[netip.Addr]int{}}
	flows, err := r.open(ctx)
	if err != nil {
		return Report{}, err
	}
	defer func() {
		for _, f := range flows {
			f.Close()
		}
	}()
	var warm, wg sync.WaitGroup
	for range r.load.Workers {
		warm.Add(1)
		wg.Go(func() { r.connect(ctx, warm.Done) })
	}
	for _, f := range flows {
		warm.Add(1)
		wg.Go(func() { r.ping(ctx, f, warm.Done) })
	}
	warm.Wait()
	r.mark()
	err = change(ctx)
	took := time.Since(r.began)
	close(r.done)
	wg.Wait()
	r.report.Took = took
	return r.report, errors.Join(err, ctx.Err())
}

// A running is a Load under way.
type running struct {
	ns   *NetNS
	load Load
	done chan struct{} // closed when the change is over

	mu     sync.Mutex // guards what follows
	began  time.Time  // of the change
	report Report
}

func (r *running) mark() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began = time.Now()
}

func (r *running) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Failed++
	if len(r.report.Failures) < maxFailures {
		r.report.Failures = append(r.report.Failures, Failure{At: time.Since(r.began), Reason: fmt.Sprintf(format, args...)})
	}
}

func (r *running) open(ctx context.Context) ([]*Flow, error) {
	var flows []*Flow
	for range r.load.Flows {
		f, err := r.ns.Open(ctx, r.load.Query)
		if err != nil {
			for _, f := range flows {
				f.Close()
			}
			return nil, err
		}
		flows = append(flows, f)
	}
	return flows, nil
}

// repeat calls f until the change is over and then once more. started is called after the first time.
func (r *running) repeat(ctx context.Context, pause time.Duration, started func(), f func()) {
	for last := false; !last && ctx.Err() == nil; {
		next := time.Now().Add(pause)
		select {
		case <-r.done:
			last = true
		default:
		}
		f()
		if started != nil {
			started()
			started = nil
		}
		if left := time.Until(next); left > 0 && !last {
			select {
			case <-time.After(left):
			case <-r.done:
			}
		}
	}
	if started != nil {
		started()
	}
}

// connect is one worker.
func (r *running) connect(ctx context.Context, started func()) {
	var pause time.Duration
	if r.load.Rate > 0 {
		pause = time.Second * time.Duration(r.load.Workers) / time.Duration(r.load.Rate)
	}
	r.repeat(ctx, pause, started, func() {
		a, err := r.ns.Ask(ctx, r.load.Query)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			r.fail("%v", err)
			return
		}
		if a.Verdict != Answered {
			r.fail("%s from %s: %s after %v: %v", r.load.Query, a.Source, a.Verdict, a.Took, a.Err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.report.add(a)
		if a.Took > r.load.Slow {
			r.report.Slow++
		}
	})
}

// ping keeps one flow busy.
func (r *running) ping(ctx context.Context, f *Flow, started func()) {
	broken := false
	r.repeat(ctx, r.load.Pause, started, func() {
		if broken {
			return
		}
		a, err := f.Ping(ctx, 0)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			r.fail("%v", err)
		case a.Verdict != Answered:
			r.fail("open flow %s from %s to %s: %s: %v", f.query, a.Source, f.first.Name, a.Verdict, a.Err)
		case a.Name != f.first.Name || a.Peer != f.first.Peer:
			r.fail("open flow %s from %s moved from %s (seen as %s) to %s (seen as %s)", f.query, a.Source, f.first.Name, f.first.Peer, a.Name, a.Peer)
		default:
			r.mu.Lock()
			r.report.Pings++
			r.mu.Unlock()
			return
		}
		broken = true
	})
}
