package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/headgate/headgate/model"
)

// Explain says what becomes of a new connection, and by which rules: each place is a program, table and chain, so that
// "iptables-nft -t nat HEADGATE-SERVICES" is listed by "iptables-nft -t nat -S HEADGATE-SERVICES", and each rule is one that
// the packet meets, or may meet where chance or an earlier connection decides. Rules of others are left out. Where the
// rules do otherwise than other backends, the answer is that of the rules. See [model.Explainer].
func (p *Programmer) Explain(_ context.Context, q model.Query) (model.Explanation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return model.Explanation{}, model.ErrClosed
	case !p.synced:
		return model.Explanation{}, model.ErrNotSynced
	case !q.To.IsValid():
		return model.Explanation{}, fmt.Errorf("iptables: explain: no destination: %w", model.ErrInvalid)
	}
	own, err := p.ns.Addrs()
	if err != nil {
		return model.Explanation{}, fmt.Errorf("iptables: explain: %w", err)
	}
	return p.explain(q, func(a netip.Addr) bool { return own[a] || slices.Contains(p.resolver.Node().Addrs, a) }), nil
}

func (p *Programmer) explain(q model.Query, own func(netip.Addr) bool) model.Explanation {
	x := p.resolver.Explain(q, own)
	i := slices.IndexFunc(p.sides, func(s *side) bool { return s.family == model.FamilyOf(q.To.Addr()) })
	if i < 0 {
		return model.Explanation{Backend: x.Backend, Query: q, Why: model.FamilyOf(q.To.Addr()).String() + " is not programmed"}
	}
	w := &walk{side: p.sides[i], own: own, hops: map[model.Hop]bool{}}
	first := p.firstPacket(q, own)
	w.find(p.resolver.Form(x.Service), first)
	fate := w.send(first)
	x.Path = w.path
	if fate == x.Fate || first.dst.IsLoopback() && first.in != "" { // which the kernel drops without being told
		return x
	}
	x.Fate, x.Endpoints = fate, nil
	switch {
	case fate == model.FateUntouched && x.Service == "":
		x.Why = "other ports of internal addresses are left alone, unless Config.RejectOtherPorts is set"
	case fate == model.FateUntouched:
		x.Why = "node ports do not answer at this address"
	default:
		x.Why = "so the rules say"
	}
	return x
}

// firstPacket returns the packet that a query is about.
func (p *Programmer) firstPacket(q model.Query, own func(netip.Addr) bool) packet {
	pkt := packet{src: q.From, dst: q.To.Addr(), dport: q.To.Port(), proto: q.Protocol, in: q.Interface}
	node := p.resolver.Node()
	switch {
	case pkt.src.IsValid():
	case pkt.dst.IsLoopback():
		pkt.src = pkt.dst
	default:
		pkt.src = model.FamilyOf(pkt.dst).Unspecified()
		for _, a := range slices.Backward(slices.Concat(node.Primary, node.Addrs)) {
			if model.FamilyOf(a) == model.FamilyOf(pkt.dst) {
				pkt.src = a
			}
		}
	}
	if pkt.in == "" && q.From.IsValid() && !own(q.From) && !q.From.IsLoopback() && !p.isFrontend(q.From) {
		pkt.in = "?" // no detector's interface, and no interface has that name
	}
	return pkt
}

// isFrontend reports whether an address is one of a frontend: a packet from there comes from the node, looped.
func (p *Programmer) isFrontend(a netip.Addr) bool {
	return slices.ContainsFunc(p.resolver.Forms(), func(r *model.Resolved) bool {
		return slices.ContainsFunc(r.Frontends, func(f model.Frontend) bool { return f.Addr.Addr() == a })
	})
}

// A walk follows a packet through the rules.
type walk struct {
	*side
	own    func(netip.Addr) bool
	chains [len(tables)]map[string][]rule // those that the packet may come to
	path   []model.Hop
	hops   map[model.Hop]bool // those in path
	ends   []packet           // what was translated
	unsure bool               // the last rule met may as well not have been
}

// find finds the chains that the packet may come to, without writing all the others: those that services share, those of
// one service, and of the trees those on the way to its key.
func (w *walk) find(form *model.Resolved, first packet) {
	own := w.now.env.pieces(form).chains
	for _, t := range tables {
		w.chains[t] = map[string][]rule{}
		for _, c := range append(ofTable(own, t), w.now.sharedChains(t)...) {
			w.chains[t][c.name] = c.rules
		}
	}
	for i := range w.now.trees {
		w.branch(i, netip.AddrPortFrom(first.dst, first.dport), first.proto)
		if w.now.env.layout(i).addr == "-s " {
			w.branch(i, netip.AddrPortFrom(first.src, 0), 0)
		}
	}
}

