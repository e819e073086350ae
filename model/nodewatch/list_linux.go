package nodewatch

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// errInterrupted says that addresses changed while they were listed.
var errInterrupted = errors.New("the listing was interrupted")

// dumpInterrupted is the flag that says so. // NLM_F_DUMP_INTR
const dumpInterrupted = 0x10

// list asks the kernel for all addresses. The caller has the socket.
func (w *Watcher) list(ctx context.Context) ([]netip.Addr, error) {
	done := within(ctx, w.asks, time.Now().Add(w.cfg.Timeout))
	defer done()
	if w.left { // the kernel begins no second listing before the first has been taken to its end
		if err := w.receive(nil); err != nil {
			return nil, err
		}
	}
	if _, err := w.asks.Send(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETADDR, Flags: netlink.Request | netlink.Dump},
		Data:   make([]byte, unix.SizeofIfAddrmsg), // of every family and interface
	}); err != nil {
		return nil, err
	}
	w.left = true
	addrs := []netip.Addr{}
	interrupted := false
	err := w.receive(func(m netlink.Message) {
		interrupted = interrupted || m.Header.Flags&dumpInterrupted != 0
		if a, ok := decode(m.Data); ok && m.Header.Type == unix.RTM_NEWADDR {
			addrs = append(addrs, a)
		}
	})
	if err == nil && interrupted {
		err = errInterrupted
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), err
}

// receive takes an answer to its end.
func (w *Watcher) receive(visit func(netlink.Message)) error {
	msgs, err := w.asks.Receive()
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, unix.ENOBUFS) {
		return err // and the rest is still to come
	}
	w.left = false
	for _, m := range msgs {
		if visit != nil {
			visit(m)
		}
	}
	return err
}

// decode reads the body of an RTM_NEWADDR message: struct ifaddrmsg and attributes (linux/if_addr.h). It returns false
// for an address that is none of the node's to others.
func decode(b []byte) (addr netip.Addr, ok bool) {
	if len(b) < unix.SizeofIfAddrmsg {
		return addr, false
	}
	flags := uint32(b[2])
	ad, err := netlink.NewAttributeDecoder(b[unix.SizeofIfAddrmsg:])
	if err != nil {
		return addr, false
	}
	ad.ByteOrder = binary.NativeEndian
	local := false
	for ad.Next() {
		switch ad.Type() {
		case unix.IFA_LOCAL: // on a point-to-point link IFA_ADDRESS is the other end's
			addr, local = netip.AddrFromSlice(ad.Bytes())
		case unix.IFA_ADDRESS:
			if !local {
				addr, _ = netip.AddrFromSlice(ad.Bytes())
			}
		case unix.IFA_FLAGS:
			flags = ad.Uint32()
		}
	}
	if ad.Err() != nil || !addr.IsValid() {
		return netip.Addr{}, false
	}
	unsure := flags&unix.IFA_F_TENTATIVE != 0 && flags&unix.IFA_F_OPTIMISTIC == 0 || flags&unix.IFA_F_DADFAILED != 0
	foreign := addr.IsLoopback() || addr.IsUnspecified() || addr.Is4In6() || addr.Is6() && addr.IsLinkLocalUnicast()
	return addr, !unsure && !foreign
}
