package nft

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// A Rule is a list of expressions: all match, or the next rule is tried.
type Rule []Expression

// A Chain is what a chain shall be. Hook is nil for a chain that others jump to.
type Chain struct {
	Name  string
	Hook  *Hook
	Rules []Rule
}

// A Hook is where a base chain is attached.
type Hook struct {
	Kind     string // "nat" or "filter"
	Num      uint32
	Priority int32
}

// Rules writes the rules of one family's table. What it says depends on the configuration and the node alone.
//
// Two bits of the connection label carry what is decided before an endpoint is chosen to postrouting: balanced alone
// keeps the client's address, hairpin excepted; masquerade alone hides it; both keep it if the endpoint is on this node,
// which with policy Local it always is.
type Rules struct {
	Sets   []Set // by SetID
	Node   model.Node
	Family model.Family
	Settings
	// DropInvalid says that there is a rule about Repliers.
	DropInvalid bool
}

// On makes a rule of parts.
func On(parts ...[]Expression) Rule { return slices.Concat(parts...) }

// Jump calls a chain.
func Jump(chain string) []Expression { return []Expression{Verdict(unix.NFT_JUMP, chain)} }

// Goto goes on in a chain, and from its end behind the last Jump.
func Goto(chain string) []Expression { return []Expression{Verdict(unix.NFT_GOTO, chain)} }

// Drop drops the packet.
func Drop() []Expression { return []Expression{Verdict(verdictDrop, "")} }

// Accept ends the base chain; those of other tables go on.
func Accept() []Expression { return []Expression{Verdict(verdictAccept, "")} }

// Return goes on behind the last Jump.
func Return() []Expression { return []Expression{Verdict(unix.NFT_RETURN, "")} }

const (
	verdictDrop   = 0 // NF_DROP
	verdictAccept = 1 // NF_ACCEPT
)

// Load loads fields side by side, from register 0, and returns the register behind them.
func (r *Rules) Load(fields ...Field) ([]Expression, uint32) {
	var out []Expression
	reg := uint32(Reg0)
	for _, f := range fields {
		switch f {
		case Daddr, Saddr, Source:
			out = append(out, r.Address(f, f.Size(r.Family), reg))
		case L4Proto:
			out = append(out, Meta(unix.NFT_META_L4PROTO, reg))
		case Dport:
			out = append(out, Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, reg))
		}
		reg += f.Size(r.Family) / 4
	}
	return out, reg
}

// Address loads the first size bytes of the source or destination address.
func (r *Rules) Address(f Field, size, reg uint32) Expression {
	offset := uint32(12) // saddr
	switch {
	case r.Family == model.IPv4 && f == Daddr:
		offset = 16
	case r.Family == model.IPv6 && f == Daddr:
		offset = 24
	case r.Family == model.IPv6:
		offset = 8
	}
	return Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size, reg)
}

// In matches packets whose fields are in a set.
func (r *Rules) In(id SetID) []Expression {
	e, _ := r.Load(r.Sets[id].Key...)
	return append(e, Lookup(r.Sets[id].Name, -1))
}

// SourceIn matches packets whose source is in a set of addresses, or is not.
func (r *Rules) SourceIn(id SetID, is bool) []Expression {
	look := Lookup(r.Sets[id].Name, -1)
	if !is {
		look = LookupNot(r.Sets[id].Name)
	}
	return []Expression{r.Address(Saddr, Saddr.Size(r.Family), Reg0), look}
}

// VMap sends packets where a verdict map says.
func (r *Rules) VMap(id SetID) []Expression {
	e, _ := r.Load(r.Sets[id].Key...)
	return append(e, Lookup(r.Sets[id].Name, unix.NFT_REG_VERDICT))
}

// Within matches packets whose source or destination is in a prefix, or is not.
func (r *Rules) Within(f Field, p netip.Prefix, is bool) []Expression {
	op := uint32(unix.NFT_CMP_EQ)
	if !is {
		op = unix.NFT_CMP_NEQ
	}
	p = p.Masked()
	addr := p.Addr().AsSlice()
	if p.Bits()%8 == 0 && p.Bits() > 0 {
		n := p.Bits() / 8
		return []Expression{r.Address(f, uint32(n), Reg0), Compare(op, addr[:n])}
	}
	bits := make([]byte, len(addr))
	for i := range p.Bits() {
		bits[i/8] |= 0x80 >> (i % 8)
	}
	return []Expression{r.Address(f, uint32(len(addr)), Reg0), Mask(bits), Compare(op, addr)}
}

