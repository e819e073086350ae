package lab

import (
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

func (s *Server) listenUDP() error {
	c, err := s.ns.ListenPacket(s.at)
	if err != nil {
		return err
	}
	s.stop = func() { c.Close() }
	s.wg.Go(func() {
		buf, oob := make([]byte, 2048), make([]byte, 256)
		for {
			n, oobn, _, from, err := c.ReadMsgUDPAddrPort(buf, oob)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // an ICMP error about an answer
			}
			s.seen.Add(1)
			local, source := asked(oob[:oobn])
			peer := netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
			line := s.line(netip.AddrPortFrom(local, s.at.Port()), peer) + " " + string(buf[:n])
			// Whoever cannot be answered learns nothing: that is what the tests look at.
			_, _, _ = c.WriteMsgUDPAddrPort([]byte(line), source, from)
		}
	})
	return nil
}

// asked says at which address a datagram arrived, and gives the control message that makes the answer
// leave from there.
func asked(oob []byte) (netip.Addr, []byte) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}, nil
	}
	for _, m := range msgs {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= 12:
			var info unix.Inet4Pktinfo
			info.Spec_dst = [4]byte(m.Data[8:12]) // ipi_addr: where it was sent to
			return netip.AddrFrom4(info.Spec_dst), unix.PktInfo4(&info)
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 16:
			var info unix.Inet6Pktinfo
			info.Addr = [16]byte(m.Data[:16])
			return netip.AddrFrom16(info.Addr), unix.PktInfo6(&info)
		}
	}
	return netip.Addr{}, nil
}
