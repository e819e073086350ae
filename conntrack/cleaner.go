package conntrack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/headgate/headgate/model"
	"golang.org/x/sys/unix"
)

// A Cleaner forgets the flows that changes made stale. It has to be told of every attempt to program, from the first
// Sync on: [Cleaner.Syncing] or [Cleaner.Applying] before, [Cleaner.Programmed] after. [Cleaner.Clean] then does what
// is owed. New makes one, Close releases its sockets. It is safe for concurrent use, and is a [model.Cleaner] for the
// Syncer, which does the telling.
//
// After a Cleanup of the Programmer, Syncing with an empty State, Programmed and Settle forget the flows of all that was
// balanced.
type Cleaner struct {
	cfg Config
	ns  *os.File // of cfg.NetNS; nil if that is 0
	// filters says that the kernel lists by filter.
	filters bool
	table   *conn // lists
	killer  *conn // deletes
	route   *conn // the node's addresses

	// sockets holds one token, for whoever uses the sockets.
	sockets chan struct{}

	mu     sync.Mutex // guards what follows; never held while the kernel works
	record *record
	owed   []debt
	// deferred is what looks left alone because it was being programmed; it is owed once that is over.
	deferred *task
	stats    Stats
	closed   bool
}

// A debt is a task and when it is due.
type debt struct {
	task   *task
	due    time.Time
	second bool
}

// Stats counts what a Cleaner has done since it was made.
type Stats struct {
	// Looks is how often something owed was looked at: twice for each change, more after failures.
	Looks int
	// Requests counts the requests to list flows, and the batches of deletions.
	Requests int
	// Seen counts the flows that the kernel listed, Stale those of them to be deleted, Deleted those that were.
	// Gone were gone already, Failed could not be deleted.
	Seen, Stale, Deleted, Gone, Failed int
	// BytesSent and BytesReceived are what went over the sockets.
	BytesSent, BytesReceived uint64
}

// New asks the kernel what it can and returns a Cleaner that knows of nothing yet. It writes nothing. It returns an
// error that wraps model.ErrPermission without CAP_NET_ADMIN in the namespace's owner (entering another namespace than
// that of the calling thread needs CAP_SYS_ADMIN too), and model.ErrNotSupported for a kernel without conntrack's
// netlink interface, nf_conntrack_netlink.
func New(ctx context.Context, cfg Config) (*Cleaner, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Cleaner{cfg: cfg, sockets: make(chan struct{}, 1), record: newRecord(cfg.Protocols)}
	if err = c.dial(); err == nil {
		err = c.probe(ctx)
	}
	if err != nil {
		c.hangUp()
		return nil, fmt.Errorf("conntrack: %w", err)
	}
	return c, nil
}

// dial opens the sockets, all of them now: later the calling thread may be in another namespace. The caller's
// descriptor of the namespace may be closed then, so from here on the Cleaner has its own.
func (c *Cleaner) dial() (err error) {
	if c.cfg.NetNS != 0 {
		fd, err := unix.FcntlInt(uintptr(c.cfg.NetNS), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("network namespace: %w", err)
		}
		c.ns = os.NewFile(uintptr(fd), "network namespace")
	}
	if c.table, err = dial(unix.NETLINK_NETFILTER, c.cfg); err != nil {
		return err
	}
	if c.killer, err = dial(unix.NETLINK_NETFILTER, c.cfg); err != nil {
		return err
	}
	c.route, err = dial(unix.NETLINK_ROUTE, c.cfg)
	return err
}

func (c *Cleaner) hangUp() error {
	var errs []error
	for _, conn := range [...]*conn{c.table, c.killer, c.route} {
		if conn != nil {
			errs = append(errs, conn.close())
		}
	}
	if c.ns != nil {
		errs = append(errs, c.ns.Close())
	}
	return errors.Join(errs...)
}

