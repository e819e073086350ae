package lab

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrClosed is returned by the methods of a NetNS, Topology or Server after its Close.
var ErrClosed = errors.New("closed")

// A NetNS is an anonymous network namespace. It has no name in the file system: a descriptor and one
// resident thread hold it, so nothing of it outlives the process, however the process ends.
// It is safe for concurrent use.
type NetNS struct {
	name string
	fd   int
	jobs chan func() // run by the resident thread, one at a time
	quit chan struct{}
	gone chan struct{} // closed when the resident thread has ended

	closing sync.Once

	mu      sync.Mutex          // guards what follows
	links   *netlink.Handle     // opened at the first use
	foreign map[netip.Addr]int  // servers at addresses that are not of the namespace
	sctp    map[bool]*sctpStack // by family, true is IPv6
	owned   map[int]func()      // undo what lives in the namespace, last first
	next    int                 // key in owned
}

// NewNetNS makes a namespace with its loopback up. The name is for messages alone.
// It needs CAP_SYS_ADMIN and CAP_NET_ADMIN.
func NewNetNS(name string) (*NetNS, error) {
	n := &NetNS{
		name:    name,
		jobs:    make(chan func()),
		quit:    make(chan struct{}),
		gone:    make(chan struct{}),
		foreign: map[netip.Addr]int{},
		sctp:    map[bool]*sctpStack{},
		owned:   map[int]func(){},
	}
	started := make(chan error)
	onOwnThread(func() { n.reside(started) })
	if err := <-started; err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", name, err)
	}
	if err := n.prepare(); err != nil {
		n.Close()
		return nil, fmt.Errorf("network namespace %s: %w", name, err)
	}
	return n, nil
}

// reside is the life of the resident thread: it enters a new namespace and runs jobs in it.
func (n *NetNS) reside(started chan<- error) {
	defer close(n.gone)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		started <- os.NewSyscallError("unshare", err)
		return
	}
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		started <- os.NewSyscallError("open /proc/thread-self/ns/net", err)
		return
	}
	n.fd = fd
	started <- nil
	for {
		select {
		case f := <-n.jobs:
			f()
		case <-n.quit:
			return
		}
	}
}

// defaults are the settings of every namespace of the kit. Those of ICMP keep the kernel from rate
// limiting the very refusals that the tests count.
var defaults = [][2]string{
	{"net/ipv4/conf/all/rp_filter", "0"},
	{"net/ipv4/conf/default/rp_filter", "0"},
	{"net/ipv4/conf/all/accept_redirects", "0"},
	{"net/ipv4/conf/all/send_redirects", "0"},
	{"net/ipv4/conf/default/send_redirects", "0"},
	{"net/ipv4/icmp_ratemask", "0"},
	{"net/ipv4/icmp_ratelimit", "0"},
	{"net/ipv6/icmp/ratelimit", "0"},
	{"net/ipv6/icmp/ratemask", "128"}, // a bitmap cannot be written empty: echo requests alone
	{"net/ipv6/conf/all/disable_ipv6", "0"},
	{"net/ipv6/conf/default/disable_ipv6", "0"},
	{"net/ipv6/conf/default/accept_dad", "0"},
	{"net/ipv6/conf/default/dad_transmits", "0"},
	{"net/ipv6/conf/default/accept_ra", "0"},
	{"net/ipv6/conf/default/router_solicitations", "0"},
	{"net/ipv6/conf/default/addr_gen_mode", "1"}, // no link-local address by itself
}

// sctpDefaults are for kernels that speak SCTP. A refusal by ICMP is heard at the first retransmission, so that shall come soon.
var sctpDefaults = [][2]string{
	{"net/sctp/rto_min", "20"},
	{"net/sctp/rto_initial", "30"},
}

