package nftables

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// A refusal is what the kernel answered to a batch of which it took nothing.
type refusal struct {
	// batch is the error about the transaction as a whole, else nil.
	batch error
	// messages are the errors about single messages, by sequence number.
	messages map[uint32]error
}

func (r *refusal) Error() string {
	if r.batch != nil {
		return fmt.Sprintf("transaction refused: %v", r.batch)
	}
	for seq, err := range r.messages {
		return fmt.Sprintf("transaction refused: message %d of %d refused: %v", seq, len(r.messages), err)
	}
	return "transaction refused"
}

// Unwrap returns all that the kernel complained about, in the model's terms.
func (r *refusal) Unwrap() []error {
	var out []error
	if r.batch != nil {
		out = append(out, meaning(r.batch))
	}
	for _, err := range r.messages {
		out = append(out, meaning(err))
	}
	return out
}

// handles are those of the rules that a batch made, by family and chain, in order.
type handles [2]map[string][]uint64

// commit sends a batch and waits for the kernel's answer. A refused batch yields a *refusal, anything else means that
// nobody knows whether it was committed.
func (s *socket) commit(buf []byte, first, last uint32) (made handles, err error) {
	if err := s.send(buf); err != nil {
		return made, err
	}
	var no refusal
	for {
		err := s.next(func(typ, _ uint16, seq uint32, body []byte) error {
			switch {
			case typ == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE:
				return made.note(body)
			case typ != unix.NLMSG_ERROR:
				return nil
			}
			err := errnoOf(body)
			switch {
			case err != nil && seq == first:
				no.batch = err
				return errDone
			case err != nil && no.messages == nil:
				no.messages = map[uint32]error{seq: err}
			case err != nil:
				no.messages[seq] = err
			}
			if seq == last {
				return errDone
			}
			return nil
		})
		switch {
		case errors.Is(err, errDone) && (no.batch != nil || no.messages != nil):
			return made, &no
		case errors.Is(err, errDone):
			return made, nil
		case err != nil:
			return made, err
		}
	}
}

// note notes the handle of a rule that the kernel echoes.
func (h *handles) note(body []byte) error {
	_, chain, handle, err := ruleOf(body)
	fam := model.IPv4
	if body[0] == unix.NFPROTO_IPV6 {
		fam = model.IPv6
	}
	put(&h[fam], chain, append(h[fam][chain], handle))
	return err
}

// meaning adds to an error of the kernel what it means in the model's terms.
func meaning(err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err
	}
	var sentinel error
	switch errno {
	case unix.EPERM, unix.EACCES:
		sentinel = model.ErrPermission
	case unix.EBUSY, unix.ENOBUFS, unix.ERESTART:
		sentinel = model.ErrBusy
	case unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT:
		sentinel = model.ErrNotSupported
	default:
		return err
	}
	return fmt.Errorf("%w: %w", sentinel, err)
}
