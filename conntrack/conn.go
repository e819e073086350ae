package conntrack

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// bufferLen is the length of a receive buffer. The kernel lists at most 32 KiB at a time.
const bufferLen = 64 << 10

// A conn is a netlink socket with a buffer of its own: what it receives is looked at in place and kept by nobody, so
// that a long answer needs no more memory than a short one. It is not safe for concurrent use.
type conn struct {
	nl      *netlink.Conn
	raw     syscall.RawConn
	timeout time.Duration

	seq  uint32
	open uint32 // the request whose answer has not been read to its end; 0: none
	buf  []byte
	msgs [][]byte // of one receive, without their netlink headers

	sent, received uint64 // bytes
}

// dial opens a socket of a netlink family in a namespace; see Config.NetNS.
func dial(family int, cfg Config) (*conn, error) {
	nl, err := netlink.Dial(family, &netlink.Config{NetNS: cfg.NetNS})
	if err != nil {
		return nil, meaning(err)
	}
	c, err := newConn(nl, cfg.Timeout)
	if err == nil {
		// Errors come without the request that they are about: hundreds of them fit the socket's buffer.
		err = nl.SetOption(netlink.CapAcknowledge, true)
	}
	if err != nil {
		nl.Close()
		return nil, meaning(err)
	}
	return c, nil
}

func newConn(nl *netlink.Conn, timeout time.Duration) (*conn, error) {
	raw, err := nl.SyscallConn()
	return &conn{nl: nl, raw: raw, timeout: timeout, buf: make([]byte, bufferLen)}, err
}

func (c *conn) close() error { return c.nl.Close() }

// next returns a sequence number for a request, and room for n - 1 more after it.
func (c *conn) next(n int) uint32 {
	if c.seq > math.MaxUint32-uint32(n)-1 {
		c.seq = 0
	}
	first := c.seq + 1
	c.seq += uint32(n)
	return first
}

// ask sends a request and gives visit each message of the answer, as many at once as the kernel sent at once; they are
// valid until visit returns. If visit fails, the rest of the answer is read and dropped before the next request.
func (c *conn) ask(ctx context.Context, m netlink.Message, visit func(msgs [][]byte) error) error {
	stop := c.watch(ctx)
	defer stop()
	if err := c.finish(ctx); err != nil {
		return err
	}
	m.Header.Sequence = c.next(1)
	m.Header.Length = uint32(align(nlHeaderLen + len(m.Data)))
	b, err := m.MarshalBinary()
	if err != nil {
		return fmt.Errorf("conntrack: encode a request: %w", err)
	}
	if err := c.send(ctx, b); err != nil {
		return err
	}
	c.open = m.Header.Sequence
	interrupted := false
	for c.open != 0 {
		end, err := c.receive(ctx)
		if err != nil {
			return err
		}
		interrupted = interrupted || end.interrupted
		if end.errno != 0 {
			return meaning(end.errno)
		}
		if len(c.msgs) > 0 {
			if err := visit(c.msgs); err != nil {
				return err
			}
		}
	}
	if interrupted {
		return meaning(unix.EINTR)
	}
	return nil
}

// finish reads an answer to its end that ask left off. A socket takes no second listing while it is busy with one.
func (c *conn) finish(ctx context.Context) error {
	for c.open != 0 {
		if _, err := c.receive(ctx); err != nil {
			return err
		}
	}
	return nil
}

// watch makes the end of ctx end whatever c waits for, until stop is called.
func (c *conn) watch(ctx context.Context) (stop func()) {
	done := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(done)
		c.nl.SetDeadline(time.Unix(1, 0))
	})
	return func() {
		if !cancel() {
			<-done // lest it end what is asked next
		}
	}
}

// extend gives the kernel until the timeout for its next answer.
func (c *conn) extend(ctx context.Context) error {
	if err := c.nl.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return meaning(err)
	}
	// Should the context have ended in the meantime, its deadline is overwritten.
	return context.Cause(ctx)
}

// send sends messages that are encoded one after the other.
func (c *conn) send(ctx context.Context, b []byte) error {
	if err := c.extend(ctx); err != nil {
		return err
	}
	var err error
	werr := c.raw.Write(func(fd uintptr) bool {
		_, err = unix.Write(int(fd), b) // to the kernel: a netlink socket's peer unless it is told of another
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if err = firstOf(werr, err); err != nil {
		return because(ctx, err)
	}
	c.sent += uint64(len(b))
	return nil
}

// read receives once into c.buf.
func (c *conn) read(ctx context.Context) ([]byte, error) {
	if err := c.extend(ctx); err != nil {
		return nil, err
	}
	var n int
	var err error
	rerr := c.raw.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), c.buf)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if err = firstOf(rerr, err); err != nil {
		return nil, because(ctx, err)
	}
	c.received += uint64(n)
	return c.buf[:n], nil
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// An ending is what a receive said about the end of an answer.
type ending struct {
	errno       unix.Errno
	interrupted bool // what was listed changed its shape meanwhile: something may be missing
}

// receive receives once and leaves the messages of the open answer in c.msgs. At the end of that answer it sets c.open
// to 0. Whatever belongs to earlier requests is dropped.
func (c *conn) receive(ctx context.Context) (ending, error) {
	b, err := c.read(ctx)
	if err != nil {
		return ending{}, err
	}
	var end ending
	c.msgs = c.msgs[:0]
	for m, rest := nextMessage(b); m.whole; m, rest = nextMessage(rest) {
		if m.seq != c.open || m.pid != c.nl.PID() {
			continue
		}
		end.interrupted = end.interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
		switch m.typ {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			end.errno = m.errno()
			c.open = 0
		default:
			c.msgs = append(c.msgs, m.data)
		}
	}
	return end, nil
}

// A message is one netlink message.
type message struct {
	typ, flags uint16
	seq, pid   uint32
	data       []byte // without the header
	whole      bool   // false for none
}

// nextMessage returns the first message in b and what follows it; one that is not whole if there is none that fits.
func nextMessage(b []byte) (m message, rest []byte) {
	if len(b) < nlHeaderLen {
		return message{}, nil
	}
	n := int(binary.NativeEndian.Uint32(b))
	if n < nlHeaderLen || n > len(b) {
		return message{}, nil
	}
	m = message{
		typ: binary.NativeEndian.Uint16(b[4:]), flags: binary.NativeEndian.Uint16(b[6:]),
		seq: binary.NativeEndian.Uint32(b[8:]), pid: binary.NativeEndian.Uint32(b[12:]),
		data: b[nlHeaderLen:n], whole: true,
	}
	return m, b[min(align(n), len(b)):]
}

// errno returns the error that NLMSG_ERROR and NLMSG_DONE begin with; 0 is none.
func (m message) errno() unix.Errno {
	if len(m.data) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.data)))
}
