package peers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
)

// A link is a TUN device of the node, seen from its other end.
type link struct {
	name string
	fd   int
	buf  []byte
}

// openLink makes a device in a namespace. It goes with the namespace.
func openLink(ns *lab.NetNS, name string) (*link, error) {
	fd := -1
	err := ns.Do(func() (err error) {
		if fd, err = openTun(); err != nil {
			return err
		}
		req, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
			return os.NewSyscallError("ioctl TUNSETIFF", err)
		}
		// To take a device away costs 20 ms, during which close waits. The end of the namespace does it for nothing.
		return os.NewSyscallError("ioctl TUNSETPERSIST", unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1))
	})
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	return &link{name: name, fd: fd, buf: make([]byte, 4096)}, nil
}

// openTun opens the device that makes devices. Where nobody made its file, as in a bare initramfs, it makes one of its
// own; opening that loads the module.
func openTun() (int, error) {
	const path, flags = "/dev/net/tun", unix.O_RDWR | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Open(path, flags, 0)
	if !errors.Is(err, unix.ENOENT) {
		return fd, os.NewSyscallError("open "+path, err)
	}
	dir, err := os.MkdirTemp("", "headgate-tun")
	if err != nil {
		return -1, err
	}
	defer os.RemoveAll(dir)
	node := filepath.Join(dir, "tun")
	if err := unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 200))); err != nil { // Documentation/admin-guide/devices.txt
		return -1, os.NewSyscallError("mknod "+node, err)
	}
	fd, err = unix.Open(node, flags, 0)
	return fd, os.NewSyscallError("open the tun device", err)
}

// send hands a packet to the node.
func (l *link) send(b []byte) error {
	_, err := unix.Write(l.fd, b)
	return os.NewSyscallError("write to "+l.name, err)
}

// receive takes one packet that left the node. It reports false when there is none.
func (l *link) receive() (r rawPacket, ok bool, err error) {
	for {
		n, err := unix.Read(l.fd, l.buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return rawPacket{}, false, nil
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return rawPacket{}, false, os.NewSyscallError("read from "+l.name, err)
		default:
			if r, ok := splitIP(l.buf[:n], false); ok {
				return r, true, nil
			}
		}
	}
}

func (l *link) close() { unix.Close(l.fd) }
