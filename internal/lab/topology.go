package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// A Place says where a host is, seen from the node.
type Place int

const (
	// Pod is a host on the node: its link's node end is named "veth-" and the host's name.
	Pod Place = iota
	// Far is a host that the node reaches over an uplink: another node, its pods, or somebody outside.
	// Its link's node end is named "uplink" and a number.
	Far
)

// A Host is one namespace behind the node. All of its packets pass the node, also those to other hosts.
type Host struct {
	// Name is unique within the topology, and short where Link is empty: the kernel allows 15 bytes.
	Name  string
	Place Place
	// Addrs are its addresses, of both families if wanted; one host may stand for many.
	Addrs []netip.Addr
	// Link names the node's end of its veth pair. Empty: see Place.
	Link string
	// Reach are the destinations that it has a route to. Nil means everything. A host that reaches only the
	// node's addresses cannot answer a client whose address was kept: so a missing masquerade shows.
	Reach []netip.Prefix
}

// A Spec describes a Topology.
type Spec struct {
	// Node are the addresses of the node; the first of each family is its primary address.
	Node  []netip.Addr
	Hosts []Host
}

// A Topology is a node under test with the hosts around it:
//
//	pods, one namespace each        the node            the others
//	10.128.0.11 eth0 --- veth-a  [           ] uplink1 --- eth0 10.128.1.21
//	10.128.0.12 eth0 --- veth-b  [ rules here ] uplink2 --- eth0 203.0.113.5
//	                             [           ] uplink --- the wire (default route, swallows everything)
//
// Hosts know a default route by way of the node, so a virtual address that exists nowhere still reaches
// it. The node forwards both families and sends what it has no route for to the wire.
type Topology struct {
	// Node is the namespace for the rules under test.
	Node *NetNS
	// Wire is where the node's default route leads. It answers nobody unless Serve was told to.
	Wire *NetNS

	spec     Spec
	wireLink veth

	mu    sync.Mutex // guards what follows
	hosts map[string]*host
	owner map[netip.Addr]*NetNS
}

type host struct {
	Host
	ns   *NetNS
	link veth
}

// WireLink is the node's end of the link to the wire. It carries the node's addresses.
const WireLink = "uplink"

// Build makes a topology. It takes some milliseconds per host.
func Build(spec Spec) (t *Topology, err error) {
	t = &Topology{spec: spec, hosts: map[string]*host{}, owner: map[netip.Addr]*NetNS{}}
	defer func() {
		if err != nil {
			t.Close()
			t, err = nil, fmt.Errorf("build topology: %w", err)
		}
	}()
	if t.Node, err = NewNetNS("node"); err != nil {
		return t, err
	}
	if t.Wire, err = NewNetNS("wire"); err != nil {
		return t, err
	}
	if err := t.wire(); err != nil {
		return t, err
	}
	for _, h := range spec.Hosts {
		if err := t.AddHost(h); err != nil {
			return t, err
		}
	}
	return t, nil
}

// wire connects the node with the wire and gives it its addresses.
func (t *Topology) wire() error {
	for _, path := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := t.Node.Sysctl(path, "1"); err != nil {
			return err
		}
	}
	t.wireLink = veth{node: t.Node, host: t.Wire, nodeLink: WireLink, hostLink: "eth0"}
	if err := t.wireLink.plug(); err != nil {
		return err
	}
	for _, a := range t.spec.Node {
		if err := t.AddNodeAddr(a); err != nil {
			return err
		}
	}
	if err := t.Wire.blackhole(); err != nil {
		return err
	}
	primary := map[bool]netip.Addr{}
	for _, a := range t.spec.Node {
		if _, ok := primary[a.Is6()]; !ok {
			primary[a.Is6()] = a
		}
	}
	return routeVia(t.Node, t.wireLink.nodeIndex, t.wireLink.hostMAC(), everything, primary)
}

