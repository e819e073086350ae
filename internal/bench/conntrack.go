package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/headgate/headgate/conntrack"
	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A conntrackResult is what forgetting the stale flows of one change costs, in the median round: with package
// conntrack, and with netlink.ConntrackDeleteFilters on the same table.
type conntrackResult struct {
	Flows int `json:"flows"` // in the table, the stale ones among them
	Stale int `json:"stale"`
	// Deleted and PeerDeleted are counted by reading the table back.
	Deleted     int `json:"deleted"`
	PeerDeleted int `json:"peer_deleted"`
	// The change is told, looked at and cleaned: CPU time of this process, the kernel's share included, and bytes
	// that it allocated.
	CleanCPU   float64 `json:"clean_cpu_seconds"`
	PeerCPU    float64 `json:"peer_cpu_seconds"`
	CleanBytes uint64  `json:"clean_bytes"`
	PeerBytes  uint64  `json:"peer_bytes"`
	// SecondLookCPU is the look after that, which finds nothing; RestartCPU and RestartBytes are what a comparison of
	// everything costs, as after a restart.
	SecondLookCPU float64 `json:"second_look_cpu_seconds"`
	RestartCPU    float64 `json:"restart_cpu_seconds"`
	RestartBytes  uint64  `json:"restart_bytes"`
}

// conntrackRounds is how often everything is measured.
const conntrackRounds = 3

// benchConntrack measures how an endpoint is removed whose stale flows are among many others. It works in a network
// namespace of its own, and refuses where the table may not hold so many flows.
func benchConntrack(flows, stale int) (any, error) {
	if stale < 1 || stale > 60000 || flows < stale {
		return nil, errors.New("stale flows must be between 1 and 60000, and no more than all flows")
	}
	ns, err := lab.NewNetNS("conntrack")
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	b, err := newConntrackBench(ns, flows, stale)
	if err != nil {
		return nil, err
	}
	defer b.close()
	rounds := make([]conntrackResult, conntrackRounds)
	for i := range rounds {
		if rounds[i], err = b.round(); err != nil {
			return nil, err
		}
	}
	return medianRound(rounds), nil
}

// medianRound returns the medians of the costs. What was counted is the same in all rounds, or the least.
func medianRound(rounds []conntrackResult) conntrackResult {
	r := rounds[0]
	for _, o := range rounds {
		r.Deleted, r.PeerDeleted = min(r.Deleted, o.Deleted), min(r.PeerDeleted, o.PeerDeleted)
	}
	r.CleanCPU = medianOf(rounds, func(r conntrackResult) float64 { return r.CleanCPU })
	r.PeerCPU = medianOf(rounds, func(r conntrackResult) float64 { return r.PeerCPU })
	r.CleanBytes = medianOf(rounds, func(r conntrackResult) uint64 { return r.CleanBytes })
	r.PeerBytes = medianOf(rounds, func(r conntrackResult) uint64 { return r.PeerBytes })
	r.SecondLookCPU = medianOf(rounds, func(r conntrackResult) float64 { return r.SecondLookCPU })
	r.RestartCPU = medianOf(rounds, func(r conntrackResult) float64 { return r.RestartCPU })
	r.RestartBytes = medianOf(rounds, func(r conntrackResult) uint64 { return r.RestartBytes })
	return r
}

func medianOf[T float64 | uint64](rounds []conntrackResult, value func(conntrackResult) T) T {
	var all []T
	for _, r := range rounds {
		all = append(all, value(r))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// A conntrackBench is a namespace whose table is full of flows to services of two endpoints each.
type conntrackBench struct {
	flows, stale int
	ns           *lab.NetNS
	cleaner      *conntrack.Cleaner
	peer         *netlink.Handle
	tracker      *model.Tracker
}

const benchServices = 1000 // 172.20.0.0 and up, port 53

func benchVIP(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 20, byte(i >> 8), byte(i)}), 53)
}

// benchEndpoint returns one of the two endpoints of a service.
func benchEndpoint(i, n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(128 + n), byte(i >> 8), byte(i)}), 5353)
}

func benchEndpoints(i int, n ...int) []model.Endpoint {
	var eps []model.Endpoint
	for _, n := range n {
		eps = append(eps, model.Endpoint{Addr: benchEndpoint(i, n)})
	}
	return eps
}

