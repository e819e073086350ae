package iptables

import (
	"net/netip"
	"strconv"

	"github.com/headgate/headgate/model"
)

// label is the conntrack label as iptables-save writes it where /etc/xtables/connlabel.conf has no name for it.
func (e *env) label() string { return `"` + strconv.Itoa(int(e.settings.label)) + `"` }

// layout says what the keys of a tree are.
func (e *env) layout(tree int) layout {
	l := layout{family: e.family}
	switch tree {
	case byAddress, wallByAddress:
		l.addr, l.ports = "-d ", true
	case byPort, wallByPort:
		l.ports = true
	case others, exempt:
		l.addr = "-d "
	case hairpin, invalid:
		l.addr = "-s "
	}
	return l
}

// dispatch says how a tree is written.
func (e *env) dispatch(tree int) dispatch {
	d := dispatch{names: e.names, layout: e.layout(tree), table: treeTables[tree], kind: treeKinds[tree], levels: treeLevels}
	if tree == exempt {
		d.otherwise = targetDrop
	}
	return d
}

var (
	treeTables = [numTrees]table{byAddress: nat, byPort: nat, wallByAddress: filter, wallByPort: filter, others: filter, exempt: filter, hairpin: nat, invalid: filter}
	treeKinds  = [numTrees]byte{
		byAddress: kindTree, byPort: kindPortTree, wallByAddress: kindVerdicts, wallByPort: kindPortWalls,
		others: kindOthers, exempt: kindExempt, hairpin: kindHairpin, invalid: kindInvalid,
	}
)

// trees are the trees of a family.
type trees [numTrees]tree

// with returns the trees with the entries of services put in.
func (t trees) with(ps []*pieces) trees {
	for i := range t {
		if t[i].root == nil {
			t[i] = grow(ps, i)
			continue
		}
		for _, p := range ps {
			for _, e := range p.entries[i] {
				if shared(i) {
					t[i] = t[i].add(e)
				} else {
					t[i] = t[i].with(e)
				}
			}
		}
	}
	return t
}

// grow makes a tree of the entries of services.
func grow(ps []*pieces, which int) tree {
	n := 0
	for _, p := range ps {
		n += len(p.entries[which])
	}
	entries := make([]entry, 0, n)
	for _, p := range ps {
		entries = append(entries, p.entries[which]...)
	}
	return newTree(entries)
}

// without returns the trees with the entries of a service taken out.
func (t trees) without(p *pieces) trees {
	for i, entries := range p.entries {
		for _, e := range entries {
			if shared(i) {
				t[i] = t[i].release(e.key)
			} else {
				t[i] = t[i].without(e.key)
			}
		}
	}
	return t
}

// shared reports whether several services may have the same entry in a tree.
func shared(tree int) bool { return tree >= others }

// sharedChains returns the chains of one table that all services share.
func (e *env) sharedChains(t table, trees trees) []chain {
	c := sharing{env: e, trees: trees, table: t}
	if t == nat {
		c.nat()
	} else {
		c.filter()
	}
	c.begin(chainCanary)
	return c.chains
}

type sharing struct {
	*env
	trees  trees
	table  table
	chains []chain
}

func (s *sharing) begin(name string) {
	s.chains = append(s.chains, chain{table: s.table, name: s.names.fixed(name)})
}

func (s *sharing) add(parts ...string) { s.chains[len(s.chains)-1].add("", parts...) }

func (s *sharing) nat() {
	s.begin(chainServices)
	s.enter(byAddress)
	s.nodePorts(byPort, goTo)

	s.begin(chainInternal)
	s.addLabel()
	s.markInternal()
	s.begin(chainExternal)
	s.addLabel()
	s.add(s.settings.mark.set())

	s.begin(chainPostrouting)
	s.add(s.settings.mark.match(), goTo(s.names.fixed(chainMasquerade)))
	if s.features.program {
		s.add(s.balanced(), sourceIsDestination(s.family), comment("hairpin"), s.masquerade())
	} else if enter := s.dispatch(hairpin).enter(s.trees[hairpin]); enter != "" {
		// The tree matches addresses, which iptables-save writes before everything else.
		s.add(s.balanced(), jumpTo(s.names.fixed(chainHairpin)))
		s.begin(chainHairpin)
		s.add(enter)
	}
	s.begin(chainMasquerade)
	s.add(s.settings.mark.clear())
	s.add(s.masquerade())
}

func (s *sharing) addLabel() {
	if r := s.remember(); r != "" {
		s.add(r)
	}
}

// markInternal marks what comes through an internal frontend and must not be seen with its own address: clients outside,
// who would not get their reply from elsewhere, and the node itself when its address is no use to the endpoint.
func (s *sharing) markInternal() {
	switch {
	case s.masqueradeAll:
	case s.detects:
		for _, match := range s.internal {
			s.add(match, targetReturn)
		}
	case s.features.program:
		// The node reaches a virtual address that it has itself from that very address.
		s.add(sourceIsDestination(s.family), comment("from a virtual address"), s.settings.mark.set())
		s.add(matchSrc(loopback[s.family]), s.settings.mark.set())
		return
	default:
		// Without such a program, from any address of the node that nobody told of.
		for _, a := range s.addrs {
			s.add(matchSrc(netip.PrefixFrom(a, a.BitLen())), targetReturn)
		}
		s.add(fromNode, s.settings.mark.set())
		return
	}
	s.add(s.settings.mark.set())
}

func (s *sharing) filter() {
	s.begin(chainFilter)
	s.add(s.balanced(), targetReturn)
	s.enter(wallByAddress)
	s.nodePorts(wallByPort, jumpTo)
	s.enter(others)
	for _, p := range s.ranges {
		s.add(matchDst(p), notToNode, goTo(s.names.fixed(chainRanges)))
	}
	if len(s.ranges) > 0 {
		s.begin(chainRanges)
		if t := s.trees[exempt]; t.root != nil {
			d := s.dispatch(exempt)
			s.add(d.matchRoot(t), goTo(d.chainName(rootSlot)))
		}
		s.add(targetDrop)
	}

	s.begin(chainForward)
	s.add(s.balanced(), targetAccept)

	s.begin(chainOutside)
	for _, match := range append(s.internal[:len(s.internal):len(s.internal)], fromNode) {
		s.add(match, targetReturn)
	}
	s.add(targetDrop)

	s.begin(chainOthers)
	s.add(toNode, targetReturn)
	s.add(matchProto(model.TCP), targetReset)
	s.add(targetRefuse(s.family))

	if s.loopback {
		s.begin(chainLoopback)
		s.add(s.notBalanced(), targetDrop)
	}
	if s.settings.dropInvalid {
		s.begin(chainInvalid)
		s.enter(invalid)
	}
}

func (s *sharing) enter(tree int) {
	if rule := s.dispatch(tree).enter(s.trees[tree]); rule != "" {
		s.add(rule)
	}
}

// nodePorts leads what is for an address of the node with node ports into their tree. Loopback addresses have them for the
// node's own processes alone, whose packets are on their way out.
func (s *sharing) nodePorts(tree int, how func(string) string) {
	if s.trees[tree].root == nil {
		return
	}
	d := s.dispatch(tree)
	match, enter := d.matchRoot(s.trees[tree]), how(d.chainName(rootSlot))
	local := loopback[s.family]
	if s.loopback {
		s.add(matchDst(local), "-o lo", match, enter)
	}
	for _, p := range s.scope {
		if p.Bits() == 0 {
			s.add("!", matchDst(local), match, toNode, enter)
		} else {
			s.add(matchDst(p), match, toNode, enter)
		}
	}
}
