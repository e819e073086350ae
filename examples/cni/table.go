package main

import (
	"encoding/binary"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A table is an nftables table, to be read.
type table struct {
	conn   *netlink.Conn
	family byte
	name   string
}

// rules returns the rules of each chain, in order, as the kernel tells them.
func (t table) rules() (map[string][]string, error) {
	all := map[string][]string{}
	err := t.list(unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE, nil, func(attrs map[uint16][]byte) {
		chain := text(attrs[unix.NFTA_RULE_CHAIN])
		all[chain] = append(all[chain], string(attrs[unix.NFTA_RULE_EXPRESSIONS]))
	})
	return all, err
}

// sets returns the names of the sets and maps, but for those that rules fill.
func (t table) sets() ([]string, error) {
	var names []string
	err := t.list(unix.NFT_MSG_GETSET, unix.NFTA_SET_TABLE, nil, func(attrs map[uint16][]byte) {
		var flags uint32 // left out where there are none
		if f := attrs[unix.NFTA_SET_FLAGS]; len(f) == 4 {
			flags = binary.BigEndian.Uint32(f)
		}
		if flags&unix.NFT_SET_EVAL == 0 {
			names = append(names, text(attrs[unix.NFTA_SET_NAME]))
		}
	})
	return names, err
}

// elements returns the elements of a set, as the kernel tells them.
func (t table) elements(set string) ([]string, error) {
	var all []string
	name := []netlink.Attribute{{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: append([]byte(set), 0)}}
	err := t.list(unix.NFT_MSG_GETSETELEM, unix.NFTA_SET_ELEM_LIST_TABLE, name, func(attrs map[uint16][]byte) {
		list, _ := netlink.UnmarshalAttributes(attrs[unix.NFTA_SET_ELEM_LIST_ELEMENTS]) // there are none
		for _, e := range list {
			all = append(all, string(e.Data))
		}
	})
	slices.Sort(all)
	return all, err
}

// list asks for all of something in the table and calls each with the attributes of every message. The attribute inTable
// is the one that names the table.
func (t table) list(what, inTable uint16, more []netlink.Attribute, each func(map[uint16][]byte)) error {
	query := append([]netlink.Attribute{{Type: inTable, Data: append([]byte(t.name), 0)}}, more...)
	attrs, err := netlink.MarshalAttributes(query)
	if err != nil {
		return err
	}
	messages, err := t.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | what), Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{t.family, unix.NFNETLINK_V0, 0, 0}, attrs...), // struct nfgenmsg
	})
	if err != nil {
		return err
	}
	for _, m := range messages {
		const nfgenmsg = 4
		list, err := netlink.UnmarshalAttributes(m.Data[nfgenmsg:])
		if err != nil {
			return err
		}
		byType := map[uint16][]byte{}
		for _, a := range list {
			byType[a.Type&^(netlink.Nested|netlink.NetByteOrder)] = a.Data
		}
		if text(byType[inTable]) == t.name { // older kernels list all sets of the family
			each(byType)
		}
	}
	return nil
}

func text(b []byte) string { return string(b[:max(0, len(b)-1)]) }
