package nftables

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// The chains that every table has. A new connection takes this way; an established one meets none of them, since the
// kernel asks chains of type nat about the first packet alone:
//
//	prerouting, output ─ dispatch ─┬─ check-source            restricted frontends: drop who may not come in
//	                               ├─ vmap @services ─┬─ internal-lb-3 ─ mark-internal, lb-3 ─ dnat to @endpoints
//	                               │                  ├─ external-lb-3 ─ mark-external, lb-3
//	                               │                  ├─ external-local ─ vmap @shortcut-services or @local-services
//	                               │                  └─ refuse, drop
//	                               ├─ refuse                  other ports of an internal frontend's address
//	                               ├─ dispatch-node-ports ─ vmap @node-ports ─ as above
//	                               └─ drop                    addresses of the service ranges that nobody owns
//	input, postrouting ─ record-affinity
//	postrouting ─ masquerade                                  as the label says, or hairpin
//
// Two bits of the connection label carry what dispatch decided to postrouting: balanced alone keeps the client's
// address, hairpin excepted; masquerade alone hides it; both keep it if the endpoint is on this node, which with
// policy Local it always is.

// A rule is a list of expressions: all match, or the next rule is tried.
type rule []expression

// A chainSpec is what a chain shall be. hook is nil for a chain that others jump to.
type chainSpec struct {
	name  string
	hook  *hookSpec
	rules []rule
}

// A hookSpec is where a base chain is attached.
type hookSpec struct {
	kind     string // "nat" or "filter"
	hook     uint32
	priority int32
}

// A ruleset makes the rules of one family's table; it depends on the configuration and the node alone.
type ruleset struct {
	cfg    Config
	node   model.Node
	family model.Family
}

// on makes a rule of parts.
func on(parts ...[]expression) rule { return slices.Concat(parts...) }

func jump(chain string) []expression      { return []expression{verdict(unix.NFT_JUMP, chain)} }
func gotoChain(chain string) []expression { return []expression{verdict(unix.NFT_GOTO, chain)} }
func drop() []expression                  { return []expression{verdict(verdictDrop, "")} }
func back() []expression                  { return []expression{verdict(unix.NFT_RETURN, "")} }

const verdictDrop = 0 // NF_DROP

// load loads fields side by side, from register 0, and returns the register behind them.
func (r ruleset) load(fields ...field) ([]expression, uint32) {
	var out []expression
	reg := uint32(reg0)
	for _, f := range fields {
		switch f {
		case daddr, saddr:
			out = append(out, r.address(f, f.size(r.family), reg))
		case protocol:
			out = append(out, meta(unix.NFT_META_L4PROTO, reg))
		case port:
			out = append(out, payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, reg))
		}
		reg += f.size(r.family) / 4
	}
	return out, reg
}

// address loads the first size bytes of the source or destination address.
func (r ruleset) address(f field, size, reg uint32) expression {
	offset := map[field]uint32{saddr: 12, daddr: 16}[f]
	if r.family == model.IPv6 {
		offset = map[field]uint32{saddr: 8, daddr: 24}[f]
	}
	return payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size, reg)
}

// in matches packets whose fields are in a set.
func (r ruleset) in(id setID) []expression {
	e, _ := r.load(staticSet(id).key...)
	return append(e, lookup(setNames[id], -1))
}

// vmap sends packets where a verdict map says.
func (r ruleset) vmap(id setID) []expression {
	e, _ := r.load(staticSet(id).key...)
	return append(e, lookup(setNames[id], unix.NFT_REG_VERDICT))
}

