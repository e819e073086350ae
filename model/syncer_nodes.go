package model

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"
)

// A NodeWatcher knows the addresses of the node. *nodewatch.Watcher asks the kernel.
type NodeWatcher interface {
	// Watch calls told with all addresses of the node that are in use, loopback left out, first at once and then
	// whenever they have changed, until ctx is over; it returns what kept it from going on.
	Watch(ctx context.Context, told func(addrs []netip.Addr)) error
}

// watchNodes keeps the node's addresses up to date until ctx is over.
func (s *Syncer) watchNodes(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		err := s.cfg.Nodes.Watch(ctx, func(addrs []netip.Addr) {
			failures = 0
			s.told(ctx, addrs)
		})
		if ctx.Err() != nil {
			return
		}
		failures++
		wait := s.cfg.Retry.wait(failures, s.random())
		s.log.LogAttrs(ctx, slog.LevelWarn, "cannot follow the node's addresses", slog.Any("err", err), slog.Duration("retry_in", wait))
		s.goOnWithout()
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

// goOnWithout has the node taken as it was set, as long as nobody tells its addresses.
func (s *Syncer) goOnWithout() {
	s.mu.Lock()
	s.plan.addrsKnown = true
	s.mu.Unlock()
	s.rouse()
}

// told takes over the addresses of the node.
func (s *Syncer) told(ctx context.Context, addrs []netip.Addr) {
	if err := (Node{Addrs: addrs}).Validate(); err != nil {
		s.log.LogAttrs(ctx, slog.LevelWarn, "told addresses that make no sense", slog.Any("err", err))
		s.goOnWithout()
		return
	}
	s.change(func(now time.Time) []ServiceName {
		s.addrs = append(make([]netip.Addr, 0, len(addrs)), addrs...)
		slices.SortFunc(s.addrs, netip.Addr.Compare)
		s.plan.addrsKnown = true
		s.setNode(now)
		return nil
	})
}
