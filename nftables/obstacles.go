package nftables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

const (
	sysctlForward4      = "net.ipv4.ip_forward"
	sysctlForward6      = "net.ipv6.conf.all.forwarding"
	sysctlRouteLocalnet = "net.ipv4.conf.all.route_localnet"
)

func sysctlPath(name string) string { return "/proc/sys/" + strings.ReplaceAll(name, ".", "/") }

// sysctls sets what the node's configuration needs, if it may.
func (p *Programmer) sysctls() error {
	if !p.cfg.SetSysctls || p.record == nil || !p.record.node.NodePorts.Loopback {
		return nil
	}
	err := p.inNetNS(func() error { return os.WriteFile(sysctlPath(sysctlRouteLocalnet), []byte("1"), 0) })
	if err != nil {
		return p.fail(fmt.Errorf("setting %s: %w", sysctlRouteLocalnet, meaning(err)))
	}
	return nil
}

// obstacles finds what will keep traffic from flowing though the rules are right.
func (p *Programmer) obstacles(ctx context.Context) ([]model.Finding, error) {
	need := []string{sysctlForward4, sysctlForward6}
	if p.record != nil && p.record.node.NodePorts.Loopback {
		need = append(need, sysctlRouteLocalnet)
	}
	var out []model.Finding
	var legacy bool
	err := p.inNetNS(func() error {
		for _, name := range need {
			value, err := os.ReadFile(sysctlPath(name))
			if errors.Is(err, os.ErrNotExist) {
				continue // no IPv6
			}
			if err != nil {
				return err
			}
			if strings.TrimSpace(string(value)) == "0" {
				out = append(out, model.Finding{What: name, Err: errors.New("is 0"), Remedy: "sysctl -w " + name + "=1"})
			}
		}
		for _, file := range [...]string{"/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"} {
			names, _ := os.ReadFile(file) // absent where the module is
			legacy = legacy || strings.Contains(string(names), "filter")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if legacy {
		out = append(out, model.Finding{What: "iptables-legacy", Err: errors.New("has a filter table, whose FORWARD policy may drop balanced connections"),
			Remedy: "iptables-legacy -I FORWARD -m conntrack --ctstate DNAT -j ACCEPT"})
	}
	drops, err := p.droppingForwards(ctx)
	return append(out, drops...), err
}

// droppingForwards finds base chains of others whose policy drops what is forwarded. A chain of ours cannot override
// them: an accept ends one table's chain, a drop the packet.
func (p *Programmer) droppingForwards(ctx context.Context) (out []model.Finding, err error) {
	err = p.exchange(ctx, func(s *socket) error {
		out = nil
		return s.dump(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC, nil, func(body []byte) error {
			var table, name, kind string
			hook, policy := ^uint32(0), uint32(1)
			err := attributes(body, func(ad *netlink.AttributeDecoder) {
				switch ad.Type() {
				case unix.NFTA_CHAIN_TABLE:
					table = ad.String()
				case unix.NFTA_CHAIN_NAME:
					name = ad.String()
				case unix.NFTA_CHAIN_TYPE:
					kind = ad.String()
				case unix.NFTA_CHAIN_POLICY:
					policy = ad.Uint32()
				case unix.NFTA_CHAIN_HOOK:
					ad.Do(func(b []byte) error {
						return nested(b, func(ad *netlink.AttributeDecoder) {
							if ad.Type() == unix.NFTA_HOOK_HOOKNUM {
								hook = ad.Uint32()
							}
						})
					})
				}
			})
			family, inet := map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}[body[0]]
			if inet && kind == "filter" && hook == unix.NF_INET_FORWARD && policy == verdictDrop && table != p.cfg.Table {
				out = append(out, model.Finding{
					What:   fmt.Sprintf("chain %s %s %s", family, table, name),
					Err:    errors.New("drops what is forwarded and not accepted in it"),
					Remedy: fmt.Sprintf("nft insert rule %s %s %s ct status dnat accept", family, table, name),
				})
			}
			return err
		})
	})
	return out, err
}
