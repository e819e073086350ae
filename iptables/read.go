package iptables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// A mark tells whether anybody wrote to one table since another mark was taken, without reading the table. The zero mark
// equals none.
type mark string

// mark takes the mark of a table. Legacy counts the table's entries and bytes and says where its built-in chains begin;
// nf_tables numbers its generations, of which all tables of the namespace share one.
func (t *tools) mark(tbl table) (mark, error) {
	if t.variant == NFT {
		n, err := t.generation()
		return mark(fmt.Sprintf(generationMark, n)), err
	}
	var m mark
	err := t.ns.Do(func() (err error) {
		m, err = tableInfo(t.family, tbl)
		return err
	})
	return m, err
}

// tableInfo reads struct ipt_getinfo (linux/netfilter_ipv4/ip_tables.h), which has the same shape for IPv6.
func tableInfo(f model.Family, tbl table) (mark, error) {
	const (
		infoSize = 84
		getInfo  = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	)
	domain, level := unix.AF_INET, unix.SOL_IP
	if f == model.IPv6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return "", denied(os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)
	var info [infoSize]byte
	copy(info[:31], tbl.String())
	size := uint32(len(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), getInfo, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return "", denied(os.NewSyscallError("getsockopt IPT_SO_GET_INFO", errno))
	}
	return mark(info[:size]), nil
}

// generationsApart reports whether n transactions of nf_tables were committed between two marks, and no more.
func generationsApart(before, after []marks, n int) bool {
	if len(before) == 0 {
		return true
	}
	var a, b uint32
	_, errA := fmt.Sscanf(string(before[0][0]), generationMark, &a)
	_, errB := fmt.Sscanf(string(after[0][0]), generationMark, &b)
	return errA == nil && errB == nil && b-a == uint32(n)
}

const generationMark = "generation %d"

// generation returns the number of nf_tables' generation.
func (t *tools) generation() (uint32, error) {
	const getGen, genID = 16, 1 // NFT_MSG_GETGEN, NFTA_GEN_ID
	conn, err := t.netfilter()
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	msgs, err := conn.Execute(nftMessage(getGen, model.IPv4, netlink.Request))
	if err != nil {
		return 0, fmt.Errorf("nf_tables generation: %w", denied(err))
	}
	for _, m := range msgs {
		id, found, err := attribute(m, genID)
		if err != nil || !found || len(id) != 4 {
			continue
		}
		return binary.BigEndian.Uint32(id), nil
	}
	return 0, errors.New("nf_tables generation: the kernel does not say")
}

// dump asks nf_tables for all objects of a kind in the family.
func (t *tools) dump(getMessage uint16) ([]netlink.Message, error) {
	conn, err := t.netfilter()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.Execute(nftMessage(getMessage, t.family, netlink.Request|netlink.Dump))
}

// nftTables lists the tables of nf_tables, whoever made them; none where the kernel does without nf_tables.
func (t *tools) nftTables() ([]string, error) {
	const getTable, tableName = 1, 1 // NFT_MSG_GETTABLE, NFTA_TABLE_NAME
	msgs, err := t.dump(getTable)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("nf_tables: %w", denied(err))
	}
	var names []string
	for _, m := range msgs {
		if name, ok, err := attribute(m, tableName); ok && err == nil {
			names = append(names, text(name))
		}
	}
	return names, nil
}

// chainNames lists the chains of a table of nf_tables, whatever is in them.
func (t *tools) chainNames(tbl table) ([]string, error) {
	const getChain, chainTable, chainName = 4, 1, 3 // NFT_MSG_GETCHAIN, NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME
	msgs, err := t.dump(getChain)
	if err != nil {
		return nil, fmt.Errorf("nf_tables chains: %w", err)
	}
	var chains []string
	for _, m := range msgs {
		of, _, err := attribute(m, chainTable)
		if err != nil || text(of) != tbl.String() {
			continue
		}
		if name, ok, err := attribute(m, chainName); ok && err == nil {
			chains = append(chains, text(name))
		}
	}
	return chains, nil
}

// netfilter opens a netlink socket inside the namespace.
func (t *tools) netfilter() (conn *netlink.Conn, err error) {
	err = t.ns.Do(func() (err error) {
		conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil)
		return err
	})
	return conn, err
}

// nftMessage is a message to nf_tables that has no attributes (struct nfgenmsg).
func nftMessage(typ uint16, f model.Family, flags netlink.HeaderFlags) netlink.Message {
	family := byte(unix.NFPROTO_IPV4)
	if f == model.IPv6 {
		family = unix.NFPROTO_IPV6
	}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: flags},
		Data:   []byte{family, unix.NFNETLINK_V0, 0, 0},
	}
}

// attribute returns an attribute of a message from nf_tables.
func attribute(m netlink.Message, typ uint16) (data []byte, found bool, err error) {
	if len(m.Data) < 4 {
		return nil, false, nil
	}
	d, err := netlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return nil, false, err
	}
	for d.Next() {
		if d.Type() == typ {
			return d.Bytes(), true, nil
		}
	}
	return nil, false, d.Err()
}

func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

// read lists a table. What the nf_tables variant cannot show is looked up by other means, as far as it matters: our chains,
// with unknown rules, and our jumps.
func (t *tools) read(ctx context.Context, tbl table, n names, jumps []jump) (listing, error) {
	l, err := t.list(ctx, tbl)
	if err != nil || l.readable {
		return l, err
	}
	all, err := t.chainNames(tbl)
	if err != nil {
		return l, err
	}
	l.chains = map[string][]string{}
	for _, c := range all {
		if n.owns(c) {
			l.chains[c] = []string{"?"}
		}
	}
	for _, j := range jumps {
		if j.table != tbl {
			continue
		}
		// The program fails in various ways where it finds no such rule, so any failure means that.
		if has, err := t.hasRule(ctx, tbl, j.from, splitWords(j.text)...); err == nil && has {
			l.chains[j.from] = append(l.chains[j.from], j.text)
		} else if ctx.Err() != nil {
			return l, context.Cause(ctx)
		}
	}
	return l, nil
}
