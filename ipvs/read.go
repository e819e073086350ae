package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/nlink"
	"github.com/headgate/headgate/model"
)

// errNoModule: the kernel has no IPVS, or has not loaded it.
var errNoModule = fmt.Errorf("the kernel does not have IPVS: %w", model.ErrNotSupported)

// generic runs an exchange with IPVS, whose number in generic netlink it asks for first.
func (n *namespace) generic(ctx context.Context, do func(s *nlink.Socket, family uint16) error) error {
	return n.exchange(ctx, unix.NETLINK_GENERIC, func(s *nlink.Socket) error {
		if n.family == 0 {
			var err error
			if n.family, err = familyID(s); err != nil {
				return err
			}
		}
		return do(s, n.family)
	})
}

// familyID asks for the number of IPVS in generic netlink.
func familyID(s *nlink.Socket) (id uint16, err error) {
	err = s.Request(0, func(w *nlink.Writer, flags uint16) {
		m := genlMessage(w, unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, flags)
		w.Text(unix.CTRL_ATTR_FAMILY_NAME, genlName)
		w.End(m)
	}, func(m nlink.Message) error {
		if len(m.Body) < genlHeaderLen {
			return errNoModule
		}
		return nlink.Attributes(m.Body[genlHeaderLen:], func(a nlink.Attribute) error {
			if a.Type == unix.CTRL_ATTR_FAMILY_ID {
				id = a.Host16()
			}
			return nil
		})
	})
	if errors.Is(err, unix.ENOENT) || err == nil && id == 0 {
		return 0, errNoModule
	}
	return id, err
}

func (n *namespace) services(ctx context.Context) (out map[virtualKey]virtualSpec, err error) {
	err = n.generic(ctx, func(s *nlink.Socket, family uint16) error {
		return nlink.Steady(func() error {
			out = map[virtualKey]virtualSpec{}
			return s.Request(unix.NLM_F_DUMP, func(w *nlink.Writer, flags uint16) {
				w.End(genlMessage(w, family, cmdGetService, flags))
			}, func(m nlink.Message) error {
				k, spec, ok, err := readService(m.Body)
				if ok {
					out[k] = spec
				}
				return err
			})
		})
	})
	return out, wrap("listing virtual services", err)
}

func (n *namespace) exist(ctx context.Context, keys []virtualKey) (map[virtualKey]bool, error) {
	there := map[virtualKey]bool{}
	err := n.generic(ctx, func(s *nlink.Socket, family uint16) error {
		for _, k := range keys {
			err := s.Request(0, func(w *nlink.Writer, flags uint16) {
				m := genlMessage(w, family, cmdGetService, flags)
				writeService(w, k, nil)
				w.End(m)
			}, func(nlink.Message) error {
				there[k] = true
				return nil
			})
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		return nil
	})
	return there, wrap("looking for virtual services", err)
}

func (n *namespace) servers(ctx context.Context, keys []virtualKey) (map[virtualKey][]foundServer, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	found := make(map[virtualKey][]foundServer, len(keys))
	err := n.generic(ctx, func(s *nlink.Socket, family uint16) error {
		for _, k := range keys { // one listing at a time: the kernel runs no more on one socket
			if err := nlink.Steady(func() (err error) {
				found[k], err = listServers(s, family, k)
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	})
	return found, wrap("listing real servers", err)
}

func listServers(s *nlink.Socket, family uint16, k virtualKey) (found []foundServer, err error) {
	err = s.Request(unix.NLM_F_DUMP, func(w *nlink.Writer, flags uint16) {
		m := genlMessage(w, family, cmdGetDest, flags)
		writeService(w, k, nil)
		w.End(m)
	}, func(m nlink.Message) error {
		f, err := readServer(m.Body, k.family())
		found = append(found, f)
		return err
	})
	return found, err
}

func (n *namespace) routes(ctx context.Context) (out map[netip.Addr]netip.Addr, err error) {
	out = map[netip.Addr]netip.Addr{}
	err = n.exchange(ctx, unix.NETLINK_ROUTE, func(s *nlink.Socket) error {
		for _, fam := range model.Families {
			err := nlink.Steady(func() error {
				return s.Request(unix.NLM_F_DUMP, func(w *nlink.Writer, flags uint16) {
					m := w.Begin(unix.RTM_GETROUTE, flags)
					routeHeader(w, fam, unix.RT_SCOPE_UNIVERSE, 0, n.protocol) // no scope to filter by
					w.End(m)
				}, func(m nlink.Message) error {
					vip, src, ok, err := readRoute(m.Body, n.protocol)
					if ok {
						out[vip] = src
					}
					return err
				})
			})
			if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) { // without IPv6
				return err
			}
		}
		return nil
	})
	return out, wrap("listing local routes", err)
}

func (n *namespace) addrs(ctx context.Context) (all map[netip.Addr]bool, source [2]netip.Addr, err error) {
	err = n.exchange(ctx, unix.NETLINK_ROUTE, func(s *nlink.Socket) error {
		if all, err = listAddrs(s); err != nil {
			return err
		}
		for _, fam := range model.Families {
			if source[fam], err = sourceTo(s, outside(fam)); err != nil {
				return err
			}
		}
		return nil
	})
	return all, source, wrap("listing addresses", err)
}

func listAddrs(s *nlink.Socket) (all map[netip.Addr]bool, err error) {
	err = nlink.Steady(func() error {
		all = map[netip.Addr]bool{}
		return s.Request(unix.NLM_F_DUMP, func(w *nlink.Writer, flags uint16) {
			m := w.Begin(unix.RTM_GETADDR, flags)
			w.Buf = append(w.Buf, unix.AF_UNSPEC, 0, 0, 0)
			w.Buf = binary.NativeEndian.AppendUint32(w.Buf, 0) // all interfaces
			w.End(m)
		}, func(m nlink.Message) error {
			a, used, err := readIfAddr(m.Body)
			if a.IsValid() {
				all[a] = used
			}
			return err
		})
	})
	return all, err
}

// outside returns an address that nobody has, and that is routed like any outside.
func outside(fam model.Family) netip.Addr {
	if fam == model.IPv4 {
		return netip.AddrFrom4([4]byte{192, 0, 0, 8}) // RFC 7600
	}
	return netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 3: 0x02, 15: 1}) // 2001:2::/48, RFC 5180
}

// sourceTo asks which source address the node has towards a destination; none, if there is no way to it.
func sourceTo(s *nlink.Socket, to netip.Addr) (source netip.Addr, err error) {
	err = s.Request(0, func(w *nlink.Writer, flags uint16) {
		m := w.Begin(unix.RTM_GETROUTE, flags)
		w.Buf = append(w.Buf, uint8(afOf(model.FamilyOf(to))), uint8(to.BitLen()), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
		w.Bytes(unix.RTA_DST, to.AsSlice())
		w.End(m)
	}, func(m nlink.Message) error {
		if len(m.Body) < routeHeaderLen {
			return io.ErrUnexpectedEOF
		}
		return nlink.Attributes(m.Body[routeHeaderLen:], func(a nlink.Attribute) (err error) {
			if a.Type == unix.RTA_PREFSRC {
				source, err = addrOf(uint16(m.Body[0]), a.Data)
			}
			return err
		})
	})
	if errno := unix.Errno(0); errors.As(err, &errno) {
		return netip.Addr{}, nil // the kernel says why not
	}
	return source, err
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, nlink.Meaning(err))
}
