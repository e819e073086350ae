package iptables

import (
	"net/netip"
	"slices"

	"github.com/headgate/headgate/model"
)

// frontend writes the entries of one frontend.
//
// Where nobody is balanced the entry in the nat table accepts, which ends the table: the address is taken, and no node
// port with the same number may have the packet. The filter table rejects or drops it then.
func (w *writer) frontend(f model.Frontend) {
	say := comment(string(w.r.Name))
	target := targetAccept
	switch {
	case !w.balances(f.Kind):
	case f.Kind == model.Internal:
		target = goTo(w.chainName(kindInternal))
	default:
		target = goTo(w.chainName(kindExternal))
	}
	sources := w.sources(f)
	if len(sources) > 0 && target != targetAccept {
		c := &chain{table: nat, name: w.chainName(kindSources, f.Addr.String())}
		w.fromSources(c, sources, target)
		c.add(w.r.Name, targetAccept)
		w.keep(c)
		target = goTo(c.name)
	}
	wall := w.wall(f, sources)
	if f.Kind == model.NodePort {
		if target != targetAccept {
			w.entry(byPort, f, words(say, target))
		}
		if wall != "" {
			w.entry(wallByPort, f, words(say, wall))
		}
		return
	}
	w.entry(byAddress, f, words(say, target))
	if wall != "" {
		w.entry(wallByAddress, f, words(say, wall))
	}
	switch addr := f.Addr.Addr(); {
	case f.Kind == model.Internal && w.refusesOtherPorts(addr):
		w.entry(others, f, goTo(w.names.fixed(chainOthers)))
	case f.Kind == model.External && w.inRanges(addr):
		w.entry(exempt, f, targetReturn)
	}
}

func (w *writer) entry(tree int, f model.Frontend, rest string) {
	e := entry{key: w.layout(tree).key(f.Addr, w.r.Service.Protocol), rest: rest, owner: w.r.Name}
	if shared(tree) {
		e.owner = ""
	}
	w.out.entries[tree] = append(w.out.entries[tree], e)
}

// sources returns who may come in by a frontend; nobody in the list means everybody.
func (w *writer) sources(f model.Frontend) []netip.Prefix {
	return w.r.Sources(f, []netip.Addr{w.primary})
}

// fromSources appends rules that lead packets from one of the sources to a target that does not come back. Many, which
// are sorted, are split into chains, so that a packet passes those of one or a few of them.
func (w *writer) fromSources(c *chain, sources []netip.Prefix, target string) {
	if len(sources) <= leafSize {
		for _, p := range sources {
			c.add(w.r.Name, matchSrc(p), target)
		}
		return
	}
	const most = 32 // chains
	size := max(leafSize, (len(sources)+most-1)/most)
	for part := range slices.Chunk(sources, size) {
		sub := &chain{table: c.table, name: w.names.hashed(c.name[len(w.names.prefix)+1], c.name, part[0].String()), wall: c.wall, guards: c.guards}
		for _, p := range part {
			sub.add(w.r.Name, matchSrc(p), target)
		}
		w.keep(sub)
		c.add(w.r.Name, matchSrc(covering(part[0], part[len(part)-1])), jumpTo(sub.name))
	}
}

// covering returns the longest prefix that covers two others.
func covering(a, b netip.Prefix) netip.Prefix {
	bits := min(a.Bits(), b.Bits())
	for !netip.PrefixFrom(a.Addr(), bits).Contains(b.Addr()) {
		bits--
	}
	return netip.PrefixFrom(a.Addr(), bits).Masked()
}

// wall returns what the filter table does with new packets to a frontend that were not balanced; empty for nothing.
func (w *writer) wall(f model.Frontend, sources []netip.Prefix) string {
	verdict, _ := w.sel.Serving(w.r.Service.Policy(f.Kind))
	within := "" // for those who may come in
	switch {
	case verdict == model.Rejected:
		within = targetRefuseProto(w.family, w.r.Service.Protocol)
	case verdict == model.Dropped && f.Kind != model.Internal:
		within = goTo(w.names.fixed(chainOutside))
	case verdict == model.Dropped:
		within = targetDrop
	}
	switch {
	case len(sources) == 0:
		return within
	case verdict != model.Rejected:
		return targetDrop // who may come in is balanced, or dropped too
	}
	c := &chain{table: filter, name: w.chainName(kindWall, f.Addr.String())}
	c.wall, c.guards = w.key(f)
	w.fromSources(c, sources, words(matchProtoIf(within, w.r.Service.Protocol), within))
	c.add(w.r.Name, targetDrop)
	w.keep(c)
	return goTo(c.name)
}

// matchProtoIf matches the protocol where the target demands that the rule does.
func matchProtoIf(target string, p model.Protocol) string {
	if target == targetReset {
		return matchProto(p)
	}
	return ""
}