// AddHost adds a host to a running topology.
func (t *Topology) AddHost(spec Host) (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hosts[spec.Name] != nil || spec.Name == "" {
		return fmt.Errorf("host %q: the name is empty or taken", spec.Name)
	}
	for _, a := range spec.Addrs {
		if n := t.owner[a]; n != nil {
			return fmt.Errorf("host %s: %s belongs to %s", spec.Name, a, n.name)
		}
	}
	ns, err := NewNetNS(spec.Name)
	if err != nil {
		return err
	}
	number := len(t.hosts) + 1
	h := &host{Host: spec, ns: ns, link: veth{node: t.Node, host: ns, nodeLink: spec.Link, hostLink: "eth0", number: number}}
	if h.link.nodeLink == "" {
		h.link.nodeLink = "veth-" + spec.Name
		if spec.Place == Far {
			h.link.nodeLink = WireLink + strconv.Itoa(number)
		}
	}
	t.hosts[spec.Name] = h
	if len(h.link.nodeLink) >= unix.IFNAMSIZ {
		return fmt.Errorf("host %s: %s is too long for the name of a link", spec.Name, h.link.nodeLink)
	}
	return t.connect(h)
}

func (t *Topology) connect(h *host) error {
	if err := h.link.plug(); err != nil {
		return err
	}
	for _, a := range h.Addrs {
		if err := h.ns.AddAddr("eth0", a); err != nil {
			return err
		}
		t.owner[a] = h.ns
	}
	reach := h.Reach
	if reach == nil {
		reach = everything
	}
	if err := h.link.fromHost(reach); err != nil {
		return err
	}
	if err := h.link.toHost(h.Addrs); err != nil {
		return err
	}
	// The wire answers, where it was told to, the addresses that the topology knows.
	return t.wireLink.fromHost(prefixes(h.Addrs))
}

func prefixes(addrs []netip.Addr) []netip.Prefix {
	ps := make([]netip.Prefix, len(addrs))
	for i, a := range addrs {
		ps[i] = netip.PrefixFrom(a, a.BitLen())
	}
	return ps
}

// AddNodeAddr gives the node one more address, on the link to the wire.
func (t *Topology) AddNodeAddr(a netip.Addr) error {
	if err := t.Node.AddAddr(WireLink, a); err != nil {
		return err
	}
	t.mu.Lock()
	t.owner[a] = t.Node
	t.mu.Unlock()
	return t.wireLink.fromHost(prefixes([]netip.Addr{a}))
}

// DelNodeAddr takes an address of the node away.
func (t *Topology) DelNodeAddr(a netip.Addr) error {
	t.mu.Lock()
	delete(t.owner, a)
	t.mu.Unlock()
	return t.Node.DelAddr(WireLink, a)
}

// Host is the namespace of the host of that name, nil if there is none.
func (t *Topology) Host(name string) *NetNS {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.hosts[name]; h != nil {
		return h.ns
	}
	return nil
}

// Owner is the namespace that has an address: a host, or the node (also for loopback). It is nil for
// addresses that exist nowhere, as virtual ones do.
func (t *Topology) Owner(a netip.Addr) *NetNS {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.IsLoopback() {
		return t.Node
	}
	return t.owner[a]
}

// NodeLink names the node's end of a host's link, "" if there is no such host.
func (t *Topology) NodeLink(name string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.hosts[name]; h != nil {
		return h.link.nodeLink
	}
	return ""
}

// Serve answers at an address wherever that is: at the host or node that owns it, and for one that nobody
// owns at the wire, where a packet ends up that left the node with its destination unchanged. So "nobody
// translated it" has a positive answer too: one whose Name is the address that was asked.
// A server for the wire must be closed before the same address is given to a host.
func (t *Topology) Serve(p Protocol, at netip.AddrPort) (*Server, error) {
	if n := t.Owner(at.Addr()); n != nil {
		return n.Serve(p, at)
	}
	return t.Wire.serveForeign(p, at)
}

// Close closes every namespace with what lives in it.
func (t *Topology) Close() error {
	t.mu.Lock()
	hosts := make([]*host, 0, len(t.hosts))
	for _, h := range t.hosts {
		hosts = append(hosts, h)
	}
	t.mu.Unlock()
	slices.SortFunc(hosts, func(a, b *host) int { return a.link.number - b.link.number })
	var errs []error
	for _, h := range hosts {
		errs = append(errs, h.ns.Close())
	}
	for _, n := range []*NetNS{t.Wire, t.Node} {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(errs...)
}
