package nft

import (
	"encoding/binary"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// A SetID names one of the sets and maps that every table has, whatever the services: its place in [Config.Sets].
type SetID uint8

// The sets and maps of every table. Where there are two of a kind, the second is for node ports, whose keys have no
// address. A backend may have more, from Further on.
const (
	Services         SetID = iota // frontend → where a new connection goes
	NodePorts                     // the same
	ShortcutServices              // external frontends with policy Local: where internal and node sources go
	ShortcutNodePorts
	LocalServices // the same frontends: where everybody else goes
	LocalNodePorts
	Endpoints // frontend and slot → endpoint
	NodePortEndpoints
	Restricted // frontends with source ranges
	RestrictedNodePorts
	Allowed // frontend and source range
	AllowedNodePorts
	Affinity         // frontend of a service with affinity → the chain that records who got which endpoint
	NodePortAffinity // the same, with the endpoint in the key
	ClusterIPs       // addresses of internal frontends
	OwnedIPs         // addresses of external frontends inside the service ranges
	Hairpin          // endpoint address, twice: connections to oneself
	LocalEndpoints   // addresses of endpoints on this node, where clients' addresses are kept
	Repliers         // endpoints, for those who want their invalid packets dropped
	Turns            // as Endpoints, for services with RoundRobin: one of turnShards
)

// A service with RoundRobin has a rule of its own with its counter, and whenever a rule that uses a map is added, the
// kernel walks through the whole map. So the slots of these services are in maps apart, spread over several.
const turnShards = 32

// The rest of the sets.
const (
	NodePortTurns = Turns + turnShards
	Further       = NodePortTurns + turnShards
)

// A Field is one part of a set's key or data.
type Field uint8

// The fields, in nft's words: ip daddr, ip saddr, meta l4proto, th dport, tcp dport, numgen. The last three are further
// fields of an [Element], for keys that have two of a kind.
const (
	Daddr Field = iota
	Saddr
	L4Proto
	Dport
	TCPDport
	Slot
	Source
	RealAddr
	RealPort
)

// A Set is the shape of a set or map.
type Set struct {
	Name string
	// Key and Data are the fields; a map without data maps to verdicts. Typed sets carry no typeof.
	Key, Data []Field
	Map       bool
	Typed     bool
	Interval  bool
	// A Dynamic map is filled by rules; its elements live for Timeout, and there are at most Size.
	Dynamic bool
	Timeout time.Duration
	Size    uint32
	// Expires says that elements may have a time of their own to live. Their presence is not verified by Check.
	Expires bool
	// Lazy says that it is made when it is first needed.
	Lazy bool
	// Comment is what nft shows beside the set.
	Comment string
}

// BaseSets returns the shapes of the sets that every table has, by [SetID].
func BaseSets() []Set {
	frontend, nodePort := []Field{Daddr, L4Proto, Dport}, []Field{L4Proto, Dport}
	with := func(key []Field, more ...Field) []Field { return append(slices.Clone(key), more...) }
	to := []Field{Daddr, TCPDport}
	all := make([]Set, Further)
	for i := range SetID(turnShards) {
		shard := strconv.Itoa(int(i))
		all[Turns+i] = Set{Name: "turns-" + shard, Map: true, Lazy: true, Key: with(frontend, Slot), Data: to}
		all[NodePortTurns+i] = Set{Name: "node-port-turns-" + shard, Map: true, Lazy: true, Key: with(nodePort, Slot), Data: to}
	}
	copy(all, []Set{
		Services:            {Name: "services", Map: true, Typed: true, Key: frontend},
		NodePorts:           {Name: "node-ports", Map: true, Typed: true, Key: nodePort},
		ShortcutServices:    {Name: "shortcut-services", Map: true, Typed: true, Key: frontend},
		ShortcutNodePorts:   {Name: "shortcut-node-ports", Map: true, Typed: true, Key: nodePort},
		LocalServices:       {Name: "local-services", Map: true, Typed: true, Key: frontend},
		LocalNodePorts:      {Name: "local-node-ports", Map: true, Typed: true, Key: nodePort},
		Endpoints:           {Name: "endpoints", Map: true, Key: with(frontend, Slot), Data: to},
		NodePortEndpoints:   {Name: "node-port-endpoints", Map: true, Key: with(nodePort, Slot), Data: to},
		Restricted:          {Name: "restricted", Typed: true, Key: frontend},
		RestrictedNodePorts: {Name: "restricted-node-ports", Typed: true, Key: nodePort},
		Allowed:             {Name: "allowed", Typed: true, Interval: true, Key: with(frontend, Source)},
		AllowedNodePorts:    {Name: "allowed-node-ports", Typed: true, Interval: true, Key: with(nodePort, Source)},
		Affinity:            {Name: "affinity", Map: true, Typed: true, Key: frontend},
		NodePortAffinity:    {Name: "node-port-affinity", Map: true, Typed: true, Key: with(frontend, RealPort)},
		ClusterIPs:          {Name: "cluster-ips", Typed: true, Key: []Field{Daddr}},
		OwnedIPs:            {Name: "owned-ips", Typed: true, Key: []Field{Daddr}},
		Hairpin:             {Name: "hairpin", Typed: true, Key: []Field{Saddr, Daddr}},
		LocalEndpoints:      {Name: "local-endpoints", Typed: true, Key: []Field{Daddr}},
		Repliers:            {Name: "repliers", Typed: true, Key: []Field{Saddr, L4Proto, Dport}},
	})
	return all
}

// clientMapSet is the map that remembers which endpoint address a client has. It holds addresses alone, and there
// is one per endpoint port, since nft 1.0.6 aborts when it loads an update of an IPv6 map with a concatenation as data.
func clientMapSet(name string, timeout time.Duration, size uint32) Set {
	return Set{Name: name, Map: true, Key: []Field{Saddr}, Data: []Field{Daddr}, Dynamic: true, Timeout: timeout, Size: size}
}

// sameShape reports whether two dynamic maps are the same.
func (s Set) sameShape(o Set) bool {
	return s.Name == o.Name && s.Timeout == o.Timeout && s.Size == o.Size
}

const setConcat = 0x80 // NFT_SET_CONCAT, Linux 5.6

// flags returns the kernel's flags for the set.
func (s Set) flags() uint32 {
	var f uint32
	if s.Map {
		f |= unix.NFT_SET_MAP
	}
	if s.Interval {
		f |= unix.NFT_SET_INTERVAL | setConcat
	}
	if s.Dynamic {
		f |= unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL
	}
	if s.Expires {
		f |= unix.NFT_SET_TIMEOUT
	}
	return f
}

// typeID returns nft's number for a field's type, which it keeps in the kernel to know how to print; see nft's
// include/datatype.h.
func (f Field) typeID(fam model.Family) uint32 {
	switch f {
	case Daddr, Saddr, Source, RealAddr:
		return 7 + uint32(fam) // ipv4_addr, ipv6_addr
	case L4Proto:
		return 12 // inet_proto
	case Slot:
		return 4 // integer
	}
	return 13 // inet_service
}

// Size returns how many bytes a field takes in a key, padding included.
func (f Field) Size(fam model.Family) uint32 {
	switch f {
	case Daddr, Saddr, Source, RealAddr:
		return uint32(fam.Bits() / 8)
	}
	return 4
}

// length returns a field's own length, without padding.
func (f Field) length(fam model.Family) uint32 {
	switch f {
	case L4Proto:
		return 1
	case Dport, TCPDport, RealPort:
		return 2
	}
	return f.Size(fam)
}

// typeOf returns the type number and the length of fields looked up together.
func typeOf(fields []Field, fam model.Family) (id, size uint32) {
	for _, f := range fields {
		id = id<<6 | f.typeID(fam)
		size += f.Size(fam)
	}
	return id, size
}

// writeSet writes the message that creates a set.
func (w *Wire) writeSet(table string, fam model.Family, s Set, id uint32) {
	m := w.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, NFProto(fam))
	w.Text(unix.NFTA_SET_TABLE, table)
	w.Text(unix.NFTA_SET_NAME, s.Name)
	w.Net32(unix.NFTA_SET_ID, id)
	w.Net32(unix.NFTA_SET_FLAGS, s.flags())
	typ, size := typeOf(s.Key, fam)
	w.Net32(unix.NFTA_SET_KEY_TYPE, typ)
	w.Net32(unix.NFTA_SET_KEY_LEN, size)
	if s.Map {
		typ, size := s.dataType(fam)
		w.Net32(unix.NFTA_SET_DATA_TYPE, typ)
		w.Net32(unix.NFTA_SET_DATA_LEN, size)
	}
	if s.Timeout > 0 {
		w.Net64(unix.NFTA_SET_TIMEOUT, uint64(s.Timeout.Milliseconds()))
	}
	if s.Size > 0 || s.Interval {
		d := w.Nest(unix.NFTA_SET_DESC)
		if s.Size > 0 {
			w.Net32(unix.NFTA_SET_DESC_SIZE, s.Size)
		}
		if s.Interval {
			w.concatenation(s.Key, fam)
		}
		w.Close(d)
	}
	w.Bytes(unix.NFTA_SET_USERDATA, s.userData(fam))
	w.End(m)
}

