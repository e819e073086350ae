package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/nft"
	"github.com/headgate/headgate/model"
)

// Explain says what becomes of a new connection, and which rules and elements it meets, in the words of nft. See
// [model.Explainer].
func (p *Programmer) Explain(_ context.Context, q model.Query) (model.Explanation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return model.Explanation{}, model.ErrClosed
	case !p.table.Known():
		return model.Explanation{}, model.ErrNotSynced
	case !q.To.IsValid():
		return model.Explanation{}, fmt.Errorf("nftables: explain: no destination: %w", model.ErrInvalid)
	}
	own, err := p.netns.Addrs()
	if err != nil {
		return model.Explanation{}, fmt.Errorf("nftables: explain: addresses of the node: %w", err)
	}
	fam := model.FamilyOf(q.To.Addr())
	x := explainer{p: p, q: q, rules: p.cfg.rules(p.resolver.Node(), fam), own: own, word: nft.Word(fam)}
	x.Explanation = p.resolver.Explain(q, func(a netip.Addr) bool { return own[a] })
	x.walk()
	return x.Explanation, nil
}

// An explainer explains one connection.
type explainer struct {
	model.Explanation
	p     *Programmer
	q     model.Query
	rules *ruleset
	own   map[netip.Addr]bool
	word  string // ip or ip6
	// balanced and masqueraded are the label bits that are set on the way.
	balanced, masqueraded bool
}

// hop adds a step of the way, unless it is there.
func (x *explainer) hop(kind, name, rule string, args ...any) {
	h := model.Hop{Where: fmt.Sprintf("%s %s %s %s", x.word, x.p.cfg.Table, kind, name), Rule: fmt.Sprintf(rule, args...)}
	if !slices.Contains(x.Path, h) {
		x.Path = append(x.Path, h)
	}
}

func (x *explainer) chain(name, rule string, args ...any) { x.hop("chain", name, rule, args...) }

func (x *explainer) element(e nft.Element) {
	kind := "set"
	if sets[e.Set].Map {
		kind = "map"
	}
	x.hop(kind, sets[e.Set].Name, "%s", sets[e.Set].Words(e))
}

// walk tells the way.
func (x *explainer) walk() {
	to := x.q.To.Addr()
	if to.IsLoopback() && !x.sent() {
		if x.rules.ServesLoopback() {
			x.chain(nft.GuardLoopbackChain, `iifname != "lo" %s daddr %s drop`, x.word, x.rules.Loopback())
			return
		}
		x.Path = []model.Hop{{Where: x.word + " route", Rule: "from others, loopback is no destination"}}
		return
	}
	hook := nft.NATPrerouting
	if x.sent() {
		hook = nft.NATOutput
	}
	x.chain(hook, "goto %s", nft.DispatchChain)
	if !x.Frontend.Addr.IsValid() {
		x.unclaimed()
		return
	}
	form, ok := x.p.table.Written(x.Service, model.FamilyOf(to))
	if !ok {
		return
	}
	x.claimed(&form)
	for _, t := range x.Endpoints {
		if t.Masqueraded {
			x.postrouting(t.Endpoint)
		}
	}
}

// sent reports whether the node itself sends the packet.
func (x *explainer) sent() bool {
	return x.q.Interface == "" && (x.ofNode() || slices.ContainsFunc(x.p.resolver.Forms(), func(form *model.Resolved) bool {
		return slices.ContainsFunc(form.Frontends, func(f model.Frontend) bool { return f.Addr.Addr() == x.q.From })
	}))
}

// ofNode reports whether the packet comes from the node's own address.
func (x *explainer) ofNode() bool {
	return !x.q.From.IsValid() || x.q.From.IsLoopback() || x.own[x.q.From]
}

