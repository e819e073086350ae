package ipvs

import (
	"context"
	"errors"
	"time"

	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/netns"
	"github.com/headgate/headgate/internal/nlink"
)

// A kernel is what can be asked of IPVS and of the routing tables in one network namespace. Tests pretend one.
type kernel interface {
	// services lists the virtual services, whoever made them.
	services(ctx context.Context) (map[virtualKey]virtualSpec, error)
	// exist returns which virtual services there are, of some.
	exist(ctx context.Context, keys []virtualKey) (map[virtualKey]bool, error)
	// servers lists the real servers of virtual services; none of one that is not there.
	servers(ctx context.Context, keys []virtualKey) (map[virtualKey][]foundServer, error)
	// open counts the connections of virtual services that are open, or were and are being closed: not those that were
	// only asked for. It may look at so many connections only, and says whether there were more.
	open(ctx context.Context, keys []virtualKey) (counts map[virtualKey]int, more bool, err error)
	// routes lists the local routes that have our protocol number, with their source addresses.
	routes(ctx context.Context) (map[netip.Addr]netip.Addr, error)
	// addrs lists the addresses of all interfaces, and whether they are in use yet; and, by family, the one that the
	// node sends from by default, if any.
	addrs(ctx context.Context) (all map[netip.Addr]bool, source [2]netip.Addr, err error)
	// burst does what is asked for about virtual services and real servers, or about routes; failed has what the
	// kernel did not do, by its place in ops. After an error nobody knows what was done.
	burst(ctx context.Context, ops []op) (failed map[int]error, did traffic, err error)
	close()
}

// traffic counts what was sent.
type traffic struct{ pieces, bytes int }

// A namespace is the kernel of a network namespace.
type namespace struct {
	netns    *netns.NetNS // not its own
	protocol uint8        // of routes
	timeout  time.Duration
	trace    func(family int, messages []byte)
	sockets  map[int]*nlink.Socket // by netlink family; none after an error
	family   uint16                // of generic netlink; 0, not asked for yet
}

func newNamespace(ns *netns.NetNS, cfg *Config) *namespace {
	return &namespace{netns: ns, protocol: uint8(cfg.RouteProtocol), timeout: cfg.Timeout, trace: cfg.Trace, sockets: map[int]*nlink.Socket{}}
}

// exchange runs one exchange over a socket of a netlink family that is known to be in order.
func (n *namespace) exchange(ctx context.Context, family int, do func(s *nlink.Socket) error) error {
	s := n.sockets[family]
	if s == nil {
		var err error
		if s, err = nlink.Dial(family, n.netns); err != nil {
			return err
		}
		if family == unix.NETLINK_ROUTE {
			if err := s.SetStrict(); err != nil {
				return errors.Join(err, s.Close())
			}
		}
		n.sockets[family] = s
	}
	err := s.Within(ctx, n.timeout, func() error { return do(s) })
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) || s.Spent() {
		n.hangUp(family)
	}
	return err
}

func (n *namespace) hangUp(family int) {
	if s := n.sockets[family]; s != nil {
		_ = s.Close()
		delete(n.sockets, family)
	}
}

// close closes the sockets; the next exchange opens fresh ones.
func (n *namespace) close() {
	for family := range n.sockets {
		n.hangUp(family)
	}
	n.family = 0 // the module may be loaded again under another number
}
