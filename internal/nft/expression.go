package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// An Expression writes one expression of a rule. The constructors below are named as nft's debug output names them,
// which `nft --debug=netlink list ruleset` shows.
type Expression func(w *Wire)

// Registers. The kernel has sixteen of four bytes; what is looked up together stands side by side.
const Reg0 = unix.NFT_REG32_00

// Constants that golang.org/x/sys/unix lacks, linux/netfilter/nf_tables.h.
const (
	CTSrcIP       = 19   // NFT_CT_SRC_IP
	CTDstIP       = 20   // NFT_CT_DST_IP
	CTSrcIP6      = 21   // NFT_CT_SRC_IP6
	CTDstIP6      = 22   // NFT_CT_DST_IP6
	DirOriginal   = 0    // IP_CT_DIR_ORIGINAL
	DirReply      = 1    // IP_CT_DIR_REPLY
	statusDNAT    = 0x20 // IPS_DST_NAT
	fullyRandom   = 0x10 // NF_NAT_RANGE_PROTO_RANDOM_FULLY
	FIBSaddr      = 1    // NFTA_FIB_F_SADDR
	FIBDaddr      = 2    // NFTA_FIB_F_DADDR
	fibAddrType   = 3    // NFT_FIB_RESULT_ADDRTYPE
	LabelBits     = 128
	labelBytes    = LabelBits / 8
	updateElement = 1 // NFT_DYNSET_OP_UPDATE
)

func expr(name string, attrs func(w *Wire)) Expression {
	return func(w *Wire) {
		e := w.Nest(unix.NFTA_LIST_ELEM)
		w.Text(unix.NFTA_EXPR_NAME, name)
		d := w.Nest(unix.NFTA_EXPR_DATA)
		attrs(w)
		w.Close(d)
		w.Close(e)
	}
}

// value writes data as an nf_tables value.
func value(w *Wire, typ uint16, data []byte) {
	n := w.Nest(typ)
	w.Bytes(unix.NFTA_DATA_VALUE, data)
	w.Close(n)
}

// verdictData writes a verdict; chain is the target of a jump or goto.
func verdictData(w *Wire, typ uint16, code int32, chain string) {
	n := w.Nest(typ)
	v := w.Nest(unix.NFTA_DATA_VERDICT)
	w.Net32(unix.NFTA_VERDICT_CODE, uint32(code))
	if chain != "" {
		w.Text(unix.NFTA_VERDICT_CHAIN, chain)
	}
	w.Close(v)
	w.Close(n)
}

// Payload loads a part of the packet: size bytes at an offset from a base, unix.NFT_PAYLOAD_NETWORK_HEADER say.
func Payload(base, offset, size, reg uint32) Expression {
	return expr("payload", func(w *Wire) {
		w.Net32(unix.NFTA_PAYLOAD_DREG, reg)
		w.Net32(unix.NFTA_PAYLOAD_BASE, base)
		w.Net32(unix.NFTA_PAYLOAD_OFFSET, offset)
		w.Net32(unix.NFTA_PAYLOAD_LEN, size)
	})
}

// Meta loads what is known about the packet beside its content.
func Meta(key, reg uint32) Expression {
	return expr("meta", func(w *Wire) {
		w.Net32(unix.NFTA_META_DREG, reg)
		w.Net32(unix.NFTA_META_KEY, key)
	})
}

// Compare compares register 0 with data.
func Compare(op uint32, data []byte) Expression {
	return expr("cmp", func(w *Wire) {
		w.Net32(unix.NFTA_CMP_SREG, Reg0)
		w.Net32(unix.NFTA_CMP_OP, op)
		value(w, unix.NFTA_CMP_DATA, data)
	})
}

// Mask clears the bits of register 0 that are not set in bits.
func Mask(bits []byte) Expression {
	return expr("bitwise", func(w *Wire) {
		w.Net32(unix.NFTA_BITWISE_SREG, Reg0)
		w.Net32(unix.NFTA_BITWISE_DREG, Reg0)
		w.Net32(unix.NFTA_BITWISE_LEN, uint32(len(bits)))
		value(w, unix.NFTA_BITWISE_MASK, bits)
		value(w, unix.NFTA_BITWISE_XOR, make([]byte, len(bits)))
	})
}