func newConntrackBench(ns *lab.NetNS, flows, stale int) (*conntrackBench, error) {
	ctx := context.Background()
	cleaner, err := conntrack.New(ctx, conntrack.Config{NetNS: ns.FD(), SecondLook: time.Nanosecond})
	if err != nil {
		return nil, err
	}
	b := &conntrackBench{flows: flows, stale: stale, ns: ns, cleaner: cleaner, tracker: model.NewTracker(model.Node{})}
	u, err := cleaner.Usage(ctx)
	if err == nil && u.Limit > 0 && u.Limit < flows {
		err = fmt.Errorf("the table may hold %d flows and not %d (sysctl net.netfilter.nf_conntrack_max)", u.Limit, flows)
	}
	if err == nil {
		err = ns.Do(func() (err error) {
			b.peer, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
			return err
		})
	}
	if err == nil {
		err = b.prepare(ctx)
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *conntrackBench) close() {
	b.cleaner.Close()
	if b.peer != nil {
		b.peer.Close()
	}
}

// prepare tells the cleaner of the services, and fills the table with flows that are right.
func (b *conntrackBench) prepare(ctx context.Context) error {
	for i := range benchServices {
		name := model.ServiceName(fmt.Sprintf("bench/service-%d", i))
		b.tracker.SetService(name, model.Service{Protocol: model.UDP, Frontends: []model.Frontend{{Addr: benchVIP(i)}}})
		b.tracker.SetEndpoints(name, benchEndpoints(i, 0, 1))
	}
	b.cleaner.Syncing(b.tracker.State())
	b.cleaner.Programmed(model.Result{}, nil)
	if _, err := b.cleaner.Settle(ctx); err != nil {
		return err
	}
	return b.create(b.flows-b.stale, func(i int) benchFlow {
		svc := i % benchServices
		client := netip.AddrFrom4([4]byte{10, 64, byte(i >> 16), byte(i >> 8)})
		return benchFlow{netip.AddrPortFrom(client, uint16(1024+i%256)), benchVIP(svc), benchEndpoint(svc, 1)}
	})
}

// addStale adds the flows through the first service to its first endpoint.
func (b *conntrackBench) addStale() error {
	return b.create(b.stale, func(i int) benchFlow {
		return benchFlow{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, 1}), uint16(1024+i)), benchVIP(0), benchEndpoint(0, 0)}
	})
}

// round removes an endpoint once with the cleaner and once with the peer, from the same table.
func (b *conntrackBench) round() (r conntrackResult, err error) {
	ctx := context.Background()
	r = conntrackResult{Flows: b.flows, Stale: b.stale}
	if err := b.change(0, 1); err != nil {
		return r, err
	}
	if _, err := b.cleaner.Settle(ctx); err != nil {
		return r, err
	}
	if r.Deleted, err = b.counted(func() error {
		b.tracker.SetEndpoints("bench/service-0", benchEndpoints(0, 1))
		r.CleanCPU, r.CleanBytes, err = cost(func() error {
			b.cleaner.Applying(b.tracker.Diff())
			b.cleaner.Programmed(model.Result{}, nil)
			_, err := b.cleaner.Clean(ctx)
			return err
		})
		return err
	}); err != nil {
		return r, err
	}
	r.SecondLookCPU, _, err = cost(func() error { _, err := b.cleaner.Settle(ctx); return err })
	if err != nil {
		return r, err
	}
	if r.PeerDeleted, err = b.counted(func() error {
		r.PeerCPU, r.PeerBytes, err = cost(b.deleteWithPeer)
		return err
	}); err != nil {
		return r, err
	}
	r.RestartCPU, r.RestartBytes, err = cost(func() error {
		b.cleaner.Syncing(b.tracker.State())
		b.cleaner.Programmed(model.Result{}, nil)
		_, err := b.cleaner.Clean(ctx)
		return err
	})
	return r, err
}

// change gives the first service these endpoints.
func (b *conntrackBench) change(n ...int) error {
	b.tracker.SetEndpoints("bench/service-0", benchEndpoints(0, n...))
	b.cleaner.Applying(b.tracker.Diff())
	b.cleaner.Programmed(model.Result{}, nil)
	return nil
}

// deleteWithPeer does what users of the library do: one filter for the service and the endpoint that is gone.
func (b *conntrackBench) deleteWithPeer() error {
	f := &netlink.ConntrackFilter{}
	gone := benchEndpoint(0, 0)
	for _, err := range []error{
		f.AddProtocol(unix.IPPROTO_UDP),
		f.AddIP(netlink.ConntrackOrigDstIP, benchVIP(0).Addr().AsSlice()),
		f.AddPort(netlink.ConntrackOrigDstPort, benchVIP(0).Port()),
		f.AddIP(netlink.ConntrackReplySrcIP, gone.Addr().AsSlice()),
	} {
		if err != nil {
			return err
		}
	}
	_, err := b.peer.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, f)
	return err
}

// counted adds the stale flows, runs f, and returns how many of all flows are gone.
func (b *conntrackBench) counted(f func() error) (int, error) {
	if err := b.addStale(); err != nil {
		return 0, err
	}
	before, err := b.count()
	if err == nil && before != b.flows {
		err = fmt.Errorf("the table holds %d flows instead of %d", before, b.flows)
	}
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := b.count()
	return before - after, err
}

