package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A Sniffer sees the packets that enter and leave a namespace on any of its links: those that enter
// before any rule of netfilter, those that leave after all of them. It is for one goroutine.
type Sniffer struct {
	ns    *NetNS
	fd    int
	names map[int]string // of links, by index
}

// Sniff starts to collect packets. The caller closes the Sniffer.
func (n *NetNS) Sniff() (*Sniffer, error) {
	fd, err := n.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, int(allFrames))
	if err != nil {
		return nil, fmt.Errorf("sniff in %s: %w", n.name, err)
	}
	// A burst must not overrun the queue. Without the privilege the default has to do.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	return &Sniffer{ns: n, fd: fd, names: map[int]string{}}, nil
}

// Next returns the next packet of a protocol of the kit, and waits for it until the deadline. It reports false when there was none.
func (s *Sniffer) Next(ctx context.Context, deadline time.Time) (Packet, bool, error) {
	buf := make([]byte, 2048)
	for {
		n, from, err := unix.Recvfrom(s.fd, buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			ready, err := pollFor(ctx, s.fd, unix.POLLIN, deadline)
			if err != nil || !ready {
				return Packet{}, false, err
			}
			continue
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN):
			continue
		case err != nil:
			return Packet{}, false, os.NewSyscallError("recvfrom", err)
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if !ok {
			continue
		}
		p, ok := decode(buf[:n])
		if !ok {
			continue
		}
		p.Link, p.Out = s.link(ll.Ifindex), ll.Pkttype == unix.PACKET_OUTGOING
		return p, true, nil
	}
}

// Drain returns the packets collected so far.
func (s *Sniffer) Drain() ([]Packet, error) {
	var ps []Packet
	for {
		p, ok, err := s.Next(context.Background(), time.Time{})
		if err != nil || !ok {
			return ps, err
		}
		ps = append(ps, p)
	}
}

func (s *Sniffer) link(index int) string {
	if name, ok := s.names[index]; ok {
		return name
	}
	name := fmt.Sprintf("#%d", index)
	if h, err := s.ns.Netlink(); err == nil {
		if l, err := h.LinkByIndex(index); err == nil {
			name = l.Attrs().Name
		}
	}
	s.names[index] = name
	return name
}

// Close ends the collection.
func (s *Sniffer) Close() error { return unix.Close(s.fd) }

// Inject makes a host send a packet to the node just as it is, whatever addresses it bears: also such
// as no socket could send, from 127.0.0.1 or to it. Only Proto, Src, Dst, Flags, Seq, Type, Code and Payload count.
func (t *Topology) Inject(host string, p Packet) error {
	if err := (Query{Source: p.Src, Proto: p.Proto, To: p.Dst}).check(); err != nil {
		return err
	}
	t.mu.Lock()
	h := t.hosts[host]
	t.mu.Unlock()
	if h == nil {
		return fmt.Errorf("inject: no host %q", host)
	}
	frame := uint16(unix.ETH_P_IP)
	if p.Dst.Addr().Is6() {
		frame = unix.ETH_P_IPV6
	}
	fd, err := h.ns.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	to := &unix.SockaddrLinklayer{Protocol: htons(frame), Ifindex: h.link.hostIndex, Halen: 6}
	copy(to.Addr[:], h.link.nodeMAC())
	return os.NewSyscallError("sendto", unix.Sendto(fd, p.encode(), 0, to))
}

// same reports whether it is the packet of that fingerprint, translated or not.
func (p Packet) same(fingerprint string) bool {
	return fingerprint != "" && p.fingerprint() == fingerprint
}

// flow reports whether a packet goes from one address to the other.
func (p Packet) flow(proto Protocol, src, dst netip.AddrPort) bool {
	if proto == ICMP {
		return p.Proto == ICMP && p.Src.Addr() == src.Addr() && p.Dst.Addr() == dst.Addr()
	}
	return p.Proto == proto && p.Src == src && p.Dst == dst
}
