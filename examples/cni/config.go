package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/headgate/headgate/model"
)

// A config is what every command needs of the network configuration.
type config struct {
	types.PluginConf
	// StateDir is where the plugin keeps what it has done. It should not outlive a reboot, as the kernel's rules do not.
	// Empty means /run/headgate-cni. Networks with different ones need different Tables.
	StateDir string `json:"stateDir"`
	// Table is the nftables table of both families that is the plugin's own. Empty means headgate-cni.
	Table string `json:"table"`
}

// A request is what the network configuration asks for one container, with what the runtime adds.
type request struct {
	// Services are those that containers of this network can join. They are reached as long as a container has joined.
	Services map[string]service `json:"services"`
	// Join names the services that every container of this network joins.
	Join []string `json:"join"`
	// MasqAll hides the clients of published ports from containers. Without it, a container sees who is talking to it,
	// but a published port cannot be reached by containers on the same bridge unless net.bridge.bridge-nf-call-iptables
	// is set, since the answers take the short way.
	MasqAll bool `json:"masqAll"`

	RuntimeConfig struct {
		PortMappings []portMapping `json:"portMappings"`
	} `json:"runtimeConfig"`
	// Args.CNI.Services names further services that this container joins. CNI_ARGS may do so as well, with
	// HEADGATE_SERVICES=web,dns; it counts only without these.
	Args struct {
		CNI struct {
			Services []string `json:"services"`
		} `json:"cni"`
	} `json:"args"`
}

// A portMapping is a port to be published, in the words of CNI's CONVENTIONS.md.
type portMapping struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	// Protocol is tcp, udp or sctp. Empty means tcp.
	Protocol string `json:"protocol"`
	// HostIP limits it to one address of the node; 0.0.0.0 or :: to one family. Empty means all addresses.
	HostIP string `json:"hostIP"`
}

// A service is one that containers can join.
type service struct {
	Frontends []netip.AddrPort `json:"frontends"`
	// Port is where the containers listen.
	Port uint16 `json:"port"`
	// Protocol is tcp, udp or sctp. Empty means tcp.
	Protocol protocol `json:"protocol,omitempty"`
}

// A protocol is a model.Protocol by its name.
type protocol struct{ model.Protocol }

func (p protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

func (p *protocol) UnmarshalText(text []byte) error {
	for _, known := range model.Protocols {
		if strings.EqualFold(known.String(), string(text)) || len(text) == 0 && known == model.TCP {
			p.Protocol = known
			return nil
		}
	}
	return fmt.Errorf("protocol %q is none of tcp, udp and sctp", text)
}

// parse reads what every command needs. The rest is left to attachment, so that a container can be removed though what
// was asked for it makes no sense.
func parse(args *skel.CmdArgs) (config, error) {
	var conf config
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return conf, unreadable("the network configuration", err)
	}
	if conf.StateDir == "" {
		conf.StateDir = "/run/headgate-cni"
	}
	if conf.Table == "" {
		conf.Table = "headgate-cni"
	}
	if !filepath.IsAbs(conf.StateDir) {
		return conf, invalid("stateDir %q is no absolute path", conf.StateDir)
	}
	return conf, nil
}

func unreadable(what string, err error) error {
	return types.NewError(types.ErrDecodingFailure, what+" cannot be read", err.Error())
}

// invalid returns the error for a configuration that makes no sense.
func invalid(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(format, args...), "")
}

// coded gives an error the number that tells a runtime what to do about it.
func coded(err error) error {
	var already *types.Error
	var file *fs.PathError
	code := types.ErrInternal
	switch {
	case err == nil, errors.As(err, &already):
		return err
	case errors.Is(err, model.ErrBusy):
		code = types.ErrTryAgainLater
	case errors.Is(err, model.ErrPermission), errors.Is(err, model.ErrNotSupported):
		code = types.ErrPluginNotAvailable
	case errors.Is(err, model.ErrInvalid):
		code = types.ErrInvalidNetworkConfig
	case errors.Is(err, model.ErrConflict):
		code = errTaken
	case errors.As(err, &file):
		code = types.ErrIOFailure
	}
	return types.NewError(code, err.Error(), "")
}

// errTaken is this plugin's own code for: another container has the port.
const errTaken = 100