// dataType returns the type number and length of a map's data.
func (s Set) dataType(fam model.Family) (typ, size uint32) {
	if len(s.Data) == 0 {
		return unix.NFT_DATA_VERDICT, 16 // sizeof(struct nft_verdict)
	}
	return typeOf(s.Data, fam)
}

// concatenation tells the kernel the lengths of the fields of an interval set's key. Requires Linux 5.6.
func (w *Wire) concatenation(fields []Field, fam model.Family) {
	const (
		descConcat = 2 // NFTA_SET_DESC_CONCAT
		fieldLen   = 1 // NFTA_SET_FIELD_LEN
	)
	c := w.Nest(descConcat)
	for _, f := range fields {
		e := w.Nest(unix.NFTA_LIST_ELEM)
		w.Net32(fieldLen, f.length(fam))
		w.Close(e)
	}
	w.Close(c)
}

// User data of a set: type-length-value records, in which nft keeps what it needs to print a set and to load what it
// printed. See nft's include/nftables.h and src/expression.c for the numbers.
const (
	udataKeyByteOrder  = 0
	udataDataByteOrder = 1
	udataKeyTypeof     = 3
	udataDataTypeof    = 4
	udataDataInterval  = 6
	udataSetComment    = 7

	udataExprID   = 0
	udataExprData = 1

	exprPayload = 7
	exprMeta    = 9
	exprConcat  = 13
	exprNumgen  = 23

	byteOrderBig = 2
)

