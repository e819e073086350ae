package peers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A Conn is a connection, or a flow of datagrams, that stays open. Nothing happens on it by itself.
type Conn struct {
	w    *World
	q    Query
	at   Sighting // how the first packet arrived
	last packet   // what the client sends next, but for what it is
	fd   int      // the socket of a process of the node over TCP; -1 else
}

// Dial opens a connection over TCP or UDP. An error says what came instead.
func (w *World) Dial(ctx context.Context, q Query) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if q.Proto != TCP && q.Proto != UDP {
		return nil, fmt.Errorf("keep a connection over %s: %w", q.Proto, errors.ErrUnsupported)
	}
	c := &Conn{w: w, fd: -1}
	err := w.do(func() error {
		x, err := w.exchange(q)
		if err != nil {
			return err
		}
		x.keep = true
		q.Source = x.question.src
		c.q = q
		if q.Proto == TCP && x.entry == nil {
			return c.connect(x)
		}
		if err := x.send(x.question); err != nil {
			return err
		}
		if err := w.settle(x.see); err != nil {
			return err
		}
		if err := c.opened(x); err != nil || q.Proto == UDP {
			return err
		}
		c.last = x.answers[0].packet.next(confirm)
		if err := x.send(c.last); err != nil {
			return err
		}
		return w.settle(x.see)
	})
	if err != nil {
		if c.fd >= 0 {
			unix.Close(c.fd)
		}
		return nil, fmt.Errorf("dial %s %s from %s: %w", q.Proto, q.To, q.Source, err)
	}
	return c, nil
}

// opened notes who got the question, if one that can answer did.
func (c *Conn) opened(x *exchange) error {
	f := x.fate()
	switch {
	case f.Verdict != Arrived, !f.Answered, len(x.answers) == 0 && c.fd < 0:
		return fmt.Errorf("%s: %s", f.Verdict, f.Trace)
	}
	c.at = x.arrived[0]
	return nil
}

// connect opens a connection of a process of the node: with a socket, since its kernel would reset any other.
func (c *Conn) connect(x *exchange) (err error) {
	domain := unix.AF_INET
	if x.question.v6() {
		domain = unix.AF_INET6
	}
	if c.fd, err = c.w.ns.Socket(domain, unix.SOCK_STREAM, 0); err != nil {
		return err
	}
	_ = unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // a close is a reset
	if err := unix.Bind(c.fd, sockaddr(x.question.src)); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if err := unix.Connect(c.fd, sockaddr(x.question.dst)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return os.NewSyscallError("connect", err)
	}
	err = c.w.settle(func(s Sighting) error {
		if s.packet.proto == TCP && s.packet.part == question && len(x.arrived) == 0 {
			x.question.token = s.packet.token // the kernel chose it
		}
		return x.see(s)
	})
	if err != nil {
		return err
	}
	if errno, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || errno != 0 {
		return errors.Join(err, unix.Errno(errno))
	}
	if _, err := unix.Getpeername(c.fd); err != nil {
		return fmt.Errorf("not connected: %s", x.trace)
	}
	c.last.token = x.question.token
	return c.opened(x)
}

// At is who accepted the connection.
func (c *Conn) At() netip.AddrPort { return c.at.packet.dst }

// Exchange lets the client say something and the endpoint answer. An error means that one of them did not arrive.
func (c *Conn) Exchange(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.w.do(func() error {
		x, err := c.w.exchange(c.q)
		if err != nil {
			return err
		}
		if c.q.Proto == UDP {
			if err := x.send(x.question); err != nil {
				return err
			}
			if err := c.w.settle(x.see); err != nil {
				return err
			}
			return c.judge(x)
		}
		x.question.token = c.last.token
		x.keep = true
		return c.talk(x)
	})
}

// judge says what is wrong with the way that a datagram took.
func (c *Conn) judge(x *exchange) error {
	f := x.fate()
	switch {
	case f.Verdict != Arrived || !f.Answered:
		return fmt.Errorf("%s: %s", f.Verdict, f.Trace)
	case f.At != c.At():
		return fmt.Errorf("arrived at %s instead of %s", f.At, c.At())
	}
	return nil
}

// talk exchanges data over an open TCP connection.
func (c *Conn) talk(x *exchange) error {
	var arrived, back bool
	see := func(s Sighting) error {
		p := s.packet
		x.trace = append(x.trace, s)
		switch {
		case p.token != x.question.token:
		case p.part == data && p.dst == c.at.packet.dst && p.src == c.at.packet.src && s.link == c.at.link:
			arrived = true
			l, err := c.w.link(s.link)
			if err != nil {
				return err
			}
			return l.send(p.answered().encode())
		case p.part == dataBack && x.toClient(p):
			back, c.last = true, p.next(confirm)
		}
		return nil
	}
	say := c.last
	say.part = data
	var err error
	if c.fd < 0 {
		err = x.send(say)
	} else {
		_, err = unix.Write(c.fd, marked(markQuestion, say.token))
	}
	if err != nil {
		return err
	}
	if err := c.w.settle(see); err != nil {
		return err
	}
	switch {
	case !arrived:
		return fmt.Errorf("the endpoint did not hear the client: %s", x.trace)
	case !back:
		return fmt.Errorf("the client did not hear the endpoint: %s", x.trace)
	case c.fd < 0:
		return nil
	}
	return readAll(c.fd, dataLen)
}

// readAll reads from a socket what must be there any moment.
func readAll(fd, n int) error {
	const patience = 5 * time.Second
	buf := make([]byte, n)
	for deadline := time.Now().Add(patience); ; {
		got, err := unix.Read(fd, buf)
		switch {
		case err == nil && got == 0:
			return errors.New("the connection was closed")
		case err == nil && got >= len(buf):
			return nil
		case err == nil:
			buf = buf[got:]
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return os.NewSyscallError("read", err)
		case time.Now().After(deadline):
			return fmt.Errorf("nothing to read: %v", patience)
		}
		timeout := unix.NsecToTimespec(int64(time.Millisecond))
		_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, &timeout, nil) // the read says more
	}
}

// Close ends the connection with a reset. The endpoint need not hear it.
func (c *Conn) Close() error {
	return c.w.do(func() error {
		ignore := func(Sighting) error { return nil }
		switch {
		case c.q.Proto == UDP:
			return nil
		case c.fd >= 0:
			if err := unix.Close(c.fd); err != nil {
				return os.NewSyscallError("close", err)
			}
			return c.w.settle(ignore)
		}
		x, err := c.w.exchange(c.q)
		if err != nil {
			return err
		}
		end := c.last
		end.part = refusal
		if err := x.send(end); err != nil {
			return err
		}
		return c.w.settle(ignore)
	})
}

func sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())}
	}
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port())}
}
