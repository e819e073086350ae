package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

// A world is a small network with nobody else in it:
//
//	client 203.0.113.7 --- node 192.0.2.1 --- alpha 10.0.1.1, beta 10.0.1.2, gamma 10.0.1.3
//	                       ^ the rules
//
// The address of the service, 10.96.0.10, exists nowhere but in the rules.
type world struct {
	*lab.Topology
	addrs   map[string]netip.AddrPort
	servers []*http.Server
}

// buildWorld makes the network and starts an HTTP server on each of the named hosts, which answers with its name.
func buildWorld(names ...string) (w *world, err error) {
	w = &world{addrs: map[string]netip.AddrPort{}}
	spec := lab.Spec{
		Node:  []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Hosts: []lab.Host{{Name: "client", Place: lab.Far, Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.7")}}},
	}
	for i, name := range names {
		addr := netip.AddrFrom4([4]byte{10, 0, 1, byte(i + 1)})
		w.addrs[name] = netip.AddrPortFrom(addr, 8080)
		spec.Hosts = append(spec.Hosts, lab.Host{Name: name, Addrs: []netip.Addr{addr}})
	}
	if w.Topology, err = lab.Build(spec); err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := w.serve(name); err != nil {
			return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), w.Close())
		}
	}
	return w, nil
}

// serve starts a server.
func (w *world) serve(name string) error {
	l, err := w.Host(name).Listen(w.addrs[name])
	if err != nil {
		return err
	}
	s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, name) })}
	w.servers = append(w.servers, s)
	go func() { _ = s.Serve(l) }() // until Close
	return nil
}

// endpoints returns the named servers as what a service is balanced over.
func (w *world) endpoints(names ...string) []model.Endpoint {
	var eps []model.Endpoint
	for _, name := range names {
		eps = append(eps, model.Endpoint{Addr: w.addrs[name]})
	}
	return eps
}

// Close stops the servers and ends the namespaces with all that is in them.
func (w *world) Close() error {
	var errs []error
	for _, s := range w.servers {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, w.Topology.Close())...)
}
