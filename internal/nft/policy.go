package nft

import (
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// Chains that tables of every backend have. They decide what does not depend on how an endpoint is chosen.

func (r *Rules) balanced() []Expression    { return SetLabel(r.BalancedLabel) }
func (r *Rules) masqueraded() []Expression { return SetLabel(r.MasqueradeLabel) }

// HideClient decides that the client is masqueraded.
func (r *Rules) HideClient() []Expression { return r.masqueraded() }

// KeepClient decides that the client's address is kept, hairpin excepted: the endpoint is on this node.
func (r *Rules) KeepClient() []Expression { return append(r.balanced(), r.masqueraded()...) }

// Refuse rejects: TCP with a reset, which no rate limit holds back, everything else with port unreachable.
func (r *Rules) Refuse() Chain {
	const (
		icmpUnreachable, tcpReset = 0, 1 // NFT_REJECT_ICMP_UNREACH, NFT_REJECT_TCP_RST
		portUnreachable           = 3    // ICMP_PORT_UNREACH; one more in ICMPv6
	)
	return Chain{Name: RefuseChain, Rules: []Rule{
		On(ProtocolIs(model.TCP), []Expression{Reject(tcpReset, 0)}),
		{Reject(icmpUnreachable, portUnreachable+uint8(r.Family))},
	}}
}

// CheckSource drops packets to restricted frontends whose source is not in a set of ranges.
func (r *Rules) CheckSource(name string, ranges SetID) Chain {
	return Chain{Name: name, Rules: []Rule{On(r.In(ranges), Return()), Drop()}}
}

// MarkInternal decides about connections to internal frontends.
func (r *Rules) MarkInternal() Chain { return Chain{Name: MarkInternalChain, Rules: r.markInternal()} }

func (r *Rules) markInternal() []Rule {
	if r.Node.MasqueradeAll {
		return []Rule{r.masqueraded()}
	}
	var rules []Rule
	if r.ServesLoopback() {
		rules = append(rules, On(r.Within(Saddr, r.Loopback(), true), r.masqueraded(), Return()))
	}
	if !r.Node.Detector.Detects(r.Family) {
		return append(rules, On(r.SourceIn(ClusterIPs, true), r.masqueraded(), Return()), r.balanced())
	}
	for _, match := range r.InternalSources() {
		rules = append(rules, On(match, r.balanced(), Return()))
	}
	return append(rules, r.masqueraded())
}

// KeepsClients reports whether clients from outside are not masqueraded if their endpoint is on this node.
func (r *Rules) KeepsClients() bool { return r.Node.KeepClientAddress && !r.Node.MasqueradeAll }

// MarkExternal decides about connections to external frontends and node ports with policy Cluster.
func (r *Rules) MarkExternal() Chain {
	if r.KeepsClients() {
		return Chain{Name: MarkExternalChain, Rules: []Rule{r.balanced(), r.masqueraded()}}
	}
	return Chain{Name: MarkExternalChain, Rules: []Rule{r.masqueraded()}}
}

// BySource leads connections to frontends with external policy Local: those of internal sources, and of the node
// itself, which fromNode matches, to the endpoints of the whole cluster; all others to those on this node.
func (r *Rules) BySource(name string, fromNode []Expression, shortcut, local SetID) Chain {
	var rules []Rule
	for _, match := range r.InternalSources() {
		rules = append(rules, On(match, r.balanced(), r.VMap(shortcut)))
	}
	return Chain{Name: name, Rules: append(rules,
		On(fromNode, r.masqueraded(), r.VMap(shortcut)),
		On(r.balanced(), r.masqueraded(), r.VMap(local)),
		Drop())}
}

// ServiceRanges drops packets to addresses of the service ranges that nobody owns and that are not the node's own.
func (r *Rules) ServiceRanges() []Rule {
	var rules []Rule
	for _, p := range r.OwnPrefixes(r.Node.ServiceRanges) {
		owned := On(r.Within(Daddr, p, true), r.In(OwnedIPs), Return())
		rules = append(rules, owned, On(r.Within(Daddr, p, true), LocalAddr(FIBDaddr, false), Drop()))
	}
	return rules
}

// RecordAffinity returns the chains through which a new connection gets to the one that remembers its endpoint, if its
// frontend has affinity. Every new connection passes them, so they are there only if a service needs them. The base chains
// come before all that may translate the source, for once a chain of type nat has done so, the kernel asks no further one.
func (r *Rules) RecordAffinity() []Chain {
	const priority = 0
	rules := []Rule{On(Translated(), Jump(RecordChain))}
	return []Chain{r.record(),
		{Name: NATInput, Hook: &Hook{"nat", unix.NF_INET_LOCAL_IN, priority}, Rules: rules},
		{Name: NATRecord, Hook: &Hook{"nat", unix.NF_INET_POST_ROUTING, priority}, Rules: rules},
	}
}

// record leads to the chains of services. nft takes the original port only behind a rule's own match of the protocol.
func (r *Rules) record() Chain {
	src, dst := uint32(CTSrcIP), uint32(CTDstIP)
	if r.Family == model.IPv6 {
		src, dst = CTSrcIP6, CTDstIP6
	}
	key := func(addr uint32, direction int) ([]Expression, uint32) {
		proto := Reg0 + Daddr.Size(r.Family)/4
		return []Expression{
			CT(addr, direction, Reg0), Meta(unix.NFT_META_L4PROTO, proto), CT(unix.NFT_CT_PROTO_DST, DirOriginal, proto+1),
		}, proto + 2
	}
	c := Chain{Name: RecordChain}
	for _, p := range model.Protocols {
		virtual, _ := key(dst, DirOriginal)
		real, next := key(src, DirReply)
		c.Rules = append(c.Rules,
			On(ProtocolIs(p), virtual, []Expression{Lookup(r.Sets[Affinity].Name, unix.NFT_REG_VERDICT)}),
			On(ProtocolIs(p), real, []Expression{CT(unix.NFT_CT_PROTO_SRC, DirReply, next), Lookup(r.Sets[NodePortAffinity].Name, unix.NFT_REG_VERDICT)}))
	}
	return c
}

// Masquerade hides clients as the connection's label says, and those that reached themselves. Of the connections with
// a label, only those that match also are looked at.
func (r *Rules) Masquerade(also []Expression) []Rule {
	isBalanced, isMasqueraded := HasLabel(r.BalancedLabel), HasLabel(r.MasqueradeLabel)
	var local []Expression
	if r.KeepsClients() {
		local = r.In(LocalEndpoints)
	}
	return []Rule{
		On(isBalanced, also, r.In(Hairpin), []Expression{Masquerade()}),
		On(isBalanced, isMasqueraded, local, Return()),
		On(isMasqueraded, also, []Expression{Masquerade()}),
	}
}

// ForwardInvalid drops what conntrack calls invalid of what endpoints send: the client would see the endpoint's own
// address.
func (r *Rules) ForwardInvalid() Chain {
	const stateInvalid = 1 // NF_CT_STATE_INVALID_BIT
	invalid := []Expression{CT(unix.NFT_CT_STATE, -1, Reg0), Mask(Native32(stateInvalid)), Compare(unix.NFT_CMP_NEQ, make([]byte, 4))}
	from, reg := r.Load(Saddr, L4Proto)
	from = append(from, Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2, reg), Lookup(r.Sets[Repliers].Name, -1))
	return Chain{Name: ForwardInvalidChain, Hook: &Hook{"filter", unix.NF_INET_FORWARD, 0}, Rules: []Rule{On(invalid, from, Drop())}}
}

// GuardLoopback drops what other hosts send to loopback addresses.
func (r *Rules) GuardLoopback() Chain {
	return Chain{Name: GuardLoopbackChain, Hook: &Hook{"filter", unix.NF_INET_PRE_ROUTING, -300},
		Rules: []Rule{On(InterfaceIs("lo", false), r.Within(Daddr, r.Loopback(), true), Drop())}}
}
