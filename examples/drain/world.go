package main

import (
	"context"
	"errors"
	"net/netip"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

// The service, whose address exists nowhere but in the rules, and its two servers.
var (
	vip       = netip.MustParseAddrPort("10.96.0.53:53")
	oldServer = netip.MustParseAddrPort("10.0.1.1:5353")
	newServer = netip.MustParseAddrPort("10.0.1.2:5353")
)

// name returns the name of the service that answers at the address in a protocol.
func name(p model.Protocol) model.ServiceName {
	return model.ServiceName("shop/dns:" + p.String())
}

// A world is a small network with nobody else in it:
//
//	client 203.0.113.7 --- node 192.0.2.1 --- old 10.0.1.1, new 10.0.1.2
//	                       ^ the rules
type world struct {
	*lab.Topology
	client *lab.NetNS
	// conn and flow are what the client has open: a connection and, over UDP, a port that it keeps.
	conn, flow *lab.Flow
}

// buildWorld makes the network and starts the servers, which answer over TCP and UDP with their name.
func buildWorld() (*world, error) {
	topology, err := lab.Build(lab.Spec{
		Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Hosts: []lab.Host{
			{Name: "client", Place: lab.Far, Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.7")}},
			{Name: "old", Addrs: []netip.Addr{oldServer.Addr()}},
			{Name: "new", Addrs: []netip.Addr{newServer.Addr()}},
		},
	})
	if err != nil {
		return nil, err
	}
	for host, at := range map[string]netip.AddrPort{"old": oldServer, "new": newServer} {
		for _, p := range []lab.Protocol{lab.TCP, lab.UDP} {
			_, serveErr := topology.Host(host).ServeAs(host, p, at)
			err = errors.Join(err, serveErr)
		}
	}
	if err != nil {
		return nil, errors.Join(err, topology.Close())
	}
	return &world{Topology: topology, client: topology.Host("client")}, nil
}

// connect opens what the client keeps open.
func (w *world) connect(ctx context.Context) (err error) {
	if w.conn, err = w.client.Open(ctx, lab.Query{Proto: lab.TCP, To: vip}); err != nil {
		return err
	}
	w.flow, err = w.client.Open(ctx, lab.Query{Proto: lab.UDP, To: vip})
	return err
}

// Close ends the namespaces with all that is in them.
func (w *world) Close() error {
	for _, f := range []*lab.Flow{w.conn, w.flow} {
		if f != nil {
			_ = f.Close() // the world ends
		}
	}
	return w.Topology.Close()
}
