package nlink

import (
	"errors"

	"golang.org/x/sys/unix"
)

// burstSize is how many bytes are sent in one piece: enough that the way into the kernel costs nothing beside what the
// messages ask for, and what fits into the buffers that every process may have.
const burstSize = 32 << 10

// A Burst is messages that stand alone, sent many at a time: the kernel takes each of them or does not, whatever
// becomes of the others. Only the last of each piece is acknowledged.
type Burst struct {
	pieces []Writer
	count  int
}

// Add adds one message, which write writes from Begin to End, and returns its number: 0, 1 and so on.
func (b *Burst) Add(write func(w *Writer)) int {
	switch n := len(b.pieces); {
	case n == 0: // most bursts are of a message or two
		b.pieces = append(b.pieces, Writer{Buf: make([]byte, 0, 512)})
	case len(b.pieces[n-1].Buf) >= burstSize:
		b.pieces = append(b.pieces, Writer{Buf: make([]byte, 0, burstSize+1024), Seq: uint32(b.count)})
	}
	write(&b.pieces[len(b.pieces)-1])
	b.count++
	return b.count - 1
}

// Pieces returns what is to be sent, piece by piece. There must be no Add behind it.
func (b *Burst) Pieces() [][]byte {
	out := make([][]byte, len(b.pieces))
	for i := range b.pieces {
		w := &b.pieces[i]
		last := 0
		for at := 0; at < len(w.Buf); at += MessageLen(w.Buf[at:]) {
			last = at
		}
		Acknowledge(w.Buf[last:])
		out[i] = w.Buf
	}
	return out
}

// Deliver sends pieces of a burst and waits for the kernel's answer to each before the next. It calls failed for every
// message that the kernel did not take, with the message's number. The error is about the exchange: then nobody knows
// which of the messages were taken.
func (s *Socket) Deliver(pieces [][]byte, failed func(n int, err error)) error {
	for _, piece := range pieces {
		if err := s.deliver(piece, failed); err != nil {
			return err
		}
	}
	return nil
}

func (s *Socket) deliver(piece []byte, failed func(n int, err error)) error {
	first, last := MessageSeq(piece), uint32(0)
	for at := 0; at < len(piece); at += MessageLen(piece[at:]) {
		last = MessageSeq(piece[at:])
	}
	if err := s.Send(piece); err != nil {
		return err
	}
	for {
		err := s.Next(func(m Message) error {
			if m.Type != unix.NLMSG_ERROR || m.Seq < first || m.Seq > last {
				return nil
			}
			if err := Errno(m.Body); err != nil {
				failed(int(m.Seq)-1, err)
			}
			if m.Seq == last {
				return errDone
			}
			return nil
		})
		switch {
		case errors.Is(err, errDone):
			return nil
		case err != nil:
			return err
		}
	}
}
