package lab

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// raw is the client's side of a protocol that is spoken over a raw socket.
type raw struct {
	fd     int
	local  netip.Addr
	to     netip.AddrPort
	resend time.Time
	refuse error // EPERM, if the kernel refused the last send
}

func (r *raw) v6() bool     { return r.to.Addr().Is6() }
func (r *raw) denied() bool { return r.refuse != nil }

func (n *NetNS) rawClient(q Query) (*raw, error) {
	local := q.Source.Addr()
	if !local.IsValid() {
		var err error
		if local, err = n.sourceFor(q.To); err != nil {
			return nil, err
		}
	}
	bound := q
	bound.Source = netip.AddrPortFrom(local, 0) // raw sockets have no ports
	fd, err := n.client(bound, unix.SOCK_RAW, q.Proto.number(q.To.Addr().Is6()))
	if err != nil {
		return nil, err
	}
	return &raw{fd: fd, local: local, to: q.To}, nil
}

// sourceFor asks the kernel which source address it would take. Nothing is sent.
func (n *NetNS) sourceFor(to netip.AddrPort) (netip.Addr, error) {
	fd, err := n.Socket(domain(to.Addr()), unix.SOCK_DGRAM, 0)
	if err != nil {
		return netip.Addr{}, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, sockaddr(netip.AddrPortFrom(to.Addr(), 9))); err != nil {
		return netip.Addr{}, os.NewSyscallError("connect", err)
	}
	return localAddr(fd).Addr(), nil
}

// send sends one packet. EPERM is kept for denied: a rule of this very namespace dropped or rejected it.
func (r *raw) send(b []byte) error {
	r.resend = time.Now().Add(resendEvery)
	err := unix.Sendto(r.fd, b, 0, sockaddr(netip.AddrPortFrom(r.to.Addr(), 0)))
	r.refuse = nil
	switch {
	case errors.Is(err, unix.EPERM):
		r.refuse = err
		return nil
	case isRefusal(err), errors.Is(err, unix.EAGAIN):
		return nil // about a packet before; the error queue has it
	}
	return os.NewSyscallError("sendto", err)
}

// wait hands every packet from the other side to judge, and what the error queue has with its
// refusal, until one of them decides. Meanwhile it sends again.
func (r *raw) wait(ctx context.Context, deadline time.Time, send func() error, judge func(b []byte, refusal *icmpError) (Answer, bool)) (Answer, bool, error) {
	buf := make([]byte, 2048)
	for {
		ready, err := pollFor(ctx, r.fd, unix.POLLIN, minTime(deadline, r.resend))
		if err != nil {
			return Answer{}, false, err
		}
		for ready {
			if e, ok := queuedError(r.fd, r.v6()); ok && isRefusal(e.errno) {
				if a, decided := judge(e.data, &e); decided {
					return a, true, nil
				}
				continue
			}
			n, from, err := unix.Recvfrom(r.fd, buf, unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil || addrPortOf(from).Addr() != r.to.Addr() {
				continue
			}
			if a, decided := judge(r.strip(buf[:n]), nil); decided {
				return a, true, nil
			}
		}
		if !time.Now().Before(deadline) {
			return Answer{}, false, nil
		}
		if !time.Now().Before(r.resend) {
			if err := send(); err != nil {
				return Answer{}, false, err
			}
		}
	}
}

// strip takes away the header that raw IPv4 sockets receive and IPv6 ones do not.
func (r *raw) strip(b []byte) []byte {
	if r.v6() || len(b) < 20 {
		return b
	}
	return b[min(int(b[0]&0xf)*4, len(b)):]
}
