package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Server tells everybody who asks who it is and whom it saw. It is one line in all protocols:
// "NAME PEER", where PEER is the address and port that the packet came from, followed by what the
// client sent, if anything. A TCP server greets with that line and then answers every line of the client
// with one more, for as long as the client likes.
type Server struct {
	ns    *NetNS
	proto Protocol
	at    netip.AddrPort
	name  string
	seen  atomic.Int64

	closing sync.Once
	stop    func()
	forget  func()
	wg      sync.WaitGroup
}

// Serve starts a server of a protocol at an address and port of the namespace. The address may be
// unspecified: then it answers at every address of the family. Its name is the address and port that was
// asked. ICMP needs no server.
func (n *NetNS) Serve(p Protocol, at netip.AddrPort) (*Server, error) {
	return n.ServeAs("", p, at)
}

// ServeAs is Serve with a name of the caller's choice, without blanks.
func (n *NetNS) ServeAs(name string, p Protocol, at netip.AddrPort) (*Server, error) {
	if strings.ContainsAny(name, " \n") {
		return nil, fmt.Errorf("serve: name %q holds a blank", name)
	}
	s := &Server{ns: n, proto: p, at: at, name: name}
	var err error
	switch p {
	case TCP:
		err = s.listenTCP()
	case UDP:
		err = s.listenUDP()
	case SCTP:
		err = s.listenSCTP()
	default:
		err = fmt.Errorf("no server for it")
	}
	if err != nil {
		return nil, fmt.Errorf("serve %s %s in %s: %w", p, at, n.name, err)
	}
	n.mu.Lock()
	s.forget = n.onClose(func() { s.Close() })
	n.mu.Unlock()
	return s, nil
}

// serveForeign serves an address that the namespace does not have: a local route, gone with the server,
// makes it accept the packets.
func (n *NetNS) serveForeign(p Protocol, at netip.AddrPort) (*Server, error) {
	h, err := n.Netlink()
	if err != nil {
		return nil, err
	}
	lo, err := h.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	local := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: hostNet(at.Addr()), Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL}
	if at.Addr().Is4() {
		local.Scope = netlink.SCOPE_HOST
	}
	n.mu.Lock()
	n.foreign[at.Addr()]++
	first := n.foreign[at.Addr()] == 1
	n.mu.Unlock()
	drop := func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.foreign[at.Addr()]--; n.foreign[at.Addr()] == 0 {
			_ = h.RouteDel(local) // it is gone already when the namespace closes
		}
	}
	if first {
		if err := h.RouteReplace(local); err != nil {
			drop()
			return nil, fmt.Errorf("local route to %s in %s: %w", at.Addr(), n.name, err)
		}
	}
	s, err := n.Serve(p, at)
	if err != nil {
		drop()
		return nil, err
	}
	stop := s.stop
	s.stop = func() { stop(); drop() }
	return s, nil
}

// Addr is where the server answers.
func (s *Server) Addr() netip.AddrPort { return s.at }

// Seen is the number of new connections (TCP, SCTP) or of datagrams (UDP) that arrived so far.
func (s *Server) Seen() int { return int(s.seen.Load()) }

// Close stops the server and ends its connections. A second Close does nothing.
func (s *Server) Close() error {
	s.closing.Do(func() {
		s.stop()
		s.forget()
	})
	s.wg.Wait()
	return nil
}

// line is the answer to one packet or connection.
func (s *Server) line(local, peer netip.AddrPort) string {
	name := s.name
	if name == "" {
		name = local.String()
	}
	return name + " " + peer.String()
}

// parseLine takes an answer apart.
func parseLine(line string) (name string, peer netip.AddrPort, rest string, err error) {
	fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
	if len(fields) < 2 {
		return "", peer, "", fmt.Errorf("answer %q is not of this kit", line)
	}
	if peer, err = netip.ParseAddrPort(fields[1]); err != nil {
		return "", peer, "", fmt.Errorf("answer %q is not of this kit", line)
	}
	if len(fields) == 3 {
		rest = fields[2]
	}
	return fields[0], peer, rest, nil
}

// bound makes a socket of the namespace, bound and ready for a server. Foreign addresses are fine.
func (n *NetNS) bound(typ, proto int, at netip.AddrPort) (int, error) {
	fd, err := n.Socket(domain(at.Addr()), typ, proto)
	if err != nil {
		return -1, err
	}
	var opts [][3]int
	if typ == unix.SOCK_STREAM { // two datagram sockets with it would share the port
		opts = append(opts, [3]int{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1})
	}
	switch {
	case at.Addr().Is4():
		opts = append(opts, [3]int{unix.IPPROTO_IP, unix.IP_FREEBIND, 1}, [3]int{unix.IPPROTO_IP, unix.IP_PKTINFO, 1})
	case typ != unix.SOCK_RAW: // a raw socket is of one family anyway, and refuses the option
		opts = append(opts, [3]int{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1})
		fallthrough
	default:
		opts = append(opts, [3]int{unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1}, [3]int{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1})
	}
	for _, o := range opts {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			unix.Close(fd)
			return -1, os.NewSyscallError("setsockopt", err)
		}
	}
	if err := unix.Bind(fd, sockaddr(at)); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

// Socket makes a non-blocking socket in the namespace, to be used from any thread. The caller closes it.
func (n *NetNS) Socket(domain, typ, proto int) (fd int, err error) {
	err = n.run(func() error {
		fd, err = unix.Socket(domain, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// Listen opens a TCP listener in the namespace, for servers of the caller's own.
func (n *NetNS) Listen(at netip.AddrPort) (net.Listener, error) { return n.listen(TCP, at) }

// listen makes a listener of a stream protocol. Package net takes one of SCTP for one of TCP, which will do:
// all that differs is options that do not matter here.
func (n *NetNS) listen(p Protocol, at netip.AddrPort) (net.Listener, error) {
	fd, err := n.bound(unix.SOCK_STREAM, p.number(false), at)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	if err := unix.Listen(fd, 4096); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	return net.FileListener(f)
}

// ListenPacket opens a UDP socket in the namespace, for servers of the caller's own. Packet information is on.
func (n *NetNS) ListenPacket(at netip.AddrPort) (*net.UDPConn, error) {
	fd, err := n.bound(unix.SOCK_DGRAM, 0, at)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "packets")
	defer f.Close()
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}
