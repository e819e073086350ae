package nlink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Sizes in netlink messages, linux/netlink.h.
const (
	HeaderLen = unix.SizeofNlMsghdr
	AttrLen   = unix.SizeofNlAttr
)

// A Writer appends netlink messages to a buffer. The zero Writer is ready to use; Seq is the number of the last message.
type Writer struct {
	Buf []byte
	Seq uint32
}

// Begin starts a message and returns where it starts. The flags are added to NLM_F_REQUEST.
func (w *Writer) Begin(typ, flags uint16) int {
	start := len(w.Buf)
	w.Seq++
	w.Buf = binary.NativeEndian.AppendUint32(w.Buf, 0) // length, see End
	w.Buf = binary.NativeEndian.AppendUint16(w.Buf, typ)
	w.Buf = binary.NativeEndian.AppendUint16(w.Buf, flags|unix.NLM_F_REQUEST)
	w.Buf = binary.NativeEndian.AppendUint32(w.Buf, w.Seq)
	w.Buf = binary.NativeEndian.AppendUint32(w.Buf, 0) // port id: the kernel's
	return start
}

// End finishes the message that starts at start.
func (w *Writer) End(start int) {
	binary.NativeEndian.PutUint32(w.Buf[start:], uint32(len(w.Buf)-start))
}

// Acknowledge asks for an answer to the message at the start of b.
func Acknowledge(b []byte) {
	flags := binary.NativeEndian.Uint16(b[6:])
	binary.NativeEndian.PutUint16(b[6:], flags|unix.NLM_F_ACK)
}

// Nest starts an attribute that holds attributes and returns where it starts; Close finishes it.
func (w *Writer) Nest(typ uint16) int { return w.Open(typ | unix.NLA_F_NESTED) }

// Open starts an attribute that holds plain bytes and returns where it starts; Close finishes it.
func (w *Writer) Open(typ uint16) int {
	start := len(w.Buf)
	w.Buf = append(w.Buf, 0, 0)
	w.Buf = binary.NativeEndian.AppendUint16(w.Buf, typ)
	return start
}

// Close finishes an attribute that starts at start.
func (w *Writer) Close(start int) {
	binary.NativeEndian.PutUint16(w.Buf[start:], uint16(len(w.Buf)-start))
	w.Pad()
}

// Pad appends zeros up to the next multiple of four bytes.
func (w *Writer) Pad() {
	for len(w.Buf)%4 != 0 {
		w.Buf = append(w.Buf, 0)
	}
}

// Head starts an attribute of a known size. The caller appends the bytes, and pads them.
func (w *Writer) Head(typ uint16, size int) {
	w.Buf = binary.NativeEndian.AppendUint16(w.Buf, uint16(AttrLen+size))
	w.Buf = binary.NativeEndian.AppendUint16(w.Buf, typ)
}

// U8 writes an attribute of one byte.
func (w *Writer) U8(typ uint16, v uint8) {
	w.Head(typ, 1)
	w.Buf = append(w.Buf, v, 0, 0, 0)
}

// Host16 writes a number in the machine's byte order.
func (w *Writer) Host16(typ, v uint16) {
	w.Head(typ, 2)
	w.Buf = append(binary.NativeEndian.AppendUint16(w.Buf, v), 0, 0)
}

// Host32 writes a number in the machine's byte order.
func (w *Writer) Host32(typ uint16, v uint32) {
	w.Head(typ, 4)
	w.Buf = binary.NativeEndian.AppendUint32(w.Buf, v)
}

// Net16 writes a number in network byte order.
func (w *Writer) Net16(typ, v uint16) {
	w.Head(typ, 2)
	w.Buf = append(binary.BigEndian.AppendUint16(w.Buf, v), 0, 0)
}

// Net32 writes a number in network byte order.
func (w *Writer) Net32(typ uint16, v uint32) {
	w.Head(typ, 4)
	w.Buf = binary.BigEndian.AppendUint32(w.Buf, v)
}

// Net64 writes a number in network byte order.
func (w *Writer) Net64(typ uint16, v uint64) {
	w.Head(typ, 8)
	w.Buf = binary.BigEndian.AppendUint64(w.Buf, v)
}

// Bytes writes an attribute of plain bytes.
func (w *Writer) Bytes(typ uint16, b []byte) {
	w.Head(typ, len(b))
	w.Buf = append(w.Buf, b...)
	w.Pad()
}

// Text writes a string with the NUL that the kernel expects behind it.
func (w *Writer) Text(typ uint16, s string) {
	w.Head(typ, len(s)+1)
	w.Buf = append(append(w.Buf, s...), 0)
	w.Pad()
}

// MessageLen returns the length of the message at the start of b, padding included.
func MessageLen(b []byte) int { return int(binary.NativeEndian.Uint32(b)+3) &^ 3 }

// MessageSeq returns the number of the message at the start of b.
func MessageSeq(b []byte) uint32 { return binary.NativeEndian.Uint32(b[8:]) }
