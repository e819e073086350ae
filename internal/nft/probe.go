package nft

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// A feature is one thing that the rules need of the kernel.
type feature struct {
	name   string // as the kernel's module or documentation calls it
	remedy string
	write  func(b *batch, fam model.Family)
}

// needed lists what the kernel must be able to do, what others build on first.
func needed(rules func(model.Family) *Rules) []feature {
	in := func(kind string, hook uint32, rs ...func(*Rules) Rule) func(*batch, model.Family) {
		return func(b *batch, fam model.Family) {
			c := Chain{Name: "probe", Hook: &Hook{kind, hook, 0}}
			b.write(sectionChains, func(w *Wire) { w.writeChain(b.table, fam, c) })
			for _, r := range rs {
				b.write(sectionRules, func(w *Wire) { w.writeRule(b.table, fam, c.Name, r(rules(fam))) })
			}
		}
	}
	set := func(spec Set) func(*batch, model.Family) {
		return func(b *batch, fam model.Family) { b.makeSet(fam, spec) }
	}
	pre := uint32(unix.NF_INET_PRE_ROUTING)
	return []feature{
		{"nf_tables", "load the module nf_tables", func(*batch, model.Family) {}},
		{"chains of type nat (nft_chain_nat)", "load the module nft_chain_nat", in("nat", pre)},
		{"sets of concatenated ranges (Linux 5.6)", "run Linux 5.6 or later", set(BaseSets()[Allowed])},
		{"maps filled by rules, with timeouts", "", set(clientMapSet("probe", time.Hour, 2))},
		{"expression numgen (nft_numgen)", "load the module nft_numgen", in("nat", pre, func(*Rules) Rule { return Rule{Numgen(unix.NFT_NG_RANDOM, 2, 0, Reg0)} })},
		{"expression hash (nft_hash)", "load the module nft_hash", in("nat", pre, func(*Rules) Rule {
			return Rule{Meta(unix.NFT_META_L4PROTO, Reg0), Jhash(Reg0, 4, 2, 1, 0, Reg0)}
		})},
		{"expression fib (nft_fib)", "load the modules nft_fib_ipv4 and nft_fib_ipv6", in("nat", pre, func(*Rules) Rule { return LocalAddr(FIBDaddr, true) })},
		{"expression ct with labels (nft_ct, CONFIG_NF_CONNTRACK_LABELS)", "load the module nft_ct", in("nat", pre, func(r *Rules) Rule { return r.balanced() })},
		{"expression nat (nft_nat)", "load the module nft_nat", in("nat", pre, func(r *Rules) Rule {
			return Rule{Immediate(Reg0, make([]byte, 16)), Immediate(Reg0+4, Port16(1)), DNAT(NFProto(r.Family), Reg0, Reg0+4)}
		})},
		{"expression masq (nft_masq)", "load the module nft_masq", in("nat", unix.NF_INET_POST_ROUTING, func(*Rules) Rule { return Rule{Masquerade()} })},
		{"expression reject in prerouting (nft_reject, Linux 5.9)", "run Linux 5.9 or later and load nft_reject_ipv4 and nft_reject_ipv6",
			in("nat", pre, func(r *Rules) Rule { return r.Refuse().Rules[0] }, func(r *Rules) Rule { return r.Refuse().Rules[1] })},
	}
}

// Probe says what the kernel lacks for the rules. It asks by transactions that end without being committed, so it
// writes nothing; the kernel may load modules of its own for them. Without CAP_NET_ADMIN that alone is found.
func (t *Table) Probe(ctx context.Context, rules func(model.Family) *Rules) (missing []model.Finding, err error) {
	for _, f := range needed(rules) {
		err := t.try(ctx, f)
		if errors.Is(err, model.ErrPermission) {
			return append(missing, model.Finding{What: "CAP_NET_ADMIN", Err: err,
				Remedy: "give the process CAP_NET_ADMIN in the user namespace that owns the network namespace"}), nil
		}
		var no *refusal
		switch {
		case errors.As(err, &no):
			err = fmt.Errorf("%w: %w", model.ErrNotSupported, err)
			missing = append(missing, model.Finding{What: f.name, Err: err, Remedy: f.remedy})
			if f.name == "nf_tables" {
				return missing, nil
			}
		case err != nil:
			return missing, err
		}
	}
	return missing, nil
}

// try asks whether the kernel would take a feature, in both families.
func (t *Table) try(ctx context.Context, f feature) error {
	b := newBatch("headgate-probe", t.cfg.Sets)
	b.dry = true
	for _, fam := range model.Families {
		b.write(sectionTables, func(w *Wire) { w.writeTable(b.table, fam) })
		f.write(b, fam)
	}
	return t.exchange(ctx, func(s *socket) error {
		_, err := s.commit(b.transaction(0))
		return err
	})
}

// A Dropper is a base chain of somebody else that drops what it does not accept. A chain of ours cannot override it: an
// accept ends one table's chain, a drop the packet.
type Dropper struct {
	Family, Table, Chain string // as nft names them
	Hook                 uint32 // unix.NF_INET_FORWARD, say
}

// Droppers finds the filter chains of others on some of netfilter's hooks whose policy is to drop.
func (t *Table) Droppers(ctx context.Context, hooks ...uint32) (out []Dropper, err error) {
	err = t.exchange(ctx, func(s *socket) error {
		out = nil
		return s.dump(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC, nil, func(body []byte) error {
			d := Dropper{Hook: ^uint32(0), Family: map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}[body[0]]}
			kind, policy := "", uint32(1)
			err := attributes(body, func(ad *netlink.AttributeDecoder) {
				switch ad.Type() {
				case unix.NFTA_CHAIN_TABLE:
					d.Table = ad.String()
				case unix.NFTA_CHAIN_NAME:
					d.Chain = ad.String()
				case unix.NFTA_CHAIN_TYPE:
					kind = ad.String()
				case unix.NFTA_CHAIN_POLICY:
					policy = ad.Uint32()
				case unix.NFTA_CHAIN_HOOK:
					ad.Do(func(b []byte) error {
						return nested(b, func(ad *netlink.AttributeDecoder) {
							if ad.Type() == unix.NFTA_HOOK_HOOKNUM {
								d.Hook = ad.Uint32()
							}
						})
					})
				}
			})
			for _, hook := range hooks {
				if d.Hook == hook && d.Family != "" && kind == "filter" && policy == verdictDrop && d.Table != t.cfg.Name {
					out = append(out, d)
				}
			}
			return err
		})
	})
	return out, err
}
