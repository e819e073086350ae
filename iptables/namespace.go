package iptables

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// A namespace is the network namespace that is programmed.
type namespace struct{ fd int }

const threadNamespace = "/proc/thread-self/ns/net"

// openNamespace duplicates a descriptor of a network namespace; 0 means that of the calling thread.
func openNamespace(fd int) (*namespace, error) {
	if fd == 0 {
		fd, err := unix.Open(threadNamespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: threadNamespace, Err: err}
		}
		return &namespace{fd}, nil
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d of a network namespace: %w", fd, err)
	}
	return &namespace{dup}, nil
}

func (n *namespace) close() error { return unix.Close(n.fd) }

// do runs f on a thread inside the namespace. Processes that f starts, sockets that it opens and what it reads below
// /proc/sys/net and /proc/thread-self/net belong to the namespace; goroutines that it starts do not.
// It needs CAP_SYS_ADMIN only where the threads of the process are in another namespace.
func (n *namespace) do(f func() error) error {
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
func (n *namespace) entered() bool {
	var want, have unix.Stat_t
	return unix.Fstat(n.fd, &want) == nil && unix.Stat(threadNamespace, &have) == nil && want.Dev == have.Dev && want.Ino == have.Ino
}

// inScratch runs f on a thread inside an empty namespace that ends with it. It needs CAP_SYS_ADMIN.
func inScratch(f func() error) error {
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

const routeLocalnet = "/proc/sys/net/ipv4/conf/all/route_localnet"

// routesLoopback reports whether packets from and to loopback addresses may pass other interfaces than lo.
func (n *namespace) routesLoopback() bool {
	var value []byte
	err := n.do(func() (err error) {
		value, err = os.ReadFile(routeLocalnet)
		return err
	})
	return err == nil && strings.TrimSpace(string(value)) == "1"
}

// routeLoopback says whether they may.
func (n *namespace) routeLoopback(may bool) error {
	value := "0"
	if may {
		value = "1"
	}
	return n.do(func() error {
		f, err := os.OpenFile(routeLocalnet, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(value)
		return errors.Join(err, f.Close())
	})
}

// hasIPv6 reports whether the kernel does IPv6.
func (n *namespace) hasIPv6() bool {
	err := n.do(func() error {
		_, err := os.Stat("/proc/sys/net/ipv6")
		return err
	})
	return err == nil
}
