package nft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/nlink"
	"github.com/headgate/headgate/model"
)

var errDone = errors.New("done")

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
		out = append(out, nlink.Meaning(r.batch))
	}
	for _, err := range r.messages {
		out = append(out, nlink.Meaning(err))
	}
	return out
}

// handles are those of the rules that a batch made, by family and chain, in order.
type handles [2]map[string][]uint64

// commit sends a batch and waits for the kernel's answer. A refused batch yields a *refusal, anything else means that
// nobody knows whether it was committed.
func (s *socket) commit(tx transaction) (made handles, err error) {
	// At worst the kernel echoes it all, each rule with its place and handle besides.
	if err := s.Expect(min(2*tx.size, 1<<30)); err != nil {
		return made, err
	}
	if err := s.Send(tx.pieces...); err != nil {
		return made, err
	}
	for i := range made {
		made[i] = map[string][]uint64{}
	}
	var no refusal
	for {
		err := s.Next(func(m nlink.Message) error {
			seq := m.Seq
			switch {
			case m.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE:
				return made.note(m.Body)
			case m.Type != unix.NLMSG_ERROR:
				return nil
			}
			err := nlink.Errno(m.Body)
			switch {
			case err != nil && seq == tx.first:
				no.batch = err
				return errDone
			case err != nil && no.messages == nil:
				no.messages = map[uint32]error{seq: err}
			case err != nil:
				no.messages[seq] = err
			}
			if seq == tx.last {
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
	_, chain, rule, err := ruleOf(body)
	fam := model.IPv4
	if body[0] == unix.NFPROTO_IPV6 {
		fam = model.IPv6
	}
	h[fam][chain] = append(h[fam][chain], rule.handle)
	return err
}
