package conntrack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The sysctls that Tune sets, by the names that sysctl(8) takes.
const (
	sysctlMax            = "net.netfilter.nf_conntrack_max"
	sysctlBuckets        = "net.netfilter.nf_conntrack_buckets"
	sysctlTCPEstablished = "net.netfilter.nf_conntrack_tcp_timeout_established"
	sysctlTCPCloseWait   = "net.netfilter.nf_conntrack_tcp_timeout_close_wait"
	sysctlUDP            = "net.netfilter.nf_conntrack_udp_timeout"
	sysctlUDPStream      = "net.netfilter.nf_conntrack_udp_timeout_stream"
	sysctlTCPLiberal     = "net.netfilter.nf_conntrack_tcp_be_liberal"
)

// sysctls reads and writes the variables of the namespace of the calling thread.
type sysctls struct{ dir string }

func (s sysctls) path(name string) string {
	return filepath.Join(s.dir, filepath.FromSlash(strings.ReplaceAll(name, ".", "/")))
}

func (s sysctls) read(name string) (int, error) {
	b, err := os.ReadFile(s.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%s: %w", name, meaning(unix.ENOENT))
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, meaning(err))
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

func (s sysctls) write(name string, v int) error {
	f, err := os.OpenFile(s.path(name), os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.WriteString(strconv.Itoa(v))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("%s = %d: %w", name, v, meaning(err))
	}
	return nil
}

// inNetNS runs f on a thread in a namespace; nil is that of the calling thread. What is below /proc/sys/net is that of
// the thread which opens it.
func inNetNS(ns *os.File, f func() error) error {
	if ns == nil {
		return f()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err, back := visitNetNS(ns, f)
		if back {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
		done <- err
	}()
	return <-done
}

// visitNetNS runs f in a namespace and returns. It reports whether the thread is back where it was.
func visitNetNS(ns *os.File, f func() error) (err error, back bool) {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("the thread's network namespace: %w", meaning(err)), true
	}
	defer home.Close()
	if err := enter(ns); err != nil {
		return fmt.Errorf("enter network namespace: %w", meaning(err)), true
	}
	err = f()
	return err, enter(home) == nil
}

// enter moves the thread into a namespace.
func enter(ns *os.File) error {
	raw, err := ns.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) { serr = unix.Setns(int(fd), unix.CLONE_NEWNET) })
	return firstOf(err, serr)
}
