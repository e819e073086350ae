package main

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/headgate/headgate/model"
)

// A key names an attachment: one interface of one container in one network.
type key struct {
	Network   string `json:"network"`
	Container string `json:"container"`
	Interface string `json:"interface"`
}

func (k key) String() string { return k.Network + "/" + k.Container + "/" + k.Interface }

// An attachment is what this plugin does for one interface of a container.
type attachment struct {
	key
	// Addrs are the container's addresses, one of each family.
	Addrs []netip.Addr `json:"addrs"`
	Ports []port       `json:"ports,omitempty"`
	// Services are those that the container has joined, by name, as its network defined them at that time.
	Services map[string]service `json:"services,omitempty"`
}

// A port is one that is published.
type port struct {
	Protocol protocol `json:"protocol"`
	// Host is where it is reached; 0.0.0.0 and :: stand for every address of the node.
	Host       netip.AddrPort `json:"host"`
	Container  uint16         `json:"container"`
	Masquerade bool           `json:"masquerade,omitempty"`
}

// idle reports whether there is nothing to be done for the attachment.
func (a attachment) idle() bool { return len(a.Ports)+len(a.Services) == 0 }

// publisher names the service that a published port is.
func (a attachment) publisher(p port) model.ServiceName {
	return model.ServiceName(fmt.Sprintf("%s:%s:%d", a.key, p.Protocol, p.Container))
}

// joined names a service that containers join.
func (a attachment) joined(name string) model.ServiceName {
	return model.ServiceName(a.Network + "/" + name)
}

// serviceNames returns all services that the attachment has a part in.
func (a attachment) serviceNames() []model.ServiceName {
	var all []model.ServiceName
	for _, p := range a.Ports {
		all = append(all, a.publisher(p))
	}
	for name := range a.Services {
		all = append(all, a.joined(name))
	}
	return all
}

// A state is all that this plugin does on the node.
type state struct {
	attachments []attachment // the latest last
	// damaged are lines of the file that cannot be read.
	damaged [][]byte
}

// with returns the state with one attachment more, or instead of an earlier one with the same key. The error wraps
// model.ErrConflict if something else has one of its frontends: whoever came first keeps it.
func (s state) with(a attachment) (state, error) {
	s = s.without(func(o attachment) bool { return o.key == a.key })
	taken := map[model.FrontendKey]model.ServiceName{}
	for _, o := range s.attachments {
		_ = o.claim(taken) // was found to be free when it came
	}
	if err := a.claim(taken); err != nil {
		return s, err
	}
	s.attachments = append(s.attachments, a)
	return s, nil
}

// claim notes the frontends of an attachment, and fails if another service has one of them.
func (a attachment) claim(taken map[model.FrontendKey]model.ServiceName) error {
	take := func(p protocol, at netip.AddrPort, name model.ServiceName) error {
		k := model.FrontendKey{Protocol: p.Protocol, Addr: at}
		if holder, ok := taken[k]; ok && holder != name {
			return fmt.Errorf("%s for %s: %w by %s", k, name, model.ErrConflict, holder)
		}
		taken[k] = name
		return nil
	}
	for _, p := range a.Ports {
		if err := take(p.Protocol, p.Host, a.publisher(p)); err != nil {
			return err
		}
	}
	for name, s := range a.Services {
		for _, at := range s.Frontends {
			if err := take(s.Protocol, at, a.joined(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// without returns the state without some attachments.
func (s state) without(gone func(attachment) bool) state {
	s.attachments = slices.DeleteFunc(slices.Clone(s.attachments), gone)
	return s
}

// find returns the attachment with a key.
func (s state) find(k key) (attachment, bool) {
	i := slices.IndexFunc(s.attachments, func(a attachment) bool { return a.key == k })
	if i < 0 {
		return attachment{}, false
	}
	return s.attachments[i], true
}

// wanted returns what the kernel shall hold on a node with these addresses.
func (s state) wanted(node []netip.Addr) model.State {
	want := model.State{Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	want.Node.Addrs = node
	// Containers on one bridge would answer each other directly, past the node that must translate the answer back.
	want.Node.MasqueradeAll = true
	for _, a := range s.attachments {
		for _, p := range a.Ports {
			a.addPort(want, p)
		}
		for name, s := range a.Services {
			a.addMember(want, a.joined(name), s)
		}
	}
	return want
}

// addPort makes a published port a frontend of a service whose one endpoint is the container.
func (a attachment) addPort(want model.State, p port) {
	name := a.publisher(p)
	s, known := want.Services[name]
	s.Protocol = p.Protocol.Protocol
	s.ExternalTraffic = model.Local // the container sees its client's address
	if p.Masquerade {
		s.ExternalTraffic = model.Cluster
	}
	front := model.Frontend{Kind: model.External, Addr: p.Host}
	if p.Host.Addr().IsUnspecified() {
		front.Kind = model.NodePort
	}
	s.Frontends = append(s.Frontends, front)
	want.Services[name] = s
	if !known {
		want.Endpoints[name] = a.endpoints(p.Container)
	}
}

// addMember makes the container an endpoint of a service.
func (a attachment) addMember(want model.State, name model.ServiceName, s service) {
	svc := model.Service{Protocol: s.Protocol.Protocol}
	for _, at := range s.Frontends {
		svc.Frontends = append(svc.Frontends, model.Frontend{Addr: at})
	}
	want.Services[name] = svc // if its definition changes, the latest counts
	want.Endpoints[name] = append(want.Endpoints[name], a.endpoints(s.Port)...)
}

// endpoints returns a port at each of the container's addresses.
func (a attachment) endpoints(port uint16) []model.Endpoint {
	var all []model.Endpoint
	for _, addr := range a.Addrs {
		all = append(all, model.Endpoint{Addr: netip.AddrPortFrom(addr, port), Local: true})
	}
	return all
}
