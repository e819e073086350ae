// Package site is a place to try the plugin out: a node with a network of containers on a bridge, and a host outside.
// It is to the plugin what a container runtime is, by way of libcni; the other plugins of the chain are the real ones.
package site

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/headgate/headgate/internal/lab"
)

// Network is the name of the containers' network.
const Network = "shop"

// The addresses of the node, and those of the host outside.
var (
	Node     = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	Outsider = []netip.Addr{netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8:f::7")}
)

// A Site is a node with containers:
//
//	outside 203.0.113.7 --- node 192.0.2.1 --- bridge cni0 --- containers 10.88.0.2, 10.88.0.3, …
//	                        ^ plugins run here
type Site struct {
	*lab.Topology
	Outside *lab.NetNS
	// Dir holds all files: plugins in bin, their state in state, libcni's in cache, and the list of plugins in net.d.
	Dir string

	CNI  *libcni.CNIConfig
	List *libcni.NetworkConfigList
}

// Build builds the plugins, and cnitool, into the folder bin of dir. It must be called inside this module.
func Build(ctx context.Context, dir string) error {
	const (
		self    = "github.com/headgate/headgate/examples/cni"
		plugins = "github.com/containernetworking/plugins/plugins"
	)
	bin := filepath.Join(dir, "bin") + string(filepath.Separator)
	for _, args := range [][]string{
		{"-o", bin + "headgate", self},
		{"-o", bin, plugins + "/main/bridge", plugins + "/ipam/host-local", "github.com/containernetworking/cni/cnitool"},
	} {
		out, err := exec.CommandContext(ctx, "go", append([]string{"build", "-buildvcs=false"}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("go build: %w: %s", err, out)
		}
	}
	return nil
}

// New makes a site whose files are in dir. Config is what the network configuration says to the plugin besides the
// names of things.
func New(dir, bin string, config map[string]any) (*Site, error) {
	s := &Site{Dir: dir}
	var err error
	s.Topology, err = lab.Build(lab.Spec{Node: Node, Hosts: []lab.Host{{Name: "outside", Place: lab.Far, Addrs: Outsider}}})
	if err != nil {
		return nil, err
	}
	s.Outside = s.Host("outside")
	// Packets between containers on the bridge do not meet the node's rules. Where they do, all is easier.
	for _, path := range []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		_ = s.Node.Sysctl(path, "0") // without br_netfilter it is not there, and so it is
	}
	// Without an address of its own for the link, the node cannot ask the bridge who has an IPv6 address.
	if err := s.Node.Sysctl("net/ipv6/conf/default/addr_gen_mode", "0"); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.CNI = libcni.NewCNIConfigWithCacheDir([]string{bin}, filepath.Join(dir, "cache"), &inNode{node: s.Node})
	if s.List, err = s.Configure(Network, 0, config); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Configure returns the configuration of one more network on the node, with a number of its own.
func (s *Site) Configure(name string, number int, config map[string]any) (*libcni.NetworkConfigList, error) {
	own := map[string]any{"type": "headgate", "capabilities": map[string]bool{"portMappings": true}, "stateDir": s.StateDir()}
	for k, v := range config {
		own[k] = v
	}
	ranges := [][]map[string]string{
		{{"subnet": fmt.Sprintf("10.%d.0.0/16", 88+number)}}, {{"subnet": fmt.Sprintf("fd00:%d::/64", 88+number)}},
	}
	text, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.1.0", "name": name,
		"plugins": []any{
			map[string]any{"type": "bridge", "bridge": fmt.Sprint("cni", number), "isGateway": true, "ipam": map[string]any{
				"type": "host-local", "dataDir": filepath.Join(s.Dir, "ipam"), "ranges": ranges,
				"routes": []map[string]string{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
			}},
			own,
		},
	}, "", "  ")
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(text)
}

// StateDir is where the plugin keeps its state.
func (s *Site) StateDir() string { return filepath.Join(s.Dir, "state") }

// A Container is a namespace that is attached to a network.
type Container struct {
	*lab.NetNS
	Runtime *libcni.RuntimeConf
	Addrs   []netip.Addr
}

// Port is a port mapping. The protocol is tcp unless it is given.
func Port(host, container int, protocol ...string) map[string]any {
	m := map[string]any{"hostPort": host, "containerPort": container, "protocol": "tcp"}
	if len(protocol) > 0 {
		m["protocol"] = protocol[0]
	}
	return m
}

// NewContainer makes a container that nobody has attached yet, with ports to be published. It ends with the site.
func (s *Site) NewContainer(id string, ports ...map[string]any) (*Container, error) {
	ns, err := lab.NewNetNS(id)
	if err != nil {
		return nil, err
	}
	return &Container{NetNS: ns, Runtime: &libcni.RuntimeConf{
		ContainerID: id, NetNS: ns.Path(), IfName: "eth0",
		CapabilityArgs: map[string]any{"portMappings": ports},
	}}, nil
}

// Join makes a container ask for services when it is added.
func (c *Container) Join(names string) *Container {
	c.Runtime.Args = append(c.Runtime.Args, [2]string{"IgnoreUnknown", "1"}, [2]string{"HEADGATE_SERVICES", names})
	return c
}

// Add attaches a container to the network.
func (s *Site) Add(ctx context.Context, c *Container) (types.Result, error) {
	r, err := s.CNI.AddNetworkList(ctx, s.List, c.Runtime)
	if err != nil {
		return nil, err
	}
	result, err := current.NewResultFromResult(r)
	if err != nil {
		return nil, err
	}
	c.Addrs = nil
	for _, ip := range result.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		c.Addrs = append(c.Addrs, addr.Unmap())
	}
	return r, nil
}

// Check asks the plugins whether a container is attached as it should be.
func (s *Site) Check(ctx context.Context, c *Container) error {
	return s.CNI.CheckNetworkList(ctx, s.List, c.Runtime)
}

// Del detaches a container.
func (s *Site) Del(ctx context.Context, c *Container) error {
	return s.CNI.DelNetworkList(ctx, s.List, c.Runtime)
}

// Attachments returns the attachments of containers, as a runtime names those that are valid.
func Attachments(ids ...string) []types.GCAttachment {
	var all []types.GCAttachment
	for _, id := range ids {
		all = append(all, types.GCAttachment{ContainerID: id, IfName: "eth0"})
	}
	return all
}
