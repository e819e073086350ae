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

// A Query is one question: from whom, to whom.
type Query struct {
	// Source is the address that the packet leaves with. Invalid (the zero value): the kernel chooses. Port 0: an
	// ephemeral port. An address that the namespace does not have is spoofed, as far as the kernel lets
	// it (IP_TRANSPARENT): answers to it arrive only if it is routed here.
	Source netip.AddrPort
	Proto  Protocol
	// To is where the packet goes; the port means nothing for ICMP.
	To netip.AddrPort
}

func (q Query) String() string {
	from := ""
	if q.Source.Addr().IsValid() {
		from = q.Source.Addr().String() + " "
	}
	return fmt.Sprintf("%s-> %s/%s", from, q.To, q.Proto)
}

func (q Query) check() error {
	if err := q.Proto.check(); err != nil {
		return err
	}
	if !q.To.Addr().IsValid() {
		return errors.New("lab: the query has no destination")
	}
	if q.Source.Addr().IsValid() && q.Source.Addr().Is6() != q.To.Addr().Is6() {
		return fmt.Errorf("lab: query %s mixes families", q)
	}
	return nil
}

// An exchange is one fresh flow: its first packet is out when it is made.
type exchange interface {
	// wait waits for the answer or the refusal, at most until the deadline. It may be called again as long
	// as it is not decided. An error means that the question could not be put.
	wait(ctx context.Context, deadline time.Time) (a Answer, decided bool, err error)
	// again puts the question once more over the same flow, after the answer to the one before.
	again() error
	// source is the flow's own address and port.
	source() netip.AddrPort
	// fingerprint is that of its first packet, "" where the kernel does not tell.
	fingerprint() string
	// denied reports whether the kernel refused to send the last packet: a rule of the sender's own
	// namespace dropped or rejected it.
	denied() bool
	// close ends the flow so that no entry of connection tracking outlives it needlessly.
	close()
}

// normal is the query without a port where there are none, so that it compares with what is seen.
func (q Query) normal() Query {
	if q.Proto == ICMP {
		q.Source, q.To = netip.AddrPortFrom(q.Source.Addr(), 0), netip.AddrPortFrom(q.To.Addr(), 0)
	}
	return q
}

func (n *NetNS) exchange(q Query) (exchange, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	q = q.normal()
	var x exchange
	var err error
	switch q.Proto {
	case TCP:
		x, err = n.exchangeTCP(q)
	case UDP:
		x, err = n.exchangeUDP(q)
	case SCTP:
		x, err = n.exchangeSCTP(q)
	default:
		x, err = n.exchangeICMP(q)
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s from %s: %w", q, n.name, err)
	}
	return x, nil
}

// client makes a socket with the source of a query. Errors of ICMP come to its error queue, because
// an ICMP message that finds the socket locked, as it does when the whole path is one machine, is
// otherwise heard only after the next retransmission.
func (n *NetNS) client(q Query, typ, proto int) (int, error) {
	fd, err := n.Socket(domain(q.To.Addr()), typ, proto)
	if err != nil {
		return -1, err
	}
	if err := setSource(fd, q); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func setSource(fd int, q Query) error {
	level, recverr, transparent, noPort := unix.IPPROTO_IP, unix.IP_RECVERR, unix.IP_TRANSPARENT, unix.IP_BIND_ADDRESS_NO_PORT
	if q.To.Addr().Is6() {
		level, recverr, transparent = unix.IPPROTO_IPV6, unix.IPV6_RECVERR, unix.IPV6_TRANSPARENT
	}
	if err := unix.SetsockoptInt(fd, level, recverr, 1); err != nil {
		return os.NewSyscallError("setsockopt IP_RECVERR", err)
	}
	if !q.Source.Addr().IsValid() && q.Source.Port() == 0 {
		return nil
	}
	at := q.Source
	if !at.Addr().IsValid() {
		at = netip.AddrPortFrom(unspecified(q.To.Addr().Is6()), at.Port())
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt SO_REUSEADDR", err)
	}
	if at.Port() == 0 {
		// Without it the port is taken from those free for every destination, of which there are few.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, noPort, 1)
	}
	err := unix.Bind(fd, sockaddr(at))
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		if err := unix.SetsockoptInt(fd, level, transparent, 1); err != nil {
			return os.NewSyscallError("setsockopt IP_TRANSPARENT", err)
		}
		err = unix.Bind(fd, sockaddr(at))
	}
	return os.NewSyscallError("bind", err)
}

// An icmpError is what the error queue of a socket holds.
type icmpError struct {
	errno unix.Errno
	by    netip.Addr // who sent the ICMP message; invalid if it was no ICMP message
	data  []byte     // the start of the packet that it is about, from the transport header on
}

// queuedError takes the oldest error out of a socket's error queue.
func queuedError(fd int, v6 bool) (icmpError, bool) {
	oob := make([]byte, 512)
	buf := make([]byte, 512)
	n, oobn, _, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if err != nil {
		return icmpError{}, false
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return icmpError{}, false
	}
	for _, m := range msgs {
		if e, ok := parseExtendedError(m, v6); ok {
			e.data = buf[:n]
			return e, true
		}
	}
	return icmpError{}, false
}

// parseExtendedError reads struct sock_extended_err and the address of the offender that follows it
// (ip(7), IP_RECVERR).
func parseExtendedError(m unix.SocketControlMessage, v6 bool) (icmpError, bool) {
	const size = 16 // of struct sock_extended_err
	level, typ := int32(unix.IPPROTO_IP), int32(unix.IP_RECVERR)
	if v6 {
		level, typ = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	if m.Header.Level != level || m.Header.Type != typ || len(m.Data) < size {
		return icmpError{}, false
	}
	e := icmpError{errno: unix.Errno(nativeUint32(m.Data[0:4]))}
	origin, offender := m.Data[4], m.Data[size:]
	switch {
	case origin == unix.SO_EE_ORIGIN_ICMP && len(offender) >= 8:
		e.by = netip.AddrFrom4([4]byte(offender[4:8])) // struct sockaddr_in
	case origin == unix.SO_EE_ORIGIN_ICMP6 && len(offender) >= 24:
		e.by = netip.AddrFrom16([16]byte(offender[8:24])) // struct sockaddr_in6
	}
	return e, true
}

// pollFor waits until a descriptor is ready or has an error. It reports false when the deadline came first.
func pollFor(ctx context.Context, fd int, events int16, deadline time.Time) (bool, error) {
	const slice = 20 * time.Millisecond // how late a cancellation may be seen
	for {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		left := min(time.Until(deadline), slice)
		if left < 0 {
			left = 0
		}
		timeout := unix.NsecToTimespec(int64(left))
		ready, err := unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: events}}, &timeout, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, os.NewSyscallError("ppoll", err)
		}
		if ready > 0 {
			return true, nil
		}
		if !time.Now().Before(deadline) {
			return false, nil
		}
	}
}

func localAddr(fd int) netip.AddrPort {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	return addrPortOf(sa)
}

// isRefusal reports whether an error of a socket says that somebody refused it. Others mean that the
// question could not be put at all.
func isRefusal(err error) bool {
	for _, e := range []unix.Errno{unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EACCES, unix.ENOPROTOOPT, unix.EPROTO, unix.EHOSTDOWN, unix.ECONNRESET} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