// Lookup looks a key in register 0 up in a set; dreg is where a map's data goes, 0 for a verdict, negative in a plain set.
func Lookup(set string, dreg int) Expression {
	return expr("lookup", func(w *Wire) {
		w.Net32(unix.NFTA_LOOKUP_SREG, Reg0)
		if dreg >= 0 {
			w.Net32(unix.NFTA_LOOKUP_DREG, uint32(dreg))
		}
		w.Text(unix.NFTA_LOOKUP_SET, set)
	})
}

// LookupNot matches if a key in register 0 is not in a set.
func LookupNot(set string) Expression {
	const invert = 1 // NFT_LOOKUP_F_INV
	return expr("lookup", func(w *Wire) {
		w.Net32(unix.NFTA_LOOKUP_SREG, Reg0)
		w.Net32(unix.NFTA_LOOKUP_FLAGS, invert)
		w.Text(unix.NFTA_LOOKUP_SET, set)
	})
}

// Verdict decides; chain is the target of unix.NFT_JUMP and unix.NFT_GOTO.
func Verdict(code int32, chain string) Expression {
	return expr("immediate", func(w *Wire) {
		w.Net32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		verdictData(w, unix.NFTA_IMMEDIATE_DATA, code, chain)
	})
}

// Immediate loads data.
func Immediate(reg uint32, data []byte) Expression {
	return expr("immediate", func(w *Wire) {
		w.Net32(unix.NFTA_IMMEDIATE_DREG, reg)
		value(w, unix.NFTA_IMMEDIATE_DATA, data)
	})
}

// Numgen loads a number from offset on, below offset+modulus: the next one or, by typ, one by chance.
func Numgen(typ, modulus, offset, reg uint32) Expression {
	return expr("numgen", func(w *Wire) {
		w.Net32(unix.NFTA_NG_DREG, reg)
		w.Net32(unix.NFTA_NG_MODULUS, modulus)
		w.Net32(unix.NFTA_NG_TYPE, typ)
		w.Net32(unix.NFTA_NG_OFFSET, offset)
	})
}

// Jhash hashes size bytes at register from. seed must not be 0: the kernel would draw one for each rule.
func Jhash(from, size, modulus, seed, offset, reg uint32) Expression {
	return expr("hash", func(w *Wire) {
		w.Net32(unix.NFTA_HASH_SREG, from)
		w.Net32(unix.NFTA_HASH_DREG, reg)
		w.Net32(unix.NFTA_HASH_LEN, size)
		w.Net32(unix.NFTA_HASH_MODULUS, modulus)
		w.Net32(unix.NFTA_HASH_SEED, seed)
		w.Net32(unix.NFTA_HASH_OFFSET, offset)
		w.Net32(unix.NFTA_HASH_TYPE, 0) // NFT_HASH_JENKINS
	})
}

// DNAT translates the destination to the address and port in two registers.
func DNAT(family byte, addr, port uint32) Expression {
	return expr("nat", func(w *Wire) {
		w.Net32(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT)
		w.Net32(unix.NFTA_NAT_FAMILY, uint32(family))
		w.Net32(unix.NFTA_NAT_REG_ADDR_MIN, addr)
		w.Net32(unix.NFTA_NAT_REG_ADDR_MAX, addr)
		w.Net32(unix.NFTA_NAT_REG_PROTO_MIN, port)
		w.Net32(unix.NFTA_NAT_REG_PROTO_MAX, port)
	})
}

// Masquerade translates the source to an address of the interface that the packet leaves by, and to a random port.
func Masquerade() Expression {
	return expr("masq", func(w *Wire) { w.Net32(unix.NFTA_MASQ_FLAGS, fullyRandom) })
}

