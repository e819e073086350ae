package nodewatch

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// Config configures [New]. The zero Config follows the namespace of the calling thread.
type Config struct {
	// NetNS is a descriptor of the network namespace; it may be closed after New. 0 means that of the thread that
	// calls New.
	NetNS int
	// Settle is how long to gather changes before addresses are listed anew. 0 means 50 milliseconds.
	Settle time.Duration
	// Timeout bounds each exchange with the kernel. 0 means 10 seconds.
	Timeout time.Duration
}

// A Watcher follows the addresses of a node. It is a [model.NodeWatcher]. It is safe for concurrent use; calls wait for
// each other. New makes one, Close releases its sockets.
type Watcher struct {
	cfg    Config
	events *netlink.Conn // hears of changes, since New
	heard  syscall.RawConn
	asks   *netlink.Conn
	left   bool // asks has an answer that was not taken to its end
	// asking and watching hold a value while somebody uses the socket that asks, and the one that listens.
	asking, watching chan struct{}
	closed           atomic.Bool
}

// New opens the sockets. Changes are heard of from now on. The error wraps [model.ErrPermission] if the namespace may
// not be entered.
func New(cfg Config) (*Watcher, error) {
	if cfg.NetNS < 0 || cfg.Settle < 0 || cfg.Timeout < 0 {
		return nil, fmt.Errorf("nodewatch: negative NetNS, Settle or Timeout: %w", model.ErrInvalid)
	}
	if cfg.Settle == 0 {
		cfg.Settle = 50 * time.Millisecond
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	w := &Watcher{cfg: cfg, asking: make(chan struct{}, 1), watching: make(chan struct{}, 1)}
	var err error
	if w.asks, err = netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: cfg.NetNS}); err != nil {
		return nil, fmt.Errorf("nodewatch: %w", meaning(err))
	}
	groups := uint32(unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	if w.events, err = netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: cfg.NetNS, Groups: groups}); err == nil {
		w.heard, err = w.events.SyscallConn()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nodewatch: %w", meaning(err)), w.Close())
	}
	return w, nil
}

// Close releases the sockets. A call that is under way ends with [model.ErrClosed], as do further ones.
func (w *Watcher) Close() error {
	if w.closed.Swap(true) {
		return nil
	}
	var errs []error
	for _, c := range [...]*netlink.Conn{w.asks, w.events} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// Watch implements [model.NodeWatcher]: it tells the addresses at once, and again whenever they are others, sorted, until
// ctx is over, whose error it returns then.
func (w *Watcher) Watch(ctx context.Context, told func(addrs []netip.Addr)) error {
	if err := take(ctx, w.watching); err != nil {
		return err
	}
	defer func() { <-w.watching }()
	var last []netip.Addr
	for first := true; ; first = false {
		addrs, err := w.Addrs(ctx)
		if err != nil {
			return err
		}
		if first || !slices.Equal(addrs, last) {
			last = slices.Clone(addrs)
			told(addrs)
		}
		if err := w.listen(ctx); err != nil {
			return fmt.Errorf("nodewatch: listen: %w", err)
		}
	}
}

// Addrs lists the addresses of the node, sorted.
func (w *Watcher) Addrs(ctx context.Context) ([]netip.Addr, error) {
	if err := take(ctx, w.asking); err != nil {
		return nil, err
	}
	defer func() { <-w.asking }()
	const tries = 5 // a listing is broken off if the addresses change meanwhile
	for try := 1; ; try++ {
		addrs, err := w.list(ctx)
		switch {
		case err == nil:
			return addrs, nil
		case try == tries || !errors.Is(err, errInterrupted):
			return nil, fmt.Errorf("nodewatch: list: %w", w.because(ctx, err))
		}
	}
}

// take waits for the use of a socket.
func take(ctx context.Context, token chan struct{}) error {
	select {
	case token <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// within makes the end of ctx, and a time, end whatever a socket waits for until done is called.
func within(ctx context.Context, c *netlink.Conn, deadline time.Time) (done func()) {
	over := make(chan struct{})
	_ = c.SetReadDeadline(deadline) // a closed socket says so when it is read
	stop := context.AfterFunc(ctx, func() {
		defer close(over)
		_ = c.SetReadDeadline(time.Unix(1, 0))
	})
	return func() {
		if !stop() {
			<-over // lest it end what is read next
		}
	}
}

// listen waits until something has changed, and a little longer, for what comes with it.
func (w *Watcher) listen(ctx context.Context) error {
	done := within(ctx, w.events, time.Time{})
	defer done()
	if err := w.hear(true); err != nil {
		return w.because(ctx, err)
	}
	settle := time.NewTimer(w.cfg.Settle)
	defer settle.Stop()
	select {
	case <-settle.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return w.because(ctx, w.hear(false))
}

// hear takes everything that the kernel has said; with wait it waits for the first of it. What it is does not matter.
func (w *Watcher) hear(wait bool) error {
	buf := make([]byte, os.Getpagesize())
	var errno error
	err := w.heard.Read(func(fd uintptr) bool {
		for {
			_, _, errno = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
			switch errno {
			case nil, unix.ENOBUFS: // that it could not say all of it says enough
				wait = false
			case unix.EINTR:
			default:
				if errno == unix.EAGAIN {
					errno = nil
					return !wait
				}
				return true
			}
		}
	})
	return errors.Join(err, errno)
}

// because returns why an operation ended early: the context if it is over, the Watcher if it is closed, else what err
// means.
func (w *Watcher) because(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case w.closed.Load():
		return model.ErrClosed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return meaning(err)
}

// meaning turns what a system call says into the errors of package model.
func meaning(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w (%w)", model.ErrPermission, err)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, errInterrupted), errors.Is(err, unix.ENOBUFS):
		return fmt.Errorf("%w (%w)", model.ErrBusy, err)
	}
	return err
}
