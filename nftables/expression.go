package nftables

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// An expression writes one expression of a rule. The constructors below are named as nft's debug output names them,
// which `nft --debug=netlink list ruleset` shows.
type expression func(w *wire)

// Registers. The kernel has sixteen of four bytes; what is looked up together stands side by side.
const reg0 = unix.NFT_REG32_00

// Constants that golang.org/x/sys/unix lacks, linux/netfilter/nf_tables.h.
const (
	ctSrcIP       = 19   // NFT_CT_SRC_IP
	ctDstIP       = 20   // NFT_CT_DST_IP
	ctSrcIP6      = 21   // NFT_CT_SRC_IP6
	ctDstIP6      = 22   // NFT_CT_DST_IP6
	dirOriginal   = 0    // IP_CT_DIR_ORIGINAL
	dirReply      = 1    // IP_CT_DIR_REPLY
	statusDNAT    = 0x20 // IPS_DST_NAT
	fullyRandom   = 0x10 // NF_NAT_RANGE_PROTO_RANDOM_FULLY
	fibSaddr      = 1    // NFTA_FIB_F_SADDR
	fibDaddr      = 2    // NFTA_FIB_F_DADDR
	fibAddrType   = 3    // NFT_FIB_RESULT_ADDRTYPE
	labelBits     = 128
	labelBytes    = labelBits / 8
	updateElement = 1 // NFT_DYNSET_OP_UPDATE
)

func expr(name string, attrs func(w *wire)) expression {
	return func(w *wire) {
		e := w.nest(unix.NFTA_LIST_ELEM)
		w.text(unix.NFTA_EXPR_NAME, name)
		d := w.nest(unix.NFTA_EXPR_DATA)
		attrs(w)
		w.close(d)
		w.close(e)
	}
}

// value writes data as an nf_tables value.
func value(w *wire, typ uint16, data []byte) {
	n := w.nest(typ)
	w.bytes(unix.NFTA_DATA_VALUE, data)
	w.close(n)
}

// verdictData writes a verdict; chain is the target of a jump or goto.
func verdictData(w *wire, typ uint16, code int32, chain string) {
	n := w.nest(typ)
	v := w.nest(unix.NFTA_DATA_VERDICT)
	w.u32(unix.NFTA_VERDICT_CODE, uint32(code))
	if chain != "" {
		w.text(unix.NFTA_VERDICT_CHAIN, chain)
	}
	w.close(v)
	w.close(n)
}

func payload(base, offset, size, reg uint32) expression {
	return expr("payload", func(w *wire) {
		w.u32(unix.NFTA_PAYLOAD_DREG, reg)
		w.u32(unix.NFTA_PAYLOAD_BASE, base)
		w.u32(unix.NFTA_PAYLOAD_OFFSET, offset)
		w.u32(unix.NFTA_PAYLOAD_LEN, size)
	})
}

func meta(key, reg uint32) expression {
	return expr("meta", func(w *wire) {
		w.u32(unix.NFTA_META_DREG, reg)
		w.u32(unix.NFTA_META_KEY, key)
	})
}

func compare(op uint32, data []byte) expression {
	return expr("cmp", func(w *wire) {
		w.u32(unix.NFTA_CMP_SREG, reg0)
		w.u32(unix.NFTA_CMP_OP, op)
		value(w, unix.NFTA_CMP_DATA, data)
	})
}

func mask(bits []byte) expression {
	return expr("bitwise", func(w *wire) {
		w.u32(unix.NFTA_BITWISE_SREG, reg0)
		w.u32(unix.NFTA_BITWISE_DREG, reg0)
		w.u32(unix.NFTA_BITWISE_LEN, uint32(len(bits)))
		value(w, unix.NFTA_BITWISE_MASK, bits)
		value(w, unix.NFTA_BITWISE_XOR, make([]byte, len(bits)))
	})
}

// lookup looks a key in register 0 up in a set; dreg is where a map's data goes, 0 for a verdict, negative in a plain set.
func lookup(set string, dreg int) expression {
	return expr("lookup", func(w *wire) {
		w.u32(unix.NFTA_LOOKUP_SREG, reg0)
		if dreg >= 0 {
			w.u32(unix.NFTA_LOOKUP_DREG, uint32(dreg))
		}
		w.text(unix.NFTA_LOOKUP_SET, set)
	})
}

func verdict(code int32, chain string) expression {
	return expr("immediate", func(w *wire) {
		w.u32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		verdictData(w, unix.NFTA_IMMEDIATE_DATA, code, chain)
	})
}

func immediate(reg uint32, data []byte) expression {
	return expr("immediate", func(w *wire) {
		w.u32(unix.NFTA_IMMEDIATE_DREG, reg)
		value(w, unix.NFTA_IMMEDIATE_DATA, data)
	})
}

