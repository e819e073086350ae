package modeltest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/headgate/headgate/model"
)

// Differences that only the vectors know, for a backend's FeatureSet, beside those of the suite.
const (
	// DiffInternalLocalRefused: without an endpoint on this node, a service with internal policy Local refuses instead of
	// dropping.
	DiffInternalLocalRefused = "internal-local-refused"
	// DiffNodeNotRefused: the node as the client of an external frontend without endpoints is not refused.
	DiffNodeNotRefused = "node-not-refused"
	// DiffRangesRefuse: without endpoints, clients outside the source ranges are refused instead of dropped.
	DiffRangesRefuse = "ranges-refuse"
	// DiffNodePortRefusedAnywhere: a node port without endpoints is refused on all addresses of the node, also on those
	// that serve no node ports.
	DiffNodePortRefusedAnywhere = "node-port-refused-anywhere"
	// DiffNodeMasqueraded: the node as the client of an internal frontend is masqueraded even if no detector is set.
	DiffNodeMasqueraded = "node-masqueraded"
	// DiffHealthPort: a rule lets in packets to the ports of health servers.
	DiffHealthPort = "health-port"
)

// A VectorDifference is one point in which headgate means to answer otherwise than vectors.json, or than one of the
// three modes of the program that the vectors were taken from. There are no others.
type VectorDifference struct {
	// ID names it; a backend's FeatureSet may do so, where the difference is one between modes.
	ID string
	// Why is the reason.
	Why string

	// packet reports whether it is about a packet, whatever the backend; want is what headgate answers then. A difference
	// without want is one that a Verdict does not show.
	packet func(c vectorCase) bool
	want   *Want
	// mode reports whether it is about the answer of one mode, where that is not what the others answer. The answer of
	// the nftables mode is ours then, unless the backend names the difference.
	mode func(c vectorCase, answer expectJSON) bool
	// flow reports whether it is about a tracked connection; headgate does the opposite then.
	flow func(c ConntrackCase, f ConntrackFlow) bool
}

// VectorDifferences returns all of them.
func VectorDifferences() []VectorDifference { return slices.Clone(vectorDifferences[:]) }

var vectorDifferences = [...]VectorDifference{{
	ID: DiffLoopback,
	Why: "Node ports on loopback are translated in the kernel like all others, IPv4 only, and for those alone who ask for it;" +
		" that loopback is within the listed prefixes does not ask. Otherwise they are none of our business, where the" +
		" vectors have a listener of their own or a refusal.",
	packet: func(c vectorCase) bool { return c.packet.To.Addr().IsLoopback() },
	want:   &Want{Verdict: Untouched},
}, {
	ID: "tcp-reset",
	Why: "TCP may be refused with a reset, which every client understands at once, where the vectors have an ICMP error." +
		" Both are Refused here.",
	packet: func(c vectorCase) bool {
		return c.raw.Expect.Verdict == verdictJSON(Refused) && c.packet.Proto == model.TCP
	},
}, {
	ID: "foreign-ranges",
	Why: "Source ranges that are all of the other family let in nobody of this one: whoever restricts a frontend does not" +
		" mean to open it to the other half of the world.",
	packet: func(c vectorCase) bool {
		_, f, ok := c.frontend()
		ownFamily := func(p netip.Prefix) bool { return model.FamilyOf(p.Addr()) == f.Family() }
		return ok && f.Restricted() && !slices.ContainsFunc(f.SourceRanges, ownFamily)
	},
	want: &Want{Verdict: Dropped},
}, {
	ID: "node-port-flows",
	Why: "Flows to a node port are told by the node's address and the port, where the vectors look at the port alone:" +
		" those to other hosts are never touched, and those to the node need not be spared for their sake.",
	flow: func(c ConntrackCase, f ConntrackFlow) bool {
		return c.isNodePort(f) && c.isStale(f) != f.Forgotten
	},
}, {
	ID: DiffOtherPorts,
	Why: "Other ports and protocols of an internal frontend's address are refused, so that nothing loops; the iptables mode" +
		" leaves them alone.",
	mode: func(c vectorCase, answer expectJSON) bool {
		return c.turns(answer, Refused, Untouched) && c.kindAt() == model.Internal && !c.claimed()
	},
}, {
	ID:  DiffExternalOtherPorts,
	Why: "Other ports of an external frontend's address are left alone; the ipvs mode has taken the address over and refuses.",
	mode: func(c vectorCase, answer expectJSON) bool {
		return c.turns(answer, Untouched, Refused) && c.kindAt() == model.External && !c.claimed()
	},
}, {
	ID:  DiffServiceRanges,
	Why: "Unowned addresses in the service ranges are dropped; the iptables and ipvs modes let packets to them leave the node.",
	mode: func(c vectorCase, answer expectJSON) bool {
		in := func(p netip.Prefix) bool { return p.Contains(c.packet.To.Addr()) }
		return c.turns(answer, Dropped, Untouched) && !c.claimed() && slices.ContainsFunc(c.state.Node.ServiceRanges, in)
	},
}, {
	ID: DiffLocalShortCut,
	Why: "With external policy Local, internal and node sources are served by the whole cluster, and others by endpoints on" +
		" this node alone; the ipvs mode has one list for everybody.",
	mode: func(c vectorCase, answer expectJSON) bool {
		s, f, ok := c.frontend()
		return ok && f.Kind != model.Internal && s.ExternalTraffic == model.Local && answer.Verdict == verdictJSON(Translated)
	},
}, {
	ID:  DiffInternalLocalRefused,
	Why: "Internal policy Local without an endpoint here drops, since there are some elsewhere; the ipvs mode refuses.",
	mode: func(c vectorCase, answer expectJSON) bool {
		s, f, ok := c.frontend()
		return ok && f.Kind == model.Internal && s.InternalTraffic == model.Local && c.turns(answer, Dropped, Refused)
	},
}, {
	ID:  DiffNodeNotRefused,
	Why: "The node as a client of an external frontend without endpoints is refused like everybody; the iptables mode lets the packet leave the node.",
	mode: func(c vectorCase, answer expectJSON) bool {
		_, f, ok := c.frontend()
		return ok && f.Kind == model.External && c.packet.Kind == FromNode && c.turns(answer, Refused, Untouched)
	},
}, {
	ID:  DiffRangesRefuse,
	Why: "Who may not come in is dropped even if there are no endpoints; the iptables mode checks ranges only where there are some.",
	mode: func(c vectorCase, answer expectJSON) bool {
		_, f, ok := c.frontend()
		return ok && f.Restricted() && c.turns(answer, Dropped, Refused)
	},
}, {
	ID:  DiffNodePortRefusedAnywhere,
	Why: "A node port without endpoints is refused where it would be served otherwise; the iptables mode refuses it on every address of the node.",
	mode: func(c vectorCase, answer expectJSON) bool {
		return c.turns(answer, Untouched, Refused) && slices.Contains(c.state.Node.Addrs, c.packet.To.Addr())
	},
}, {
	ID:  DiffLoopedVIP,
	Why: "A packet that loops back from any external address of the service may come in if the node may; the ipvs mode knows that of the same address alone.",
	mode: func(c vectorCase, answer expectJSON) bool {
		return c.packet.Kind == FromVIP && answer.Verdict == undefined
	},
}, {
	ID:  DiffNodeMasqueraded,
	Why: "Without a detector internal frontends do not masquerade; in the ipvs mode the node sends from the virtual address and has to be.",
	mode: func(c vectorCase, answer expectJSON) bool {
		_, f, ok := c.frontend()
		return ok && f.Kind == model.Internal && c.packet.Kind == FromNode && answer.Masq != nil && *answer.Masq
	},
}, {
	ID:   DiffHealthPort,
	Why:  "The port of a health server needs no rule of ours; the iptables and ipvs modes let it in explicitly.",
	mode: func(_ vectorCase, answer expectJSON) bool { return answer.Verdict == letIn },
}}