// OwnPrefixes returns the prefixes of the table's family, masked and merged.
func (r *Rules) OwnPrefixes(prefixes []netip.Prefix) []netip.Prefix {
	own := slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return model.FamilyOf(p.Addr()) != r.Family })
	return model.MergePrefixes(own)
}

// Loopback is the family's loopback range.
func (r *Rules) Loopback() netip.Prefix {
	if r.Family == model.IPv4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
	}
	return netip.PrefixFrom(netip.IPv6Loopback(), 128)
}

// ServesLoopback reports whether node ports answer on loopback.
func (r *Rules) ServesLoopback() bool { return r.Family == model.IPv4 && r.Node.NodePorts.Loopback }

// InternalSources returns matches that together recognise packets of internal sources.
func (r *Rules) InternalSources() [][]Expression {
	var out [][]Expression
	for _, p := range r.OwnPrefixes(r.Node.Detector.Prefixes) {
		out = append(out, r.Within(Saddr, p, true))
	}
	for _, name := range r.Node.Detector.Interfaces {
		out = append(out, []Expression{Meta(unix.NFT_META_IIFNAME, Reg0), Compare(unix.NFT_CMP_EQ, []byte(name))})
	}
	return out
}

// InterfaceIs matches packets that came in on an interface, or did not.
func InterfaceIs(name string, is bool) []Expression {
	const size = 16 // IFNAMSIZ
	op := uint32(unix.NFT_CMP_EQ)
	if !is {
		op = unix.NFT_CMP_NEQ
	}
	return []Expression{Meta(unix.NFT_META_IIFNAME, Reg0), Compare(op, append([]byte(name), make([]byte, size-len(name))...))}
}

// writeChain writes the messages that create a chain, without its rules.
func (w *Wire) writeChain(table string, fam model.Family, c Chain) {
	m := w.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, NFProto(fam))
	w.Text(unix.NFTA_CHAIN_TABLE, table)
	w.Text(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hook != nil {
		h := w.Nest(unix.NFTA_CHAIN_HOOK)
		w.Net32(unix.NFTA_HOOK_HOOKNUM, c.Hook.Num)
		w.Net32(unix.NFTA_HOOK_PRIORITY, uint32(c.Hook.Priority))
		w.Close(h)
		w.Net32(unix.NFTA_CHAIN_POLICY, 1) // NF_ACCEPT
		w.Text(unix.NFTA_CHAIN_TYPE, c.Hook.Kind)
	}
	w.End(m)
}

// writeRule writes the message that appends a rule to a chain.
func (w *Wire) writeRule(table string, fam model.Family, chain string, r Rule) {
	m := w.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND|unix.NLM_F_ECHO, NFProto(fam))
	w.Text(unix.NFTA_RULE_TABLE, table)
	w.Text(unix.NFTA_RULE_CHAIN, chain)
	l := w.Nest(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range r {
		e(w)
	}
	w.Close(l)
	w.mark(fnv(w.Buf[l:], 0))
	w.End(m)
}

// A rule carries a mark: a hash of what it was written as. So a Sync knows it again without understanding what the kernel
// made of it. A rule that somebody replaces has another handle and not this mark.
const (
	ruleMark    = 0x68 // a type of user data that nft does not know, and passes over
	ruleMarkLen = 8
)

// mark writes a rule's mark.
func (w *Wire) mark(hash uint64) {
	w.Head(unix.NFTA_RULE_USERDATA, 2+ruleMarkLen)
	w.Buf = binary.BigEndian.AppendUint64(append(w.Buf, ruleMark, ruleMarkLen), hash)
	w.Pad()
}

// readMark returns the mark in a rule's user data; 0, if there is none.
func readMark(b []byte) uint64 {
	if len(b) != 2+ruleMarkLen || b[0] != ruleMark || b[1] != ruleMarkLen {
		return 0
	}
	return binary.BigEndian.Uint64(b[2:])
}