func (conf *config) key(args *skel.CmdArgs) key {
	return key{Network: conf.Name, Container: args.ContainerID, Interface: args.IfName}
}

// attachment returns what the configuration asks for one interface, and reads prevResult.
func (conf *config) attachment(args *skel.CmdArgs) (attachment, error) {
	a := attachment{key: conf.key(args)}
	if conf.RawPrevResult == nil {
		return a, invalid("there is no prevResult: this plugin stands behind one that makes the interface")
	}
	if err := version.ParsePrevResult(&conf.PluginConf); err != nil {
		return a, unreadable("prevResult", err)
	}
	var r request
	if err := json.Unmarshal(args.StdinData, &r); err != nil {
		return a, unreadable("the network configuration", err)
	}
	if err := a.join(r, args.Args); err != nil {
		return a, err
	}
	if len(a.Services)+len(r.RuntimeConfig.PortMappings) == 0 {
		return a, nil
	}
	var err error
	if a.Addrs, err = addresses(conf.PrevResult, args.IfName); err != nil {
		return a, err
	}
	for _, m := range r.RuntimeConfig.PortMappings {
		if err := a.publish(m, r.MasqAll); err != nil {
			return a, err
		}
	}
	return a, nil
}

// join adds the services that a container joins.
func (a *attachment) join(r request, cniArgs string) error {
	own := r.Args.CNI.Services
	for pair := range strings.SplitSeq(cniArgs, ";") {
		if list, ok := strings.CutPrefix(pair, "HEADGATE_SERVICES="); ok && len(own) == 0 {
			own = strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
		}
	}
	for _, name := range slices.Concat(r.Join, own) {
		s, ok := r.Services[name]
		switch {
		case !ok:
			return invalid("there is no service %q in network %s", name, a.Network)
		case name == "" || strings.ContainsAny(name, "/:"):
			return invalid("%q is no name for a service", name)
		case s.Port == 0 || len(s.Frontends) == 0:
			return invalid("service %q needs a port and frontends", name)
		}
		if a.Services == nil {
			a.Services = map[string]service{}
		}
		a.Services[name] = s
	}
	return nil
}

// addresses returns the first address of each family that the result gives an interface of the container.
func addresses(r types.Result, ifname string) ([]netip.Addr, error) {
	result, err := current.NewResultFromResult(r)
	if err != nil {
		return nil, unreadable("prevResult", err)
	}
	var all []netip.Addr
	for _, ip := range result.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(result.Interfaces) {
			if on := result.Interfaces[*i]; on.Name != ifname || on.Sandbox == "" {
				continue
			}
		}
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		addr = addr.Unmap()
		known := func(a netip.Addr) bool { return a.Is4() == addr.Is4() }
		if addr.IsValid() && !slices.ContainsFunc(all, known) {
			all = append(all, addr)
		}
	}
	if len(all) == 0 {
		return nil, invalid("prevResult has no address for %s", ifname)
	}
	return all, nil
}

// publish adds a port to the attachment.
func (a *attachment) publish(m portMapping, masquerade bool) error {
	if m.HostPort == 0 || m.ContainerPort == 0 {
		return invalid("port mapping %d to %d: both ports must be given", m.HostPort, m.ContainerPort)
	}
	p := port{Container: m.ContainerPort, Masquerade: masquerade}
	if err := p.Protocol.UnmarshalText([]byte(m.Protocol)); err != nil {
		return invalid("port mapping %d to %d: %v", m.HostPort, m.ContainerPort, err)
	}
	var only netip.Addr
	if m.HostIP != "" {
		var err error
		if only, err = netip.ParseAddr(m.HostIP); err != nil || only.IsLoopback() {
			return types.NewError(types.ErrUnsupportedField, fmt.Sprintf("hostIP: %s: not an address that ports can be published at", m.HostIP), "")
		}
	}
	published := false
	for _, addr := range a.Addrs {
		host := model.FamilyOf(addr).Unspecified()
		if only.IsValid() {
			if only.Is4() != addr.Is4() {
				continue
			}
			host = only
		}
		p.Host = netip.AddrPortFrom(host, m.HostPort)
		a.Ports = append(a.Ports, p)
		published = true
	}
	if !published {
		return invalid("port mapping %d to %d: the container has no address of the family of %s", m.HostPort, m.ContainerPort, only)
	}
	return nil
}