// branch finds the chains of a tree on the way to a key.
func (w *walk) branch(tree int, a netip.AddrPort, p model.Protocol) {
	root := w.now.trees[tree].root
	if root == nil {
		return
	}
	d := w.now.env.dispatch(tree)
	key := d.layout.key(a, p)
	for spots := []spot{{rootSlot, root, 1}}; len(spots) > 0; {
		s := spots[0]
		w.chains[d.table][d.chainName(s.slot)] = d.rules(s)
		spots = slices.DeleteFunc(append(spots[1:], d.below(s)...), func(s spot) bool { return !strings.HasPrefix(key, s.node.prefix) })
	}
}

// send follows a packet from hook to hook.
func (w *walk) send(first packet) model.Fate {
	hook := "PREROUTING"
	if first.in == "" {
		hook = "OUTPUT"
	}
	if w.enter(nat, hook, first); len(w.ends) == 0 {
		switch w.enter(filter, w.filterHook(first), first) {
		case "DROP":
			return model.FateDropped
		case "REJECT":
			return model.FateRefused
		}
		return model.FateUntouched
	}
	for _, p := range w.ends {
		w.enter(filter, w.filterHook(p), p)
		if p.in == "" || !w.own(p.dst) {
			w.enter(nat, "POSTROUTING", p)
		}
	}
	return model.FateBalanced
}

func (w *walk) filterHook(p packet) string {
	switch {
	case p.in == "":
		return "OUTPUT"
	case w.own(p.dst):
		return "INPUT"
	}
	return "FORWARD"
}

// enter follows a packet from a built-in chain on, and returns the verdict that it ends with: a target, or nothing.
func (w *walk) enter(t table, hook string, p packet) (verdict string) {
	var front, back []rule
	for _, j := range w.now.jumps() {
		switch {
		case j.table != t || j.from != hook:
		case j.last:
			back = append(back, rule{text: j.text})
		default:
			front = append(front, rule{text: j.text})
		}
	}
	verdict, _ = w.follow(t, hook, append(front, back...), p)
	return verdict
}

// follow follows a packet through rules of a chain. It returns the verdict with which it certainly ends, and the packet
// as it comes back where it does not.
func (w *walk) follow(t table, chain string, rules []rule, p packet) (verdict string, back packet) {
	for i := range rules {
		r := &rules[i]
		w.unsure = false
		met := p
		ok, target := met.meets(r, w)
		if !ok {
			continue
		}
		unsure := w.unsure
		w.note(t, chain, r)
		verdict, came, returns := w.aim(t, target, met)
		switch {
		case unsure: // whatever became of it, it may go on as well
		case verdict != "":
			return verdict, p
		case returns:
			return "", came
		default:
			p = came
		}
	}
	return "", p
}

// aim does what the target of a rule says. Returns says that the packet leaves the chain to go on where it came from.
func (w *walk) aim(t table, target []string, p packet) (verdict string, after packet, returns bool) {
	if len(target) == 0 {
		return "", p, false
	}
	if rules, leads := w.chains[t][target[1]]; leads {
		verdict, after = w.follow(t, target[1], rules, p)
		return verdict, after, target[0] == "-g"
	}
	switch target[1] {
	case "RETURN":
		return "", p, true
	case "MARK":
		p.setMark(target)
		return "", p, false
	case "DNAT":
		p.translate(target)
		w.ends = append(w.ends, p)
	}
	return target[1], p, false
}

// note adds a rule to the path.
func (w *walk) note(t table, chain string, r *rule) {
	h := model.Hop{Where: fmt.Sprintf("%s -t %s %s", filepath.Base(w.iptables), t, chain), Rule: r.text}
	if !w.hops[h] {
		w.hops[h] = true
		w.path = append(w.path, h)
	}
}

func (w *walk) local(a netip.Addr) bool { return w.own(a) }

func (w *walk) met(p *packet, _ *rule, option string, behind []string) (met bool, taken int) {
	switch option {
	case "--bytecode":
		if strings.Contains(sourceIsDestination(w.family), behind[0]) {
			return p.src == p.dst, 1
		}
		taken = 1
	case "--mode":
		taken = map[string]int{"random": 3, "nth": 5}[behind[0]]
	case "--set": // remembers, and is always met
		return true, slices.Index(behind, "--rsource") + 1
	case "--update":
		taken = slices.Index(behind, "--rsource") + 1
	}
	w.unsure = true
	return true, taken
}
