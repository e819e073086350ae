package peers

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
)

// The links that every World has.
const (
	// Uplink has the node's addresses and its default route: everybody lives there who lives nowhere else.
	Uplink = "uplink"
	// PodLink leads to the pods on the node.
	PodLink = "veth-pod"
)

// A Config describes a node.
type Config struct {
	// Addrs are the node's addresses. The first of each family is its primary one.
	Addrs []netip.Addr
	// Pods are the ranges behind PodLink.
	Pods []netip.Prefix
}

// A World is a node with everybody around it. It is safe for concurrent use; what it is asked for is done one after
// the other.
type World struct {
	ns   *lab.NetNS
	jobs chan func()
	quit chan struct{}
	gone chan struct{} // closed when the worker has ended

	closing sync.Once

	// What follows belongs to the worker.
	links []*link // the uplink first
	local *local
	// port and token are the last that were given away.
	port  uint16
	token uint32
}

// New makes a World. The caller closes it.
func New(cfg Config) (w *World, err error) {
	ns, err := lab.NewNetNS("node")
	if err != nil {
		return nil, err
	}
	w = &World{ns: ns, jobs: make(chan func()), quit: make(chan struct{}), gone: make(chan struct{}), port: firstPort}
	go w.work()
	err = w.do(func() error { return w.build(cfg) })
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("node with its peers: %w", err)
	}
	return w, nil
}

// work runs jobs, one after the other, on a thread that stays on one processor: see local.flush.
func (w *World) work() {
	defer close(w.gone)
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err == nil {
		for cpu := range len(may) * 64 {
			if may.IsSet(cpu) {
				one.Set(cpu)
				break
			}
		}
		_ = unix.SchedSetaffinity(0, &one) // what may fail here is a processor that went away just now
	}
	for {
		select {
		case f := <-w.jobs:
			f()
		case <-w.quit:
			return
		}
	}
}

// do runs f on the worker.
func (w *World) do(f func() error) (err error) {
	done := make(chan struct{})
	select {
	case w.jobs <- func() { defer close(done); err = f() }:
		<-done
		return err
	case <-w.gone:
		return lab.ErrClosed
	}
}

func (w *World) build(cfg Config) (err error) {
	for _, path := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := w.ns.Sysctl(path, "1"); err != nil {
			return err
		}
	}
	if w.local, err = openLocal(w.ns); err != nil {
		return err
	}
	for _, name := range []string{Uplink, PodLink} {
		if _, err := w.link(name); err != nil {
			return err
		}
	}
	primary := map[bool]netip.Addr{}
	for _, a := range cfg.Addrs {
		if err := w.AddAddr(a); err != nil {
			return err
		}
		if _, ok := primary[a.Is6()]; !ok {
			primary[a.Is6()] = a
		}
	}
	for _, p := range [...]netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		if err := w.route(p, Uplink, primary[p.Addr().Is6()]); err != nil {
			return err
		}
	}
	for _, p := range cfg.Pods {
		if err := w.route(p, PodLink, netip.Addr{}); err != nil {
			return err
		}
	}
	return nil
}

// link returns the link of a name, and makes it if need be.
func (w *World) link(name string) (*link, error) {
	for _, l := range w.links {
		if l.name == name {
			return l, nil
		}
	}
	l, err := openLink(w.ns, name)
	if err != nil {
		return nil, err
	}
	w.links = append(w.links, l)
	h, err := w.ns.Netlink()
	if err != nil {
		return nil, err
	}
	dev, err := h.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	if err := h.LinkSetUp(dev); err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	return l, nil
}

// route leads a prefix to a link. The source is the address that the node's own packets get, if it is valid.
func (w *World) route(p netip.Prefix, name string, source netip.Addr) error {
	h, err := w.ns.Netlink()
	if err != nil {
		return err
	}
	dev, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	r := &netlink.Route{
		LinkIndex: dev.Attrs().Index,
		Dst:       &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
	}
	if p.Addr().Is4() {
		r.Scope = netlink.SCOPE_LINK
	}
	if source.IsValid() {
		r.Src = source.AsSlice()
	}
	if err := h.RouteReplace(r); err != nil {
		return fmt.Errorf("route to %s over %s: %w", p, name, err)
	}
	return nil
}

// NetNS is the node's namespace. It is the World's own.
func (w *World) NetNS() *lab.NetNS { return w.ns }

// AddAddr gives the node one more address, and returns when it has it.
func (w *World) AddAddr(a netip.Addr) error {
	if err := w.ns.AddAddr(Uplink, a); err != nil {
		return err
	}
	// The route that makes an IPv6 address local comes from a work queue of the kernel (addrconf_dad_work).
	const patience = 10 * time.Second
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		h, err := w.ns.Netlink()
		if err != nil {
			return err
		}
		routes, err := h.RouteGet(a.AsSlice())
		switch {
		case err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("the node does not get its address %s: %v after %v", a, err, patience)
		}
	}
}

// DelAddr takes an address of the node away.
func (w *World) DelAddr(a netip.Addr) error { return w.ns.DelAddr(Uplink, a) }

// Close ends the World and closes its namespace. A second Close does nothing.
func (w *World) Close() error {
	var errs []error
	w.closing.Do(func() {
		close(w.quit)
		<-w.gone
		for _, l := range w.links {
			l.close()
		}
		if w.local != nil {
			w.local.close()
		}
		errs = append(errs, w.ns.Close())
	})
	return errors.Join(errs...)
}