// Close releases the sockets; a Clean under way ends with [model.ErrClosed], as do further calls. What is owed stays
// undone. A second Close does nothing.
func (c *Cleaner) Close() error {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	if closed {
		return nil
	}
	return c.hangUp()
}

// Syncing says that a Sync of want is about to begin. Until [Cleaner.Programmed] has told that a Sync succeeded,
// nothing is deleted. The maps and slices of want must not be written until then.
func (c *Cleaner) Syncing(want model.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.record.begin(attempt{sync: true, state: want})
}

// Applying says that an Apply of diff is about to begin. Until [Cleaner.Programmed] has told what came of it, flows to
// the frontends that it touches are left alone.
func (c *Cleaner) Applying(diff model.Diff) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.record.begin(attempt{diff: diff})
}

// Programmed tells what the Sync or Apply returned that was announced last. Services that it rejected keep the form
// that they had. After an error the state of the kernel is unknown, and cleaning waits for a Sync that succeeds; what
// the failed attempts may have left in the table is then looked for too. Without an announcement it does nothing.
func (c *Cleaner) Programmed(res model.Result, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owe(c.record.outcome(res, err))
	c.owe(c.deferred)
	c.deferred = nil
}

// owe adds what has to be looked at, now and once more later, to what is owed. The caller holds mu.
func (c *Cleaner) owe(t *task) {
	if t == nil || t.empty() {
		return
	}
	for _, d := range c.owed {
		if !d.second {
			d.task.add(t)
			return
		}
	}
	c.owed = append(c.owed, debt{task: t, due: time.Now()})
}

// Due returns when [Cleaner.Clean] has something to do. It returns false if nothing is owed, or nothing can be done
// until a Sync has succeeded. A time that has passed means now.
func (c *Cleaner) Due() (at time.Time, owed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.record.blind {
		return time.Time{}, false
	}
	for _, d := range c.owed {
		if !owed || d.due.Before(at) {
			at, owed = d.due, true
		}
	}
	return at, owed
}

// Stats returns what has been done so far.
func (c *Cleaner) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Clean looks for the flows that are stale, as far as that is due, and deletes them. What it could not do stays owed
// and due, and the error says why: model.ErrPermission, model.ErrBusy, the end of ctx, deletions that failed. Calling
// it when nothing is due costs nothing.
//
// The result counts deleted flows (Deleted), requests to the kernel (Transactions) and their bytes (Bytes). Its steps
// are "plan", "list" and "forget".
func (c *Cleaner) Clean(ctx context.Context) (model.Result, error) {
	return c.cleanUntil(ctx, time.Now())
}

// Settle cleans until nothing is owed, waiting for what is due later. It returns early with the first error, or when
// nothing more can be done until a Sync has succeeded.
func (c *Cleaner) Settle(ctx context.Context) (model.Result, error) {
	var all model.Result
	for {
		at, owed := c.Due()
		if !owed {
			return all, ctx.Err()
		}
		wait := time.NewTimer(time.Until(at))
		select {
		case <-ctx.Done():
			wait.Stop()
			return all, context.Cause(ctx)
		case <-wait.C:
		}
		res, err := c.Clean(ctx)
		all.Deleted += res.Deleted
		all.Transactions += res.Transactions
		all.Bytes += res.Bytes
		all.Steps = append(all.Steps, res.Steps...)
		if err != nil {
			return all, err
		}
	}
}

// acquire waits for the sockets. The caller calls release if it returns nil.
func (c *Cleaner) acquire(ctx context.Context) error {
	select {
	case c.sockets <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		c.release()
		return model.ErrClosed
	}
	return nil
}

func (c *Cleaner) release() { <-c.sockets }

// failed says which call failed and why. Once the Cleaner is closed that is the reason, however sockets put it.
func (c *Cleaner) failed(call string, err error) error {
	if err == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		err = model.ErrClosed
	}
	return fmt.Errorf("conntrack: %s: %w", call, err)
}
