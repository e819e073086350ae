package modeltest

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

// A reference is a Programmer of the plainest kind, which writes all of its rules anew each time with the nft tool, a
// chain for every frontend and every endpoint. It is here to try the lab and the vectors on a real kernel apart from
// the backends; it is not meant to be fast. It does not serve loopback.
type reference struct {
	ns       *lab.NetNS
	resolver *model.Resolver
	sets     [2]map[string]bool // of clients with affinity, by family
	fault    func(line string) string
}

// referenceTarget is the target of the reference. A fault changes or removes (empty) lines of its ruleset.
func referenceTarget(tb testing.TB, fault func(line string) string) Target {
	tb.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		tb.Fatalf("the nft tool is needed: %v", err)
	}
	if fault == nil {
		fault = func(line string) string { return line }
	}
	return Target{Name: "reference", New: func(tb testing.TB, w World) model.Programmer {
		r := &reference{ns: w.(*labWorld).World.NetNS(), fault: fault}
		r.resolver = model.NewResolver(r.Features())
		return r
	}}
}

func (r *reference) Features() model.FeatureSet {
	return model.FeatureSet{Backend: "reference", Balances: []model.Balance{model.Random}}
}

func (r *reference) Sync(ctx context.Context, want model.State) (model.Result, error) {
	d, err := r.resolver.ResolveState(want, nil)
	if err != nil {
		return model.Result{}, err
	}
	return r.program(ctx, d)
}

func (r *reference) Apply(ctx context.Context, diff model.Diff) (model.Result, error) {
	d, err := r.resolver.Resolve(diff, nil)
	if err != nil {
		return model.Result{}, err
	}
	return r.program(ctx, d)
}

func (r *reference) program(ctx context.Context, d *model.Delta) (model.Result, error) {
	r.resolver.Commit(d)
	var script strings.Builder
	for _, f := range model.Families {
		t := &referenceTable{family: f, node: r.resolver.Node(), services: r.resolver.Forms(), sets: map[string]string{}, done: map[string]bool{}}
		for line := range strings.Lines(t.script(r.sets[f])) {
			script.WriteString(r.fault(line))
		}
		r.sets[f] = map[string]bool{}
		for name := range t.sets {
			r.sets[f][name] = true
		}
	}
	return model.Result{Rejected: d.Rejected, Promoted: d.Promoted}, r.nft(ctx, script.String())
}

func (r *reference) nft(ctx context.Context, script string) error {
	c := r.ns.Command(ctx, "nft", "-f", "-")
	c.Stdin = strings.NewReader(script)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s\n%s", err, out, script)
	}
	return nil
}

func (r *reference) Cleanup(ctx context.Context) error {
	return r.nft(ctx, "add table ip reference\ndelete table ip reference\nadd table ip6 reference\ndelete table ip6 reference\n")
}

func (r *reference) Check(context.Context) error                 { return nil }
func (r *reference) Probe(context.Context) (model.Report, error) { return model.Report{}, nil }
func (r *reference) Close() error                                { return nil }

// A referenceTable makes up the rules of one family.
type referenceTable struct {
	family   model.Family
	node     model.Node
	services []*model.Resolved
	sets     map[string]string // affinity sets: name to timeout
	done     map[string]bool   // endpoint chains
	rules    strings.Builder
}

// script replaces what is there, but for the clients with affinity that stay wanted.
func (t *referenceTable) script(before map[string]bool) string {
	for _, s := range t.services {
		t.service(s)
	}
	t.nodePorts()
	t.checks()
	t.masquerading()

	table := t.ip() + " reference"
	var b strings.Builder
	fmt.Fprintf(&b, "add table %s\n", table)
	if len(before) == 0 {
		fmt.Fprintf(&b, "delete table %s\nadd table %s\n", table, table)
	} else {
		fmt.Fprintf(&b, "flush table %s\n", table) // what is left are the clients, and chains without rules
	}
	for name := range before {
		if _, ok := t.sets[name]; !ok {
			fmt.Fprintf(&b, "delete set %s %s\n", table, name)
		}
	}
	for name, timeout := range t.sets {
		addrType := map[model.Family]string{model.IPv4: "ipv4_addr", model.IPv6: "ipv6_addr"}[t.family]
		fmt.Fprintf(&b, "add set %s %s { type %s; flags dynamic,timeout; timeout %s; size 1000; }\n", table, name, addrType, timeout)
	}
	for _, c := range [...]string{
		"ranges-pre { type filter hook prerouting priority -110; }", "ranges-out { type filter hook output priority -110; }",
		"pre { type nat hook prerouting priority -100; }", "out { type nat hook output priority -100; }",
		"incoming { type filter hook input priority 0; }", "forwarding { type filter hook forward priority 0; }", "outgoing { type filter hook output priority 0; }",
		"post { type nat hook postrouting priority 100; }",
		"ranges", "services", "nodeports", "empty", "closed",
	} {
		fmt.Fprintf(&b, "add chain %s %s\n", table, c)
	}
	for _, rule := range [...]string{
		"ranges-pre jump ranges", "ranges-out jump ranges", "pre jump services", "out jump services", "pre jump nodeports", "out jump nodeports",
		"incoming ct state new jump empty", "forwarding ct state new jump empty", "outgoing ct state new jump empty",
		"forwarding ct state new jump closed", "outgoing ct state new jump closed",
	} {
		fmt.Fprintf(&b, "add rule %s %s\n", table, rule)
	}
	for line := range strings.Lines(t.rules.String()) {
		verb, rest, _ := strings.Cut(line, " ")
		fmt.Fprintf(&b, "add %s %s %s", verb, table, rest)
	}
	return b.String()
}