// count reads the table.
func (b *conntrackBench) count() (int, error) {
	flows, err := b.peer.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	return len(flows), err
}

// cost returns the CPU seconds of this process and the bytes allocated while f ran.
func cost(f func() error) (cpu float64, bytes uint64, err error) {
	runtime.GC() // and leave the memory where it is: the peer shall not pay for getting it back
	var before, after runtime.MemStats
	var began, ended unix.Rusage
	runtime.ReadMemStats(&before)
	if err := unix.Getrusage(unix.RUSAGE_SELF, &began); err != nil {
		return 0, 0, err
	}
	err = f()
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ended); err != nil {
		return 0, 0, err
	}
	runtime.ReadMemStats(&after)
	seconds := func(u unix.Rusage) float64 { return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9 }
	return seconds(ended) - seconds(began), after.TotalAlloc - before.TotalAlloc, err
}

// A benchFlow is a UDP flow from a client to a frontend that an endpoint answers.
type benchFlow struct{ client, to, from netip.AddrPort }

// create makes flows in the table, many to a message.
func (b *conntrackBench) create(n int, flow func(i int) benchFlow) error {
	fd, err := b.ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetNonblock(fd, false); err != nil {
		return err
	}
	const batch = 200
	for i := 0; i < n; i += batch {
		var msgs []byte
		last := min(i+batch, n) - 1
		for j := i; j <= last; j++ {
			msgs = appendCreate(msgs, flow(j), uint32(j), j == last)
		}
		if err := unix.Sendto(fd, msgs, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return err
		}
		if err := acknowledged(fd, uint32(last)); err != nil {
			return err
		}
	}
	return nil
}

// acknowledged waits for the answer to the last message of a batch. Any error before it ends the wait.
func acknowledged(fd int, seq uint32) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil {
			return err
		}
		for m := buf[:n]; len(m) >= unix.NLMSG_HDRLEN+4; m = m[min(len(m), int(binary.NativeEndian.Uint32(m)+3)&^3):] {
			if errno := int32(binary.NativeEndian.Uint32(m[unix.NLMSG_HDRLEN:])); errno != 0 {
				return fmt.Errorf("create a flow: %w", unix.Errno(-errno))
			}
			if binary.NativeEndian.Uint32(m[8:]) == seq {
				return nil
			}
		}
	}
}

// appendCreate appends a message that creates a flow (IPCTNL_MSG_CT_NEW).
func appendCreate(b []byte, f benchFlow, seq uint32, ack bool) []byte {
	start := len(b)
	flags := uint16(unix.NLM_F_REQUEST | unix.NLM_F_CREATE)
	if ack {
		flags |= unix.NLM_F_ACK
	}
	b = append(b, 0, 0, 0, 0)
	b = binary.NativeEndian.AppendUint16(b, unix.NFNL_SUBSYS_CTNETLINK<<8)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = append(b, 0, 0, 0, 0, unix.AF_INET, 0, 0, 0)
	b = appendTuple(b, 1, f.client, f.to)                           // CTA_TUPLE_ORIG
	b = appendTuple(b, 2, f.from, f.client)                         // CTA_TUPLE_REPLY
	b = appendAttr(b, 7, binary.BigEndian.AppendUint32(nil, 86400)) // CTA_TIMEOUT
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
	return b
}

// appendTuple appends one direction of a UDP flow over IPv4.
func appendTuple(b []byte, typ uint16, src, dst netip.AddrPort) []byte {
	var ip, proto []byte
	ip = appendAttr(ip, 1, src.Addr().AsSlice())                                 // CTA_IP_V4_SRC
	ip = appendAttr(ip, 2, dst.Addr().AsSlice())                                 // CTA_IP_V4_DST
	proto = appendAttr(proto, 1, []byte{unix.IPPROTO_UDP})                       // CTA_PROTO_NUM
	proto = appendAttr(proto, 2, binary.BigEndian.AppendUint16(nil, src.Port())) // CTA_PROTO_SRC_PORT
	proto = appendAttr(proto, 3, binary.BigEndian.AppendUint16(nil, dst.Port())) // CTA_PROTO_DST_PORT
	tuple := appendAttr(nil, 1|unix.NLA_F_NESTED, ip)                            // CTA_TUPLE_IP
	tuple = appendAttr(tuple, 2|unix.NLA_F_NESTED, proto)                        // CTA_TUPLE_PROTO
	return appendAttr(b, typ|unix.NLA_F_NESTED, tuple)
}

func appendAttr(b []byte, typ uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.NLA_HDRLEN+len(data)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, data...)
	return append(b, make([]byte, -len(data)&3)...)
}
