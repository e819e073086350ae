package nlink

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OpenNetNS returns a descriptor of its own for a network namespace: a copy of the one given or, for 0, one of that in
// which the calling thread is.
func OpenNetNS(fd int) (*os.File, error) {
	if fd == 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return os.Open("/proc/thread-self/ns/net")
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(dup), "netns"), nil
}

// InNetNS runs f on a thread inside a network namespace. The thread ends with it.
func InNetNS(netns *os.File, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread must not run anything else afterwards
		err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}