func tlv(typ byte, data ...byte) []byte { return append([]byte{typ, byte(len(data))}, data...) }

func tlv32(typ byte, v uint32) []byte {
	return tlv(typ, binary.NativeEndian.AppendUint32(nil, v)...)
}

// userData returns what nft keeps beside a set.
func (s Set) userData(fam model.Family) []byte {
	keyOrder := uint32(0)
	if len(s.Key) == 1 {
		keyOrder = byteOrderBig
	}
	out := tlv32(udataKeyByteOrder, keyOrder)
	if s.Map {
		dataOrder := uint32(0)
		if len(s.Data) == 1 {
			dataOrder = byteOrderBig
		}
		out = append(out, tlv32(udataDataByteOrder, dataOrder)...)
	}
	if !s.Typed {
		out = append(out, tlv(udataKeyTypeof, typeofFields(s.Key, fam)...)...)
		out = append(out, tlv(udataDataTypeof, typeofFields(s.Data, fam)...)...)
	}
	if s.Map {
		out = append(out, tlv32(udataDataInterval, 0)...)
	}
	if s.Comment != "" {
		out = append(out, tlv(udataSetComment, append([]byte(s.Comment), 0)...)...)
	}
	return out
}

// typeofFields returns the record of an expression: of the one field, or of a concatenation.
func typeofFields(fields []Field, fam model.Family) []byte {
	if len(fields) == 1 {
		return fields[0].typeof(fam)
	}
	var parts []byte
	for i, f := range fields {
		parts = append(parts, tlv(byte(i), f.typeof(fam)...)...)
	}
	return append(tlv32(udataExprID, exprConcat), tlv(udataExprData, parts...)...)
}

// typeof returns the record of the expression that a field stands for.
func (f Field) typeof(fam model.Family) []byte {
	// Numbers of nft's protocol descriptions and of the fields in them, include/proto.h.
	const (
		descTCP, descTH, descIP                 = 8, 11, 12
		tcpDport, thDport                       = 2, 2
		ipSaddr, ipDaddr                        = 11, 12
		ip6Saddr, ip6Daddr                      = 8, 9
		metaKey, numgenType, numgenMod, numgenO = 0, 0, 1, 2
	)
	payload := func(desc, field uint32) []byte {
		return append(tlv32(udataExprID, exprPayload), tlv(udataExprData, append(tlv32(0, desc), tlv32(1, field)...)...)...)
	}
	v6 := uint32(fam)
	switch f {
	case Daddr:
		return payload(descIP+v6, ipDaddr-v6*(ipDaddr-ip6Daddr))
	case Saddr, Source:
		return payload(descIP+v6, ipSaddr-v6*(ipSaddr-ip6Saddr))
	case L4Proto:
		return append(tlv32(udataExprID, exprMeta), tlv(udataExprData, tlv32(metaKey, unix.NFT_META_L4PROTO)...)...)
	case Dport:
		return payload(descTH, thDport)
	case TCPDport:
		return payload(descTCP, tcpDport)
	}
	generator := slices.Concat(tlv32(numgenType, unix.NFT_NG_RANDOM), tlv32(numgenMod, 65536), tlv32(numgenO, 0))
	return append(tlv32(udataExprID, exprNumgen), tlv(udataExprData, generator...)...)
}
