package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/ipvs"
	"github.com/headgate/headgate/model"
)

func openIPVS(ctx context.Context, ns *lab.NetNS, trace func(...[]byte)) (model.Programmer, error) {
	cfg := ipvs.Config{NetNS: ns.FD(), SetSysctls: true}
	if trace != nil {
		cfg.Trace = func(family int, messages []byte) { trace(addressed(family, messages)) }
	}
	return ipvs.New(ctx, cfg)
}

// labelSize is the length of the message that says where the messages behind it go.
const labelSize = unix.SizeofNlMsghdr + 4

// addressed returns messages with one in front that says to which netlink family they go. The kernel never sees it.
func addressed(family int, messages []byte) []byte {
	b := make([]byte, 0, labelSize+len(messages))
	b = binary.NativeEndian.AppendUint32(b, labelSize)
	b = binary.NativeEndian.AppendUint16(b, unix.NLMSG_NOOP)
	b = append(b, make([]byte, labelSize-len(b)-4)...)
	b = binary.NativeEndian.AppendUint32(b, uint32(family))
	return append(b, messages...)
}

// addressee takes apart what addressed has put together.
func addressee(piece []byte) (family int, messages []byte, err error) {
	if len(piece) < labelSize || binary.NativeEndian.Uint16(piece[4:]) != unix.NLMSG_NOOP {
		return 0, nil, errors.New("a piece does not say where it goes")
	}
	return int(binary.NativeEndian.Uint32(piece[unix.SizeofNlMsghdr:])), piece[labelSize:], nil
}

// splitAddressed cuts a stream of pieces where the next one begins.
func splitAddressed(stream []byte) (pieces [][]byte, err error) {
	at, from := 0, 0
	err = eachMessage(stream, func(typ, _ uint16, payload []byte) {
		if typ == unix.NLMSG_NOOP && at > from {
			pieces, from = append(pieces, stream[from:at]), at
		}
		at += unix.SizeofNlMsghdr + (len(payload)+3)&^3
	})
	if err != nil {
		return nil, err
	}
	return append(pieces, stream[from:]), nil
}

// A netlinkSockets is a raw socket to each part of the kernel that the backend writes to.
type netlinkSockets struct {
	byFamily map[int]*netlinkSocket
	// The piece that is prepared.
	next     *netlinkSocket
	messages []byte
}

func openNetlinkSockets(ns *lab.NetNS) (floor, error) {
	s := &netlinkSockets{byFamily: map[int]*netlinkSocket{}}
	for _, family := range []int{unix.NETLINK_NETFILTER, unix.NETLINK_GENERIC, unix.NETLINK_ROUTE} {
		one, err := openNetlinkSocket(ns, family)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.byFamily[family] = one
	}
	return s, nil
}

func (s *netlinkSockets) prepare(piece []byte) error {
	family, messages, err := addressee(piece)
	if err != nil {
		return err
	}
	if s.next, s.messages = s.byFamily[family], messages; s.next == nil {
		return fmt.Errorf("a piece goes to netlink family %d", family)
	}
	return s.next.prepare(messages)
}

func (s *netlinkSockets) send([]byte) error { return s.next.send(s.messages) }

func (s *netlinkSockets) Close() error {
	var errs []error
	for _, one := range s.byFamily {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}
