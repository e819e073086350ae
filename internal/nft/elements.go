package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/nlink"
	"github.com/headgate/headgate/model"
)

// Elements reads the elements of some of the tables' sets, in both families. Timeout is how long each has still to live.
// Where there is no such set there are none; comments and what a map leads to are left out.
func (t *Table) Elements(ctx context.Context, ids ...SetID) (out []Element, err error) {
	err = t.exchange(ctx, func(s *socket) error {
		out = nil
		for _, fam := range model.Families {
			for _, id := range ids {
				found, err := t.elements(s, fam, id)
				if err != nil && !errors.Is(err, unix.ENOENT) {
					return err
				}
				out = append(out, found...)
			}
		}
		return nil
	})
	return out, err
}

func (t *Table) elements(s *socket, fam model.Family, id SetID) (out []Element, err error) {
	set := &t.cfg.Sets[id]
	err = nlink.Steady(func() error {
		out = nil
		return s.readElements(t.cfg.Name, fam, set.Name, func(elem []byte) error {
			i, err := readElement(elem)
			if err != nil {
				return err
			}
			e := Element{ElementKey: ElementKey{Set: id}, Timeout: i.left}
			if !e.readKey(set, fam, []byte(i.key)) {
				return fmt.Errorf("set %s: key of %d bytes", set.Name, len(i.key))
			}
			out = append(out, e)
			return nil
		})
	})
	return out, err
}

// readKey reads what Wire.key wrote. It reports false for a key of another shape.
func (e *Element) readKey(s *Set, fam model.Family, b []byte) bool {
	var real netip.Addr
	for _, f := range s.Key {
		size := int(f.Size(fam))
		if len(b) < size {
			return false
		}
		part := b[:size]
		b = b[size:]
		switch f {
		case Daddr, Saddr:
			e.Addr, _ = netip.AddrFromSlice(part)
		case L4Proto:
			for _, p := range model.Protocols {
				if p.Number() == part[0] {
					e.Proto = p
				}
			}
		case Dport:
			e.Port = binary.BigEndian.Uint16(part)
		case Slot:
			e.Slot = binary.NativeEndian.Uint32(part)
		case RealAddr:
			real, _ = netip.AddrFromSlice(part)
		case RealPort:
			e.Real = netip.AddrPortFrom(real, binary.BigEndian.Uint16(part))
		case Source:
			a, _ := netip.AddrFromSlice(part)
			e.Source = netip.PrefixFrom(a, a.BitLen()) // its end is not here
		}
	}
	return len(b) == 0
}
