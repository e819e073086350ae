package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// A socket talks to nf_tables in one network namespace. After an error it must be closed: an answer may still be on
// its way. It sends and receives plain bytes, since a batch is one buffer of many messages, and since an error must be
// traced to the message that caused it.
type socket struct {
	conn    *netlink.Conn
	raw     syscall.RawConn
	sndbuf  int
	receive []byte
	seq     uint32
	// spent says that the socket must not be used again, though nothing went wrong.
	spent bool
}

// dial opens a socket in the namespace of the calling thread.
func dial() (*socket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", meaning(err))
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s := &socket{conn: conn, raw: raw, receive: make([]byte, 64<<10)}
	const room = 8 << 20 // for the answers to a large batch
	if err := s.setBuffer(unix.SO_RCVBUFFORCE, room); err != nil {
		return nil, errors.Join(fmt.Errorf("receive buffer: %w", meaning(err)), conn.Close())
	}
	return s, nil
}

func (s *socket) close() error { return s.conn.Close() }

// setBuffer sets the size of a buffer beyond the system's limit, for which the kernel wants CAP_NET_ADMIN.
func (s *socket) setBuffer(option, size int) error {
	var err error
	if cerr := s.raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, size) }); cerr != nil {
		return cerr
	}
	return err
}

// within runs one exchange, which ends with ctx and after timeout at the latest.
func (s *socket) within(ctx context.Context, timeout time.Duration, exchange func() error) error {
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

// send sends a buffer as one message of the socket.
func (s *socket) send(buf []byte) error {
	if need := len(buf) + 4096; need > s.sndbuf {
		if err := s.setBuffer(unix.SO_SNDBUFFORCE, need); err != nil {
			return fmt.Errorf("send buffer of %d bytes: %w", need, meaning(err))
		}
		s.sndbuf = need
	}
	var err error
	werr := s.raw.Write(func(fd uintptr) bool {
		err = unix.Sendto(int(fd), buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if werr != nil {
		return werr
	}
	return meaning(err)
}

// next receives the next messages and calls each with their header's type and sequence number and their body.
func (s *socket) next(each func(typ uint16, flags uint16, seq uint32, body []byte) error) error {
	var n int
	var err error
	rerr := s.raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), s.receive, 0)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if rerr != nil {
		return rerr
	}
	if err != nil {
		return meaning(err)
	}
	for b := s.receive[:n]; len(b) >= headerLen; {
		size := messageLen(b)
		if size < headerLen || size > len(b) {
			return io.ErrUnexpectedEOF
		}
		h := b[:headerLen]
		if err := each(binary.NativeEndian.Uint16(h[4:]), binary.NativeEndian.Uint16(h[6:]), messageSeq(h), b[headerLen:size]); err != nil {
			return err
		}
		b = b[min(size, len(b)):]
	}
	return nil
}

// messageLen returns the length of the message at the start of b, padding included.
func messageLen(b []byte) int { return int(binary.NativeEndian.Uint32(b)+3) &^ 3 }

func messageSeq(b []byte) uint32 { return binary.NativeEndian.Uint32(b[8:]) }

// errnoOf returns the error in the body of an NLMSG_ERROR message; nil for an acknowledgement.
func errnoOf(body []byte) error {
	if len(body) < 4 {
		return io.ErrUnexpectedEOF
	}
	if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

var errDone = errors.New("done")

// dump sends a request for a listing and calls each with the body of every answer. If the listing was disturbed by a
// change it returns errDisturbed.
func (s *socket) dump(typ uint16, fam byte, attrs func(w *wire), each func(body []byte) error) error {
	return s.request(typ, unix.NLM_F_DUMP, fam, attrs, each)
}

// errDisturbed: the kernel's state changed while it was being listed.
var errDisturbed = fmt.Errorf("listing was disturbed: %w", model.ErrBusy)

// request sends a request and calls each with the body of every answer.
func (s *socket) request(typ, flags uint16, fam byte, attrs func(w *wire), each func(body []byte) error) error {
	s.seq++
	w := wire{seq: s.seq | 1<<31} // apart from those of batches
	m := w.message(typ, flags, fam)
	if attrs != nil {
		attrs(&w)
	}
	w.end(m)
	if err := s.send(w.buf); err != nil {
		return err
	}
	disturbed := false
	for {
		err := s.next(func(typ, fl uint16, seq uint32, body []byte) error {
			if seq != w.seq {
				return nil
			}
			disturbed = disturbed || fl&unix.NLM_F_DUMP_INTR != 0
			switch typ {
			case unix.NLMSG_DONE:
				return errDone
			case unix.NLMSG_ERROR:
				if err := errnoOf(body); err != nil {
					return err
				}
				return errDone
			}
			if len(body) < nfgenLen {
				return io.ErrUnexpectedEOF
			}
			if err := each(body); err != nil || flags&unix.NLM_F_DUMP != 0 {
				return err
			}
			return errDone
		})
		switch {
		case errors.Is(err, errDone) && disturbed:
			return errDisturbed
		case errors.Is(err, errDone):
			return nil
		case err != nil:
			return err
		}
	}
}