// unclaimed tells of a packet that no frontend is for. With AllowOtherPorts, internal addresses are no reason to refuse.
func (x *explainer) unclaimed() {
	to := x.q.To.Addr()
	ranges := x.rules.OwnPrefixes(x.rules.Node.ServiceRanges)
	i := slices.IndexFunc(ranges, func(p netip.Prefix) bool { return p.Contains(to) })
	if x.Fate == model.FateRefused && x.rules.allowOtherPorts {
		x.Fate, x.Why = model.FateUntouched, "no service is at this port and protocol"
		if i >= 0 {
			x.Fate, x.Why = model.FateDropped, fmt.Sprintf("%s is in a service range, and no service is at this port and protocol", to)
		}
	}
	switch {
	case x.Fate == model.FateRefused:
		x.chain(nft.DispatchChain, "%s daddr @%s goto %s", x.word, sets[nft.ClusterIPs].Name, nft.RefuseChain)
		x.element(nft.Element{ElementKey: nft.ElementKey{Set: nft.ClusterIPs, Addr: to}})
		x.refuse()
	case x.Fate == model.FateDropped && i >= 0:
		x.chain(nft.DispatchChain, "%s daddr %s fib daddr type != local drop", x.word, nft.PrefixWords(ranges[i]))
	}
}

func (x *explainer) refuse() {
	if x.q.Protocol == model.TCP {
		x.chain(nft.RefuseChain, "reject with tcp reset")
		return
	}
	x.chain(nft.RefuseChain, "reject")
}

// claimed tells the way to, and from, a frontend.
func (x *explainer) claimed(form *nft.Form) {
	at := nft.PlacesOf(x.Frontend)
	key := nft.ElementKey{Addr: x.q.To.Addr(), Proto: x.q.Protocol, Port: x.q.To.Port()}
	if x.Frontend.Kind == model.NodePort {
		key.Addr = netip.Addr{}
		x.chain(nft.DispatchChain, "%sfib daddr type local goto %s", x.nodePortMatch(), nft.NodePortChain)
	}
	if !x.mayEnter(form, key, at) {
		return
	}
	key.Set = at.Services
	e, _ := form.Element(key)
	x.element(e)
	switch e.Chain {
	case nft.DropVerdict:
	case nft.RefuseChain:
		x.refuse()
	case at.BySource:
		x.bySource(form, key, at)
	default:
		x.balance(form, e)
	}
}

// nodePortMatch is what recognises the destination as one where node ports answer.
func (x *explainer) nodePortMatch() string {
	to, loopback := x.q.To.Addr(), nft.PrefixWords(x.rules.Loopback())
	if to.IsLoopback() {
		return fmt.Sprintf("%s daddr %s ", x.word, loopback)
	}
	match := fmt.Sprintf("%s daddr != %s ", x.word, loopback)
	if prefixes, limited := x.rules.Node.NodePortPrefixes(x.rules.Family); limited {
		for _, p := range model.MergePrefixes(prefixes) {
			if p.Contains(to) {
				return match + fmt.Sprintf("%s daddr %s ", x.word, nft.PrefixWords(p))
			}
		}
	}
	return match
}

// mayEnter tells of the frontend's source ranges, and reports whether they let the packet in.
func (x *explainer) mayEnter(form *nft.Form, key nft.ElementKey, at nft.Places) bool {
	if !x.Frontend.Restricted() {
		return true
	}
	key.Set = at.Restricted
	if e, ok := form.Element(key); ok {
		x.element(e)
	}
	key.Set = at.Allowed
	for _, e := range form.Sources(key) {
		if e.Source.Contains(x.source()) {
			x.element(e)
			return true
		}
	}
	x.chain(at.CheckSource, "drop")
	return false
}

// source is the packet's source as far as it is known: the node's own, unless the query says.
func (x *explainer) source() netip.Addr {
	if x.q.From.IsValid() {
		return x.q.From
	}
	for _, a := range slices.Concat(x.rules.Node.Primary, x.rules.Node.Addrs) {
		if model.FamilyOf(a) == x.rules.Family {
			return a
		}
	}
	return x.rules.Family.Unspecified()
}

// bySource tells where a frontend with external policy Local leads.
func (x *explainer) bySource(form *nft.Form, key nft.ElementKey, at nft.Places) {
	match, label, next := "", "", at.Shortcut
	internal, isInternal := x.internalMatch()
	switch {
	case isInternal:
		match, label, x.balanced = internal+" ", x.set(x.p.cfg.BalancedLabel), true
	case x.ofNode():
		match, label, x.masqueraded = "fib saddr type local ", x.set(x.p.cfg.MasqueradeLabel), true
	default:
		label = x.set(x.p.cfg.BalancedLabel) + " " + x.set(x.p.cfg.MasqueradeLabel)
		x.balanced, x.masqueraded, next = true, true, at.Local
	}
	fields := "meta l4proto . th dport"
	if x.Frontend.Kind != model.NodePort {
		fields = x.word + " daddr . " + fields
	}
	x.chain(at.BySource, "%s%s %s vmap @%s", match, label, fields, sets[next].Name)
	key.Set = next
	e, ok := form.Element(key)
	if !ok {
		x.chain(at.BySource, "drop")
		return
	}
	x.element(e)
	x.balance(form, e)
}

