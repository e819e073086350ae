package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

type tcpExchange struct {
	fd        int
	v6        bool
	local     netip.AddrPort
	began     time.Time
	connected time.Duration // how long the handshake took, once it is done
	line      []byte
}

func (n *NetNS) exchangeTCP(q Query) (*tcpExchange, error) {
	fd, err := n.client(q, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	x := &tcpExchange{fd: fd, v6: q.To.Addr().Is6(), began: time.Now()}
	// A close with nothing lingering is a reset: no TIME_WAIT here, and connection tracking forgets soon.
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		x.close()
		return nil, os.NewSyscallError("setsockopt SO_LINGER", err)
	}
	err = unix.Connect(fd, sockaddr(q.To))
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		x.close()
		return nil, os.NewSyscallError("connect", err)
	}
	x.local = localAddr(fd)
	return x, nil
}

func (x *tcpExchange) source() netip.AddrPort { return x.local }
func (x *tcpExchange) close()                 { unix.Close(x.fd) }

func (x *tcpExchange) wait(ctx context.Context, deadline time.Time) (Answer, bool, error) {
	if x.connected == 0 {
		a, state, err := x.handshake(ctx, deadline)
		if err != nil || state != open {
			return a, state == refused, err
		}
		x.connected = time.Since(x.began)
	}
	for {
		if line, _, ok := bytes.Cut(x.line, []byte("\n")); ok {
			name, peer, _, err := parseLine(string(line))
			return Answer{Verdict: Answered, Name: name, Peer: peer, Took: x.connected, Retransmitted: x.retransmitted()}, err == nil, err
		}
		ready, err := pollFor(ctx, x.fd, unix.POLLIN, deadline)
		if err != nil || !ready {
			return Answer{}, false, err
		}
		buf := make([]byte, 256)
		n, err := unix.Read(x.fd, buf)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		case err != nil:
			return Answer{}, false, fmt.Errorf("%w after the handshake", err)
		case n == 0:
			return Answer{}, false, errors.New("closed after the handshake without an answer")
		}
		x.line = append(x.line, buf[:max(n, 0)]...)
	}
}

type tcpState int

const (
	pending tcpState = iota
	open
	refused
)

// handshake waits for the end of connect.
func (x *tcpExchange) handshake(ctx context.Context, deadline time.Time) (Answer, tcpState, error) {
	for {
		ready, err := pollFor(ctx, x.fd, unix.POLLOUT, deadline)
		if err != nil || !ready {
			return Answer{}, pending, err
		}
		refusal := func(errno unix.Errno, by netip.Addr) (Answer, tcpState, error) {
			if !isRefusal(errno) {
				return Answer{}, pending, errno
			}
			return Answer{Verdict: Refused, Err: errno, By: by, Took: time.Since(x.began)}, refused, nil
		}
		if e, ok := queuedError(x.fd, x.v6); ok {
			return refusal(e.errno, e.by)
		}
		errno, err := unix.GetsockoptInt(x.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			return Answer{}, pending, os.NewSyscallError("getsockopt SO_ERROR", err)
		}
		if errno != 0 {
			return refusal(unix.Errno(errno), netip.Addr{})
		}
		if _, err := unix.Getpeername(x.fd); err == nil {
			return Answer{}, open, nil
		}
	}
}

// retransmitted counts the segments that this side sent again: a lost SYN is one.
func (x *tcpExchange) retransmitted() int {
	info, err := unix.GetsockoptTCPInfo(x.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return int(info.Total_retrans)
}