// within matches packets whose source or destination is in a prefix, or is not.
func (r ruleset) within(f field, p netip.Prefix, is bool) []expression {
	op := uint32(unix.NFT_CMP_EQ)
	if !is {
		op = unix.NFT_CMP_NEQ
	}
	p = p.Masked()
	addr := p.Addr().AsSlice()
	if p.Bits()%8 == 0 && p.Bits() > 0 {
		n := p.Bits() / 8
		return []expression{r.address(f, uint32(n), reg0), compare(op, addr[:n])}
	}
	bits := make([]byte, len(addr))
	for i := range p.Bits() {
		bits[i/8] |= 0x80 >> (i % 8)
	}
	return []expression{r.address(f, uint32(len(addr)), reg0), mask(bits), compare(op, addr)}
}

// ownPrefixes returns the prefixes of the table's family, masked and merged.
func (r ruleset) ownPrefixes(prefixes []netip.Prefix) []netip.Prefix {
	own := slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return model.FamilyOf(p.Addr()) != r.family })
	return model.MergePrefixes(own)
}

// loopback is the family's loopback range.
func (r ruleset) loopback() netip.Prefix {
	if r.family == model.IPv4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
	}
	return netip.PrefixFrom(netip.IPv6Loopback(), 128)
}

// servesLoopback reports whether node ports answer on loopback.
func (r ruleset) servesLoopback() bool { return r.family == model.IPv4 && r.node.NodePorts.Loopback }

// internal returns matches that together recognise packets of internal sources.
func (r ruleset) internal() [][]expression {
	var out [][]expression
	for _, p := range r.ownPrefixes(r.node.Detector.Prefixes) {
		out = append(out, r.within(saddr, p, true))
	}
	for _, name := range r.node.Detector.Interfaces {
		out = append(out, []expression{meta(unix.NFT_META_IIFNAME, reg0), compare(unix.NFT_CMP_EQ, []byte(name))})
	}
	return out
}

func (r ruleset) balanced() []expression    { return setLabel(r.cfg.BalancedLabel) }
func (r ruleset) masqueraded() []expression { return setLabel(r.cfg.MasqueradeLabel) }

// frame returns the chains that every table has, those that others lead to first.
func (r ruleset) frame() []chainSpec {
	chains := []chainSpec{
		r.refuse(),
		{name: internalSource, rules: r.markInternal()},
		{name: externalSource, rules: r.markExternal()},
		{name: externalLocal, rules: r.bySource(shortcutServices, localServices)},
		{name: nodePortLocal, rules: r.bySource(shortcutNodePorts, localNodePorts)},
		{name: checkSource, rules: []rule{on(r.in(allowed), back()), drop()}},
		{name: checkSourceNP, rules: []rule{on(r.in(allowedNodePorts), back()), drop()}},
		{name: nodePortChain, rules: []rule{on(r.in(restrictedNodePorts), jump(checkSourceNP)), r.vmap(nodePorts)}},
		{name: dispatchChain, rules: r.dispatch()},
		{name: recordChain, rules: r.record()},
		{name: natPrerouting, hook: &hookSpec{"nat", unix.NF_INET_PRE_ROUTING, -100}, rules: []rule{gotoChain(dispatchChain)}},
		{name: natOutput, hook: &hookSpec{"nat", unix.NF_INET_LOCAL_OUT, -100}, rules: []rule{gotoChain(dispatchChain)}},
		{name: natInput, hook: &hookSpec{"nat", unix.NF_INET_LOCAL_IN, 100}, rules: []rule{on(translated(), jump(recordChain))}},
		{name: natPostrouting, hook: &hookSpec{"nat", unix.NF_INET_POST_ROUTING, 100}, rules: r.postrouting()},
	}
	if r.servesLoopback() {
		outside := []expression{meta(unix.NFT_META_IIFNAME, reg0), compare(unix.NFT_CMP_NEQ, interfaceName("lo"))}
		chains = append(chains, chainSpec{name: guardLoopback, hook: &hookSpec{"filter", unix.NF_INET_PRE_ROUTING, -300},
			rules: []rule{on(outside, r.within(daddr, r.loopback(), true), drop())}})
	}
	if r.cfg.DropInvalid {
		invalid := []expression{ct(unix.NFT_CT_STATE, -1, reg0), mask(native32(stateInvalid)), compare(unix.NFT_CMP_NEQ, make([]byte, 4))}
		chains = append(chains, chainSpec{name: forwardInvalid, hook: &hookSpec{"filter", unix.NF_INET_FORWARD, 0},
			rules: []rule{on(invalid, r.repliers(), drop())}})
	}
	return chains
}