// A vectorCase is one packet of the vectors in its state.
type vectorCase struct {
	state  model.State
	packet Packet
	raw    packetJSON
}

// want is what becomes of the packet in headgate.
func (c vectorCase) want() Want {
	for _, d := range vectorDifferences {
		if d.want != nil && d.packet(c) {
			return *d.want
		}
	}
	w, ok := c.raw.Expect.want(c.packet.From)
	if !ok {
		panic(fmt.Sprintf("modeltest: vectors: packet %q: no difference explains the verdict %q", c.packet.Name, c.raw.Expect.Verdict))
	}
	return w
}

// others are the answers of the modes that give another one. Where headgate differs from all of them there is none.
func (c vectorCase) others() map[string]otherAnswer {
	for _, d := range vectorDifferences {
		if d.want != nil && d.packet(c) {
			return nil
		}
	}
	out := map[string]otherAnswer{}
	for mode, answer := range c.raw.ByBackend {
		i := slices.IndexFunc(vectorDifferences[:], func(d VectorDifference) bool { return d.mode != nil && d.mode(c, answer) })
		if i < 0 {
			panic(fmt.Sprintf("modeltest: vectors: packet %q: no difference explains the verdict %q of %s", c.packet.Name, answer.Verdict, mode))
		}
		w, ok := answer.want(c.packet.From)
		out[mode] = otherAnswer{difference: vectorDifferences[i].ID, want: w, unknown: !ok}
	}
	return out
}

// turns reports whether a mode gives one verdict where the vectors as such give another.
func (c vectorCase) turns(answer expectJSON, from, to Verdict) bool {
	return c.raw.Expect.Verdict == verdictJSON(from) && answer.Verdict == verdictJSON(to)
}

// frontend returns the frontend that the packet is for, and its service.
func (c vectorCase) frontend() (model.Service, model.Frontend, bool) {
	for _, nodePort := range [...]bool{false, true} {
		for _, s := range c.state.Services {
			for _, f := range s.Frontends {
				is := f.Addr == c.packet.To
				if nodePort {
					is = f.Kind == model.NodePort && f.Addr.Port() == c.packet.To.Port() && slices.Contains(c.state.Node.Addrs, c.packet.To.Addr())
				}
				if is && s.Protocol == c.packet.Proto && !c.packet.ICMP {
					return s, f, true
				}
			}
		}
	}
	return model.Service{}, model.Frontend{}, false
}

func (c vectorCase) claimed() bool {
	_, _, ok := c.frontend()
	return ok
}

// kindAt is the kind of a frontend at the packet's address, whatever the port; NodePort if there is none.
func (c vectorCase) kindAt() model.FrontendKind {
	for _, s := range c.state.Services {
		for _, f := range s.Frontends {
			if f.Addr.Addr() == c.packet.To.Addr() {
				return f.Kind
			}
		}
	}
	return model.NodePort
}
