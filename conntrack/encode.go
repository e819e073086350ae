package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/headgate/headgate/model"
	"github.com/mdlayher/netlink"

	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"
)

// Requests of linux/netfilter/nfnetlink_conntrack.h.
const (
	msgGet      = 1 // IPCTNL_MSG_CT_GET
	msgDelete   = 2 // IPCTNL_MSG_CT_DELETE
	msgStatsCPU = 4 // IPCTNL_MSG_CT_GET_STATS_CPU
	msgStats    = 5 // IPCTNL_MSG_CT_GET_STATS
)

// Attributes of the same header.
const (
	ctaTupleOrig     = 1  // CTA_TUPLE_ORIG
	ctaTupleReply    = 2  // CTA_TUPLE_REPLY
	ctaStatus        = 3  // CTA_STATUS
	ctaTimeout       = 7  // CTA_TIMEOUT
	ctaMark          = 8  // CTA_MARK
	ctaCountersOrig  = 9  // CTA_COUNTERS_ORIG
	ctaCountersReply = 10 // CTA_COUNTERS_REPLY
	ctaID            = 12 // CTA_ID
	ctaZone          = 18 // CTA_ZONE
	ctaFilter        = 25 // CTA_FILTER, Linux 5.8

	ctaTupleIP    = 1 // CTA_TUPLE_IP
	ctaTupleProto = 2 // CTA_TUPLE_PROTO
	ctaTupleZone  = 3 // CTA_TUPLE_ZONE

	ctaIPv4Src = 1 // CTA_IP_V4_SRC
	ctaIPv4Dst = 2 // CTA_IP_V4_DST
	ctaIPv6Src = 3 // CTA_IP_V6_SRC
	ctaIPv6Dst = 4 // CTA_IP_V6_DST

	ctaProtoNum     = 1 // CTA_PROTO_NUM
	ctaProtoSrcPort = 2 // CTA_PROTO_SRC_PORT
	ctaProtoDstPort = 3 // CTA_PROTO_DST_PORT

	ctaFilterOrigFlags  = 1 // CTA_FILTER_ORIG_FLAGS
	ctaFilterReplyFlags = 2 // CTA_FILTER_REPLY_FLAGS

	ctaCountersPackets = 1 // CTA_COUNTERS_PACKETS
	ctaCountersBytes   = 2 // CTA_COUNTERS_BYTES
)

// Which fields of a tuple a filter compares (net/netfilter/nf_internals.h). A port asks for the protocol too.
const (
	filterSrc     = 1 << 0 // CTA_FILTER_F_CTA_IP_SRC
	filterDst     = 1 << 1 // CTA_FILTER_F_CTA_IP_DST
	filterProto   = 1 << 3 // CTA_FILTER_F_CTA_PROTO_NUM
	filterSrcPort = 1 << 4 // CTA_FILTER_F_CTA_PROTO_SRC_PORT
	filterDstPort = 1 << 5 // CTA_FILTER_F_CTA_PROTO_DST_PORT
)

// header returns the netfilter header of a request about conntrack.
func header(msg netfilter.MessageType, flags netlink.HeaderFlags, family netfilter.ProtoFamily) netfilter.Header {
	return netfilter.Header{
		SubsystemID: netfilter.NFSubsysCTNetlink, MessageType: msg, Flags: netlink.Request | flags, Family: family,
	}
}

func protoFamily(f model.Family) netfilter.ProtoFamily {
	if f == model.IPv4 {
		return netfilter.ProtoIPv4
	}
	return netfilter.ProtoIPv6
}

// listFamily is the request for every flow of a family.
func listFamily(f model.Family) (netlink.Message, error) {
	return netfilter.MarshalNetlink(header(msgGet, netlink.Dump, protoFamily(f)), nil)
}

// list is the request for the flows of a filter. Kernels before 5.8 answer with the whole family.
func (f filter) list() (netlink.Message, error) {
	if f.proto == 0 {
		return netlink.Message{}, fmt.Errorf("list by the zero filter: %w", model.ErrInvalid)
	}
	f = f.sent()
	orig, reply := uint32(filterProto), uint32(0)
	ae := netfilter.NewAttributeEncoder()
	ae.Nested(ctaTupleOrig, func(tuple *netlink.AttributeEncoder) error {
		if f.dst.IsValid() {
			orig |= filterDst
			f.putIP(tuple, ctaIPv4Dst, f.dst)
		}
		f.putProto(tuple, ctaProtoDstPort, f.dport)
		return nil
	})
	if f.dport != 0 {
		orig |= filterDstPort
	}
	if f.sport != 0 {
		reply = filterProto | filterSrcPort
		ae.Nested(ctaTupleReply, func(tuple *netlink.AttributeEncoder) error {
			if f.src.IsValid() {
				reply |= filterSrc
				f.putIP(tuple, ctaIPv4Src, f.src)
			}
			f.putProto(tuple, ctaProtoSrcPort, f.sport)
			return nil
		})
	}
	ae.Nested(ctaFilter, func(flags *netlink.AttributeEncoder) error {
		flags.ByteOrder = binary.NativeEndian // alone among the attributes of conntrack
		flags.Uint32(ctaFilterOrigFlags, orig)
		if reply != 0 {
			flags.Uint32(ctaFilterReplyFlags, reply)
		}
		return nil
	})
	return netfilter.EncodeNetlink(header(msgGet, netlink.Dump, protoFamily(f.family)), ae)
}

// putIP puts an IPv4 address: no other is sent.
func (f filter) putIP(tuple *netlink.AttributeEncoder, typ uint16, a netip.Addr) {
	tuple.Nested(ctaTupleIP, func(ip *netlink.AttributeEncoder) error {
		ip.Bytes(typ, a.AsSlice())
		return nil
	})
}

func (f filter) putProto(tuple *netlink.AttributeEncoder, portType uint16, port uint16) {
	tuple.Nested(ctaTupleProto, func(proto *netlink.AttributeEncoder) error {
		proto.Uint8(ctaProtoNum, f.proto)
		if port != 0 {
			proto.Uint16(portType, port)
		}
		return nil
	})
}

// Sizes of struct nlmsghdr and struct nfgenmsg.
const (
	nlHeaderLen = unix.NLMSG_HDRLEN
	nfHeaderLen = 4
)

// appendDelete appends the request to delete one flow, named by the attributes that the kernel listed it with: replies
// and id. The direction of replies has the endpoint in it, so that a flow which came back meanwhile and leads elsewhere
// is not found; the id alone would not tell, since the kernel makes it of the place in memory and of the original
// direction. It appends nothing and returns false for a flow that is not named in full: without a tuple the request
// would flush the table.
func appendDelete(b []byte, f *flow, seq uint32) ([]byte, bool) {
	if !f.complete() {
		return b, false
	}
	start := len(b)
	b = append(b, make([]byte, nlHeaderLen)...)
	b = append(b, byte(protoFamily(f.family)), 0, 0, 0)
	b = append(b, f.reply...)
	b = append(b, f.id...)
	b = append(b, f.zoneAttr...)
	h := b[start:]
	binary.NativeEndian.PutUint32(h[0:], uint32(len(h)))
	binary.NativeEndian.PutUint16(h[4:], uint16(netfilter.NFSubsysCTNetlink)<<8|msgDelete)
	binary.NativeEndian.PutUint16(h[6:], unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(h[8:], seq)
	return b, true
}
