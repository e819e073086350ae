package lab

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// An sctpStack is the SCTP of one family in one namespace: it answers for the servers there are, and
// aborts what comes to other ports, as a kernel with SCTP would. It lives as long as there is a server.
type sctpStack struct {
	conn  *net.IPConn
	ended chan struct{}

	mu      sync.Mutex // guards what follows
	servers map[netip.AddrPort]*Server
	tags    map[association]sctpTags
}

// sctpTags are the verification tags of an association: ours and the peer's.
type sctpTags struct{ own, peer uint32 }

func (s *Server) listenSCTP() error {
	n, v6 := s.ns, s.at.Addr().Is6()
	if n.kernelSCTP() {
		return s.listenKernelSCTP()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	st := n.sctp[v6]
	if st == nil {
		conn, err := n.listenRaw(v6)
		if err != nil {
			return err
		}
		st = &sctpStack{
			conn: conn, ended: make(chan struct{}),
			servers: map[netip.AddrPort]*Server{}, tags: map[association]sctpTags{},
		}
		n.sctp[v6] = st
		go st.serve()
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.servers[s.at] != nil {
		return os.NewSyscallError("bind", unix.EADDRINUSE)
	}
	st.servers[s.at] = s
	s.stop = func() { n.leaveSCTP(s) }
	return nil
}

// listenKernelSCTP listens at each address by itself where all are asked for: an association with all of them
// does not tell at which it was asked, and answers from another. Addresses that come later are left out.
func (s *Server) listenKernelSCTP() error {
	if !s.at.Addr().IsUnspecified() {
		return s.listenStream(s.at)
	}
	h, err := s.ns.Netlink()
	if err != nil {
		return err
	}
	addrs, err := h.AddrList(nil, domain(s.at.Addr()))
	if err != nil {
		return err
	}
	var at []netip.AddrPort
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && !addr.IsLinkLocalUnicast() {
			at = append(at, netip.AddrPortFrom(addr.Unmap(), s.at.Port()))
		}
	}
	return s.listenStream(at...)
}

// leaveSCTP takes a server out of its stack and ends the stack with the last one.
func (n *NetNS) leaveSCTP(s *Server) {
	v6 := s.at.Addr().Is6()
	n.mu.Lock()
	st := n.sctp[v6]
	st.mu.Lock()
	delete(st.servers, s.at)
	for a := range st.tags {
		if a.local.Port() == s.at.Port() && (a.local.Addr() == s.at.Addr() || s.at.Addr().IsUnspecified()) {
			delete(st.tags, a)
		}
	}
	last := len(st.servers) == 0
	st.mu.Unlock()
	if last {
		delete(n.sctp, v6)
	}
	n.mu.Unlock()
	if last {
		st.conn.Close()
		<-st.ended
	}
}

func (n *NetNS) listenRaw(v6 bool) (*net.IPConn, error) {
	fd, err := n.bound(unix.SOCK_RAW, unix.IPPROTO_SCTP, netip.AddrPortFrom(unspecified(v6), 0))
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "sctp")
	defer f.Close()
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.IPConn), nil
}

func (st *sctpStack) serve() {
	defer close(st.ended)
	buf, oob := make([]byte, 2048), make([]byte, 256)
	for {
		n, oobn, _, from, err := st.conn.ReadMsgIP(buf, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about an answer
		}
		addr, ok := netip.AddrFromSlice(from.IP)
		if !ok {
			continue
		}
		addr = addr.Unmap()
		b := buf[:n]
		if addr.Is4() && n >= 20 {
			b = b[min(int(b[0]&0xf)*4, n):] // ReadMsgIP leaves the header in place
		}
		p, ok := parseSCTP(b)
		if !ok {
			continue
		}
		local, source := asked(oob[:oobn])
		a := association{local: netip.AddrPortFrom(local, p.dport), peer: netip.AddrPortFrom(addr, p.sport)}
		if reply, ok := st.reply(a, p); ok {
			// Whoever cannot be answered learns nothing: that is what the tests look at.
			_, _, _ = st.conn.WriteMsgIP(reply.encode(), source, &net.IPAddr{IP: from.IP})
		}
	}
}

// reply is the answer of the protocol to one packet.
func (st *sctpStack) reply(a association, p sctpPacket) (sctpPacket, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	s := st.servers[a.local]
	if s == nil {
		s = st.servers[netip.AddrPortFrom(unspecified(a.local.Addr().Is6()), a.local.Port())]
	}
	tags, known := st.tags[a]
	out := sctpPacket{sport: a.local.Port(), dport: a.peer.Port(), tag: tags.peer}
	abort := func(tag uint32, flags uint8) (sctpPacket, bool) {
		out.tag, out.chunk = tag, sctpChunk{typ: sctpAbort, flags: flags}
		return out, true
	}
	switch {
	case p.chunk.typ == sctpInit:
		if len(p.chunk.value) < sctpFixedInit {
			return out, false
		}
		peer := binary.BigEndian.Uint32(p.chunk.value)
		if s == nil {
			return abort(peer, 0)
		}
		if !known || tags.peer != peer {
			tags = sctpTags{own: newTag(), peer: peer}
			st.tags[a] = tags
			s.seen.Add(1)
		}
		out.tag, out.chunk = peer, initChunk(sctpInitAck, tags.own, s.line(a.local, a.peer))
		return out, true
	case s == nil, p.chunk.typ == sctpInitAck, p.chunk.typ == sctpCookieAck, p.chunk.typ == sctpHeartbeatAck:
		return out, false // meant for a client in this namespace
	case p.chunk.typ == sctpAbort:
		delete(st.tags, a)
		return out, false
	case !known || p.tag != tags.own:
		return abort(p.tag, sctpTagOfPeer) // out of the blue
	case p.chunk.typ == sctpCookieEcho:
		out.chunk = sctpChunk{typ: sctpCookieAck}
		return out, true
	case p.chunk.typ == sctpHeartbeat:
		out.chunk = sctpChunk{typ: sctpHeartbeatAck, value: p.chunk.value}
		return out, true
	}
	return out, false
}
