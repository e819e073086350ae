package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// token makes what a probe sends unique, so that a late answer to an earlier question is not taken for
// the one asked.
func token() string { return fmt.Sprintf("%016x", rand.Uint64()) }

// resendEvery is how often a datagram is sent again while nothing came back.
const resendEvery = 60 * time.Millisecond

type udpExchange struct {
	fd     int
	v6     bool
	local  netip.AddrPort
	token  string
	began  time.Time
	resend time.Time
	refuse error // EPERM, if the kernel refused the last send
}

func (n *NetNS) exchangeUDP(q Query) (*udpExchange, error) {
	fd, err := n.client(q, unix.SOCK_DGRAM, 0)
	if err != nil {
		return nil, err
	}
	x := &udpExchange{fd: fd, v6: q.To.Addr().Is6(), token: token(), began: time.Now()}
	if err := unix.Connect(fd, sockaddr(q.To)); err != nil {
		x.close()
		return nil, os.NewSyscallError("connect", err)
	}
	x.local = localAddr(fd)
	if err := x.send(); err != nil {
		x.close()
		return nil, err
	}
	return x, nil
}

func (x *udpExchange) source() netip.AddrPort { return x.local }
func (x *udpExchange) close()                 { unix.Close(x.fd) }
func (x *udpExchange) fingerprint() string    { return "udp " + x.token }
func (x *udpExchange) denied() bool           { return x.refuse != nil }

func (x *udpExchange) again() error {
	x.token, x.began = token(), time.Now()
	return x.send()
}

// send sends the question. The kernel says EPERM when a rule of this very namespace dropped or
// rejected it: the ICMP message, if there is one, tells them apart.
func (x *udpExchange) send() error {
	x.resend = time.Now().Add(resendEvery)
	_, err := unix.Write(x.fd, []byte(x.token))
	x.refuse = nil
	if errors.Is(err, unix.EPERM) {
		x.refuse = err
		return nil
	}
	if isRefusal(err) || errors.Is(err, unix.EAGAIN) {
		return nil // an ICMP error about the datagram before; the queue has it
	}
	return os.NewSyscallError("send", err)
}

func (x *udpExchange) wait(ctx context.Context, deadline time.Time) (Answer, bool, error) {
	for {
		ready, err := pollFor(ctx, x.fd, unix.POLLIN, minTime(deadline, x.resend))
		if err != nil {
			return Answer{}, false, err
		}
		if ready {
			if a, decided, err := x.receive(); decided || err != nil {
				return a, decided, err
			}
		}
		if !time.Now().Before(deadline) {
			return Answer{}, false, nil
		}
		if !time.Now().Before(x.resend) {
			if err := x.send(); err != nil {
				return Answer{}, false, err
			}
		}
	}
}

func (x *udpExchange) receive() (Answer, bool, error) {
	took := time.Since(x.began)
	if e, ok := queuedError(x.fd, x.v6); ok && isRefusal(e.errno) {
		return Answer{Verdict: Refused, Err: e.errno, By: e.by, Took: took}, true, nil
	}
	buf := make([]byte, 2048)
	n, err := unix.Read(x.fd, buf)
	if isRefusal(err) {
		return Answer{Verdict: Refused, Err: err, Took: took}, true, nil
	}
	if err != nil {
		return Answer{}, false, nil // nothing there after all
	}
	name, peer, rest, err := parseLine(string(buf[:n]))
	if err != nil {
		return Answer{}, false, err
	}
	if rest != x.token {
		return Answer{}, false, nil
	}
	return Answer{Verdict: Answered, Name: name, Peer: peer, Took: took}, true, nil
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