const stateInvalid = 1 // NF_CT_STATE_INVALID_BIT

// interfaceName returns a whole interface name as the kernel compares it.
func interfaceName(name string) []byte {
	const size = 16 // IFNAMSIZ
	return append([]byte(name), make([]byte, size-len(name))...)
}

// repliers matches packets that come from an endpoint.
func (r ruleset) repliers() []expression {
	e, reg := r.load(saddr, protocol)
	return append(e, payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2, reg), lookup(setNames[repliers], -1))
}

// refuse rejects: TCP with a reset, which no rate limit holds back, everything else with port unreachable.
func (r ruleset) refuse() chainSpec {
	const (
		icmpUnreachable, tcpReset = 0, 1 // NFT_REJECT_ICMP_UNREACH, NFT_REJECT_TCP_RST
		portUnreachable           = 3    // ICMP_PORT_UNREACH; one more in ICMPv6
	)
	return chainSpec{name: refuseChain, rules: []rule{
		on(protocolIs(model.TCP), []expression{reject(tcpReset, 0)}),
		{reject(icmpUnreachable, portUnreachable+uint8(r.family))},
	}}
}

func (r ruleset) dispatch() []rule {
	rules := []rule{
		on(r.in(restricted), jump(checkSource)),
		r.vmap(services),
	}
	if !r.cfg.AllowOtherPorts {
		rules = append(rules, on(r.in(clusterIPs), gotoChain(refuseChain)))
	}
	for _, match := range r.nodePortAddrs() {
		rules = append(rules, on(match, localAddr(fibDaddr, true), gotoChain(nodePortChain)))
	}
	for _, p := range r.ownPrefixes(r.node.ServiceRanges) {
		owned := on(r.within(daddr, p, true), r.in(ownedIPs), back())
		rules = append(rules, owned, on(r.within(daddr, p, true), localAddr(fibDaddr, false), drop()))
	}
	return rules
}

// nodePortAddrs returns matches that together recognise destinations on which node ports answer, if they are the node's.
func (r ruleset) nodePortAddrs() [][]expression {
	prefixes, limited := r.node.NodePortPrefixes(r.family)
	var out [][]expression
	notLoopback := r.within(daddr, r.loopback(), false)
	for _, p := range model.MergePrefixes(prefixes) {
		out = append(out, slices.Concat(notLoopback, r.within(daddr, p, true)))
	}
	if !limited {
		out = append(out, notLoopback)
	}
	if r.servesLoopback() {
		out = append(out, r.within(daddr, r.loopback(), true))
	}
	return out
}

// markInternal decides about connections to internal frontends.
func (r ruleset) markInternal() []rule {
	if r.node.MasqueradeAll {
		return []rule{r.masqueraded()}
	}
	var rules []rule
	if r.servesLoopback() {
		rules = append(rules, on(r.within(saddr, r.loopback(), true), r.masqueraded(), back()))
	}
	if !r.node.Detector.Detects(r.family) {
		virtual := []expression{r.address(saddr, saddr.size(r.family), reg0), lookup(setNames[clusterIPs], -1)}
		return append(rules, on(virtual, r.masqueraded(), back()), r.balanced())
	}
	for _, match := range r.internal() {
		rules = append(rules, on(match, r.balanced(), back()))
	}
	return append(rules, r.masqueraded())
}

// keepsClients reports whether clients from outside are not masqueraded if their endpoint is on this node.
func (r ruleset) keepsClients() bool { return r.node.KeepClientAddress && !r.node.MasqueradeAll }

