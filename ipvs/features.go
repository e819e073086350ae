package ipvs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/nft"
	"github.com/headgate/headgate/model"
)

// affinityFloor is the shortest affinity that is accepted. What it really lasts is in the differences.
const affinityFloor = time.Minute

// featuresOf says what this backend can do as it is configured.
func featuresOf(cfg Config) model.FeatureSet {
	f := model.FeatureSet{
		Backend:       "ipvs",
		Balances:      []model.Balance{model.Random, model.RoundRobin, model.LeastConn, model.SourceHash, model.Maglev},
		HashPort:      true,
		AffinityFloor: affinityFloor,
		Differences: []model.Difference{
			{ID: "not-atomic", Text: "A change of several virtual services is seen one after the other, in an order in which none is ever balanced without" +
				" its source ranges and its masquerading; while one comes or goes, new connections to it are refused or dropped."},
			{ID: "random-takes-turns", Text: "Random takes turns, by weight, since IPVS has no scheduler that picks by chance."},
			{ID: "hash-order", Text: "With SourceHash and Maglev, nodes agree on the endpoint of a client only if they learned of the endpoints in the same" +
				" order: the kernel hashes over real servers in the order in which they were added."},
			{ID: "external-other-ports", Text: "Other ports and protocols of an external frontend's address, and ICMP echo requests, are refused instead of" +
				" left alone, since the address is made local to the node; unless it is an address of the node anyway."},
			{ID: "node-port-addresses", Text: "Node ports answer at the addresses in Node.Addrs, not at those that the kernel has: an address that comes" +
				" serves them from the next Apply of a Node that has it."},
			{ID: "affinity-per-frontend", Text: "Affinity is counted for each frontend by itself, node ports for each address, and on the short cut of policy" +
				" Local for the whole service; not per service throughout."},
			{ID: "affinity-timeout", Text: "Affinity lasts at least as long as the client's last connection is remembered by IPVS, which is two minutes after" +
				" the end of a TCP connection and five after the last packet of UDP, and after that is looked at once a minute."},
			{ID: "affinity-entries-stay", Text: "Affinity that is switched off and on again, or whose timeout changes, goes on with the endpoint that a client" +
				" had, if that still serves: IPVS cannot forget it before its time."},
		},
	}
	if cfg.NoShortCut {
		f.Differences = append(f.Differences, model.Difference{ID: "local-short-cut", Text: "Internal and node sources of external frontends with" +
			" policy Local are served by the endpoints on this node alone, as Config.NoShortCut asks."})
	}
	return f
}

// Probe says what the kernel and the host lack, and what stands in the way of traffic. It writes nothing; the kernel may
// load modules of its own for what it is asked.
func (p *Programmer) Probe(ctx context.Context) (model.Report, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return model.Report{}, model.ErrClosed
	}
	report := model.Report{Backend: p.features.Backend}
	_, err := p.kernel.services(ctx)
	switch {
	case errors.Is(err, errNoModule):
		report.Missing = append(report.Missing, model.Finding{What: "ip_vs", Err: err, Remedy: "modprobe ip_vs; and ip_vs_rr, ip_vs_wrr, … for the ways of balancing that are used"})
		return report, nil
	case errors.Is(err, model.ErrPermission):
		report.Missing = append(report.Missing, model.Finding{What: "CAP_NET_ADMIN", Err: err, Remedy: "give the process CAP_NET_ADMIN"})
		return report, nil
	case err != nil:
		return report, err
	}
	report.Missing, err = p.table.Probe(ctx, func(fam model.Family) *nft.Rules { return &p.cfg.rules(model.Node{}, fam).(*ruleset).Rules })
	if err != nil {
		return report, err
	}
	missing, warnings, err := p.obstacles()
	report.Missing, report.Warnings = append(report.Missing, missing...), warnings
	if err != nil {
		return report, err
	}
	if err := p.loopbackUp(&report); err != nil {
		return report, err
	}
	return report, p.droppers(ctx, &report)
}

// loopbackUp finds out whether lo is up, without which no address can be made local.
func (p *Programmer) loopbackUp(report *model.Report) error {
	return p.netns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		req, err := unix.NewIfreq("lo")
		if err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
			return fmt.Errorf("flags of lo: %w", err)
		}
		if req.Uint16()&unix.IFF_UP == 0 {
			report.Warnings = append(report.Warnings, model.Finding{What: "lo", Err: errors.New("is down: no address can be made local"), Remedy: "ip link set lo up"})
		}
		return nil
	})
}

// droppers finds filter chains of others that drop what IPVS balances: requests pass INPUT, replies FORWARD.
func (p *Programmer) droppers(ctx context.Context, report *model.Report) error {
	found, err := p.table.Droppers(ctx, unix.NF_INET_LOCAL_IN, unix.NF_INET_FORWARD)
	for _, d := range found {
		what, remedy := "drops requests to services that are not accepted in it", fmt.Sprintf("ct label %d accept", p.cfg.BalancedLabel)
		if d.Hook == unix.NF_INET_FORWARD {
			what, remedy = "drops replies of endpoints, and what is forwarded on the short cut, unless accepted in it", "ct state established accept"
		}
		report.Warnings = append(report.Warnings, model.Finding{
			What:   fmt.Sprintf("chain %s %s %s", d.Family, d.Table, d.Chain),
			Err:    errors.New(what),
			Remedy: fmt.Sprintf("nft insert rule %s %s %s %s", d.Family, d.Table, d.Chain, remedy),
		})
	}
	return err
}
