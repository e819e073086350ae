// Package netns runs code inside a network namespace, and reads and sets sysctls there. It is below everything that
// programs one.
package netns

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// A NetNS is a network namespace that is held open.
type NetNS struct{ fd int }

const ofThread = "/proc/thread-self/ns/net"

// Open holds a network namespace by a descriptor of its own: a copy of the one given or, for 0, that of the namespace
// in which the calling thread is.
func Open(fd int) (*NetNS, error) {
	if fd == 0 {
		fd, err := unix.Open(ofThread, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: ofThread, Err: err}
		}
		return &NetNS{fd}, nil
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d of a network namespace: %w", fd, err)
	}
	return &NetNS{dup}, nil
}

// Close lets go of the namespace.
func (n *NetNS) Close() error { return unix.Close(n.fd) }

// Do runs f on a thread inside the namespace. Processes that f starts, sockets that it opens and what it reads below
// /proc/sys/net and /proc/thread-self/net belong to the namespace; goroutines that it starts do not.
// It needs CAP_SYS_ADMIN only where the threads of the process are in another namespace.
func (n *NetNS) Do(f func() error) error {
	return onThread(func() error {
		if n.entered() {
			return f()
		}
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		return f()
	})
}

// entered reports whether the calling thread is in the namespace.
func (n *NetNS) entered() bool {
	var want, have unix.Stat_t
	return unix.Fstat(n.fd, &want) == nil && unix.Stat(ofThread, &have) == nil && want.Dev == have.Dev && want.Ino == have.Ino
}

// InScratch runs f on a thread inside an empty namespace that ends with it. It needs CAP_SYS_ADMIN.
func InScratch(f func() error) error {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		return f()
	})
}

// onThread runs f on a thread of its own, which ends with f, and waits for it. It is never the main thread, which
// stands for the whole process in /proc and cannot end before it.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			done <- f()
			return
		}
		started := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(started)
			done <- f()
		}()
		<-started // this goroutine occupies the main thread until then
		runtime.UnlockOSThread()
	}()
	return <-done
}

// Addrs returns the addresses of all interfaces in the namespace.
func (n *NetNS) Addrs() (map[netip.Addr]bool, error) {
	all := map[netip.Addr]bool{}
	err := n.Do(func() error {
		addrs, err := net.InterfaceAddrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				all[p.Addr()] = true
			}
		}
		return err
	})
	return all, err
}