func (t *referenceTable) ip() string {
	return map[model.Family]string{model.IPv4: "ip", model.IPv6: "ip6"}[t.family]
}

func (t *referenceTable) chain(name string) { fmt.Fprintf(&t.rules, "chain %s\n", name) }
func (t *referenceTable) rule(chain, format string, args ...any) {
	fmt.Fprintf(&t.rules, "rule %s %s\n", chain, strings.ReplaceAll(fmt.Sprintf(format, args...), "IP ", t.ip()+" "))
}

// hashed makes a name short enough.
func hashed(kind string, parts ...any) string {
	h := fnv.New64a()
	fmt.Fprint(h, parts...)
	return fmt.Sprintf("%s-%x", kind, h.Sum64())
}

// to matches packets to a frontend.
func (t *referenceTable) to(s *model.Resolved, f model.Frontend) string {
	m := fmt.Sprintf("meta l4proto %s th dport %d", s.Service.Protocol, f.Addr.Port())
	if f.Kind == model.NodePort {
		return m
	}
	return fmt.Sprintf("IP daddr %s %s", f.Addr.Addr(), m)
}

// prefixSet is an anonymous set of prefixes. An empty one holds nobody.
func prefixSet[T fmt.Stringer](ps []T) string {
	var b strings.Builder
	for i, p := range ps {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(p.String())
	}
	return "{ " + b.String() + " }"
}

func (t *referenceTable) service(s *model.Resolved) {
	cluster := t.list(s, "cluster", s.Selections[t.family].Cluster)
	local := t.list(s, "local", s.Selections[t.family].Local)
	for _, f := range s.Frontends {
		if f.Family() != t.family {
			continue
		}
		t.ranges(s, f)
		policy := s.Service.Policy(f.Kind)
		verdict, _ := s.Selections[t.family].Serving(policy)
		name := hashed("fe", s.Name, f)
		t.chain(name)
		switch {
		case f.Kind == model.Internal:
			t.hide(s, name)
			if verdict == model.Balanced {
				t.rule(name, "goto %s", map[model.TrafficPolicy]string{model.Cluster: cluster, model.Local: local}[policy])
			}
		case policy == model.Cluster:
			if verdict == model.Balanced {
				t.rule(name, "meta mark set 0x4000 goto %s", cluster)
			}
		default:
			if len(s.Selections[t.family].Cluster) > 0 {
				for _, m := range t.internal("") {
					t.rule(name, "%s goto %s", m, cluster)
				}
				t.rule(name, "fib saddr type local meta mark set 0x4000 goto %s", cluster)
			}
			if verdict == model.Balanced {
				t.rule(name, "goto %s", local)
			}
		}
		if f.Kind == model.NodePort {
			continue // later: explicit frontends win
		}
		if verdict != model.Balanced {
			t.rule("empty", "%s %s", t.to(s, f), map[model.Verdict]string{model.Dropped: "drop", model.Rejected: "reject"}[verdict])
		}
		t.rule("services", "%s goto %s", t.to(s, f), name)
	}
}

// internal are the matches of internal sources, or with "!=" of the others, which is one match then.
func (t *referenceTable) internal(not string) []string {
	var ms []string
	for _, p := range t.node.Detector.Prefixes {
		if model.FamilyOf(p.Addr()) == t.family {
			ms = append(ms, fmt.Sprintf("IP saddr %s %s", not, p))
		}
	}
	for _, i := range t.node.Detector.Interfaces {
		ms = append(ms, fmt.Sprintf("iifname %s %q", not, i+"*"))
	}
	if not != "" && len(ms) > 0 {
		return []string{strings.Join(ms, " ")}
	}
	return ms
}

