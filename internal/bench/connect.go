package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model/modeltest"
)

// rounds of alternating dials; the ratio is the median of theirs.
const rounds = 5

// measureConnect times TCP connections from a pod, in turn directly to an endpoint and through the last service's
// virtual address. Both cross the node, where the rules are, to the same endpoints. The pod is an internal source, so
// neither is masqueraded. What is timed is connect(2) alone: SYN out, SYN and ACK back.
func measureConnect(ctx context.Context, b backend, cfg config) (*connectReport, error) {
	want := cfg.state()
	last := modeltest.BigName(cfg.services - 1)
	var endpoints []netip.AddrPort
	var addrs []netip.Addr
	for _, e := range want.Endpoints[last] {
		endpoints, addrs = append(endpoints, e.Addr), append(addrs, e.Addr.Addr())
	}
	clients := []netip.Addr{netip.MustParseAddr("10.255.255.1"), netip.MustParseAddr("10.255.255.2")}
	topo, err := lab.Build(lab.Spec{
		Node: want.Node.Addrs,
		Hosts: []lab.Host{
			{Name: "client", Addrs: clients},
			{Name: "servers", Addrs: addrs},
		},
	})
	if err != nil {
		return nil, err
	}
	defer topo.Close()
	stop, err := accept(topo.Host("servers"), endpoints[0].Port())
	if err != nil {
		return nil, err
	}
	defer stop()
	prog, err := b.open(ctx, topo.Node, nil)
	if err != nil {
		return nil, err
	}
	defer prog.Close()
	result, err := prog.Sync(ctx, want)
	if err = errors.Join(err, result.Err()); err != nil {
		return nil, err
	}
	direct := dialer{from: clients[0], to: endpoints}
	virtual := dialer{from: clients[1], to: []netip.AddrPort{want.Services[last].Frontends[0].Addr}}
	var r *connectReport
	err = topo.Host("client").Do(func() (err error) {
		r, err = alternate(ctx, &direct, &virtual, cfg.connect)
		return err
	})
	return r, err
}

// alternate warms up and then makes the rounds, with n dials of each dialer in each.
func alternate(ctx context.Context, direct, virtual *dialer, n int) (*connectReport, error) {
	if _, _, err := round(ctx, direct, virtual, max(n/5, 50)); err != nil {
		return nil, fmt.Errorf("warming up: %w", err)
	}
	var ratios []float64
	var allDirect, allVirtual []time.Duration
	for range rounds {
		d, v, err := round(ctx, direct, virtual, n)
		if err != nil {
			return nil, err
		}
		ratios = append(ratios, float64(median(v))/float64(median(d)))
		allDirect, allVirtual = append(allDirect, d...), append(allVirtual, v...)
	}
	return &connectReport{
		DirectP50Microseconds: microseconds(median(allDirect)),
		VIPP50Microseconds:    microseconds(median(allVirtual)),
		DirectP99Microseconds: microseconds(quantile(allDirect, 0.99)),
		VIPP99Microseconds:    microseconds(quantile(allVirtual, 0.99)),
		ConnectRatio:          float64(int(median(ratios)*1e4+0.5)) / 1e4,
	}, nil
}

// round makes n dials with each dialer, in turn. Who begins changes, so that neither always finds the caches as the
// other left them.
func round(ctx context.Context, direct, virtual *dialer, n int) (d, v []time.Duration, err error) {
	for i := range n {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		order := [2]*dialer{direct, virtual}
		if i%2 == 1 {
			order = [2]*dialer{virtual, direct}
		}
		for _, dial := range order {
			took, err := dial.once()
			if err != nil {
				return nil, nil, err
			}
			if dial == direct {
				d = append(d, took)
			} else {
				v = append(v, took)
			}
		}
	}
	return d, v, nil
}

// A dialer connects from ports of its own address, one after the other: the kernel need not look for a free one while
// the clock runs, and two dialers never meet in one entry of connection tracking.
type dialer struct {
	from netip.Addr
	to   []netip.AddrPort // in turn
	made int
}

const (
	firstPort = 10000
	ports     = 50000
)

// once connects once, from the namespace of the calling thread, and returns how long that took. The connection is
// reset afterwards, so that nothing of it remains.
func (d *dialer) once() (time.Duration, error) {
	from := netip.AddrPortFrom(d.from, uint16(firstPort+d.made%ports))
	to := d.to[d.made%len(d.to)]
	d.made++
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		// Give up after 7 s. With SO_SNDTIMEO every signal, of which Go's scheduler sends many, would end connect(2).
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SYNCNT, 2),
		unix.Bind(fd, sockaddr(from)),
	); err != nil {
		return 0, fmt.Errorf("prepare to dial from %s: %w", from, err)
	}
	sa := sockaddr(to)
	started := time.Now()
	err = unix.Connect(fd, sa)
	took := time.Since(started)
	if err != nil {
		return 0, fmt.Errorf("%s to %s: %w", from, to, os.NewSyscallError("connect", err))
	}
	return took, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

// accept accepts every connection to a port, at whatever address of the namespace, and closes it, until it
// is told to stop.
func accept(ns *lab.NetNS, port uint16) (stop func(), err error) {
	l, err := ns.Listen(netip.AddrPortFrom(netip.IPv4Unspecified(), port))
	if err != nil {
		return nil, err
	}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	})
	return func() { l.Close(); done.Wait() }, nil
}
