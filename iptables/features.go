package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/internal/netns"
	"github.com/headgate/headgate/model"
)

// featureSet is what the backend can do with what the kernel can.
func featureSet(f features, cfg Config) model.FeatureSet {
	fs := model.FeatureSet{
		Backend:  "iptables",
		Balances: []model.Balance{model.Random, model.RoundRobin},
		Differences: []model.Difference{
			{ID: "affinity-limit", Text: "for each endpoint, affinity remembers as many clients as xt_recent was loaded for (ip_list_tot, 100 by default); one more, and the one who came longest ago is forgotten"},
			{ID: "affinity-cost", Text: "the kernel searches a list of all endpoints with affinity, one by one, for each of their rules that is written: thousands of them make changes slow, in the legacy variant all changes"},
			{ID: "affinity-ceiling", Text: "with an affinity of more than 49 days a client is not forgotten for its age"},
			{ID: "round-robin-restarts", Text: "turns begin anew when the service changes; in the legacy variant, when anything in the nat table changes"},
		},
	}
	if f.program {
		fs.Balances = append(fs.Balances, model.SourceHash, model.Maglev)
		fs.HashPort = true
	}
	if !f.label {
		fs.Differences = append(fs.Differences, model.Difference{ID: "foreign-dnat", Text: "without xt_connlabel, connections whose destination others translated count as ours where an endpoint reaches itself, and in the forward chain; and an endpoint with the address and port of its own frontend cannot be reached if that has source ranges"})
	}
	if !cfg.RejectOtherPorts {
		fs.Differences = append(fs.Differences, model.Difference{ID: "other-ports", Text: "other ports and protocols of an internal frontend's address are left alone outside Node.ServiceRanges, unless Config.RejectOtherPorts is set"})
	}
	return fs
}

// A trial is something that the rules need of the kernel and the tools.
type trial struct {
	name   string // as the kernel's module is called
	remedy string
	table  table
	rules  func(*env) []string
}

// trials are what there is no backend without. Each is what is written for real.
var trials = []trial{
	{"ip_tables or nf_tables, table nat", "load the module iptable_nat or nft_compat", nat, func(*env) []string { return []string{targetReturn} }},
	{"ip_tables or nf_tables, table filter", "load the module iptable_filter or nft_compat", filter, func(*env) []string { return []string{targetReturn} }},
	{"xt_conntrack", "load the module xt_conntrack", filter, func(e *env) []string {
		return []string{words(stateTranslated, targetReturn), words(stateNew, targetReturn)}
	}},
	{"xt_comment", "load the module xt_comment", nat, func(*env) []string { return []string{words(comment("a b"), targetReturn)} }},
	{"xt_tcpudp", "load the module xt_tcpudp", nat, func(*env) []string {
		return []string{words(matchPorts(model.TCP, 80, 81), targetReturn), words(matchPorts(model.UDP, 0, 3), targetReturn)}
	}},
	{"xt_addrtype", "load the module xt_addrtype", nat, func(*env) []string { return []string{words(toNode, targetReturn), words(notFromNode, targetReturn)} }},
	{"xt_mark", "load the module xt_mark", nat, func(e *env) []string {
		return []string{words(e.settings.mark.match(), targetReturn), e.settings.mark.set(), e.settings.mark.clear()}
	}},
	{"xt_statistic", "load the module xt_statistic", nat, func(*env) []string {
		return []string{words(matchChance(1, 3), targetReturn), words(matchTurn(3), targetReturn)}
	}},
	{"xt_nat", "load the module xt_nat", nat, func(e *env) []string {
		return []string{words(matchProto(model.TCP), targetEndpoint(netip.AddrPortFrom(e.someAddr(), 80)))}
	}},
	{"xt_MASQUERADE", "load the module xt_MASQUERADE", nat, func(*env) []string { return []string{targetMasquerade} }},
	{"ipt_REJECT", "load the modules ipt_REJECT and ip6t_REJECT", filter, func(e *env) []string {
		return []string{words(matchProto(model.TCP), targetReset), targetRefuse(e.family)}
	}},
}

// Without these, the backend does without: some services are refused, or done in another way.
var (
	sctpTrial   = trial{"xt_sctp", "load the module xt_sctp", nat, func(*env) []string { return []string{words(matchPorts(model.SCTP, 80, 80), targetReturn)} }}
	recentTrial = trial{"xt_recent", "load the module xt_recent", nat, func(e *env) []string {
		return []string{words(matchRecent(e.family, "headgate-probe", "60"), targetReturn), words(matchRemember(e.family, "headgate-probe"), targetReturn)}
	}}
	randomTrial = trial{"xt_MASQUERADE --random-fully", "use a newer iptables", nat, func(*env) []string { return []string{targetMasqueradeFully} }}
	labelTrial  = trial{"xt_connlabel", "load the module xt_connlabel", nat, func(e *env) []string { return []string{words(e.balanced(), targetReturn), e.remember()} }}
	bpfTrial    = trial{"xt_bpf", "load the module xt_bpf", nat, func(e *env) []string { return []string{words(sourceIsDestination(e.family), targetReturn)} }}
)