func (n *NetNS) prepare() error {
	if n.kernelSCTP() {
		for _, kv := range sctpDefaults {
			if err := n.Sysctl(kv[0], kv[1]); err != nil {
				return err
			}
		}
	}
	if err := n.run(func() error {
		for _, kv := range defaults {
			if err := writeSysctl(kv[0], kv[1]); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return n.linkUp("lo")
}

// Name is the name given to NewNetNS.
func (n *NetNS) Name() string { return n.name }

// FD is the descriptor of the namespace, for setns and for libraries that open their sockets by
// namespace. It stays the NetNS's own: duplicate it to keep it beyond Close.
func (n *NetNS) FD() int { return n.fd }

// Path names the namespace for programs that take a file, such as "ip netns" or nsenter --net. It is
// good for as long as the NetNS is open, and for this process and its children.
func (n *NetNS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.fd) }

// Do runs f on a thread of its own inside the namespace and returns f's error. The thread ends with f.
// Sockets that f opens belong to the namespace for good and may be used from anywhere afterwards;
// goroutines that f starts are outside. A panic of f, and runtime.Goexit as testing's FailNow calls
// it, go on in the caller.
func (n *NetNS) Do(f func() error) error {
	if n.closed() {
		return fmt.Errorf("network namespace %s: %w", n.name, ErrClosed)
	}
	var out outcome
	done := make(chan struct{})
	onOwnThread(func() {
		defer close(done)
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			out.set(fmt.Errorf("enter network namespace %s: %w", n.name, err))
			return
		}
		out.of(f)
	})
	<-done
	return out.resume()
}

// run is Do on the resident thread: cheaper, but f must not block.
func (n *NetNS) run(f func() error) error {
	var out outcome
	done := make(chan struct{})
	select {
	case n.jobs <- func() { defer close(done); out.of(f) }:
		<-done
		return out.resume()
	case <-n.gone:
		return fmt.Errorf("network namespace %s: %w", n.name, ErrClosed)
	}
}

// An outcome carries how a function ended from one goroutine to another.
type outcome struct {
	err      error
	returned bool
	panicked any
}

func (o *outcome) set(err error) { o.err, o.returned = err, true }

func (o *outcome) of(f func() error) {
	defer func() {
		if !o.returned {
			o.panicked = recover()
		}
	}()
	o.set(f())
}

func (o *outcome) resume() error {
	switch {
	case o.returned:
		return o.err
	case o.panicked != nil:
		panic(o.panicked)
	}
	runtime.Goexit()
	return nil
}

// onOwnThread runs f in a goroutine locked to a thread that ends with it. It is never the main thread,
// whose namespace is what /proc/self/net and other processes take for that of the whole process.
func onOwnThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		started := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(started)
			f()
		}()
		<-started // until then this goroutine occupies the main thread
		runtime.UnlockOSThread()
	}()
}

// Sysctl sets a variable of the namespace by its path below /proc/sys ("net/ipv4/ip_forward").
func (n *NetNS) Sysctl(path, value string) error {
	return n.run(func() error { return writeSysctl(path, value) })
}

// ReadSysctl reads what Sysctl sets, without the newline.
func (n *NetNS) ReadSysctl(path string) (string, error) {
	var v string
	err := n.run(func() error {
		b, err := os.ReadFile(filepath.Join("/proc/sys", path))
		v = strings.TrimSpace(string(b))
		return err
	})
	return v, err
}

func writeSysctl(path, value string) error {
	f, err := os.OpenFile(filepath.Join("/proc/sys", path), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// onClose registers what is to be undone before the namespace goes. forget takes it back. The caller
// holds n.mu.
func (n *NetNS) onClose(f func()) (forget func()) {
	key := n.next
	n.next++
	n.owned[key] = f
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.owned, key)
	}
}

func (n *NetNS) closed() bool {
	select {
	case <-n.quit:
		return true
	default:
		return false
	}
}

// Close stops the servers of the namespace, kills the commands that still run in it and lets it go. Sockets
// that others opened in it keep it alive until they are closed. A second Close does nothing.
func (n *NetNS) Close() error {
	n.closing.Do(func() {
		n.mu.Lock()
		owned := n.owned
		n.owned = map[int]func(){}
		n.mu.Unlock()
		for _, key := range slices.Backward(slices.Sorted(maps.Keys(owned))) {
			owned[key]()
		}
		close(n.quit)
		<-n.gone
		unix.Close(n.fd)
	})
	return nil
}