// markExternal decides about connections to external frontends and node ports with policy Cluster.
func (r ruleset) markExternal() []rule {
	if r.keepsClients() {
		return []rule{r.balanced(), r.masqueraded()}
	}
	return []rule{r.masqueraded()}
}

// bySource leads connections to frontends with external policy Local: those of internal and node sources to the
// endpoints of the whole cluster, all others to those on this node.
func (r ruleset) bySource(shortcut, local setID) []rule {
	var rules []rule
	for _, match := range r.internal() {
		rules = append(rules, on(match, r.balanced(), r.vmap(shortcut)))
	}
	return append(rules,
		on(localAddr(fibSaddr, true), r.masqueraded(), r.vmap(shortcut)),
		on(r.balanced(), r.masqueraded(), r.vmap(local)),
		drop())
}

// record leads the first packet of a connection to the chain that remembers its endpoint, if its frontend has affinity.
// nft takes the original port only behind a rule's own match of the protocol.
func (r ruleset) record() []rule {
	src, dst := uint32(ctSrcIP), uint32(ctDstIP)
	if r.family == model.IPv6 {
		src, dst = ctSrcIP6, ctDstIP6
	}
	key := func(addr uint32, direction int) ([]expression, uint32) {
		proto := reg0 + daddr.size(r.family)/4
		return []expression{
			ct(addr, direction, reg0), meta(unix.NFT_META_L4PROTO, proto), ct(unix.NFT_CT_PROTO_DST, dirOriginal, proto+1),
		}, proto + 2
	}
	var rules []rule
	for _, p := range model.Protocols {
		virtual, _ := key(dst, dirOriginal)
		real, next := key(src, dirReply)
		rules = append(rules,
			on(protocolIs(p), virtual, []expression{lookup(setNames[affinity], unix.NFT_REG_VERDICT)}),
			on(protocolIs(p), real, []expression{ct(unix.NFT_CT_PROTO_SRC, dirReply, next), lookup(setNames[nodePortAffinity], unix.NFT_REG_VERDICT)}))
	}
	return rules
}

func (r ruleset) postrouting() []rule {
	isBalanced, isMasqueraded := hasLabel(r.cfg.BalancedLabel), hasLabel(r.cfg.MasqueradeLabel)
	var local []expression
	if r.keepsClients() {
		local = r.in(localEndpoints)
	}
	return []rule{
		on(translated(), jump(recordChain)),
		on(isBalanced, translated(), r.in(hairpin), []expression{masquerade()}),
		on(isBalanced, isMasqueraded, local, back()),
		on(isMasqueraded, translated(), []expression{masquerade()}),
	}
}

// writeChain writes the messages that create a chain, without its rules.
func (w *wire) writeChain(table string, fam model.Family, c chainSpec) {
	m := w.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, nfproto(fam))
	w.text(unix.NFTA_CHAIN_TABLE, table)
	w.text(unix.NFTA_CHAIN_NAME, c.name)
	if c.hook != nil {
		h := w.nest(unix.NFTA_CHAIN_HOOK)
		w.u32(unix.NFTA_HOOK_HOOKNUM, c.hook.hook)
		w.u32(unix.NFTA_HOOK_PRIORITY, uint32(c.hook.priority))
		w.close(h)
		w.u32(unix.NFTA_CHAIN_POLICY, 1) // NF_ACCEPT
		w.text(unix.NFTA_CHAIN_TYPE, c.hook.kind)
	}
	w.end(m)
}

// writeRule writes the message that appends a rule to a chain.
func (w *wire) writeRule(table string, fam model.Family, chain string, r rule) {
	m := w.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND|unix.NLM_F_ECHO, nfproto(fam))
	w.text(unix.NFTA_RULE_TABLE, table)
	w.text(unix.NFTA_RULE_CHAIN, chain)
	l := w.nest(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range r {
		e(w)
	}
	w.close(l)
	w.end(m)
}
