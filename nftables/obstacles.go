package nftables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/netns"
	"github.com/headgate/headgate/internal/nlink"
	"github.com/headgate/headgate/model"
)

const (
	sysctlForward4      = "net.ipv4.ip_forward"
	sysctlForward6      = "net.ipv6.conf.all.forwarding"
	sysctlRouteLocalnet = "net.ipv4.conf.all.route_localnet"
)

// sysctls sets what the node's configuration needs, if it may.
func (p *Programmer) sysctls() error {
	if !p.cfg.SetSysctls || !p.loopback {
		return nil
	}
	err := p.netns.Do(func() error { return netns.WriteSysctl(sysctlRouteLocalnet, "1") })
	if err != nil {
		return p.fail(fmt.Errorf("setting %s: %w", sysctlRouteLocalnet, nlink.Meaning(err)))
	}
	return nil
}

// obstacles finds what will keep traffic from flowing though the rules are right.
func (p *Programmer) obstacles(ctx context.Context) ([]model.Finding, error) {
	need := []string{sysctlForward4, sysctlForward6}
	if p.loopback {
		need = append(need, sysctlRouteLocalnet)
	}
	var out []model.Finding
	var legacy bool
	err := p.netns.Do(func() (err error) {
		if out, err = netns.Zeros(need...); err != nil {
			return err
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

// droppingForwards finds base chains of others whose policy drops what is forwarded.
func (p *Programmer) droppingForwards(ctx context.Context) (out []model.Finding, err error) {
	found, err := p.table.Droppers(ctx, unix.NF_INET_FORWARD)
	for _, d := range found {
		out = append(out, model.Finding{
			What:   fmt.Sprintf("chain %s %s %s", d.Family, d.Table, d.Chain),
			Err:    errors.New("drops what is forwarded and not accepted in it"),
			Remedy: fmt.Sprintf("nft insert rule %s %s %s ct status dnat accept", d.Family, d.Table, d.Chain),
		})
	}
	return out, err
}
