package nlink

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// A NetNS is a network namespace that is held open.
type NetNS struct {
	file *os.File // nil: that of the process, which needs no entering
}

// OpenNetNS holds a network namespace by a descriptor of its own: a copy of the one given or, for 0, that of the
// namespace in which the calling thread is. The namespace of the process needs no entering: there CAP_NET_ADMIN is
// enough, where entering takes CAP_SYS_ADMIN.
func OpenNetNS(fd int) (*NetNS, error) {
	if fd != 0 {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, err
		}
		return &NetNS{os.NewFile(uintptr(dup), "netns")}, nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	process, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	if os.SameFile(thread, process) {
		return &NetNS{}, nil
	}
	file, err := os.Open("/proc/thread-self/ns/net")
	return &NetNS{file}, err
}

// Close lets go of the namespace.
func (n *NetNS) Close() error {
	if n.file == nil {
		return nil
	}
	return n.file.Close()
}

// Do runs f inside the namespace, on a thread that is nobody else's meanwhile.
func (n *NetNS) Do(f func() error) error {
	done := make(chan error, 1)
	go n.enter(f, done)
	return <-done
}

func (n *NetNS) enter(f func() error, done chan<- error) {
	runtime.LockOSThread()
	switch {
	case n.file == nil:
		// Unless its own thread is locked elsewhere, a goroutine runs in the namespace of the process.
		defer runtime.UnlockOSThread()
		done <- f()
	case unix.Gettid() == unix.Getpid():
		// The process's first thread must stay where it is, for it does not end with its goroutine. While this one
		// holds it, another runs elsewhere.
		defer runtime.UnlockOSThread()
		other := make(chan error)
		go n.enter(f, other)
		done <- <-other
	default:
		err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		done <- err // still locked: the thread ends with the goroutine
	}
}
