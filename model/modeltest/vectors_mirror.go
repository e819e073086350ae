package modeltest

import (
	"hash/fnv"
	"net/netip"

	"github.com/headgate/headgate/model"
)

// mirrored returns an IPv4 vector in IPv6: each address is written as the low bits of an IPv6 one, each prefix is 96
// bits longer. IPv6 objects, which are bystanders there, become IPv4 ones. What becomes of the packets is the same.
func (v Vector) mirrored() Vector {
	v.Family = model.IPv6
	steps := v.Steps
	v.Steps = nil
	for _, s := range steps {
		s.State = mirrorState(s.State)
		packets := s.Packets
		s.Packets = nil
		for _, p := range packets {
			p.From, p.To = mirrorAddr(p.From), mirrorAddrPort(p.To)
			p.Want = mirrorWant(p.Want)
			other := p.other
			p.other = map[string]otherAnswer{}
			for mode, o := range other {
				o.want = mirrorWant(o.want)
				p.other[mode] = o
			}
			s.Packets = append(s.Packets, p)
		}
		s.selections = each(s.selections, func(sel vectorSelection) vectorSelection {
			sel.cluster, sel.local = each(sel.cluster, mirrorAddrPort), each(sel.local, mirrorAddrPort)
			return sel
		})
		v.Steps = append(v.Steps, s)
	}
	return v
}

func mirrorState(s model.State) model.State {
	n := s.Node
	n.Addrs, n.Primary = each(n.Addrs, mirrorAddr), each(n.Primary, mirrorAddr)
	n.Detector.Prefixes = each(n.Detector.Prefixes, mirrorPrefix)
	n.NodePorts.Prefixes, n.ServiceRanges = each(n.NodePorts.Prefixes, mirrorPrefix), each(n.ServiceRanges, mirrorPrefix)
	out := model.State{Node: n, Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	for name, svc := range s.Services {
		svc.Frontends = each(svc.Frontends, func(f model.Frontend) model.Frontend {
			f.Addr, f.SourceRanges = mirrorAddrPort(f.Addr), each(f.SourceRanges, mirrorPrefix)
			return f
		})
		out.Services[name] = svc
	}
	for name, eps := range s.Endpoints {
		out.Endpoints[name] = each(eps, func(e model.Endpoint) model.Endpoint {
			e.Addr = mirrorAddrPort(e.Addr)
			return e
		})
	}
	return out
}

func mirrorWant(w Want) Want {
	w.Endpoints, w.Mixed = each(w.Endpoints, mirrorAddrPort), each(w.Mixed, mirrorAddrPort)
	return w
}

func mirrorAddrPort(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(mirrorAddr(a.Addr()), a.Port())
}

// mirrorAddr turns an address into one of the other family.
func mirrorAddr(a netip.Addr) netip.Addr {
	switch {
	case a == netip.IPv4Unspecified():
		return netip.IPv6Unspecified()
	case a == netip.IPv6Unspecified():
		return netip.IPv4Unspecified()
	case a.Is4() && a.IsLoopback():
		return netip.IPv6Loopback()
	case a.Is4():
		out := mirrorBase.As16()
		four := a.As4()
		copy(out[12:], four[:])
		return netip.AddrFrom16(out)
	}
	h := fnv.New32a()
	h.Write(a.AsSlice())
	s := h.Sum32()
	return netip.AddrFrom4([4]byte{100, 64 | byte(s>>16)&0x3f, byte(s >> 8), byte(s)}) // 100.64.0.0/10
}

// mirrorBase is where IPv4 is in mirrored vectors.
var mirrorBase = netip.MustParseAddr("2001:db8:46::")

func mirrorPrefix(p netip.Prefix) netip.Prefix {
	a := mirrorAddr(p.Addr())
	switch {
	case p.Bits() == 0:
		return netip.PrefixFrom(a, 0)
	case p.Addr().IsLoopback() || p.Addr().Is6():
		return netip.PrefixFrom(a, a.BitLen())
	}
	return netip.PrefixFrom(a, 96+p.Bits())
}

// each returns what f makes of each element; nil of nil.
func each[T any](in []T, f func(T) T) []T {
	if in == nil {
		return nil
	}
	out := make([]T, len(in))
	for i, v := range in {
		out[i] = f(v)
	}
	return out
}
