package ipvs

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/nlink"
	"github.com/headgate/headgate/model"
)

// A foundServer is a real server as the kernel tells it.
type foundServer struct {
	server
	active, inactive int // connections that are open, and those that are not or were never
}

// body returns the attributes of a generic netlink message of type typ.
func body(m []byte, typ uint16, each func(a nlink.Attribute) error) error {
	if len(m) < genlHeaderLen {
		return io.ErrUnexpectedEOF
	}
	return nlink.Attributes(m[genlHeaderLen:], func(a nlink.Attribute) error {
		if a.Type != typ {
			return nil
		}
		return nlink.Attributes(a.Data, each)
	})
}

// readService reads a virtual service. It reports false for one that we have no words for: by packet mark, or of
// another protocol.
func readService(m []byte) (k virtualKey, s virtualSpec, ok bool, err error) {
	var af, number uint16
	var addr []byte
	var port uint16
	marked := false
	err = body(m, attrService, func(a nlink.Attribute) error {
		switch a.Type {
		case svcFamily:
			af = a.Host16()
		case svcProtocol:
			number = a.Host16()
		case svcAddr:
			addr = a.Data
		case svcPort:
			port = a.Net16()
		case svcMark:
			marked = true
		case svcScheduler:
			s.scheduler = a.Text()
		case svcFlags:
			s.flags = a.Host32() &^ flagHashed
		case svcTimeout:
			s.timeout = a.Host32()
		case svcNetmask:
			s.netmask = a.Host32()
		case svcEngine:
			s.engine = a.Text()
		}
		return nil
	})
	if err != nil {
		return k, s, false, err
	}
	if marked {
		return k, s, false, nil
	}
	at, err := addrOf(af, addr)
	if err != nil {
		return k, s, false, err
	}
	k.at = netip.AddrPortFrom(at, port)
	for _, p := range model.Protocols {
		if uint16(p.Number()) == number {
			k.proto = p
			return k, s, true, nil
		}
	}
	return k, s, false, nil
}

// readServer reads a real server of a virtual service of a family.
func readServer(m []byte, fam model.Family) (f foundServer, err error) {
	var addr []byte
	var port uint16
	af := afOf(fam) // older kernels do not tell
	err = body(m, attrDest, func(a nlink.Attribute) error {
		switch a.Type {
		case destAddr:
			addr = a.Data
		case destPort:
			port = a.Net16()
		case destFamily:
			af = a.Host16()
		case destWeight:
			f.weight = a.Host32()
		case destForward:
			f.odd = f.odd || a.Host32()&forwardMask != forwardMasq
		case destUpper, destLower:
			f.odd = f.odd || a.Host32() != 0
		case destTunnel:
			f.odd = f.odd || len(a.Data) > 0 && a.Data[0] != 0
		case destActive:
			f.active = int(a.Host32())
		case destInactive:
			f.inactive = int(a.Host32())
		}
		return nil
	})
	if err != nil {
		return f, err
	}
	at, err := addrOf(af, addr)
	f.at = netip.AddrPortFrom(at, port)
	return f, err
}

func addrOf(af uint16, b []byte) (netip.Addr, error) {
	switch {
	case af == unix.AF_INET && len(b) >= 4:
		return netip.AddrFrom4([4]byte(b)), nil
	case af == unix.AF_INET6 && len(b) >= 16:
		return netip.AddrFrom16([16]byte(b)), nil
	}
	return netip.Addr{}, fmt.Errorf("address of %d bytes and family %d: %w", len(b), af, io.ErrUnexpectedEOF)
}

const (
	routeHeaderLen = unix.SizeofRtMsg
	addrHeaderLen  = unix.SizeofIfAddrmsg
)

// readRoute reads a local route. It reports false for all that is not one of a whole address with the protocol number.
func readRoute(m []byte, protocol uint8) (vip, src netip.Addr, ok bool, err error) {
	if len(m) < routeHeaderLen {
		return vip, src, false, io.ErrUnexpectedEOF
	}
	af, bits, table, proto, typ := uint16(m[0]), int(m[1]), m[4], m[5], m[7]
	cloned := binary.NativeEndian.Uint32(m[8:])&unix.RTM_F_CLONED != 0
	if table != unix.RT_TABLE_LOCAL || proto != protocol || typ != unix.RTN_LOCAL || cloned {
		return vip, src, false, nil
	}
	err = nlink.Attributes(m[routeHeaderLen:], func(a nlink.Attribute) (err error) {
		switch a.Type {
		case unix.RTA_DST:
			vip, err = addrOf(af, a.Data)
		case unix.RTA_PREFSRC:
			src, err = addrOf(af, a.Data)
		}
		return err
	})
	return vip, src, err == nil && vip.IsValid() && bits == vip.BitLen(), err
}

// readIfAddr reads an address of an interface, and whether it is in use yet: IPv6 first looks whether it is anybody
// else's.
func readIfAddr(m []byte) (addr netip.Addr, used bool, err error) {
	if len(m) < addrHeaderLen {
		return addr, false, io.ErrUnexpectedEOF
	}
	af, flags := uint16(m[0]), m[2]
	err = nlink.Attributes(m[addrHeaderLen:], func(a nlink.Attribute) (err error) {
		switch a.Type {
		case unix.IFA_LOCAL:
			addr, err = addrOf(af, a.Data)
		case unix.IFA_ADDRESS: // of a point-to-point link this is the other end
			if !addr.IsValid() {
				addr, err = addrOf(af, a.Data)
			}
		}
		return err
	})
	return addr, flags&unix.IFA_F_TENTATIVE == 0, err
}
