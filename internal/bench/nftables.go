package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/nftables"
)

func openNftables(ctx context.Context, ns *lab.NetNS, trace func(...[]byte)) (model.Programmer, error) {
	cfg := nftables.Config{NetNS: ns.FD()}
	if trace != nil {
		cfg.Trace = func(batch []byte) { trace(batch) }
	}
	return nftables.New(ctx, cfg)
}

// A netlinkSocket is a raw socket to a part of the kernel. It knows of netlink no more than where a message ends.
type netlinkSocket struct {
	fd     int
	answer []byte
	acks   int // how many the prepared batch asks for
}

func openNetfilterSocket(ns *lab.NetNS) (floor, error) {
	return openNetlinkSocket(ns, unix.NETLINK_NETFILTER)
}

// openNetlinkSocket opens a socket of a netlink family.
func openNetlinkSocket(ns *lab.NetNS, family int) (*netlinkSocket, error) {
	s := &netlinkSocket{answer: make([]byte, 1<<16)}
	err := ns.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, err
	}
	timeout := unix.Timeval{Sec: 60}
	for _, set := range []func() error{
		func() error { return unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) },
		func() error { return unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1) },
		func() error { return unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<24) },
		func() error { return unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout) },
	} {
		if err := set(); err != nil {
			unix.Close(s.fd)
			return nil, fmt.Errorf("netlink socket: %w", err)
		}
	}
	return s, nil
}

// prepare makes room for the batch, and counts the acknowledgements that it asks for.
func (s *netlinkSocket) prepare(batch []byte) error {
	s.acks = 0
	err := eachMessage(batch, func(_, flags uint16, _ []byte) {
		if flags&unix.NLM_F_ACK != 0 {
			s.acks++
		}
	})
	if err != nil {
		return err
	}
	if s.acks == 0 {
		return fmt.Errorf("a batch of %d bytes asks for no acknowledgement", len(batch))
	}
	// The kernel counts its own overhead of a page and more against the buffer.
	return unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, len(batch)+1<<20)
}

// send sends a batch in one piece and waits for its acknowledgements.
func (s *netlinkSocket) send(batch []byte) error {
	if err := unix.Sendto(s.fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	for acks := 0; acks < s.acks; {
		n, _, err := unix.Recvfrom(s.fd, s.answer, 0)
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		var refusal error
		err = eachMessage(s.answer[:n], func(typ, _ uint16, payload []byte) {
			if typ != unix.NLMSG_ERROR || len(payload) < 4 {
				return
			}
			acks++
			if errno := int32(binary.NativeEndian.Uint32(payload)); errno != 0 && refusal == nil {
				refusal = fmt.Errorf("the kernel refused what was sent again: %w", unix.Errno(-errno))
			}
		})
		if err != nil {
			return err
		}
		if refusal != nil {
			return refusal
		}
	}
	return nil
}

func (s *netlinkSocket) Close() error { return unix.Close(s.fd) }

// splitBatches cuts a stream of netlink messages behind each end of a batch.
func splitBatches(stream []byte) ([][]byte, error) {
	var batches [][]byte
	size := 0
	err := eachMessage(stream, func(typ, _ uint16, payload []byte) {
		size += unix.SizeofNlMsghdr + (len(payload)+3)&^3
		if typ == unix.NFNL_MSG_BATCH_END {
			batches = append(batches, stream[:size])
			stream, size = stream[size:], 0
		}
	})
	switch {
	case err != nil:
		return nil, err
	case len(stream) > 0:
		return nil, fmt.Errorf("the last batch has no end")
	}
	return batches, nil
}

// eachMessage calls f with the type, the flags and the payload of each netlink message.
func eachMessage(messages []byte, f func(typ, flags uint16, payload []byte)) error {
	for len(messages) > 0 {
		if len(messages) < unix.SizeofNlMsghdr {
			return fmt.Errorf("%d bytes are too few for a netlink message", len(messages))
		}
		size := int(binary.NativeEndian.Uint32(messages))
		if size < unix.SizeofNlMsghdr || size > len(messages) {
			return fmt.Errorf("netlink message of %d bytes in %d", size, len(messages))
		}
		f(binary.NativeEndian.Uint16(messages[4:]), binary.NativeEndian.Uint16(messages[6:]), messages[unix.SizeofNlMsghdr:size])
		messages = messages[min((size+3)&^3, len(messages)):]
	}
	return nil
}
