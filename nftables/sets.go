package nftables

import (
	"encoding/binary"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// A setID names one of the sets and maps that every table has, whatever the services.
type setID uint8

// The sets and maps of a table. Where there are two of a kind, the second is for node ports, whose keys have no address.
const (
	services         setID = iota // frontend → where a new connection goes
	nodePorts                     // the same
	shortcutServices              // external frontends with policy Local: where internal and node sources go
	shortcutNodePorts
	localServices // the same frontends: where everybody else goes
	localNodePorts
	endpoints // frontend and slot → endpoint
	nodePortEndpoints
	restricted // frontends with source ranges
	restrictedNodePorts
	allowed // frontend and source range
	allowedNodePorts
	affinity                      // frontend of a service with affinity → the chain that records who got which endpoint
	nodePortAffinity              // the same, with the endpoint in the key
	clusterIPs                    // addresses of internal frontends
	ownedIPs                      // addresses of external frontends inside the service ranges
	hairpin                       // endpoint address, twice: connections to oneself
	localEndpoints                // addresses of endpoints on this node, where clients' addresses are kept
	repliers                      // endpoints, for those who want their invalid packets dropped
	affinityMap      setID = 0xff // a map of its own per service, see affinityMapSpec
)

var setNames = [...]string{
	services: "services", nodePorts: "node-ports",
	shortcutServices: "shortcut-services", shortcutNodePorts: "shortcut-node-ports",
	localServices: "local-services", localNodePorts: "local-node-ports",
	endpoints: "endpoints", nodePortEndpoints: "node-port-endpoints",
	restricted: "restricted", restrictedNodePorts: "restricted-node-ports",
	allowed: "allowed", allowedNodePorts: "allowed-node-ports",
	affinity: "affinity", nodePortAffinity: "node-port-affinity",
	clusterIPs: "cluster-ips", ownedIPs: "owned-ips", hairpin: "hairpin", localEndpoints: "local-endpoints", repliers: "repliers",
}

const setCount = int(repliers) + 1

// A field is one part of a set's key or data.
type field uint8

// The fields, in nft's words: ip daddr, ip saddr, meta l4proto, th dport, tcp dport, numgen.
const (
	daddr field = iota
	saddr
	protocol
	port
	tcpPort
	slot
)

// A setSpec is the shape of a set or map.
type setSpec struct {
	name string
	// key and data are the fields; a map without data maps to verdicts. typed sets carry no typeof.
	key, data []field
	isMap     bool
	typed     bool
	interval  bool
	// A dynamic map is filled by rules; its elements live for timeout, and there are at most size.
	dynamic bool
	timeout time.Duration
	size    uint32
}

// staticSet returns the shape of one of the sets that every table has.
func staticSet(id setID) setSpec {
	s := setSpec{name: setNames[id], typed: true}
	frontend := []field{daddr, protocol, port}
	if id.nodePort() {
		frontend = frontend[1:]
	}
	switch id {
	case endpoints, nodePortEndpoints:
		s.isMap, s.typed, s.key, s.data = true, false, append(slices.Clone(frontend), slot), []field{daddr, tcpPort}
	case restricted, restrictedNodePorts:
		s.key = frontend
	case allowed, allowedNodePorts:
		s.interval, s.key = true, append(slices.Clone(frontend), saddr)
	case nodePortAffinity:
		s.isMap, s.key = true, []field{daddr, protocol, port, port}
	case clusterIPs, ownedIPs, localEndpoints:
		s.key = []field{daddr}
	case hairpin:
		s.key = []field{saddr, daddr}
	case repliers:
		s.key = []field{saddr, protocol, port}
	default:
		s.isMap, s.key = true, frontend
	}
	return s
}

// nodePort reports whether a set's keys begin with the protocol, not with an address.
func (id setID) nodePort() bool {
	switch id {
	case nodePorts, shortcutNodePorts, localNodePorts, nodePortEndpoints, restrictedNodePorts, allowedNodePorts:
		return true
	}
	return false
}

// affinityMapSpec is the map that remembers which endpoint address a client has. It holds addresses alone, and there
// is one per endpoint port, since nft 1.0.6 aborts when it loads an update of an IPv6 map with a concatenation as data.
func affinityMapSpec(name string, timeout time.Duration, size uint32) setSpec {
	return setSpec{name: name, isMap: true, key: []field{saddr}, data: []field{daddr}, dynamic: true, timeout: timeout, size: size}
}

// sameShape reports whether two dynamic maps are the same.
func (s setSpec) sameShape(o setSpec) bool {
	return s.name == o.name && s.timeout == o.timeout && s.size == o.size
}

const setConcat = 0x80 // NFT_SET_CONCAT, Linux 5.6

// flags returns the kernel's flags for the set.
func (s setSpec) flags() uint32 {
	var f uint32
	if s.isMap {
		f |= unix.NFT_SET_MAP
	}
	if s.interval {
		f |= unix.NFT_SET_INTERVAL | setConcat
	}
	if s.dynamic {
		f |= unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL
	}
	return f
}

// typeID returns nft's number for a field's type, which it keeps in the kernel to know how to print; see nft's
// include/datatype.h.
func (f field) typeID(fam model.Family) uint32 {
	switch f {
	case daddr, saddr:
		return 7 + uint32(fam) // ipv4_addr, ipv6_addr
	case protocol:
		return 12 // inet_proto
	case slot:
		return 4 // integer
	}
	return 13 // inet_service
}

// size returns how many bytes a field takes in a key, padding included.
func (f field) size(fam model.Family) uint32 {
	if f == daddr || f == saddr {
		return uint32(fam.Bits() / 8)
	}
	return 4
}

// length returns a field's own length, without padding.
func (f field) length(fam model.Family) uint32 {
	switch f {
	case protocol:
		return 1
	case port, tcpPort:
		return 2
	}
	return f.size(fam)
}

// typeOf returns the type number and the length of fields looked up together.
func typeOf(fields []field, fam model.Family) (id, size uint32) {
	for _, f := range fields {
		id = id<<6 | f.typeID(fam)
		size += f.size(fam)
	}
	return id, size
}

// writeSet writes the message that creates a set.
func (w *wire) writeSet(table string, fam model.Family, s setSpec, id uint32) {
	m := w.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, nfproto(fam))
	w.text(unix.NFTA_SET_TABLE, table)
	w.text(unix.NFTA_SET_NAME, s.name)
	w.u32(unix.NFTA_SET_ID, id)
	w.u32(unix.NFTA_SET_FLAGS, s.flags())
	typ, size := typeOf(s.key, fam)
	w.u32(unix.NFTA_SET_KEY_TYPE, typ)
	w.u32(unix.NFTA_SET_KEY_LEN, size)
	if s.isMap {
		typ, size := s.dataType(fam)
		w.u32(unix.NFTA_SET_DATA_TYPE, typ)
		w.u32(unix.NFTA_SET_DATA_LEN, size)
	}
	if s.timeout > 0 {
		w.u64(unix.NFTA_SET_TIMEOUT, uint64(s.timeout.Milliseconds()))
	}
	if s.size > 0 || s.interval {
		d := w.nest(unix.NFTA_SET_DESC)
		if s.size > 0 {
			w.u32(unix.NFTA_SET_DESC_SIZE, s.size)
		}
		if s.interval {
			w.concatenation(s.key, fam)
		}
		w.close(d)
	}
	w.bytes(unix.NFTA_SET_USERDATA, s.userData(fam))
	w.end(m)
}

