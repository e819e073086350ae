// Package passed counts how many rules of iptables the first packet of a connection passes on its way, with real packets
// and by the kernel's own counters.
package passed

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

// A Way is one packet's.
type Way struct {
	Name  string // from where to where
	Rules int    // in all tables together, masquerading included
}

// Measure builds a node with a pod and somebody outside, has a crowd of n programmed in IPv4, and sends to the last of
// each kind: from outside, and from the very pod that serves, which reaches itself. Save names the iptables-save that
// lists the rules. Each connection must be answered and masqueraded, or the error says which was not.
func Measure(ctx context.Context, n int, save string, program func(ctx context.Context, node *lab.NetNS, s model.State) error) ([]Way, error) {
	c := NewCrowd(model.IPv4, n)
	outside := netip.MustParseAddr("203.0.113.5")
	topo, err := lab.Build(lab.Spec{
		Node: c.State.Node.Addrs,
		Hosts: []lab.Host{
			{Name: "pod", Addrs: []netip.Addr{c.Server.Addr()}},
			{Name: "outside", Place: lab.Far, Addrs: []netip.Addr{outside}},
		},
	})
	if err != nil {
		return nil, err
	}
	defer topo.Close()
	if _, err := topo.Serve(lab.TCP, c.Server); err != nil {
		return nil, err
	}
	if err := program(ctx, topo.Node, c.State); err != nil {
		return nil, err
	}
	before, err := Count(ctx, topo.Node, save)
	if err != nil {
		return nil, err
	}
	var ways []Way
	for _, to := range []struct {
		what string
		at   netip.AddrPort
	}{{"the last address", c.Addr}, {"the last node port", c.NodePort}, {"the last port of one address", c.Port}} {
		for _, from := range []netip.Addr{outside, c.Server.Addr()} {
			w := Way{Name: fmt.Sprintf("from %s to %s", from, to.what)}
			a, err := topo.Ask(ctx, lab.Query{Proto: lab.TCP, Source: netip.AddrPortFrom(from, 0), To: to.at})
			switch {
			case err != nil:
				return nil, fmt.Errorf("%s: %w", w.Name, err)
			case a.Verdict != lab.Answered || !a.Masqueraded():
				return nil, fmt.Errorf("%s: not answered or not masqueraded: %s", w.Name, a)
			}
			after, err := Count(ctx, topo.Node, save)
			if err != nil {
				return nil, err
			}
			w.Rules = after.passedSince(before, "nat", "PREROUTING") + after.passedSince(before, "nat", "POSTROUTING") +
				after.passedSince(before, "filter", "FORWARD")
			ways = append(ways, w)
			before = after
		}
	}
	return ways, nil
}
