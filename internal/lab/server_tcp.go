package lab

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"sync"
)

// listenTCP serves a stream protocol: TCP, or SCTP where the kernel has it.
func (s *Server) listenTCP() error {
	l, err := s.ns.listen(s.proto, s.at)
	if err != nil {
		return err
	}
	var (
		mu    sync.Mutex // guards open
		open  = map[net.Conn]bool{}
		ended bool
	)
	s.stop = func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		ended = true
		for c := range open {
			c.Close()
		}
	}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			if ended {
				c.Close()
				mu.Unlock()
				return
			}
			open[c] = true
			mu.Unlock()
			s.seen.Add(1)
			s.wg.Go(func() {
				s.talk(c)
				mu.Lock()
				delete(open, c)
				mu.Unlock()
				c.Close()
			})
		}
	})
	return nil
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
