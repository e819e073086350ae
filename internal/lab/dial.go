package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// DialContext connects to a TCP or UDP address from the namespace, for clients of the caller's own such as an
// http.Transport. The address is a literal one with a number for the port. Unlike Ask's, the
// connection ends as connections do.
func (n *NetNS) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial from %s: %w", n.name, err)
	}
	typ := unix.SOCK_STREAM
	switch network {
	case "tcp", "tcp4", "tcp6":
	case "udp", "udp4", "udp6":
		typ = unix.SOCK_DGRAM
	default:
		return nil, fmt.Errorf("dial from %s: unknown network %s", n.name, network)
	}
	fd, err := n.Socket(domain(to.Addr()), typ, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "dialed") // closes the descriptor; the connection has its own
	defer f.Close()
	if err := connect(ctx, fd, to); err != nil {
		return nil, fmt.Errorf("dial %s from %s: %w", to, n.name, err)
	}
	return net.FileConn(f)
}

// connect connects a non-blocking socket and waits for it.
func connect(ctx context.Context, fd int, to netip.AddrPort) error {
	err := unix.Connect(fd, sockaddr(to))
	if err != unix.EINPROGRESS {
		return os.NewSyscallError("connect", err)
	}
	for {
		ready, err := pollFor(ctx, fd, unix.POLLOUT, time.Now().Add(time.Minute))
		if err != nil {
			return err
		}
		if !ready {
			continue
		}
		errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			return os.NewSyscallError("getsockopt SO_ERROR", err)
		}
		if errno != 0 {
			return os.NewSyscallError("connect", unix.Errno(errno))
		}
		return nil
	}
}
