package iptables

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/headgate/headgate/model"
)

// settings are those of the Config that rules depend on.
type settings struct {
	mark             bit
	label            uint8
	rejectOtherPorts bool
	dropInvalid      bool
	hashSeed         uint32
}

// features are what the kernel and the tools of one family can do, as far as rules depend on it.
type features struct {
	randomFully bool // MASQUERADE --random-fully
	label       bool // xt_connlabel
	program     bool // xt_bpf
}

// env is what the rules of one family depend on besides the services. It is made once for a node and never changes.
type env struct {
	family   model.Family
	names    names
	settings settings
	features features

	// internal are matches of which any one recognises an internal source.
	internal []string
	// detects says that there may be internal sources at all.
	detects bool
	// masqueradeAll and keepClient are those of the Node; the former overrules the latter.
	masqueradeAll, keepClient bool
	// primary is the node's main address of the family, if it has one, addrs are all that the Node names.
	primary netip.Addr
	addrs   []netip.Addr
	// scope are the prefixes in which addresses of the node have node ports, none of which is loopback. One of length 0
	// stands for all but loopback.
	scope []netip.Prefix
	// loopback says that node ports answer on loopback addresses too.
	loopback bool
	// ranges are those that virtual addresses are taken from.
	ranges []netip.Prefix
	// evenly has, by n, the match of one in n, which most rules want.
	evenly [leafSize + 1]string
	// warnings are about what the node says and the rules cannot.
	warnings []string
}

var loopback = [...]netip.Prefix{model.IPv4: netip.MustParsePrefix("127.0.0.0/8"), model.IPv6: netip.MustParsePrefix("::1/128")}

// newEnv makes the env of a node. routable says that packets from loopback addresses may leave the node
// (net.ipv4.conf.all.route_localnet), without which loopback node ports cannot be.
func newEnv(f model.Family, n names, s settings, feat features, node model.Node, routable bool) *env {
	e := &env{family: f, names: n, settings: s, features: feat, masqueradeAll: node.MasqueradeAll}
	e.keepClient = node.KeepClientAddress && !node.MasqueradeAll
	for n := range e.evenly {
		e.evenly[n] = matchChance(1, uint64(n))
	}
	e.detects = node.Detector.Detects(f)
	for _, p := range prefixesOf(f, node.Detector.Prefixes) {
		e.internal = append(e.internal, matchSrc(p))
	}
	for _, p := range node.Detector.Interfaces {
		match, ok := matchInterface(p)
		if !ok {
			e.warnings = append(e.warnings, "iptables cannot match interfaces whose name begins with "+strconv.Quote(p)+": what comes in there is not internal")
			continue
		}
		e.internal = append(e.internal, match)
	}
	for _, a := range node.Primary {
		if model.FamilyOf(a) == f && !e.primary.IsValid() {
			e.primary = a
		}
	}
	for _, a := range node.Addrs {
		if model.FamilyOf(a) == f {
			e.addrs = append(e.addrs, a)
		}
	}
	e.ranges = prefixesOf(f, node.ServiceRanges)
	e.setScope(node)
	e.loopback = f == model.IPv4 && node.NodePorts.Loopback && routable
	if f == model.IPv4 && node.NodePorts.Loopback && !routable {
		e.warnings = append(e.warnings, "node ports do not answer on loopback: net.ipv4.conf.all.route_localnet is not set")
	}
	return e
}

// setScope sets the scope of node ports.
func (e *env) setScope(node model.Node) {
	prefixes, limited := node.NodePortPrefixes(e.family)
	if !limited {
		e.scope = []netip.Prefix{netip.PrefixFrom(e.family.Unspecified(), 0)}
		return
	}
	e.scope = subtract(prefixesOf(e.family, prefixes), loopback[e.family])
}

// subtract returns prefixes that cover the same addresses but those of one other prefix.
func subtract(prefixes []netip.Prefix, away netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range prefixes {
		switch {
		case !p.Overlaps(away):
			out = append(out, p)
		case p.Bits() < away.Bits():
			lower := netip.PrefixFrom(p.Addr(), p.Bits()+1)
			upper := netip.PrefixFrom(lastAddr(lower).Next(), p.Bits()+1)
			out = append(out, subtract([]netip.Prefix{lower, upper}, away)...)
		}
	}
	return out
}

// lastAddr returns the last address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	raw := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(raw)*8; bit++ {
		raw[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(raw)
	return a
}

// prefixesOf returns the prefixes of a family in normal form: masked, disjoint, sorted.
func prefixesOf(f model.Family, prefixes []netip.Prefix) []netip.Prefix {
	var own []netip.Prefix
	for _, p := range prefixes {
		if model.FamilyOf(p.Addr()) == f {
			own = append(own, p)
		}
	}
	return model.MergePrefixes(own)
}

// refusesOtherPorts reports whether new connections to an internal address are rejected on ports without a service. In
// the ranges that virtual addresses are taken from nothing else can be meant.
func (e *env) refusesOtherPorts(a netip.Addr) bool {
	return e.settings.rejectOtherPorts || e.inRanges(a)
}

// inRanges reports whether an address is in the ranges that virtual addresses are taken from.
func (e *env) inRanges(a netip.Addr) bool {
	return slices.ContainsFunc(e.ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// sameServices reports whether every service has the same rules in both.
func (e *env) sameServices(o *env) bool {
	return slices.Equal(e.internal, o.internal) && e.keepClient == o.keepClient && e.primary == o.primary &&
		slices.Equal(e.ranges, o.ranges) && e.features == o.features && e.settings == o.settings
}

// chance is matchChance.
func (e *env) chance(weight, total uint64) string {
	if n := total / weight; n*weight == total && n < uint64(len(e.evenly)) {
		return e.evenly[n]
	}
	return matchChance(weight, total)
}

// remember returns the match that labels the connection as balanced by us, and balanced the one that finds the label
// again. Where the kernel has no labels, every connection whose destination was translated counts.
func (e *env) remember() string {
	if !e.features.label {
		return ""
	}
	return "-m connlabel --label " + e.label() + " --set"
}

func (e *env) balanced() string {
	if !e.features.label {
		return stateTranslated
	}
	return "-m connlabel --label " + e.label()
}

func (e *env) notBalanced() string {
	if !e.features.label {
		return "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT"
	}
	return "-m connlabel ! --label " + e.label()
}

func (e *env) masquerade() string {
	if e.features.randomFully {
		return targetMasqueradeFully
	}
	return targetMasquerade
}
