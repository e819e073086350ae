package nft

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// An ElementKey identifies an element: the set and as many of the fields as the set's key has.
type ElementKey struct {
	Set   SetID
	Addr  netip.Addr // Daddr and Saddr
	Proto model.Protocol
	Port  uint16
	Slot  uint32
	// Source is a range, of which the last address is in the key's end.
	Source netip.Prefix
	// Real is a second address and port: those of an endpoint.
	Real netip.AddrPort
}

// An Element is one element of a set or map.
type Element struct {
	ElementKey
	Chain   string         // where a verdict map leads to; DropVerdict for nowhere
	To      netip.AddrPort // what a slot holds
	Comment string         // the service's name, see [Comment]
	// Timeout is how long it is there; 0, as long as nobody deletes it.
	Timeout time.Duration
}

// A SharedKey is the key of an element that several services may need: as much of it as those have.
type SharedKey struct {
	Addr  netip.Addr
	Port  uint16
	Proto model.Protocol
	Set   SetID
}

func (k SharedKey) element() Element {
	return Element{ElementKey: ElementKey{Set: k.Set, Addr: k.Addr, Proto: k.Proto, Port: k.Port}}
}

// DropVerdict stands in Element.Chain for the verdict drop. It is no chain's name.
const DropVerdict = "\x00drop"

// writeElement writes an element of a set, or its key alone to delete it.
func (w *Wire) writeElement(s *Set, e *Element, keyOnly bool) {
	l := w.Nest(unix.NFTA_LIST_ELEM)
	w.key(unix.NFTA_SET_ELEM_KEY, s, e, false)
	if s.Interval {
		w.key(setElemKeyEnd, s, e, true)
	}
	if !keyOnly {
		w.elementData(s, e)
		if e.Timeout > 0 {
			w.Net64(unix.NFTA_SET_ELEM_TIMEOUT, uint64(e.Timeout.Milliseconds()))
		}
		if e.Comment != "" {
			w.comment(unix.NFTA_SET_ELEM_USERDATA, e.Comment)
		}
	}
	w.Close(l)
}

const setElemKeyEnd = 10 // NFTA_SET_ELEM_KEY_END, Linux 5.6

func (w *Wire) elementData(s *Set, e *Element) {
	switch {
	case !s.Map:
	case len(s.Data) > 0:
		n := w.Nest(unix.NFTA_SET_ELEM_DATA)
		v := w.Open(unix.NFTA_DATA_VALUE)
		w.addr(e.To.Addr())
		w.Buf = append(binary.BigEndian.AppendUint16(w.Buf, e.To.Port()), 0, 0)
		w.Close(v)
		w.Close(n)
	case e.Chain == DropVerdict:
		verdictData(w, unix.NFTA_SET_ELEM_DATA, verdictDrop, "")
	default:
		verdictData(w, unix.NFTA_SET_ELEM_DATA, unix.NFT_GOTO, e.Chain)
	}
}

// key writes the key of an element, or with end set the last key of an interval.
func (w *Wire) key(typ uint16, s *Set, e *Element, end bool) {
	n := w.Nest(typ)
	v := w.Open(unix.NFTA_DATA_VALUE)
	for _, f := range s.Key {
		switch f {
		case Daddr, Saddr:
			w.addr(e.Addr)
		case L4Proto:
			w.Buf = append(w.Buf, e.Proto.Number(), 0, 0, 0)
		case Dport:
			w.Buf = append(binary.BigEndian.AppendUint16(w.Buf, e.Port), 0, 0)
		case Slot:
			w.Buf = binary.NativeEndian.AppendUint32(w.Buf, e.Slot)
		case Source:
			if end {
				w.addr(lastAddr(e.Source))
			} else {
				w.addr(e.Source.Addr())
			}
		case RealAddr:
			w.addr(e.Real.Addr())
		case RealPort:
			w.Buf = append(binary.BigEndian.AppendUint16(w.Buf, e.Real.Port()), 0, 0)
		}
	}
	w.Close(v)
	w.Close(n)
}

func (w *Wire) addr(a netip.Addr) {
	if a.Is4() {
		b := a.As4()
		w.Buf = append(w.Buf, b[:]...)
		return
	}
	b := a.As16()
	w.Buf = append(w.Buf, b[:]...)
}

// comment writes a comment as nft reads it: one record of user data.
func (w *Wire) comment(typ uint16, text string) {
	const udataComment = 0 // NFTNL_UDATA_SET_ELEM_COMMENT
	w.Head(typ, 2+len(text)+1)
	w.Buf = append(w.Buf, udataComment, byte(len(text)+1))
	w.Buf = append(append(w.Buf, text...), 0)
	w.Pad()
}

// lastAddr returns the last address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
