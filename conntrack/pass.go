package conntrack

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headgate/headgate/model"
)

// A pass is one Clean under way.
type pass struct {
	*Cleaner
	taken   []debt // what it works on
	task    *task  // all of it
	skipped *task  // what has to be looked at once it has been programmed
	del     deleter
	found   []flow // stale flows of one receive

	seen, stale, requests int
	plan, list, forget    time.Duration
}

// cleanUntil does what is due by a time.
func (c *Cleaner) cleanUntil(ctx context.Context, now time.Time) (model.Result, error) {
	if err := c.acquire(ctx); err != nil {
		return model.Result{}, c.failed("clean", err)
	}
	defer c.release()
	p := c.take(now)
	if p == nil {
		return model.Result{}, nil
	}
	sent, received := c.traffic()
	err := p.run(ctx)
	if err == nil {
		err = p.del.failures.err()
	}
	sentNow, receivedNow := c.traffic()
	res := model.Result{
		Deleted: p.del.deleted, Transactions: p.requests + p.del.batches, Bytes: int(sentNow - sent),
		Steps: []model.Step{{Name: "plan", Took: p.plan}, {Name: "list", Took: p.list - p.forget}, {Name: "forget", Took: p.forget}},
	}
	p.settle(err, Stats{
		Looks: 1, Requests: res.Transactions, Seen: p.seen, Stale: p.stale, Deleted: p.del.deleted, Gone: p.del.gone,
		Failed: p.del.failures.count, BytesSent: sentNow - sent, BytesReceived: receivedNow - received,
	})
	if errors.Is(err, errMoved) {
		return res, nil
	}
	return res, c.failed("clean", err)
}

// traffic returns how many bytes have gone over the sockets.
func (c *Cleaner) traffic() (sent, received uint64) {
	for _, conn := range [...]*conn{c.table, c.killer, c.route} {
		sent, received = sent+conn.sent, received+conn.received
	}
	return sent, received
}

// take takes what is due out of what is owed; nil if there is nothing, or nothing can be judged now.
func (c *Cleaner) take(now time.Time) *pass {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &pass{Cleaner: c, task: newTask(), skipped: newTask(), del: deleter{conn: c.killer}}
	if c.record.blind {
		return nil
	}
	var later []debt
	for _, d := range c.owed {
		if d.due.After(now) {
			later = append(later, d)
			continue
		}
		p.taken = append(p.taken, d)
		p.task.add(d.task)
	}
	if len(p.taken) == 0 {
		return nil
	}
	c.owed = later
	return p
}

// settle puts back what was not done, and notes when what was done is to be looked at again.
func (p *pass) settle(err error, done Stats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.add(done)
	if p.deferred != nil {
		p.skipped.add(p.deferred)
	}
	if p.deferred = p.skipped; p.record.pending == nil {
		p.owe(p.deferred)
		p.deferred = nil
	}
	if err != nil {
		p.owe(p.task)
		return
	}
	again := newTask()
	for _, d := range p.taken {
		if !d.second {
			again.add(d.task)
		}
	}
	if !again.empty() {
		p.owed = append(p.owed, debt{task: again, due: time.Now().Add(p.cfg.SecondLook), second: true})
	}
}

func (s *Stats) add(o Stats) {
	s.Looks += o.Looks
	s.Requests += o.Requests
	s.Seen += o.Seen
	s.Stale += o.Stale
	s.Deleted += o.Deleted
	s.Gone += o.Gone
	s.Failed += o.Failed
	s.BytesSent += o.BytesSent
	s.BytesReceived += o.BytesReceived
}

// run looks at everything in the task.
func (p *pass) run(ctx context.Context) error {
	began := time.Now()
	if err := p.askAddrs(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	looks, err := p.record.looks(p.task, p.cfg.Orphans)
	p.mu.Unlock()
	p.plan = time.Since(began)
	if err != nil {
		return err
	}
	began = time.Now()
	defer func() { p.list = time.Since(began) }()
	requests, err := p.listings(looks)
	for i := 0; i < len(requests) && err == nil; i++ {
		p.requests++
		err = p.table.list(ctx, requests[i], func(msgs [][]byte) error { return p.look(ctx, msgs) })
		if err == nil {
			err = p.forgetNow(ctx)
		}
	}
	return err
}

// askAddrs brings the node's addresses up to date if it is for the kernel to tell them.
func (p *pass) askAddrs(ctx context.Context) error {
	p.mu.Lock()
	must := p.record.mustAskAddrs()
	p.mu.Unlock()
	if !must {
		return nil
	}
	came, err := p.Cleaner.askAddrs(ctx)
	if err == nil && !came.empty() {
		p.taken = append(p.taken, debt{task: came})
		p.task.add(came)
	}
	return err
}

// askAddrs asks the kernel for the node's addresses, unless the caller of Syncing gave them, and returns what has to be
// looked at because of it.
func (c *Cleaner) askAddrs(ctx context.Context) (came *task, err error) {
	addrs, err := nodeAddrs(ctx, c.route)
	if err != nil {
		return nil, fmt.Errorf("addresses of the node: %w", err)
	}
	came = newTask()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.record.known {
		c.record.setAddrs(addrs, came)
	}
	return came, nil
}

// look judges flows that the kernel listed, and deletes the stale ones.
func (p *pass) look(ctx context.Context, msgs [][]byte) error {
	if err := p.judge(msgs); err != nil || len(p.found) == 0 {
		return err
	}
	began := time.Now()
	defer func() { p.forget += time.Since(began) }()
	for i := range p.found {
		if err := p.del.add(ctx, &p.found[i]); err != nil {
			return err
		}
	}
	return nil
}

// forgetNow sends the deletions that are waiting for a full batch.
func (p *pass) forgetNow(ctx context.Context) error {
	began := time.Now()
	defer func() { p.forget += time.Since(began) }()
	return p.del.flush(ctx)
}

// judge leaves the stale ones among the flows that the kernel listed in p.found. They are judged by what is recorded
// at this moment, which is the rules that they met or later ones: an attempt to program is announced before it begins.
func (p *pass) judge(msgs [][]byte) error {
	p.found = p.found[:0]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.record.blind {
		return errMoved
	}
	j := judge{record: p.record, task: p.task, zones: p.cfg.Zones, orphans: p.cfg.Orphans}
	var f flow
	for _, msg := range msgs {
		if !f.decode(msg) {
			continue
		}
		p.seen++
		switch v, key := j.of(&f); v {
		case forget:
			p.stale++
			p.found = append(p.found, f)
		case wait:
			p.skipped.frontends[key] = struct{}{}
		}
	}
	return nil
}
