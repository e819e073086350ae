package model

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// A Syncer keeps a kernel in step with what is wanted. Changes may come from any goroutine at any time; [Syncer.Run]
// programs them:
//
//	SetService, SetEndpoints, … ─▶ Tracker ─▶ Run ─▶ Programmer ─▶ kernel
//	                                           └──▶ Cleaner (stale connections)
//
// Nothing is written before the state is complete, which [Syncer.Replace] or [Syncer.Ready] says: what an earlier process
// left in the kernel stays in force until then, and what it no longer needs goes with the first Sync. From then on
//
//   - changes are applied at once, and gathered while they come fast ([SyncerConfig.MinInterval]);
//   - the kernel is checked, and repaired, every [SyncerConfig.CheckPeriod], and synced every ResyncPeriod;
//   - after a failure everything is synced again, after a while that grows with each failure, and what was programmed
//     before stays in force;
//   - a service that is refused stops nobody else: it keeps its last good form and is tried again, apart from the
//     changes of the others;
//   - stale connections are forgotten after each programming, and what could not be done stays owed.
//
// [Syncer.Status] and [Syncer.Watch] say how each service stands, [Syncer.Overview] how all is going.
//
// NewSyncer makes a Syncer; its methods are safe for concurrent use. The Programmer stays the caller's: nobody else may
// write with it while Run is at work, and whoever wants the rules removed calls its Cleanup after Run has ended.
type Syncer struct {
	cfg    SyncerConfig
	log    *slog.Logger
	random func() float64 // from [0, 1)

	// turn holds a value while somebody calls the Programmer.
	turn chan struct{}
	// wake tells Run, and cleanWake its cleaning, that there may be something to do.
	wake, cleanWake chan struct{}
	// ended is closed when Run has ended.
	ended chan struct{}

	// mu guards everything below. It is never held while the Programmer, the Cleaner or the Observer is called.
	mu         sync.Mutex
	programmer Programmer
	backend    string
	features   FeatureSet
	ledger     ledger
	book       book
	plan       schedule
	// node is the one that was set; addrs are those that the NodeWatcher told, nil before it has.
	node     Node
	addrs    []netip.Addr
	watchers map[*watcher]struct{}
	leaving  []departure // that were switched from, and of which something is left
	drainErr string      // what the last attempt to drain was told of
	// progress is closed, and replaced, when something was achieved that somebody may wait for.
	progress chan struct{}
	running  bool
	used     bool // Run was called
	cleanErr error
	warned   []string // the warnings of the last Result
}

// NewSyncer returns a Syncer that drives a Programmer. It does nothing before Run.
func NewSyncer(p Programmer, cfg SyncerConfig) *Syncer {
	cfg = cfg.withDefaults()
	s := &Syncer{
		cfg: cfg, log: cfg.Logger, random: rand.Float64,
		turn: make(chan struct{}, 1), wake: make(chan struct{}, 1), cleanWake: make(chan struct{}, 1), ended: make(chan struct{}),
		ledger:   ledger{lags: map[ServiceName]*lag{}},
		book:     book{records: map[ServiceName]*record{}, sick: map[ServiceName]struct{}{}},
		plan:     schedule{full: ReasonStart, pace: pace{interval: cfg.MinInterval, burst: cfg.Burst}, addrsKnown: cfg.Nodes == nil},
		watchers: map[*watcher]struct{}{}, progress: make(chan struct{}),
	}
	s.adopt(p)
	return s
}

// adopt makes a Programmer the one that is driven. The caller holds mu.
func (s *Syncer) adopt(p Programmer) {
	s.programmer, s.features = p, p.Features()
	s.backend = s.features.Backend
}

// Programmer returns the Programmer that is driven. It changes with [Syncer.Switch].
func (s *Syncer) Programmer() Programmer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.programmer
}

// SetService adds or replaces a service. Its endpoints stay. A service that makes no sense is rejected by name in its
// [Syncer.Status].
func (s *Syncer) SetService(name ServiceName, svc Service) {
	s.change(func(now time.Time) []ServiceName {
		s.ledger.tracker.SetService(name, svc)
		return s.noted(name, now)
	})
}

// DeleteService deletes a service. Its endpoints stay, should it come back.
func (s *Syncer) DeleteService(name ServiceName) {
	s.change(func(now time.Time) []ServiceName {
		s.ledger.tracker.DeleteService(name)
		return s.noted(name, now)
	})
}

// SetEndpoints replaces the endpoints of a service, which need not be there yet. No endpoints delete the list.
func (s *Syncer) SetEndpoints(name ServiceName, eps []Endpoint) {
	s.change(func(now time.Time) []ServiceName {
		s.ledger.tracker.SetEndpoints(name, eps)
		return s.noted(name, now)
	})
}

