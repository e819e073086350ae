package nftables

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// An elementKey identifies an element: the set and as many of the fields as the set's key has.
type elementKey struct {
	set   setID
	addr  netip.Addr
	proto model.Protocol
	port  uint16
	slot  uint32
	// source is the source range, of which the last address is in the key's end.
	source netip.Prefix
	// real is the port of an endpoint.
	real uint16
}

// An element is one element of a set or map.
type element struct {
	elementKey
	chain   string         // where a verdict map leads to; dropVerdict for nowhere
	to      netip.AddrPort // what a slot holds
	comment string         // the service's name
}

// A sharedKey is the key of an element that several services may need: as much of it as those have.
type sharedKey struct {
	addr  netip.Addr
	port  uint16
	proto model.Protocol
	set   setID
}

func (k sharedKey) element() element {
	return element{elementKey: elementKey{set: k.set, addr: k.addr, proto: k.proto, port: k.port}}
}

// dropVerdict stands in element.chain for the verdict drop. It is no chain's name.
const dropVerdict = "\x00drop"

// writeElement writes an element, or its key alone to delete it.
func (w *wire) writeElement(e *element, keyOnly bool) {
	l := w.nest(unix.NFTA_LIST_ELEM)
	w.key(unix.NFTA_SET_ELEM_KEY, e, false)
	if e.set == allowed || e.set == allowedNodePorts {
		w.key(setElemKeyEnd, e, true)
	}
	if !keyOnly {
		w.elementData(e)
		if e.comment != "" {
			w.comment(unix.NFTA_SET_ELEM_USERDATA, e.comment)
		}
	}
	w.close(l)
}

const setElemKeyEnd = 10 // NFTA_SET_ELEM_KEY_END, Linux 5.6

func (w *wire) elementData(e *element) {
	switch {
	case e.set == endpoints || e.set == nodePortEndpoints:
		n := w.nest(unix.NFTA_SET_ELEM_DATA)
		v := w.open(unix.NFTA_DATA_VALUE)
		w.addr(e.to.Addr())
		w.buf = append(binary.BigEndian.AppendUint16(w.buf, e.to.Port()), 0, 0)
		w.close(v)
		w.close(n)
	case e.chain == dropVerdict:
		verdictData(w, unix.NFTA_SET_ELEM_DATA, verdictDrop, "")
	case e.chain != "":
		verdictData(w, unix.NFTA_SET_ELEM_DATA, unix.NFT_GOTO, e.chain)
	}
}

// key writes the key of an element, or with end set the last key of an interval.
func (w *wire) key(typ uint16, e *element, end bool) {
	n := w.nest(typ)
	v := w.open(unix.NFTA_DATA_VALUE)
	if !e.set.nodePort() {
		w.addr(e.addr)
	}
	switch e.set {
	case hairpin:
		w.addr(e.addr)
	case clusterIPs, ownedIPs, localEndpoints, affinityMap:
	default:
		w.buf = append(w.buf, e.proto.Number(), 0, 0, 0)
		w.buf = append(binary.BigEndian.AppendUint16(w.buf, e.port), 0, 0)
	}
	switch e.set {
	case endpoints, nodePortEndpoints:
		w.buf = binary.NativeEndian.AppendUint32(w.buf, e.slot)
	case nodePortAffinity:
		w.buf = append(binary.BigEndian.AppendUint16(w.buf, e.real), 0, 0)
	case allowed, allowedNodePorts:
		if end {
			w.addr(lastAddr(e.source))
		} else {
			w.addr(e.source.Addr())
		}
	}
	w.close(v)
	w.close(n)
}

// open starts an attribute that holds plain bytes; close finishes it.
func (w *wire) open(typ uint16) int {
	start := len(w.buf)
	w.buf = append(w.buf, 0, 0)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, typ)
	return start
}

func (w *wire) addr(a netip.Addr) {
	if a.Is4() {
		b := a.As4()
		w.buf = append(w.buf, b[:]...)
		return
	}
	b := a.As16()
	w.buf = append(w.buf, b[:]...)
}

// comment writes a comment as nft reads it: one record of user data.
func (w *wire) comment(typ uint16, text string) {
	const udataComment = 0 // NFTNL_UDATA_SET_ELEM_COMMENT
	w.head(typ, 2+len(text)+1)
	w.buf = append(w.buf, udataComment, byte(len(text)+1))
	w.buf = append(append(w.buf, text...), 0)
	w.pad()
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
