package ipvs

import (
	"errors"
	"fmt"

	"github.com/headgate/headgate/internal/netns"
	"github.com/headgate/headgate/internal/nlink"
	"github.com/headgate/headgate/model"
)

// Sysctls, all of one network namespace; see the kernel's Documentation/networking/ipvs-sysctl.rst and ip-sysctl.rst.
const (
	// sysctlConntrack makes conntrack track connections of IPVS, without which they cannot be masqueraded.
	sysctlConntrack = "net.ipv4.vs.conntrack"
	// sysctlNodest ends what is left of connections to a real server that is gone, instead of swallowing their packets.
	sysctlNodest = "net.ipv4.vs.expire_nodest_conn"
	// sysctlQuiescent ends the affinity of clients with a real server of weight 0.
	sysctlQuiescent = "net.ipv4.vs.expire_quiescent_template"
	// sysctlReuse, if 0, sends a new connection from a port that was used before to the server that had the old one.
	sysctlReuse = "net.ipv4.vs.conn_reuse_mode"
	// sysctlNotify, if 1, drops what real servers send that does not belong to a connection of IPVS.
	sysctlNotify = "net.ipv4.vs.nat_icmp_send"

	sysctlForward4      = "net.ipv4.ip_forward"
	sysctlForward6      = "net.ipv6.conf.all.forwarding"
	sysctlRouteLocalnet = "net.ipv4.conf.all.route_localnet"
	sysctlARPIgnore     = "net.ipv4.conf.all.arp_ignore"
	sysctlARPAnnounce   = "net.ipv4.conf.all.arp_announce"
)

// A setting is what a sysctl should be, and what happens otherwise.
type setting struct {
	name, value string
	otherwise   string
	// ours says that SetSysctls sets it.
	ours bool
}

// settings lists what should be set where a node is programmed. The first is needed.
func (p *Programmer) settings(node *model.Node) []setting {
	all := []setting{
		{sysctlConntrack, "1", "connections of IPVS can be neither masqueraded nor told apart", true},
		{sysctlNodest, "1", "packets of connections to endpoints that are gone are swallowed until they time out", true},
		{sysctlQuiescent, "1", "services with affinity are refused: clients would stay with endpoints that are gone", true},
		{sysctlForward4, "1", "replies of IPv4 endpoints do not come back through this node", false},
		{sysctlForward6, "1", "replies of IPv6 endpoints do not come back through this node", false},
	}
	if node.NodePorts.Loopback {
		all = append(all, setting{sysctlRouteLocalnet, "1", "node ports do not answer on loopback", true})
	}
	if p.cfg.StrictARP {
		all = append(all,
			setting{sysctlARPIgnore, "1", "this node answers ARP requests for virtual addresses", true},
			setting{sysctlARPAnnounce, "2", "this node announces virtual addresses in ARP requests", true})
	}
	return all
}

// sysctls sets what is to be set whatever the node, if it may, and looks at what matters for services.
func (p *Programmer) sysctls() error {
	if p.pretended {
		p.quiescent = true
		return nil
	}
	if err := p.setSysctls(&model.Node{}); err != nil {
		return err
	}
	on, quiescent, err := p.needed()
	if err == nil && on != "1" {
		err = fmt.Errorf("%s is %q: %w", sysctlConntrack, on, model.ErrNotSupported)
	}
	p.quiescent = quiescent
	return err
}

// needed reads what services rely on: the sysctl that all of them do, and whether those with affinity may.
func (p *Programmer) needed() (conntrack string, quiescent bool, err error) {
	err = p.netns.Do(func() (err error) {
		if conntrack, err = netns.ReadSysctl(sysctlConntrack); err != nil {
			return err
		}
		value, err := netns.ReadSysctl(sysctlQuiescent)
		quiescent = value == "1"
		return err
	})
	return conntrack, quiescent, err
}

// setSysctls sets what is to be set for a node, if it may.
func (p *Programmer) setSysctls(node *model.Node) error {
	if !p.cfg.SetSysctls || p.pretended {
		return nil
	}
	return p.netns.Do(func() error {
		for _, s := range p.settings(node) {
			is, err := netns.ReadSysctl(s.name)
			if err == nil && s.ours && is != s.value {
				err = netns.WriteSysctl(s.name, s.value)
			}
			if err != nil {
				return fmt.Errorf("setting %s: %w", s.name, nlink.Meaning(err))
			}
		}
		return nil
	})
}

// sysctlsHold finds out whether somebody has turned off what services rely on, or on what was missing.
func (p *Programmer) sysctlsHold() error {
	if p.pretended {
		return nil
	}
	on, quiescent, err := p.needed()
	switch {
	case err != nil:
		return err
	case on != "1":
		return drift("%s is %q", sysctlConntrack, on)
	case quiescent != p.quiescent:
		return drift("%s was changed", sysctlQuiescent)
	}
	return nil
}

// obstacles finds sysctls that are not as they should be: missing has the one without which nothing works.
func (p *Programmer) obstacles() (missing, warnings []model.Finding, err error) {
	err = p.netns.Do(func() error {
		for _, s := range p.settings(&p.node) {
			is, err := netns.ReadSysctl(s.name)
			switch {
			case err != nil:
				return err
			case is == s.value || is == "" && s.name == sysctlForward6 || s.ours && p.cfg.SetSysctls: // there is no IPv6, or it will be set
				continue
			}
			f := model.Finding{What: s.name, Err: fmt.Errorf("is %q: %s", is, s.otherwise), Remedy: "sysctl -w " + s.name + "=" + s.value}
			if s.name == sysctlConntrack {
				f.Err = fmt.Errorf("%w: %w", model.ErrNotSupported, f.Err)
				missing = append(missing, f)
				continue
			}
			warnings = append(warnings, f)
		}
		for name, bad := range map[string][2]string{
			sysctlReuse:  {"0", "a client that uses a port again soon reaches the endpoint that it had before, even if that is gone"},
			sysctlNotify: {"1", "what the table balances instead of IPVS gets no answers: the short cut, node ports on loopback"},
		} {
			if is, err := netns.ReadSysctl(name); err != nil {
				return err
			} else if is == bad[0] {
				warnings = append(warnings, model.Finding{What: name, Err: errors.New("is " + is + ": " + bad[1]), Remedy: "sysctl -w " + name + "=" + string('0'+'1'-bad[0][0])})
			}
		}
		return nil
	})
	return missing, warnings, err
}
