package nlink

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// ErrDisturbed: the kernel's state changed while it was being listed.
var ErrDisturbed = fmt.Errorf("listing was disturbed: %w", model.ErrBusy)

var errDone = errors.New("done")

// Request sends one message, which write writes with the flags given, and calls each with every answer. Without
// NLM_F_DUMP there is one. A listing that a change disturbed ends with [ErrDisturbed]. What the kernel answers instead
// is returned as a [unix.Errno].
func (s *Socket) Request(flags uint16, write func(w *Writer, flags uint16), each func(m Message) error) error {
	s.seq++
	w := Writer{Seq: s.seq | 1<<31} // apart from those of batches
	write(&w, flags)
	if err := s.Send(w.Buf); err != nil {
		return err
	}
	disturbed := false
	for {
		err := s.Next(func(m Message) error {
			if m.Seq != w.Seq {
				return nil
			}
			disturbed = disturbed || m.Flags&unix.NLM_F_DUMP_INTR != 0
			switch m.Type {
			case unix.NLMSG_DONE: // with the number of an error, if the listing failed
				if err := Errno(m.Body); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
					return err
				}
				return errDone
			case unix.NLMSG_ERROR:
				if err := Errno(m.Body); err != nil {
					return err
				}
				return errDone
			}
			if err := each(m); err != nil || flags&unix.NLM_F_DUMP != 0 {
				return err
			}
			return errDone
		})
		switch {
		case errors.Is(err, errDone) && disturbed:
			return ErrDisturbed
		case errors.Is(err, errDone):
			return nil
		case err != nil:
			return err
		}
	}
}

// Steady runs a listing again, a few times, while changes disturb it.
func Steady(list func() error) (err error) {
	for range 5 {
		if err = list(); !errors.Is(err, ErrDisturbed) {
			break
		}
	}
	return err
}
