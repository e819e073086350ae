package main

import (
	"errors"
	"maps"
	"net/netip"

	"go.yaml.in/yaml/v3"

	"github.com/headgate/headgate/model"
)

// A document is what a file says.
type document struct {
	state model.State
	// faults are the services that make no sense, which state does not have.
	faults map[model.ServiceName]error
}

// parse reads a file. The error says why nothing of it can be used; what is wrong with one service alone is a fault.
func parse(text []byte) (document, error) {
	doc := document{
		state:  model.State{Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}},
		faults: map[model.ServiceName]error{},
	}
	d, complete := &decoder{}, false
	root, err := begin(text)
	switch {
	case err != nil:
		return doc, err
	case root == nil: // somebody is writing it, perhaps
		return doc, errors.New(`the file is empty: one without services says "services: {}"`)
	}
	d.mapping(root, fields{
		"node": d.node(&doc.state.Node),
		"services": func(n *yaml.Node) {
			complete = true
			d.pairs(n, func(key string, _, value *yaml.Node) { doc.add(model.ServiceName(key), value) })
		},
	})
	if d.err() == nil && !complete {
		d.failf(root, `no "services": a file without any says "services: {}"`)
	}
	return doc, d.err()
}

// add reads a service.
func (doc *document) add(name model.ServiceName, n *yaml.Node) {
	var svc model.Service
	var eps []model.Endpoint
	d := &decoder{}
	d.mapping(n, fields{
		"protocol":        oneOf(d, &svc.Protocol, model.Protocols[:]...),
		"frontends":       d.listOf(func(n *yaml.Node) { svc.Frontends = append(svc.Frontends, d.frontend(n)) }),
		"endpoints":       d.listOf(func(n *yaml.Node) { eps = append(eps, d.endpoint(n)) }),
		"balance":         oneOf(d, &svc.Balance, model.Random, model.RoundRobin, model.LeastConn, model.SourceHash, model.Maglev),
		"hashPort":        d.value(&svc.HashPort),
		"affinity":        d.value(&svc.Affinity),
		"internalTraffic": oneOf(d, &svc.InternalTraffic, model.Cluster, model.Local),
		"externalTraffic": oneOf(d, &svc.ExternalTraffic, model.Cluster, model.Local),
	})
	if err := d.err(); err != nil {
		doc.faults[name] = err
		return
	}
	doc.state.Services[name], doc.state.Endpoints[name] = svc, eps
}

// frontend reads one place where a service is reached.
func (d *decoder) frontend(n *yaml.Node) model.Frontend {
	var f model.Frontend
	var port uint16
	var family []model.Family
	kinds := 0
	at := func(kind model.FrontendKind, read func(*yaml.Node)) func(*yaml.Node) {
		return func(n *yaml.Node) {
			kinds++
			f.Kind = kind
			read(n)
		}
	}
	d.mapping(n, fields{
		"internal":     at(model.Internal, d.value(&f.Addr)),
		"external":     at(model.External, d.value(&f.Addr)),
		"nodePort":     at(model.NodePort, d.value(&port)),
		"sourceRanges": values(d, &f.SourceRanges),
		"family": func(n *yaml.Node) {
			family = make([]model.Family, 1)
			oneOf(d, &family[0], model.Families[:]...)(n)
		},
	})
	switch {
	case kinds != 1:
		d.failf(n, "a frontend is one of internal, external and nodePort")
	case f.Kind != model.NodePort && family != nil:
		d.failf(n, "only a nodePort has a family to choose")
	case family != nil:
		f.Addr = netip.AddrPortFrom(family[0].Unspecified(), port)
	case f.Kind == model.NodePort:
		f.Addr = netip.AddrPortFrom(netip.Addr{}, port)
	}
	return f
}

// endpoint reads one real server.
func (d *decoder) endpoint(n *yaml.Node) model.Endpoint {
	e := model.Endpoint{Weight: 1}
	d.mapping(n, fields{
		"address": d.value(&e.Addr),
		"state":   oneOf(d, &e.State, model.Ready, model.Draining, model.NotReady),
		"local":   d.value(&e.Local),
		"zones":   values(d, &e.Zones),
		"nodes":   values(d, &e.Nodes),
		"weight":  d.value(&e.Weight),
	})
	switch {
	case !e.Addr.IsValid() && len(d.errs) == 0:
		d.failf(n, "an endpoint needs an address")
	case e.Weight == 0:
		d.failf(n, `no weight: an endpoint that shall get no new connections is "state: draining"`)
	}
	return e
}

// node returns a function that reads what is said about the node.
func (d *decoder) node(to *model.Node) func(*yaml.Node) {
	return func(n *yaml.Node) {
		d.mapping(n, fields{
			"name":               d.value(&to.Name),
			"zone":               d.value(&to.Zone),
			"primary":            values(d, &to.Primary),
			"internalRanges":     values(d, &to.Detector.Prefixes),
			"internalInterfaces": values(d, &to.Detector.Interfaces),
			"serviceRanges":      values(d, &to.ServiceRanges),
			"masqueradeAll":      d.value(&to.MasqueradeAll),
			"keepClientAddress":  d.value(&to.KeepClientAddress),
			"nodePorts": func(n *yaml.Node) {
				d.mapping(n, fields{
					"ranges":   values(d, &to.NodePorts.Prefixes),
					"primary":  d.value(&to.NodePorts.Primary),
					"loopback": d.value(&to.NodePorts.Loopback),
				})
			},
		})
		if err := to.Validate(); err != nil {
			d.failf(n, "%w", err)
		}
	}
}

// keep adds to the document the last good form of every service that is faulty in it.
func (doc *document) keep(last model.State) {
	for name := range doc.faults {
		if svc, ok := last.Services[name]; ok {
			doc.state.Services[name], doc.state.Endpoints[name] = svc, last.Endpoints[name]
		}
	}
}

// verify returns what is wrong with each service, as far as that can be told without a kernel: its faults, and what any
// backend would refuse.
func (doc *document) verify() (map[model.ServiceName]error, error) {
	wrong := maps.Clone(doc.faults)
	anything := model.FeatureSet{Backend: "any backend", HashPort: true,
		Balances: []model.Balance{model.Random, model.RoundRobin, model.LeastConn, model.SourceHash, model.Maglev}}
	delta, err := model.NewResolver(anything).ResolveState(doc.state, nil)
	if err != nil {
		return wrong, err
	}
	for _, r := range delta.Rejected {
		wrong[r.Service] = r.Err
	}
	return wrong, nil
}
