package nftables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// features is what this backend can do. It has no differences: its answers are the ones that the others are held to.
var features = model.FeatureSet{
	Backend:  "nftables",
	Balances: []model.Balance{model.Random, model.RoundRobin, model.SourceHash, model.Maglev},
	HashPort: true,
}

// A feature is one thing that the rules need of the kernel.
type feature struct {
	name   string // as the kernel's module or documentation calls it
	remedy string
	write  func(b *batch, fam model.Family)
}

// needed lists what the kernel must be able to do, what others build on first.
func (p *Programmer) needed() []feature {
	in := func(kind string, hook uint32, rules ...func(ruleset) rule) func(*batch, model.Family) {
		return func(b *batch, fam model.Family) {
			c := chainSpec{name: "probe", hook: &hookSpec{kind, hook, 0}}
			b.write(sectionChains, func(w *wire) { w.writeChain(b.table, fam, c) })
			for _, r := range rules {
				b.write(sectionRules, func(w *wire) { w.writeRule(b.table, fam, c.name, r(ruleset{cfg: p.cfg, family: fam})) })
			}
		}
	}
	set := func(spec setSpec) func(*batch, model.Family) {
		return func(b *batch, fam model.Family) { b.makeSet(fam, spec) }
	}
	pre := uint32(unix.NF_INET_PRE_ROUTING)
	return []feature{
		{"nf_tables", "load the module nf_tables", func(*batch, model.Family) {}},
		{"chains of type nat (nft_chain_nat)", "load the module nft_chain_nat", in("nat", pre)},
		{"sets of concatenated ranges (Linux 5.6)", "run Linux 5.6 or later", set(staticSet(allowed))},
		{"maps filled by rules, with timeouts", "", set(affinityMapSpec("probe", time.Hour, 2))},
		{"expression numgen (nft_numgen)", "load the module nft_numgen", in("nat", pre, func(ruleset) rule { return rule{numgen(unix.NFT_NG_RANDOM, 2, 0, reg0)} })},
		{"expression hash (nft_hash)", "load the module nft_hash", in("nat", pre, func(ruleset) rule {
			return rule{meta(unix.NFT_META_L4PROTO, reg0), jhash(reg0, 4, 2, 1, 0, reg0)}
		})},
		{"expression fib (nft_fib)", "load the modules nft_fib_ipv4 and nft_fib_ipv6", in("nat", pre, func(ruleset) rule { return localAddr(fibDaddr, true) })},
		{"expression ct with labels (nft_ct, CONFIG_NF_CONNTRACK_LABELS)", "load the module nft_ct", in("nat", pre, func(r ruleset) rule { return r.balanced() })},
		{"expression nat (nft_nat)", "load the module nft_nat", in("nat", pre, func(r ruleset) rule {
			return rule{immediate(reg0, make([]byte, 16)), immediate(reg0+4, port16(1)), dnat(nfproto(r.family), reg0, reg0+4)}
		})},
		{"expression masq (nft_masq)", "load the module nft_masq", in("nat", unix.NF_INET_POST_ROUTING, func(ruleset) rule { return rule{masquerade()} })},
		{"expression reject in prerouting (nft_reject, Linux 5.9)", "run Linux 5.9 or later and load nft_reject_ipv4 and nft_reject_ipv6",
			in("nat", pre, func(r ruleset) rule { return r.refuse().rules[0] }, func(r ruleset) rule { return r.refuse().rules[1] })},
	}
}

// Probe says what the kernel lacks, and what stands in the way of traffic. It asks by transactions that end without
// being committed, so it writes nothing; the kernel may load modules of its own for them.
func (p *Programmer) Probe(ctx context.Context) (model.Report, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return model.Report{}, model.ErrClosed
	}
	report := model.Report{Backend: features.Backend}
	for _, f := range p.needed() {
		err := p.try(ctx, f)
		if errors.Is(err, model.ErrPermission) {
			report.Missing = append(report.Missing, model.Finding{What: "CAP_NET_ADMIN", Err: err,
				Remedy: "give the process CAP_NET_ADMIN in the user namespace that owns the network namespace"})
			return report, nil
		}
		var no *refusal
		switch {
		case errors.As(err, &no):
			err = fmt.Errorf("%w: %w", model.ErrNotSupported, err)
			report.Missing = append(report.Missing, model.Finding{What: f.name, Err: err, Remedy: f.remedy})
			if f.name == "nf_tables" {
				return report, nil
			}
		case err != nil:
			return report, err
		}
	}
	warnings, err := p.obstacles(ctx)
	report.Warnings = warnings
	return report, err
}

// try asks whether the kernel would take a feature, in both families.
func (p *Programmer) try(ctx context.Context, f feature) error {
	b := newBatch("headgate-probe")
	b.dry = true
	for _, fam := range model.Families {
		b.write(sectionTables, func(w *wire) { w.writeTable(b.table, fam) })
		f.write(b, fam)
	}
	buf, last := b.bytes(0)
	return p.exchange(ctx, func(s *socket) error {
		_, err := s.commit(buf, messageSeq(buf), last)
		return err
	})
}
