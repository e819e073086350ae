package nlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/netns"
)

// A Socket talks to one part of the kernel in one network namespace. After an error that is not the kernel's answer it
// must be closed: an answer may still be on its way. It is not safe for concurrent use.
type Socket struct {
	conn    *netlink.Conn
	raw     syscall.RawConn
	sndbuf  int
	rcvbuf  int
	receive []byte
	seq     uint32
	spent   bool
}

// Dial opens a socket of a netlink family, unix.NETLINK_ROUTE say, in a namespace.
func Dial(family int, ns *netns.NetNS) (*Socket, error) {
	var conn *netlink.Conn
	err := ns.Do(func() (err error) {
		conn, err = netlink.Dial(family, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", Meaning(err))
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s := &Socket{conn: conn, raw: raw, receive: make([]byte, 64<<10)}
	if err := s.Expect(8 << 20); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

// Close closes the socket.
func (s *Socket) Close() error { return s.conn.Close() }

// Spent reports whether the socket must not be used again, though nothing went wrong.
func (s *Socket) Spent() bool { return s.spent }

// SetStrict makes the kernel filter listings by what the request says. Requires Linux 4.20.
func (s *Socket) SetStrict() error { return s.conn.SetOption(netlink.GetStrictCheck, true) }

// Expect makes room for answers of so many bytes, all of which the kernel may give before the first is read.
func (s *Socket) Expect(size int) error {
	if size <= s.rcvbuf {
		return nil
	}
	if err := s.setBuffer(unix.SO_RCVBUFFORCE, size); err != nil {
		return fmt.Errorf("receive buffer of %d bytes: %w", size, Meaning(err))
	}
	s.rcvbuf = size
	return nil
}

// setBuffer sets the size of a buffer beyond the system's limit, for which the kernel wants CAP_NET_ADMIN.
func (s *Socket) setBuffer(option, size int) error {
	var err error
	if cerr := s.raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, size) }); cerr != nil {
		return cerr
	}
	return err
}

// Within runs one exchange, which ends with ctx and after timeout at the latest.
func (s *Socket) Within(ctx context.Context, timeout time.Duration, exchange func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(time.Unix(1, 0)) })
	err := exchange()
	s.spent = !stop() // the deadline may yet be set
	if err != nil && ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return context.Cause(ctx)
	}
	return err
}

// Send sends buffers of messages in one piece.
func (s *Socket) Send(bufs ...[]byte) error {
	const most = 1024 // UIO_MAXIOV
	if len(bufs) > most {
		bufs = [][]byte{slices.Concat(bufs...)}
	}
	need := 4096
	for _, b := range bufs {
		need += len(b)
	}
	if need > s.sndbuf {
		if err := s.setBuffer(unix.SO_SNDBUFFORCE, need); err != nil {
			return fmt.Errorf("send buffer of %d bytes: %w", need, Meaning(err))
		}
		s.sndbuf = need
	}
	var err error
	werr := s.raw.Write(func(fd uintptr) bool {
		_, err = unix.Writev(int(fd), bufs) // to the kernel, since the socket is connected to nobody else
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if werr != nil {
		return werr
	}
	return Meaning(err)
}

// A Message is one message of the kernel. Its body is valid until the next one is received.
type Message struct {
	Type, Flags uint16
	Seq         uint32
	Body        []byte
}

// Next receives the next messages and calls each with every one, until that returns an error.
func (s *Socket) Next(each func(m Message) error) error {
	var n int
	var err error
	rerr := s.raw.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), s.receive)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if rerr != nil {
		return rerr
	}
	if err != nil {
		return Meaning(err)
	}
	for b := s.receive[:n]; len(b) >= HeaderLen; {
		size := MessageLen(b)
		if size < HeaderLen || size > len(b) {
			return io.ErrUnexpectedEOF
		}
		m := Message{Type: binary.NativeEndian.Uint16(b[4:]), Flags: binary.NativeEndian.Uint16(b[6:]), Seq: MessageSeq(b), Body: b[HeaderLen:size]}
		if err := each(m); err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}

// Errno returns the error in the body of an NLMSG_ERROR message; nil for an acknowledgement.
func Errno(body []byte) error {
	if len(body) < 4 {
		return io.ErrUnexpectedEOF
	}
	if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
