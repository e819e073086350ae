package nft

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/headgate/headgate/model"
)

// What is written, in the words of nft, for those who explain it.

// Word is how nft calls a family, in names of tables and in expressions.
func Word(fam model.Family) string {
	if fam == model.IPv6 {
		return "ip6"
	}
	return "ip"
}

// Words returns an element of the set as nft lists it.
func (s Set) Words(e Element) string {
	parts := make([]string, len(s.Key))
	for i, f := range s.Key {
		parts[i] = f.words(e)
	}
	out := strings.Join(parts, " . ")
	if e.Comment != "" {
		out += ` comment "` + e.Comment + `"`
	}
	switch {
	case !s.Map:
	case len(s.Data) > 0:
		out += fmt.Sprintf(" : %s . %d", e.To.Addr(), e.To.Port())
	case e.Chain == DropVerdict:
		out += " : drop"
	default:
		out += " : goto " + e.Chain
	}
	return out
}

func (f Field) words(e Element) string {
	switch f {
	case Daddr, Saddr:
		return e.Addr.String()
	case L4Proto:
		return e.Proto.String()
	case Dport:
		return fmt.Sprint(e.Port)
	case Slot:
		return fmt.Sprint(e.Slot)
	case Source:
		return PrefixWords(e.Source)
	case RealAddr:
		return e.Real.Addr().String()
	default:
		return fmt.Sprint(e.Real.Port())
	}
}

// PrefixWords returns a prefix as nft lists it.
func PrefixWords(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// Written returns what a family's table holds for a service; false, if nothing is known of it.
func (t *Table) Written(name model.ServiceName, fam model.Family) (f Form, ok bool) {
	if t.record == nil {
		return f, false
	}
	l := t.record.laid[name]
	if l.res == nil {
		return f, false
	}
	t.record.rules[fam].Render(&f, l.res, l.lay[fam])
	return f, true
}

// Element returns the element with a key that the service has put into a set or map.
func (f *Form) Element(k ElementKey) (Element, bool) {
	for _, e := range f.elements {
		if e.ElementKey == k {
			return e, true
		}
	}
	return Element{}, false
}

// Sources returns the elements that begin with a frontend's key, and say who may come in there.
func (f *Form) Sources(k ElementKey) []Element {
	var out []Element
	for _, e := range f.elements {
		source := e.Source
		e.Source = netip.Prefix{}
		if e.ElementKey == k && source.IsValid() {
			e.Source = source
			out = append(out, e)
		}
	}
	return out
}

// A Step is a rule that a connection meets on its way.
type Step struct{ Chain, Rule string }

// Way returns the rules that balance a connection which comes to one of the service's chains, and the slots that the last
// of them chooses from for the frontend with a key.
func (rs *Rules) Way(f *Form, chain string, k ElementKey) (steps []Step, slots []Element) {
	for _, r := range append(f.own, f.routes...) {
		if r.chain() != chain {
			continue
		}
		k.Set = r.slotSet()
		for _, run := range f.runs {
			if run.set == k.Set && run.addr == k.Addr && run.proto == k.Proto && run.port == k.Port && run.list == r.list {
				for slot := range run.layout {
					slots = append(slots, run.element(slot))
				}
			}
		}
		return rs.way(r), slots
	}
	return nil, nil
}

func (rs *Rules) way(r Route) (steps []Step) {
	name := r.chain()
	add := func(format string, args ...any) { steps = append(steps, Step{name, fmt.Sprintf(format, args...)}) }
	switch r.class {
	case ByInternal:
		add("jump %s", MarkInternalChain)
	case ByExternal:
		add("jump %s", MarkExternalChain)
	}
	if r.own != nil {
		for _, m := range r.own.maps {
			add("meta l4proto %s dnat to %s saddr map @%s:%d", r.own.protocol, Word(rs.Family), m.name, m.port)
		}
	}
	switch {
	case r.leads():
		add("goto %s", r.bare().chain())
		return append(steps, rs.way(r.bare())...)
	case r.redraws():
		add("jump %s", r.once().chain())
		return append(steps, rs.way(r.once())...)
	}
	add("%s", rs.drawWords(r))
	return steps
}

// drawWords is the rule that draw makes.
func (rs *Rules) drawWords(r Route) string {
	key, word := "", Word(rs.Family)
	if !r.nodePort {
		key = word + " daddr . "
	}
	by := fmt.Sprintf("numgen random mod %d", r.slots)
	switch {
	case r.balance == model.RoundRobin:
		by = fmt.Sprintf("numgen inc mod %d", r.slots)
	case r.balance == model.Maglev && r.hashPort:
		by = fmt.Sprintf("jhash %s saddr . th sport mod %d seed %#x", word, r.slots, rs.HashSeed)
	case r.balance == model.Maglev:
		by = fmt.Sprintf("jhash %s saddr mod %d seed %#x", word, r.slots, rs.HashSeed)
	}
	if offset := r.list.offset(); offset > 0 {
		by += fmt.Sprintf(" offset %d", offset)
	}
	return fmt.Sprintf("dnat %s to %smeta l4proto . th dport . %s map @%s", word, key, by, rs.Sets[r.slotSet()].Name)
}