// Reject refuses the packet: with a reset of TCP or, by typ, with an ICMP error of a code.
func Reject(typ uint32, code uint8) Expression {
	return expr("reject", func(w *Wire) {
		w.Net32(unix.NFTA_REJECT_TYPE, typ)
		w.U8(unix.NFTA_REJECT_ICMP_CODE, code)
	})
}

// CT loads a key of the connection; direction is negative for keys that have none.
func CT(key uint32, direction int, reg uint32) Expression {
	return expr("ct", func(w *Wire) {
		w.Net32(unix.NFTA_CT_DREG, reg)
		w.Net32(unix.NFTA_CT_KEY, key)
		if direction >= 0 {
			w.U8(unix.NFTA_CT_DIRECTION, uint8(direction))
		}
	})
}

// FIB loads what sort of address the source or destination, by flag, is.
func FIB(flag uint32) Expression {
	return expr("fib", func(w *Wire) {
		w.Net32(unix.NFTA_FIB_DREG, Reg0)
		w.Net32(unix.NFTA_FIB_RESULT, fibAddrType)
		w.Net32(unix.NFTA_FIB_FLAGS, flag)
	})
}

// Update adds an element to a map that rules fill, or prolongs its life.
func Update(set string, key, data uint32) Expression {
	return expr("dynset", func(w *Wire) {
		w.Text(unix.NFTA_DYNSET_SET_NAME, set)
		w.Net32(unix.NFTA_DYNSET_OP, updateElement)
		w.Net32(unix.NFTA_DYNSET_SREG_KEY, key)
		w.Net32(unix.NFTA_DYNSET_SREG_DATA, data)
	})
}

// SetLabel sets one bit of the connection's label; the others stay.
func SetLabel(bit int) []Expression {
	return []Expression{
		Immediate(Reg0, labelWith(bit)),
		expr("ct", func(w *Wire) {
			w.Net32(unix.NFTA_CT_KEY, unix.NFT_CT_LABELS)
			w.Net32(unix.NFTA_CT_SREG, Reg0)
		}),
	}
}

// HasLabel matches connections whose label has the bit.
func HasLabel(bit int) []Expression {
	return []Expression{
		CT(unix.NFT_CT_LABELS, -1, Reg0),
		Mask(labelWith(bit)),
		Compare(unix.NFT_CMP_NEQ, make([]byte, labelBytes)),
	}
}

// Translated matches connections whose destination was changed.
func Translated() []Expression {
	return []Expression{
		CT(unix.NFT_CT_STATUS, -1, Reg0),
		Mask(Native32(statusDNAT)),
		Compare(unix.NFT_CMP_NEQ, make([]byte, 4)),
	}
}

// StateNew matches the first packets of connections.
func StateNew() []Expression {
	const stateNew = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
	return []Expression{
		CT(unix.NFT_CT_STATE, -1, Reg0),
		Mask(Native32(stateNew)),
		Compare(unix.NFT_CMP_NEQ, make([]byte, 4)),
	}
}

// labelWith returns a connection label with one bit. The kernel keeps labels as 32-bit words of its own byte order.
func labelWith(bit int) []byte {
	label := make([]byte, labelBytes)
	binary.NativeEndian.PutUint32(label[bit/32*4:], 1<<(bit%32))
	return label
}

// Native32 returns a number as registers have it: in the machine's byte order.
func Native32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// Port16 returns a port as packets have it.
func Port16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }

// ProtocolIs matches one transport protocol.
func ProtocolIs(p model.Protocol) []Expression {
	return []Expression{Meta(unix.NFT_META_L4PROTO, Reg0), Compare(unix.NFT_CMP_EQ, []byte{p.Number()})}
}

// LocalAddr matches packets whose source or destination, by flag, is an address of the node, or is not.
func LocalAddr(flag uint32, is bool) []Expression {
	op := uint32(unix.NFT_CMP_EQ)
	if !is {
		op = unix.NFT_CMP_NEQ
	}
	return []Expression{FIB(flag), Compare(op, Native32(unix.RTN_LOCAL))}
}