func (e *env) someAddr() netip.Addr {
	if e.family == model.IPv4 {
		return netip.AddrFrom4([4]byte{192, 0, 2, 1})
	}
	return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: 1})
}

// An ability is what came of all trials in one family.
type ability struct {
	features
	sctp, recent bool
	// echoes says that iptables-save shows rules in the words in which they were given.
	echoes bool
	// missing are the trials that failed, of those that nothing works without, and lacking those of the others.
	missing, lacking []model.Finding
	// untried says why nothing is known: then everything is expected to work.
	untried error
}

// learn tries what the kernel can do, in an empty namespace of its own, so that nothing is written in the one that is to be
// programmed. Where the process may not make one (CAP_SYS_ADMIN), nothing is known.
func (t *tools) learn(ctx context.Context, cfg Config) (a ability, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	a = ability{features: features{randomFully: true, label: true, program: true}, sctp: true, recent: true}
	e := newEnv(t.family, names{cfg.Prefix}, cfg.settings(), a.features, model.Node{}, false)
	err = netns.InScratch(func() error { return t.learnHere(ctx, e, &a) })
	if err != nil && ctx.Err() == nil && !errors.Is(err, model.ErrPermission) {
		a.untried, err = err, nil
	}
	return a, err
}

// learnHere makes the trials in the namespace of the calling thread: all at once and, if that fails, one by one.
func (t *tools) learnHere(ctx context.Context, e *env, a *ability) error {
	works := append(slices.Clone(trials), sctpTrial, recentTrial, randomTrial, labelTrial, bpfTrial)
	err := t.try(ctx, e, works...)
	if errors.Is(err, model.ErrPermission) {
		return err
	}
	if err != nil {
		works = nil
		for _, tr := range trials {
			if f := t.failing(ctx, e, tr); f != nil {
				a.missing = append(a.missing, *f)
			} else {
				works = append(works, tr)
			}
		}
		for _, option := range []struct {
			trial
			there *bool
		}{{sctpTrial, &a.sctp}, {recentTrial, &a.recent}, {randomTrial, &a.randomFully}, {labelTrial, &a.label}, {bpfTrial, &a.program}} {
			if f := t.failing(ctx, e, option.trial); f != nil {
				a.lacking = append(a.lacking, *f)
				*option.there = false
			} else {
				works = append(works, option.trial)
			}
		}
		err = t.try(ctx, e, works...)
	}
	if err == nil {
		a.echoes, err = t.echo(ctx, e, works)
	}
	return err
}

// failing makes one trial, and returns what is to be said if it fails.
func (t *tools) failing(ctx context.Context, e *env, tr trial) *model.Finding {
	if err := t.try(ctx, e, tr); err != nil {
		return &model.Finding{What: tr.name, Err: fmt.Errorf("%s: %w: %w", e.family, model.ErrNotSupported, err), Remedy: tr.remedy}
	}
	return nil
}

// try writes what some trials need.
func (t *tools) try(ctx context.Context, e *env, trials ...trial) error {
	_, err := t.exec(ctx, t.restore, t.restoreArgs(), newScript(trialStages(e, trials)).text)
	return err
}

func trialStages(e *env, trials []trial) []stage {
	stages := []stage{{edits: edits{table: nat}}, {edits: edits{table: filter}}}
	for _, tr := range trials {
		c := chain{table: tr.table, name: e.names.hashed(kindTree, tr.name)}
		for _, text := range tr.rules(e) {
			c.add("", text)
		}
		stages[tr.table].create(c)
	}
	return stages
}

// echo reports whether what trials wrote is listed in the same words.
func (t *tools) echo(ctx context.Context, e *env, trials []trial) (bool, error) {
	out, err := t.exec(ctx, t.save, nil, nil)
	if err != nil {
		return false, err
	}
	have, same := parseTables(out), true
	for _, s := range trialStages(e, trials) {
		same = same && drift(e.names, s.table, s.write, nil, have[s.table], true) == ""
	}
	return same, nil
}

// recentLimit returns how many clients the kernel remembers in a list (ip_list_tot), 0 if xt_recent is not loaded.
func recentLimit() int {
	b, err := os.ReadFile("/sys/module/xt_recent/parameters/ip_list_tot")
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}