func (x *explainer) set(label int) string { return fmt.Sprintf("ct label set %d", label) }

// internalMatch is what recognises the source as an internal one, if it is.
func (x *explainer) internalMatch() (match string, is bool) {
	for _, p := range x.rules.OwnPrefixes(x.rules.Node.Detector.Prefixes) {
		if p.Contains(x.source()) {
			return fmt.Sprintf("%s saddr %s", x.word, nft.PrefixWords(p)), true
		}
	}
	for _, i := range x.rules.Node.Detector.Interfaces {
		if x.q.Interface != "" && strings.HasPrefix(x.q.Interface, i) {
			return fmt.Sprintf(`iifname "%s*"`, i), true
		}
	}
	return "", false
}

// balance tells the way from an element that leads to balancing on.
func (x *explainer) balance(form *nft.Form, e nft.Element) {
	steps, slots := x.rules.Way(form, e.Chain, e.ElementKey)
	for _, s := range steps {
		x.chain(s.Chain, "%s", s.Rule)
		switch s.Rule {
		case "jump " + nft.MarkInternalChain:
			x.markInternal()
		case "jump " + nft.MarkExternalChain:
			x.markExternal()
		}
	}
	for _, t := range x.Endpoints {
		if i := slices.IndexFunc(slots, func(s nft.Element) bool { return s.To == t.Endpoint.Addr }); i >= 0 {
			x.element(slots[i]) // the first of its slots
		}
	}
}

// markInternal tells what is decided about a connection to an internal frontend.
func (x *explainer) markInternal() {
	hide, keep := x.set(x.p.cfg.MasqueradeLabel), x.set(x.p.cfg.BalancedLabel)
	node := &x.rules.Node
	internal, isInternal := x.internalMatch()
	virtual := slices.ContainsFunc(x.p.resolver.Forms(), func(form *model.Resolved) bool {
		return slices.ContainsFunc(form.Frontends, func(f model.Frontend) bool { return f.Kind == model.Internal && f.Addr.Addr() == x.source() })
	})
	rule := hide
	x.masqueraded = true
	switch {
	case node.MasqueradeAll:
	case x.rules.ServesLoopback() && x.source().IsLoopback():
		rule = fmt.Sprintf("%s saddr %s %s return", x.word, nft.PrefixWords(x.rules.Loopback()), hide)
	case !node.Detector.Detects(x.rules.Family) && virtual:
		rule = fmt.Sprintf("%s saddr @%s %s return", x.word, sets[nft.ClusterIPs].Name, hide)
	case !node.Detector.Detects(x.rules.Family):
		rule, x.balanced, x.masqueraded = keep, true, false
	case isInternal:
		rule, x.balanced, x.masqueraded = internal+" "+keep+" return", true, false
	}
	x.chain(nft.MarkInternalChain, "%s", rule)
}

// markExternal tells what is decided about a connection to an external frontend.
func (x *explainer) markExternal() {
	if x.rules.KeepsClients() {
		x.balanced = true
		x.chain(nft.MarkExternalChain, "%s", x.set(x.p.cfg.BalancedLabel))
	}
	x.masqueraded = true
	x.chain(nft.MarkExternalChain, "%s", x.set(x.p.cfg.MasqueradeLabel))
}

// postrouting tells why the client is hidden from an endpoint.
func (x *explainer) postrouting(e model.Endpoint) {
	if x.balanced && e.Addr.Addr() == x.q.From {
		x.chain(nft.NATPostrouting, "ct label %d ct status dnat %s saddr . %s daddr @%s masquerade fully-random", x.p.cfg.BalancedLabel, x.word, x.word, sets[nft.Hairpin].Name)
		return
	}
	x.chain(nft.NATPostrouting, "ct label %d ct status dnat masquerade fully-random", x.p.cfg.MasqueradeLabel)
}
