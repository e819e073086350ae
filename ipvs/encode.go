package ipvs

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/nlink"
	"github.com/headgate/headgate/model"
)

// The kernel's side of it is linux/ip_vs.h. All numbers are in the machine's byte order, but for ports.
const (
	genlName    = "IPVS" // IPVS_GENL_NAME
	genlVersion = 1      // IPVS_GENL_VERSION

	cmdNewService = 1 // IPVS_CMD_NEW_SERVICE
	cmdSetService = 2
	cmdDelService = 3
	cmdGetService = 4
	cmdNewDest    = 5
	cmdSetDest    = 6
	cmdDelDest    = 7
	cmdGetDest    = 8

	attrService = 1 // IPVS_CMD_ATTR_SERVICE
	attrDest    = 2

	svcFamily    = 1 // IPVS_SVC_ATTR_AF
	svcProtocol  = 2
	svcAddr      = 3
	svcPort      = 4
	svcMark      = 5
	svcScheduler = 6
	svcFlags     = 7
	svcTimeout   = 8
	svcNetmask   = 9
	svcEngine    = 11 // IPVS_SVC_ATTR_PE_NAME

	destAddr     = 1 // IPVS_DEST_ATTR_ADDR
	destPort     = 2
	destForward  = 3
	destWeight   = 4
	destUpper    = 5
	destLower    = 6
	destActive   = 7
	destInactive = 8
	destFamily   = 11
	destTunnel   = 13

	flagPersistent = 1 << 0 // IP_VS_SVC_F_PERSISTENT
	flagHashed     = 1 << 1 // IP_VS_SVC_F_HASHED: set by the kernel
	flagFallback   = 1 << 3 // IP_VS_SVC_F_SCHED_SH_FALLBACK, IP_VS_SVC_F_SCHED_MH_FALLBACK
	flagHashPort   = 1 << 4 // IP_VS_SVC_F_SCHED_SH_PORT, IP_VS_SVC_F_SCHED_MH_PORT

	forwardMask = 7 // IP_VS_CONN_F_FWD_MASK
	forwardMasq = 0 // IP_VS_CONN_F_MASQ: that is, translate the address

	genlHeaderLen = 4 // struct genlmsghdr
)

// genlMessage starts a message of a generic netlink family.
func genlMessage(w *nlink.Writer, family uint16, cmd uint8, flags uint16) int {
	start := w.Begin(family, flags)
	w.Buf = append(w.Buf, cmd, genlVersion, 0, 0)
	return start
}

// writeOp writes the request for virtual services and real servers.
func writeOp(w *nlink.Writer, family uint16, o *op) {
	cmd := map[opKind]uint8{addVirtual: cmdNewService, editVirtual: cmdSetService, delVirtual: cmdDelService,
		addServer: cmdNewDest, editServer: cmdSetDest, delServer: cmdDelDest}[o.kind]
	m := genlMessage(w, family, cmd, 0)
	switch o.kind {
	case addVirtual, editVirtual:
		writeService(w, o.key, &o.spec)
	case delVirtual:
		writeService(w, o.key, nil)
	default:
		writeService(w, o.key, nil)
		writeServer(w, o)
	}
	w.End(m)
}

// writeService writes a virtual service, or without a spec its key alone.
func writeService(w *nlink.Writer, k virtualKey, s *virtualSpec) {
	n := w.Nest(attrService)
	w.Host16(svcFamily, afOf(k.family()))
	w.Host16(svcProtocol, uint16(k.proto.Number()))
	writeAddr(w, svcAddr, k.at.Addr())
	w.Net16(svcPort, k.at.Port())
	if s != nil {
		w.Text(svcScheduler, s.scheduler)
		w.Head(svcFlags, 8)
		w.Buf = binary.NativeEndian.AppendUint32(w.Buf, s.flags)
		w.Buf = binary.NativeEndian.AppendUint32(w.Buf, ^uint32(0)) // all of them
		w.Host32(svcTimeout, s.timeout)
		w.Host32(svcNetmask, s.netmask)
	}
	w.Close(n)
}

// writeServer writes a real server, or to delete it its key alone.
func writeServer(w *nlink.Writer, o *op) {
	n := w.Nest(attrDest)
	writeAddr(w, destAddr, o.server.Addr())
	w.Net16(destPort, o.server.Port())
	w.Host16(destFamily, afOf(model.FamilyOf(o.server.Addr())))
	if o.kind != delServer {
		w.Host32(destForward, forwardMasq)
		w.Host32(destWeight, o.weight)
		w.Host32(destUpper, 0)
		w.Host32(destLower, 0)
	}
	w.Close(n)
}

func afOf(f model.Family) uint16 {
	if f == model.IPv4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// writeAddr writes an address as the kernel's union of both families.
func writeAddr(w *nlink.Writer, typ uint16, a netip.Addr) {
	const size = 16 // union nf_inet_addr
	w.Head(typ, size)
	if a.Is4() {
		b := a.As4()
		w.Buf = append(append(w.Buf, b[:]...), make([]byte, size-len(b))...)
		return
	}
	b := a.As16()
	w.Buf = append(w.Buf, b[:]...)
}

const loopbackIndex = 1 // of lo in every namespace

// writeRoute writes the request for a local route, which makes an address the node's without giving it to an interface.
func writeRoute(w *nlink.Writer, protocol uint8, o *op) {
	typ, flags := uint16(unix.RTM_NEWROUTE), uint16(unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	switch o.kind {
	case editRoute:
		flags = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
	case delRoute:
		typ, flags = unix.RTM_DELROUTE, 0
	}
	m := w.Begin(typ, flags)
	fam, scope := model.FamilyOf(o.vip), uint8(unix.RT_SCOPE_HOST)
	if fam == model.IPv6 {
		scope = unix.RT_SCOPE_UNIVERSE // IPv6 knows no other
	}
	routeHeader(w, fam, scope, uint8(o.vip.BitLen()), protocol)
	w.Bytes(unix.RTA_DST, o.vip.AsSlice())
	w.Host32(unix.RTA_OIF, loopbackIndex)
	w.Host32(unix.RTA_PRIORITY, routeMetric(protocol))
	if o.src.IsValid() && o.kind != delRoute {
		w.Bytes(unix.RTA_PREFSRC, o.src.AsSlice())
	}
	w.End(m)
}

// routeHeader writes the struct rtmsg of a local route.
func routeHeader(w *nlink.Writer, fam model.Family, scope, bits, protocol uint8) {
	w.Buf = append(w.Buf, uint8(afOf(fam)), bits, 0, 0, unix.RT_TABLE_LOCAL, protocol, scope, unix.RTN_LOCAL)
	w.Buf = binary.NativeEndian.AppendUint32(w.Buf, 0) // flags
}
