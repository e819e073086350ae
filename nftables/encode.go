package nftables

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// A wire appends netlink messages of the nf_tables subsystem to a buffer. It is our own because google/nftables cannot
// write typeof user data, conntrack directions or a generation id in the batch header, and because its encoding costs
// a third of a full sync.
type wire struct {
	buf []byte
	seq uint32
}

// Offsets and sizes in netlink messages, linux/netlink.h.
const (
	headerLen   = 16
	nfgenLen    = 4
	attrLen     = 4
	maxNested   = 60000 // the length of a nested attribute is a u16; some room is left
	maxElements = 500   // elements in one message
)

// begin starts a message and returns where it starts. flags are added to NLM_F_REQUEST.
func (w *wire) begin(typ, flags uint16, family byte, resID uint16) int {
	start := len(w.buf)
	w.seq++
	w.buf = binary.NativeEndian.AppendUint32(w.buf, 0) // length, see end
	w.buf = binary.NativeEndian.AppendUint16(w.buf, typ)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, flags|unix.NLM_F_REQUEST)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, w.seq)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, 0) // port id: the kernel's
	w.buf = append(w.buf, family, unix.NFNETLINK_V0)
	w.buf = binary.BigEndian.AppendUint16(w.buf, resID)
	return start
}

// message starts a message of the nf_tables subsystem.
func (w *wire) message(typ uint16, flags uint16, family byte) int {
	return w.begin(unix.NFNL_SUBSYS_NFTABLES<<8|typ, flags, family, 0)
}

// end finishes the message that starts at start.
func (w *wire) end(start int) {
	binary.NativeEndian.PutUint32(w.buf[start:], uint32(len(w.buf)-start))
}

// acknowledge asks for an answer to the message that starts at start.
func (w *wire) acknowledge(start int) {
	flags := binary.NativeEndian.Uint16(w.buf[start+6:])
	binary.NativeEndian.PutUint16(w.buf[start+6:], flags|unix.NLM_F_ACK)
}

// nest starts a nested attribute and returns where it starts.
func (w *wire) nest(typ uint16) int {
	start := len(w.buf)
	w.buf = append(w.buf, 0, 0)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, typ|unix.NLA_F_NESTED)
	return start
}

// close finishes an attribute that starts at start.
func (w *wire) close(start int) {
	binary.NativeEndian.PutUint16(w.buf[start:], uint16(len(w.buf)-start))
	w.pad()
}

func (w *wire) pad() {
	for len(w.buf)%4 != 0 {
		w.buf = append(w.buf, 0)
	}
}

func (w *wire) head(typ uint16, size int) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, uint16(attrLen+size))
	w.buf = binary.NativeEndian.AppendUint16(w.buf, typ)
}

func (w *wire) u8(typ uint16, v uint8) {
	w.head(typ, 1)
	w.buf = append(w.buf, v, 0, 0, 0)
}

func (w *wire) u32(typ uint16, v uint32) {
	w.head(typ, 4)
	w.buf = binary.BigEndian.AppendUint32(w.buf, v)
}

func (w *wire) u64(typ uint16, v uint64) {
	w.head(typ, 8)
	w.buf = binary.BigEndian.AppendUint64(w.buf, v)
}

func (w *wire) bytes(typ uint16, b []byte) {
	w.head(typ, len(b))
	w.buf = append(w.buf, b...)
	w.pad()
}

// text writes a string with the NUL that the kernel expects behind it.
func (w *wire) text(typ uint16, s string) {
	w.head(typ, len(s)+1)
	w.buf = append(append(w.buf, s...), 0)
	w.pad()
}