// SetNode replaces the node. It returns the error of [Node.Validate], and then changes nothing.
func (s *Syncer) SetNode(node Node) error {
	if err := node.Validate(); err != nil {
		return err
	}
	s.change(func(now time.Time) []ServiceName {
		s.node = node.clone()
		s.setNode(now)
		return nil
	})
	return nil
}

// Replace makes st all that is wanted: what it does not name is deleted. It says that the state is complete, see
// [Syncer.Ready]. It returns the error of [Node.Validate], and then changes nothing.
func (s *Syncer) Replace(st State) error {
	if err := st.Node.Validate(); err != nil {
		return err
	}
	s.change(func(now time.Time) []ServiceName {
		s.node = st.Node.clone()
		st.Node = s.wantedNode()
		s.ledger.tracker.Replace(st)
		s.plan.ready = true
		return s.ledger.noteAll(now)
	})
	return nil
}

// Ready says that what is wanted is complete: whatever else of ours is in the kernel may go. Before, nothing is written.
func (s *Syncer) Ready() {
	s.mu.Lock()
	s.plan.ready = true
	s.mu.Unlock()
	s.rouse()
}

// change makes a change and wakes Run. The function is called with mu held, and returns whose status changed.
func (s *Syncer) change(f func(now time.Time) []ServiceName) {
	s.mu.Lock()
	now := time.Now()
	s.ledger.count(now)
	s.notify(f(now)...)
	s.settle()
	s.mu.Unlock()
	s.rouse()
}

// noted notes that a service was changed, and returns its name if its status did.
func (s *Syncer) noted(name ServiceName, now time.Time) []ServiceName {
	if !s.ledger.noteService(name, now) {
		return nil
	}
	return []ServiceName{name}
}

// wantedNode returns the node that was set, with the addresses that were told.
func (s *Syncer) wantedNode() Node {
	node := s.node
	if s.addrs != nil {
		node.Addrs = s.addrs
	}
	return node
}

// setNode hands the wanted node to the tracker.
func (s *Syncer) setNode(now time.Time) {
	s.ledger.tracker.SetNode(s.wantedNode())
	s.ledger.noteNode(now)
}

// settle notes that all changes are programmed if nothing is left to do, since they cancelled each other. The caller
// holds mu.
func (s *Syncer) settle() {
	if s.ledger.pending() == 0 && s.plan.full == "" && s.ledger.done != s.ledger.made {
		s.ledger.done = s.ledger.made
		s.progressed()
	}
}

// progressed wakes all who wait for something. The caller holds mu.
func (s *Syncer) progressed() {
	close(s.progress)
	s.progress = make(chan struct{})
}

// rouse makes Run look for something to do.
func (s *Syncer) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Wait waits until all changes that were made before it are programmed, or made up for by later ones. Services that were
// rejected count as programmed: their Status says so. It does not hurry anybody. It returns an error that wraps that of
// ctx, and of the last attempt if that failed, or [ErrClosed] once Run has ended.
func (s *Syncer) Wait(ctx context.Context) error {
	s.mu.Lock()
	target := s.ledger.made
	s.mu.Unlock()
	return s.await(ctx, func() bool { return s.plan.synced && s.ledger.done >= target })
}

// Resync programs everything anew at once, whatever the kernel holds, and waits until it is done: for a hook that is
// called after a firewall was reloaded. Failures are tried again until ctx is over. The errors are those of Wait.
func (s *Syncer) Resync(ctx context.Context) error {
	s.mu.Lock()
	s.plan.asked++
	target := s.plan.asked
	if s.plan.full == "" {
		s.plan.full = ReasonAsked
	}
	s.plan.hurry = true
	s.mu.Unlock()
	s.rouse()
	return s.await(ctx, func() bool { return s.plan.answered >= target })
}

// await waits until something is reached, which it asks with mu held.
func (s *Syncer) await(ctx context.Context, reached func() bool) error {
	look := func() (ok bool, progress <-chan struct{}, last error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return reached(), s.progress, s.plan.err
	}
	for over := false; ; {
		ok, progress, _ := look()
		switch {
		case ok:
			return nil
		case over:
			return fmt.Errorf("syncer: not programmed: %w", ErrClosed)
		}
		select {
		case <-progress:
		case <-ctx.Done():
			if _, _, last := look(); last != nil {
				return fmt.Errorf("syncer: not programmed: %w (%w)", context.Cause(ctx), last)
			}
			return fmt.Errorf("syncer: not programmed: %w", context.Cause(ctx))
		case <-s.ended:
			over = true // look once more
		}
	}
}
