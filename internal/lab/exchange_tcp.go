package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A tcpExchange is a connection of a stream socket: of TCP, or of SCTP where the kernel has it.
type tcpExchange struct {
	fd        int
	proto     Protocol
	v6        bool
	local     netip.AddrPort
	asked     time.Time
	connected time.Duration // how long the handshake took, once it is done
	line      []byte        // received and not yet looked at
	token     string        // what the next answer must end with
}

func (n *NetNS) exchangeTCP(q Query) (*tcpExchange, error) {
	fd, err := n.client(q, unix.SOCK_STREAM, q.Proto.number(false))
	if err != nil {
		return nil, err
	}
	x := &tcpExchange{fd: fd, proto: q.Proto, v6: q.To.Addr().Is6(), asked: time.Now()}
	// A close with nothing lingering is a reset or an ABORT: no TIME_WAIT here, and connection tracking forgets soon.
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
func (x *tcpExchange) fingerprint() string    { return "" }
func (x *tcpExchange) denied() bool           { return false }

func (x *tcpExchange) again() error {
	x.token, x.asked = token(), time.Now()
	_, err := unix.Write(x.fd, []byte(x.token+"\n"))
	if isRefusal(err) || errors.Is(err, unix.EPIPE) {
		return nil // the next read says so
	}
	return os.NewSyscallError("write", err)
}

func (x *tcpExchange) wait(ctx context.Context, deadline time.Time) (Answer, bool, error) {
	if x.connected == 0 {
		a, state, err := x.handshake(ctx, deadline)
		if err != nil || state != open {
			return a, state == refused, err
		}
		x.connected = time.Since(x.asked)
	}
	for {
		if line, rest, ok := bytes.Cut(x.line, []byte("\n")); ok {
			x.line = rest
			a, current, err := x.answer(string(line))
			if current || err != nil {
				return a, err == nil, err
			}
			continue // a late answer to an earlier question
		}
		ready, err := pollFor(ctx, x.fd, unix.POLLIN, deadline)
		if err != nil || !ready {
			return Answer{}, false, err
		}
		buf := make([]byte, 256)
		n, err := unix.Read(x.fd, buf)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case err == nil && n == 0:
			err = io.EOF
			fallthrough
		case err != nil:
			return Answer{Verdict: Refused, Err: fmt.Errorf("after the handshake: %w", err), Took: time.Since(x.asked)}, true, nil
		}
		x.line = append(x.line, buf[:n]...)
	}
}

// answer reads the greeting, or the answer to a later question. It reports whether it was the current one's.
func (x *tcpExchange) answer(line string) (Answer, bool, error) {
	name, peer, rest, err := parseLine(line)
	if err != nil || rest != x.token {
		return Answer{}, false, err
	}
	took := x.connected
	if x.token != "" {
		took = time.Since(x.asked)
	}
	return Answer{Verdict: Answered, Name: name, Peer: peer, Took: took, Retransmitted: x.retransmitted()}, true, nil
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
			return Answer{Verdict: Refused, Err: errno, By: by, Took: time.Since(x.asked)}, refused, nil
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
	if x.proto != TCP {
		return 0
	}
	info, err := unix.GetsockoptTCPInfo(x.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return int(info.Total_retrans)
}