// dataType returns the type number and length of a map's data.
func (s setSpec) dataType(fam model.Family) (typ, size uint32) {
	if len(s.data) == 0 {
		return unix.NFT_DATA_VERDICT, 16 // sizeof(struct nft_verdict)
	}
	return typeOf(s.data, fam)
}

// concatenation tells the kernel the lengths of the fields of an interval set's key. Requires Linux 5.6.
func (w *wire) concatenation(fields []field, fam model.Family) {
	const (
		descConcat = 2 // NFTA_SET_DESC_CONCAT
		fieldLen   = 1 // NFTA_SET_FIELD_LEN
	)
	c := w.nest(descConcat)
	for _, f := range fields {
		e := w.nest(unix.NFTA_LIST_ELEM)
		w.u32(fieldLen, f.length(fam))
		w.close(e)
	}
	w.close(c)
}

// User data of a set: type-length-value records, in which nft keeps what it needs to print a set and to load what it
// printed. See nft's include/nftables.h and src/expression.c for the numbers.
const (
	udataKeyByteOrder  = 0
	udataDataByteOrder = 1
	udataKeyTypeof     = 3
	udataDataTypeof    = 4
	udataDataInterval  = 6

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
func (s setSpec) userData(fam model.Family) []byte {
	keyOrder := uint32(0)
	if len(s.key) == 1 {
		keyOrder = byteOrderBig
	}
	out := tlv32(udataKeyByteOrder, keyOrder)
	if s.isMap {
		dataOrder := uint32(0)
		if len(s.data) == 1 {
			dataOrder = byteOrderBig
		}
		out = append(out, tlv32(udataDataByteOrder, dataOrder)...)
	}
	if !s.typed {
		out = append(out, tlv(udataKeyTypeof, typeofFields(s.key, fam)...)...)
		out = append(out, tlv(udataDataTypeof, typeofFields(s.data, fam)...)...)
	}
	if s.isMap {
		out = append(out, tlv32(udataDataInterval, 0)...)
	}
	return out
}

// typeofFields returns the record of an expression: of the one field, or of a concatenation.
func typeofFields(fields []field, fam model.Family) []byte {
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
func (f field) typeof(fam model.Family) []byte {
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
	case daddr:
		return payload(descIP+v6, ipDaddr-v6*(ipDaddr-ip6Daddr))
	case saddr:
		return payload(descIP+v6, ipSaddr-v6*(ipSaddr-ip6Saddr))
	case protocol:
		return append(tlv32(udataExprID, exprMeta), tlv(udataExprData, tlv32(metaKey, unix.NFT_META_L4PROTO)...)...)
	case port:
		return payload(descTH, thDport)
	case tcpPort:
		return payload(descTCP, tcpDport)
	}
	generator := slices.Concat(tlv32(numgenType, unix.NFT_NG_RANDOM), tlv32(numgenMod, 65536), tlv32(numgenO, 0))
	return append(tlv32(udataExprID, exprNumgen), tlv(udataExprData, generator...)...)
}
