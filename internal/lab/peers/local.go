package peers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
)

// A local is the node's own end of things. Its raw sockets get a copy of every packet that is delivered to the node,
// behind all rules of input and with its final destination, whether or not anybody listens there.
type local struct {
	ns     *lab.NetNS
	taps   []tap
	v4, v6 int // send whole packets, as processes of the node do
	frames int // see flush
	stamp  uint64
	buf    []byte
	oob    []byte
}

// A tap is a raw socket for one protocol and family.
type tap struct {
	fd     int
	number uint8
	v6     bool
}

// frameType is one of those set aside for experiments (RFC 9542 appendix B.2). No rule sees such frames.
const frameType = 0x88b5

func openLocal(ns *lab.NetNS) (l *local, err error) {
	l = &local{ns: ns, v4: -1, v6: -1, frames: -1, buf: make([]byte, 4096), oob: make([]byte, 256)}
	defer func() {
		if err != nil {
			l.close()
			l, err = nil, fmt.Errorf("the node's end: %w", err)
		}
	}()
	for _, p := range [...]Protocol{TCP, UDP, SCTP, ICMP} {
		for _, v6 := range [...]bool{false, true} {
			if err := l.tap(p.number(v6), v6); err != nil {
				return l, err
			}
		}
	}
	if l.v4, err = ns.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW); err != nil {
		return l, err
	}
	if l.v6, err = ns.Socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW); err != nil {
		return l, err
	}
	return l, l.openFrames()
}

func (l *local) tap(number uint8, v6 bool) error {
	domain := unix.AF_INET
	if v6 {
		domain = unix.AF_INET6
	}
	fd, err := l.ns.Socket(domain, unix.SOCK_RAW, int(number))
	if err != nil {
		return err
	}
	l.taps = append(l.taps, tap{fd, number, v6})
	if !v6 {
		return nil
	}
	return os.NewSyscallError("setsockopt IPV6_RECVPKTINFO", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1))
}

func (l *local) openFrames() error {
	h, err := l.ns.Netlink()
	if err != nil {
		return err
	}
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	typ := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, frameType))
	if l.frames, err = l.ns.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, int(typ)); err != nil {
		return err
	}
	to := unix.SockaddrLinklayer{Protocol: typ, Ifindex: lo.Attrs().Index, Halen: 6}
	if err := unix.Bind(l.frames, &to); err != nil {
		return os.NewSyscallError("bind to lo", err)
	}
	return nil
}

// send sends a packet as a process of the node does. A rule may refuse it on the way out: that is no error here.
func (l *local) send(p packet) error {
	fd := l.v4
	if p.v6() {
		fd = l.v6
	}
	err := unix.Sendto(fd, p.encode(), 0, sockaddr(netip.AddrPortFrom(p.dst.Addr(), 0)))
	if errors.Is(err, unix.EPERM) {
		return nil
	}
	return os.NewSyscallError("send from the node", err)
}

// receive takes one packet that was delivered to the node.
func (l *local) receive() (rawPacket, bool, error) {
	for _, t := range l.taps {
		for {
			r, ok, err := l.receiveFrom(t)
			if err != nil {
				return rawPacket{}, false, err
			}
			if !ok {
				break
			}
			if r.dst.IsValid() {
				return r, true, nil
			}
		}
	}
	return rawPacket{}, false, nil
}

// receiveFrom takes one packet from a tap. One that cannot be read has no destination.
func (l *local) receiveFrom(t tap) (rawPacket, bool, error) {
	n, oobn, _, from, err := unix.Recvmsg(t.fd, l.buf, l.oob, unix.MSG_DONTWAIT)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return rawPacket{}, false, nil
	case errors.Is(err, unix.EINTR):
		return rawPacket{}, true, nil
	case err != nil:
		return rawPacket{}, false, os.NewSyscallError("receive at the node", err)
	}
	if !t.v6 {
		r, _ := splitIP(l.buf[:n], false)
		return r, true, nil
	}
	r := rawPacket{number: t.number, payload: l.buf[:n]}
	if sa, ok := from.(*unix.SockaddrInet6); ok {
		r.src = netip.AddrFrom16(sa.Addr)
	}
	msgs, err := unix.ParseSocketControlMessage(l.oob[:oobn])
	if err != nil {
		return rawPacket{}, true, nil
	}
	for _, m := range msgs {
		if m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 16 {
			r.dst = netip.AddrFrom16([16]byte(m.Data[:16]))
		}
	}
	return r, true, nil
}

// flush returns once the kernel has dealt with every packet that is on its way over loopback: those queue behind one
// another, per processor, and a frame of ours comes out behind them. The caller stays on one processor.
func (l *local) flush() error {
	const patience = 10 * time.Second
	l.stamp++
	frame := binary.BigEndian.AppendUint64(nil, l.stamp)
	if _, err := unix.Write(l.frames, frame); err != nil {
		return os.NewSyscallError("send a frame over lo", err)
	}
	deadline := time.Now().Add(patience)
	for {
		n, err := unix.Read(l.frames, l.buf)
		switch {
		case err == nil && n >= 8 && binary.BigEndian.Uint64(l.buf) == l.stamp:
			return nil
		case err == nil, errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EAGAIN):
			return os.NewSyscallError("receive a frame over lo", err)
		}
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("loopback swallowed a frame: %v", patience)
		}
		timeout := unix.NsecToTimespec(int64(left))
		if _, err := unix.Ppoll([]unix.PollFd{{Fd: int32(l.frames), Events: unix.POLLIN}}, &timeout, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("ppoll", err)
		}
	}
}

// source asks the kernel which address a process of the node that binds none gets towards a destination.
func (l *local) source(to netip.Addr) (netip.Addr, error) {
	domain := unix.AF_INET
	if to.Is6() {
		domain = unix.AF_INET6
	}
	fd, err := l.ns.Socket(domain, unix.SOCK_DGRAM, 0)
	if err != nil {
		return netip.Addr{}, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, sockaddr(netip.AddrPortFrom(to, 9))); err != nil {
		return netip.Addr{}, fmt.Errorf("route to %s: %w", to, err)
	}
	at, err := unix.Getsockname(fd)
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(at.Addr), nil
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(at.Addr), nil
	}
	return netip.Addr{}, os.NewSyscallError("getsockname", err)
}

func (l *local) close() {
	for _, t := range l.taps {
		unix.Close(t.fd)
	}
	for _, fd := range [...]int{l.v4, l.v6, l.frames} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
