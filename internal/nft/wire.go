package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/nlink"
)

// A Wire writes messages of the nf_tables subsystem. It is our own because google/nftables cannot write typeof user
// data, conntrack directions or a generation id in the batch header, and because its encoding costs a third of a full
// sync.
type Wire struct{ nlink.Writer }

const (
	nfgenLen    = 4     // struct nfgenmsg
	maxNested   = 60000 // the length of a nested attribute is a u16; some room is left
	maxElements = 500   // elements in one message
)

// begin starts a message of netfilter and returns where it starts. The flags are added to NLM_F_REQUEST.
func (w *Wire) begin(typ, flags uint16, family byte, resID uint16) int {
	start := w.Begin(typ, flags)
	w.Buf = append(w.Buf, family, unix.NFNETLINK_V0)
	w.Buf = binary.BigEndian.AppendUint16(w.Buf, resID)
	return start
}

// message starts a message of the nf_tables subsystem.
func (w *Wire) message(typ uint16, flags uint16, family byte) int {
	return w.begin(unix.NFNL_SUBSYS_NFTABLES<<8|typ, flags, family, 0)
}