// hide masquerades clients of an internal frontend.
func (t *referenceTable) hide(s *model.Resolved, chain string) {
	if t.node.MasqueradeAll {
		t.rule(chain, "meta mark set 0x4000")
	}
	for _, m := range t.internal("!=") {
		t.rule(chain, "%s meta mark set 0x4000", m)
	}
	for _, f := range s.Frontends {
		if f.Kind != model.NodePort && f.Family() == t.family {
			t.rule(chain, "IP saddr %s meta mark set 0x4000", f.Addr.Addr())
		}
	}
}

// ranges drops who may not come in.
func (t *referenceTable) ranges(s *model.Resolved, f model.Frontend) {
	if !f.Restricted() {
		return
	}
	may := slices.Clone(f.SourceRanges)
	primary := slices.ContainsFunc(t.node.Primary, func(a netip.Addr) bool {
		return slices.ContainsFunc(f.SourceRanges, func(p netip.Prefix) bool { return p.Contains(a) })
	})
	for _, g := range s.Frontends {
		if primary && g.Kind == model.External && g.Family() == t.family {
			may = append(may, netip.PrefixFrom(g.Addr.Addr(), t.family.Bits()))
		}
	}
	t.rule("ranges", "%s IP saddr != %s drop", t.to(s, f), prefixSet(model.MergePrefixes(may)))
}

// list makes the chain that chooses among endpoints.
func (t *referenceTable) list(s *model.Resolved, which string, eps []model.Endpoint) string {
	name := hashed(which, s.Name)
	if len(eps) == 0 {
		return name
	}
	t.chain(name)
	var vmap []string
	for i, e := range eps {
		ep := hashed("ep", s.Name, e.Addr)
		vmap = append(vmap, fmt.Sprintf("%d : goto %s", i, ep))
		t.chain(ep)
		set := hashed("aff", s.Name, e.Addr)
		if s.Service.Affinity > 0 {
			t.rule(name, "IP saddr @%s goto %s", set, ep)
		}
		if t.done[ep] {
			continue // it is in the other list as well
		}
		t.done[ep] = true
		if s.Service.Affinity > 0 {
			t.sets[set] = fmt.Sprintf("%ds", int(s.Service.Affinity.Seconds()))
			t.rule(ep, "update @%s { IP saddr }", set)
		}
		t.rule(ep, "meta l4proto %s dnat to %s", s.Service.Protocol, e.Addr)
	}
	t.rule(name, "numgen random mod %d vmap { %s }", len(eps), strings.Join(vmap, ", "))
	return name
}

func (t *referenceTable) nodePorts() {
	here := "fib daddr type local IP daddr != " + map[model.Family]string{model.IPv4: "127.0.0.0/8", model.IPv6: "::1"}[t.family]
	prefixes, limited := t.node.NodePortPrefixes(t.family)
	if limited && len(prefixes) == 0 {
		return
	}
	if limited {
		here += " IP daddr " + prefixSet(model.MergePrefixes(prefixes))
	}
	for _, s := range t.services {
		for _, f := range s.Frontends {
			if f.Kind != model.NodePort || f.Family() != t.family {
				continue
			}
			verdict, _ := s.Selections[t.family].Serving(s.Service.ExternalTraffic)
			if verdict != model.Balanced {
				t.rule("empty", "%s %s %s", here, t.to(s, f), map[model.Verdict]string{model.Dropped: "drop", model.Rejected: "reject"}[verdict])
			}
			t.rule("nodeports", "%s %s goto %s", here, t.to(s, f), hashed("fe", s.Name, f))
		}
	}
}

// checks refuses other ports of internal addresses, and drops what the service ranges have of nobody.
func (t *referenceTable) checks() {
	var owned []netip.Addr
	for _, s := range t.services {
		for _, f := range s.Frontends {
			if f.Kind == model.Internal && f.Family() == t.family && !slices.Contains(owned, f.Addr.Addr()) {
				owned = append(owned, f.Addr.Addr())
			}
		}
	}
	if len(owned) > 0 {
		t.rule("closed", "IP daddr %s reject", prefixSet(owned))
	}
	for _, p := range t.node.ServiceRanges {
		if model.FamilyOf(p.Addr()) == t.family {
			t.rule("closed", "IP daddr %s drop", p)
		}
	}
}

func (t *referenceTable) masquerading() {
	t.rule("post", "meta mark & 0x4000 == 0x4000 masquerade fully-random")
	for _, s := range t.services {
		for _, e := range s.Endpoints {
			if model.FamilyOf(e.Addr.Addr()) == t.family {
				t.rule("post", "ct status dnat IP saddr %s IP daddr %s masquerade fully-random", e.Addr.Addr(), e.Addr.Addr())
			}
		}
	}
}
