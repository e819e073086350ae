package passed

import (
	"fmt"
	"net/netip"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// A Crowd is a state of many internal addresses, as many node ports, and a tenth as many ports on one address, with the
// last of each.
type Crowd struct {
	State model.State
	// Addr, NodePort and Port are the last of each; the node port at an address of the node.
	Addr, NodePort, Port netip.AddrPort
	// Server is the one endpoint of those three, a pod on the node; those of the others do not exist.
	Server netip.AddrPort
}

// MaxCrowd is how many addresses a Crowd may have.
const MaxCrowd = 30_000

var (
	addrBase  = [...]string{model.IPv4: "10.96.0.0", model.IPv6: "fd20:96::"}
	podServer = [...]string{model.IPv4: "10.128.0.11:8080", model.IPv6: "[fd10:128:0:a::11]:8080"}
)

// NewCrowd returns a crowd of n addresses of a family, 1 to MaxCrowd. Up to a hundred of them make a service, so that it is
// about finding frontends, and not about the chains of as many services.
func NewCrowd(f model.Family, n int) *Crowd {
	node := modeltest.StageNode()
	node.ServiceRanges = nil
	c := &Crowd{
		State:  model.State{Node: node, Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}},
		Server: netip.MustParseAddrPort(podServer[f]),
	}
	for i := range n {
		c.Addr = netip.AddrPortFrom(vip(f, 1+i), 80)
		c.add("address", i, n, model.Frontend{Addr: c.Addr})
		c.NodePort = netip.AddrPortFrom(f.Unspecified(), uint16(30_000+i))
		c.add("node-port", i, n, model.Frontend{Kind: model.NodePort, Addr: c.NodePort})
	}
	ports := max(1, n/10)
	for i := range ports {
		c.Port = netip.AddrPortFrom(vip(f, 0x20000), uint16(20_000+i))
		c.add("port", i, ports, model.Frontend{Addr: c.Port})
	}
	for _, a := range node.Primary {
		if model.FamilyOf(a) == f {
			c.NodePort = netip.AddrPortFrom(a, c.NodePort.Port())
		}
	}
	return c
}

// add adds the i-th of n frontends of a kind.
func (c *Crowd) add(kind string, i, n int, f model.Frontend) {
	name, to := model.ServiceName(fmt.Sprintf("%s-%d", kind, i/100)), netip.AddrPortFrom(c.Server.Addr(), c.Server.Port()+1)
	if i == n-1 {
		name, to = model.ServiceName(kind+"-last"), c.Server
	}
	svc := c.State.Services[name]
	svc.Frontends = append(svc.Frontends, f)
	c.State.Services[name] = svc
	c.State.Endpoints[name] = []model.Endpoint{{Addr: to, Local: true}}
}

// vip returns the i-th virtual address.
func vip(f model.Family, i int) netip.Addr {
	raw := netip.MustParseAddr(addrBase[f]).AsSlice()
	end := raw[len(raw)-3:]
	end[0], end[1], end[2] = end[0]+byte(i>>16), end[1]+byte(i>>8), end[2]+byte(i)
	a, _ := netip.AddrFromSlice(raw)
	return a
}
