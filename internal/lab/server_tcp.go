package lab

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"sync"
)

func (s *Server) listenTCP() error { return s.listenStream(s.at) }

// listenStream serves TCP, or SCTP where the kernel has it, at all of the addresses.
func (s *Server) listenStream(at ...netip.AddrPort) error {
	st := &streams{server: s, open: map[net.Conn]bool{}}
	for _, a := range at {
		l, err := s.ns.listen(s.proto, a)
		if err != nil {
			st.end()
			return err
		}
		st.listeners = append(st.listeners, l)
	}
	s.stop = st.end
	for _, l := range st.listeners {
		s.wg.Go(func() { st.accept(l) })
	}
	return nil
}

// streams are the listeners and connections of a server.
type streams struct {
	server    *Server
	listeners []net.Listener

	mu    sync.Mutex // guards what follows
	open  map[net.Conn]bool
	ended bool
}

func (st *streams) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if !st.enter(c) {
			c.Close()
			return
		}
		st.server.seen.Add(1)
		st.server.wg.Go(func() {
			st.server.talk(c)
			st.leave(c)
			c.Close()
		})
	}
}

func (st *streams) enter(c net.Conn) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.ended {
		return false
	}
	st.open[c] = true
	return true
}

func (st *streams) leave(c net.Conn) {
	st.mu.Lock()
	defer st.mu.Unlock()
	delete(st.open, c)
}

func (st *streams) end() {
	for _, l := range st.listeners {
		l.Close()
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.ended = true
	for c := range st.open {
		c.Close()
	}
}

// talk greets and then answers every line, until the client has enough.
func (s *Server) talk(c net.Conn) {
	line := s.line(addrPort(c.LocalAddr()), addrPort(c.RemoteAddr()))
	if _, err := fmt.Fprintf(c, "%s\n", line); err != nil {
		return
	}
	in := bufio.NewScanner(c)
	for in.Scan() {
		if _, err := fmt.Fprintf(c, "%s %s\n", line, in.Text()); err != nil {
			return
		}
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *net.UDPAddr:
		ap = a.AddrPort()
	}
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}
