package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/nftables"
)

// The service, whose address exists nowhere but in the rules.
const web model.ServiceName = "shop/web:http"

var vip = netip.MustParseAddrPort("10.96.0.10:80")

type client = netip.Addr

// A node is a machine that balances, with servers behind it and clients before it:
//
//	clients 203.0.113.1, .2, … --- node --- servers 10.0.1.1, 10.0.1.2, …
type node struct {
	world   *lab.Topology
	clients *lab.NetNS
	addrs   []client
	servers map[string]netip.AddrPort

	tracker    model.Tracker
	programmer model.Programmer
}

// newNode builds a node with so many clients and the named servers.
func newNode(ctx context.Context, clients int, servers ...string) (n *node, err error) {
	n = &node{servers: map[string]netip.AddrPort{}}
	for i := range clients {
		n.addrs = append(n.addrs, netip.AddrFrom4([4]byte{203, 0, 113, byte(i + 1)}))
	}
	spec := lab.Spec{
		Node:  []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Hosts: []lab.Host{{Name: "clients", Place: lab.Far, Addrs: n.addrs}},
	}
	for i, name := range servers {
		addr := netip.AddrFrom4([4]byte{10, 0, 1, byte(i + 1)})
		n.servers[name] = netip.AddrPortFrom(addr, 8080)
		spec.Hosts = append(spec.Hosts, lab.Host{Name: name, Addrs: []netip.Addr{addr}})
	}
	if n.world, err = lab.Build(spec); err != nil {
		return nil, err
	}
	n.clients = n.world.Host("clients")
	for name, at := range n.servers {
		_, serveErr := n.world.Host(name).ServeAs(name, lab.TCP, at)
		err = errors.Join(err, serveErr)
	}
	if err == nil {
		n.programmer, err = nftables.New(ctx, nftables.Config{NetNS: n.world.Node.FD()})
	}
	if err == nil {
		_, err = n.programmer.Sync(ctx, n.tracker.State()) // nothing, so far
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Close ends the namespaces with all that is in them.
func (n *node) Close() error {
	var err error
	if n.programmer != nil {
		err = n.programmer.Close()
	}
	return errors.Join(err, n.world.Close())
}

// program balances the service, as it is given but for the address, over the endpoints.
func (n *node) program(ctx context.Context, s model.Service, endpoints ...model.Endpoint) error {
	s.Frontends = []model.Frontend{{Addr: vip}}
	n.tracker.SetService(web, s)
	n.tracker.SetEndpoints(web, endpoints)
	result, err := n.programmer.Apply(ctx, n.tracker.Diff())
	return errors.Join(err, result.Err())
}

// endpoints returns the named servers as endpoints.
func (n *node) endpoints(names []string) []model.Endpoint {
	var all []model.Endpoint
	for _, name := range names {
		all = append(all, model.Endpoint{Addr: n.servers[name]})
	}
	return all
}

// question is what a client asks the service: who are you?
func question(from client) lab.Query {
	return lab.Query{Source: netip.AddrPortFrom(from, 0), Proto: lab.TCP, To: vip}
}

// choices lets every client connect once and returns who answered.
func (n *node) choices(ctx context.Context) (map[client]string, error) {
	all := map[client]string{}
	for _, from := range n.addrs {
		answer, err := n.clients.Ask(ctx, question(from))
		if err == nil && answer.Verdict != lab.Answered {
			err = fmt.Errorf("client %s: %s", from, answer.Verdict)
		}
		if err != nil {
			return nil, err
		}
		all[from] = answer.Name
	}
	return all, nil
}