func numgen(typ, modulus, offset, reg uint32) expression {
	return expr("numgen", func(w *wire) {
		w.u32(unix.NFTA_NG_DREG, reg)
		w.u32(unix.NFTA_NG_MODULUS, modulus)
		w.u32(unix.NFTA_NG_TYPE, typ)
		w.u32(unix.NFTA_NG_OFFSET, offset)
	})
}

// jhash hashes size bytes at register from. seed must not be 0: the kernel would draw one for each rule.
func jhash(from, size, modulus, seed, offset, reg uint32) expression {
	return expr("hash", func(w *wire) {
		w.u32(unix.NFTA_HASH_SREG, from)
		w.u32(unix.NFTA_HASH_DREG, reg)
		w.u32(unix.NFTA_HASH_LEN, size)
		w.u32(unix.NFTA_HASH_MODULUS, modulus)
		w.u32(unix.NFTA_HASH_SEED, seed)
		w.u32(unix.NFTA_HASH_OFFSET, offset)
		w.u32(unix.NFTA_HASH_TYPE, 0) // NFT_HASH_JENKINS
	})
}

func dnat(family byte, addr, port uint32) expression {
	return expr("nat", func(w *wire) {
		w.u32(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT)
		w.u32(unix.NFTA_NAT_FAMILY, uint32(family))
		w.u32(unix.NFTA_NAT_REG_ADDR_MIN, addr)
		w.u32(unix.NFTA_NAT_REG_ADDR_MAX, addr)
		w.u32(unix.NFTA_NAT_REG_PROTO_MIN, port)
		w.u32(unix.NFTA_NAT_REG_PROTO_MAX, port)
	})
}

func masquerade() expression {
	return expr("masq", func(w *wire) { w.u32(unix.NFTA_MASQ_FLAGS, fullyRandom) })
}

func reject(typ uint32, code uint8) expression {
	return expr("reject", func(w *wire) {
		w.u32(unix.NFTA_REJECT_TYPE, typ)
		w.u8(unix.NFTA_REJECT_ICMP_CODE, code)
	})
}

// ct loads a key of the connection; direction is negative for keys that have none.
func ct(key uint32, direction int, reg uint32) expression {
	return expr("ct", func(w *wire) {
		w.u32(unix.NFTA_CT_DREG, reg)
		w.u32(unix.NFTA_CT_KEY, key)
		if direction >= 0 {
			w.u8(unix.NFTA_CT_DIRECTION, uint8(direction))
		}
	})
}

func fib(flag uint32) expression {
	return expr("fib", func(w *wire) {
		w.u32(unix.NFTA_FIB_DREG, reg0)
		w.u32(unix.NFTA_FIB_RESULT, fibAddrType)
		w.u32(unix.NFTA_FIB_FLAGS, flag)
	})
}

func update(set string, key, data uint32) expression {
	return expr("dynset", func(w *wire) {
		w.text(unix.NFTA_DYNSET_SET_NAME, set)
		w.u32(unix.NFTA_DYNSET_OP, updateElement)
		w.u32(unix.NFTA_DYNSET_SREG_KEY, key)
		w.u32(unix.NFTA_DYNSET_SREG_DATA, data)
	})
}

// setLabel sets one bit of the connection's label; the others stay.
func setLabel(bit int) []expression {
	return []expression{
		immediate(reg0, labelWith(bit)),
		expr("ct", func(w *wire) {
			w.u32(unix.NFTA_CT_KEY, unix.NFT_CT_LABELS)
			w.u32(unix.NFTA_CT_SREG, reg0)
		}),
	}
}

// hasLabel matches connections whose label has the bit.
func hasLabel(bit int) []expression {
	return []expression{
		ct(unix.NFT_CT_LABELS, -1, reg0),
		mask(labelWith(bit)),
		compare(unix.NFT_CMP_NEQ, make([]byte, labelBytes)),
	}
}

// translated matches connections whose destination was changed.
func translated() []expression {
	return []expression{
		ct(unix.NFT_CT_STATUS, -1, reg0),
		mask(native32(statusDNAT)),
		compare(unix.NFT_CMP_NEQ, make([]byte, 4)),
	}
}

// labelWith returns a connection label with one bit. The kernel keeps labels as 32-bit words of its own byte order.
func labelWith(bit int) []byte {
	label := make([]byte, labelBytes)
	binary.NativeEndian.PutUint32(label[bit/32*4:], 1<<(bit%32))
	return label
}

func native32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func port16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }

// protocolIs matches one transport protocol.
func protocolIs(p model.Protocol) []expression {
	return []expression{meta(unix.NFT_META_L4PROTO, reg0), compare(unix.NFT_CMP_EQ, []byte{p.Number()})}
}

// localAddr matches packets whose source or destination, by flag, is an address of the node, or is not.
func localAddr(flag uint32, is bool) []expression {
	op := uint32(unix.NFT_CMP_EQ)
	if !is {
		op = unix.NFT_CMP_NEQ
	}
	return []expression{fib(flag), compare(op, native32(unix.RTN_LOCAL))}
}
