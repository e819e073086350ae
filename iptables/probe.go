package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/headgate/headgate/internal/netns"
	"github.com/headgate/headgate/model"
)

// Probe says what the kernel and the programs lack, and what stands in the way of traffic. What rules need was tried when
// the Programmer was made, in a namespace of its own; nothing is written in the one that is programmed.
func (p *Programmer) Probe(ctx context.Context) (model.Report, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return model.Report{}, model.ErrClosed
	}
	report := model.Report{Backend: p.features.Backend}
	if len(p.sides) == 0 {
		report.Missing = append(report.Missing, model.Finding{What: "IPv6", Err: fmt.Errorf("the host has none: %w", model.ErrNotSupported)})
	}
	for _, s := range p.sides {
		report.Missing = append(report.Missing, s.missing...)
		report.Warnings = append(report.Warnings, s.lacking...)
	}
	report.Warnings = append(report.Warnings, p.untried()...)
	if lacks := p.variant.lacks(); len(lacks) > 0 {
		for _, what := range lacks {
			report.Missing = append(report.Missing, model.Finding{What: what, Err: model.ErrPermission, Remedy: "run the process with " + what})
		}
		return report, nil
	}
	for _, look := range []func(context.Context) ([]model.Finding, error){p.badSysctls, p.forwardChains, p.otherVariant, p.smallThings} {
		found, err := look(ctx)
		if err != nil {
			return report, fmt.Errorf("iptables: %w", err)
		}
		report.Warnings = append(report.Warnings, found...)
	}
	return report, nil
}

// untried says why nothing is known of what the kernel can, once where it is for the same reason in both families.
func (p *Programmer) untried() (found []model.Finding) {
	for _, s := range p.sides {
		if s.untried == nil {
			continue
		}
		f := model.Finding{What: "trial of the rules", Err: fmt.Errorf("could not try what the kernel can: %w", s.untried)}
		if errors.Is(s.untried, os.ErrPermission) {
			f.What, f.Remedy = "CAP_SYS_ADMIN", "run the process with CAP_SYS_ADMIN, or heed what Sync says"
		}
		same := func(o model.Finding) bool { return o.What == f.What && o.Err.Error() == f.Err.Error() }
		if !slices.ContainsFunc(found, same) {
			found = append(found, f)
		}
	}
	return found
}

// badSysctls finds sysctls with which packets do not get where the rules send them.
func (p *Programmer) badSysctls(context.Context) (found []model.Finding, err error) {
	need := []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"}
	if p.resolver.Node().NodePorts.Loopback {
		need = append(need, routeLocalnet)
	}
	err = p.ns.Do(func() error {
		found, err = netns.Zeros(need...)
		return err
	})
	return found, err
}

// forwardChains finds what keeps balanced connections from being forwarded. Our rule in the FORWARD chain overrules the
// chain's policy, but neither a rule before it nor the other variant.
func (p *Programmer) forwardChains(ctx context.Context) (found []model.Finding, err error) {
	f := &finder{cfg: p.cfg, ns: p.ns}
	for _, s := range p.sides {
		for _, v := range []Variant{p.variant, p.variant.other()} {
			t, err := f.tools(ctx, s.family, v)
			if err != nil {
				continue // the host does not have it
			}
			if there, err := t.tablesThere(); err != nil || !slices.Contains(there, filter) {
				continue
			}
			l, err := t.list(ctx, filter)
			if err != nil {
				return found, err
			}
			if why := l.forwardStops(p.names, v == p.variant); why != "" {
				found = append(found, model.Finding{What: t.iptables + " FORWARD", Err: errors.New(why),
					Remedy: fmt.Sprintf("%s -I FORWARD %s -j ACCEPT", t.iptables, s.now.orNew(s, p).balanced())})
			}
		}
	}
	return found, nil
}

// orNew returns the env of what is programmed or, before the first Sync, of what would be.
func (n programmed) orNew(s *side, p *Programmer) *env {
	if n.env != nil {
		return n.env
	}
	return newEnv(s.family, p.names, p.cfg.settings(), s.ability.features, model.Node{}, false)
}

// forwardStops says how the FORWARD chain stops everything that nobody accepted before it comes to our rule, which is
// the last one at the time when it is written; empty if it does not. accepts says that there is or will be one.
func (l *listing) forwardStops(n names, accepts bool) string {
	for _, r := range l.chains["FORWARD"] {
		if accepts && target(r) == n.fixed(chainForward) {
			return ""
		}
		if unconditional(r) && (target(r) == "DROP" || target(r) == "REJECT") {
			return "a rule stops whatever comes to it: " + r
		}
	}
	if p := l.policies["FORWARD"]; !accepts && p == "DROP" {
		return "its policy is DROP"
	}
	return ""
}

// unconditional reports whether a rule matches every packet.
func unconditional(r string) bool {
	w := splitWords(r)
	if len(w) > 4 && w[0] == "-m" && w[1] == "comment" && w[2] == "--comment" {
		w = w[4:]
	}
	return len(w) > 1 && w[0] == "-j"
}

// otherVariant warns of rules in the variant that is not used.
func (p *Programmer) otherVariant(ctx context.Context) ([]model.Finding, error) {
	h, err := (&finder{cfg: p.cfg, ns: p.ns}).look(ctx, p.variant.other())
	if err != nil || !h.any() {
		return nil, err
	}
	return []model.Finding{{What: "iptables-" + p.variant.other().String(), Err: fmt.Errorf("holds rules too, beside iptables-%s: neither lists those of the other", p.variant)}}, nil
}

// smallThings finds what is inconvenient.
func (p *Programmer) smallThings(context.Context) (found []model.Finding, err error) {
	if limit := recentLimit(); limit > 0 && limit < p.cfg.RecentSize {
		found = append(found, model.Finding{What: "xt_recent", Err: fmt.Errorf("affinity remembers %d clients for each endpoint, not %d", limit, p.cfg.RecentSize),
			Remedy: fmt.Sprintf("options xt_recent ip_list_tot=%d in /etc/modprobe.d, and load the module anew", p.cfg.RecentSize)})
	}
	const labels = "/etc/xtables/connlabel.conf"
	if _, err := os.Stat(labels); errors.Is(err, os.ErrNotExist) && p.usesLabels() {
		found = append(found, model.Finding{What: labels, Err: errors.New("is not there, of which iptables warns whenever it lists our rules"), Remedy: "mkdir -p /etc/xtables && touch " + labels})
	}
	return found, nil
}

func (p *Programmer) usesLabels() bool {
	return slices.ContainsFunc(p.sides, func(s *side) bool { return s.label })
}
