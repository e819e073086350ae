package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"github.com/headgate/headgate/model"
)

// A table is a table of the kernel that has chains of ours.
type table uint8

const (
	nat table = iota
	filter
)

var tables = [...]table{nat, filter}

func (t table) String() string { return [...]string{"nat", "filter"}[t] }

// A rule is one rule of a chain, in the words in which iptables-save lists it, without the chain.
type rule struct {
	text string
	// owner is the service that it is there for; empty for rules that all services share.
	owner model.ServiceName
}

// A chain is one chain of ours with all its rules.
type chain struct {
	table table
	name  string
	rules []rule
	// wall and guards say, for a chain that is part of a wall, of which tree and key that is.
	wall   int
	guards string
}

// add appends a rule made of parts, of which empty ones are left out.
func (c *chain) add(owner model.ServiceName, parts ...string) {
	c.rules = append(c.rules, rule{text: words(parts...), owner: owner})
}

// A jump is the rule by which a chain of the table that everybody shares leads to one of ours.
type jump struct {
	table table
	from  string // the built-in chain
	text  string // the rule, as in rule.text
	last  bool   // behind the rules of others, not before them
}

// jumpMark begins the comment of each jump of ours.
const jumpMark = "headgate: "

// words joins those of the parts that are not empty.
func words(parts ...string) string {
	n, only := 0, ""
	for _, p := range parts {
		if p != "" {
			n, only = n+len(p)+1, p
		}
	}
	if n == len(only)+1 {
		return only
	}
	var b strings.Builder
	b.Grow(n)
	for _, p := range parts {
		if p == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(p)
	}
	return b.String()
}

// What follows writes matches and targets as iptables-save does, so that rules can be compared as text.

// matchDst and matchSrc match packets to or from an address of the prefix. Every address needs no match.
func matchDst(p netip.Prefix) string { return matchPrefix("-d ", p) }
func matchSrc(p netip.Prefix) string { return matchPrefix("-s ", p) }

func matchPrefix(flag string, p netip.Prefix) string {
	if p.Bits() == 0 {
		return ""
	}
	return flag + addrText(p.Addr()) + "/" + strconv.Itoa(p.Bits())
}

// addrText writes an address as inet_ntop(3) does, which shows the lower half of ::/96 in dots.
func addrText(a netip.Addr) string {
	if a.Is6() {
		if b := a.As16(); [12]byte(b[:12]) == [12]byte{} && (b[12] != 0 || b[13] != 0) {
			return "::" + netip.AddrFrom4([4]byte(b[12:])).String()
		}
	}
	return a.String()
}

func matchProto(p model.Protocol) string { return "-p " + p.String() }

// matchPorts matches a protocol and a range of destination ports.
func matchPorts(p model.Protocol, lo, hi uint16) string {
	s := "-p " + p.String() + " -m " + p.String() + " --dport " + strconv.Itoa(int(lo))
	if hi != lo {
		s += ":" + strconv.Itoa(int(hi))
	}
	return s
}

// matchChance matches with the probability of weight to total. Nothing is needed where that is one.
// The kernel counts in units of 2^-31; the least that is possible is one of them.
func matchChance(weight, total uint64) string {
	if weight >= total {
		return ""
	}
	const unit = 1 << 31
	n := max(math.Round(float64(weight)/float64(total)*unit), 1)
	b := append(make([]byte, 0, 64), "-m statistic --mode random --probability "...)
	return string(strconv.AppendFloat(b, n/unit, 'f', 11, 64))
}

// matchTurn matches every nth packet that comes here, the first one included. Nothing is needed for every packet.
func matchTurn(every int) string {
	if every <= 1 {
		return ""
	}
	return "-m statistic --mode nth --every " + strconv.Itoa(every) + " --packet 0"
}

// matchRecent matches a source address that is in a list of recent ones. If seconds is not empty it must have been
// entered within so many; a match counts as entering anew.
func matchRecent(f model.Family, list, seconds string) string {
	if seconds != "" {
		seconds = "--seconds " + seconds + " --reap "
	}
	return "-m recent --update " + seconds + "--name " + list + recentMask(f)
}

// matchRemember enters the source address in a list of recent ones, and matches.
func matchRemember(f model.Family, list string) string {
	return "-m recent --set --name " + list + recentMask(f)
}

func recentMask(f model.Family) string {
	if f == model.IPv4 {
		return " --mask 255.255.255.255 --rsource"
	}
	return " --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource"
}

const (
	toNode          = "-m addrtype --dst-type LOCAL"
	notToNode       = "-m addrtype ! --dst-type LOCAL"
	fromNode        = "-m addrtype --src-type LOCAL"
	notFromNode     = "-m addrtype ! --src-type LOCAL"
	stateNew        = "-m conntrack --ctstate NEW"
	stateTranslated = "-m conntrack --ctstate DNAT"
	stateInvalid    = "-m conntrack --ctstate INVALID"

	targetAccept          = "-j ACCEPT"
	targetDrop            = "-j DROP"
	targetReturn          = "-j RETURN"
	targetMasquerade      = "-j MASQUERADE"
	targetMasqueradeFully = targetMasquerade + " --random-fully"

	targetReset = "-j REJECT --reject-with tcp-reset"
)

// targetRefuse answers that nobody listens.
func targetRefuse(f model.Family) string {
	if f == model.IPv4 {
		return "-j REJECT --reject-with icmp-port-unreachable"
	}
	return "-j REJECT --reject-with icmp6-port-unreachable"
}

// targetRefuseProto is targetRefuse for packets of one protocol. A reset reaches a connecting socket of this host at
// once, where an ICMP error that finds it locked is heard only after the next try.
func targetRefuseProto(f model.Family, p model.Protocol) string {
	if p == model.TCP {
		return targetReset
	}
	return targetRefuse(f)
}

// targetEndpoint translates the destination. The rule must match the protocol.
func targetEndpoint(a netip.AddrPort) string { return string(appendTarget(make([]byte, 0, 72), a)) }

func appendTarget(b []byte, a netip.AddrPort) []byte {
	b = append(b, "-j DNAT --to-destination "...)
	if a.Addr().Is4() {
		return a.AppendTo(b)
	}
	b = append(append(b, '['), addrText(a.Addr())...)
	return strconv.AppendUint(append(b, "]:"...), uint64(a.Port()), 10)
}

func jumpTo(chain string) string { return "-j " + chain }

// goTo leaves the current chain for good: where the other ends, the packet returns to whence it jumped last.
func goTo(chain string) string { return "-g " + chain }

// A bit is a bit of the packet mark.
type bit uint32

func (b bit) match() string { return fmt.Sprintf("-m mark --mark %#x/%#x", uint32(b), uint32(b)) }
func (b bit) set() string   { return fmt.Sprintf("-j MARK --set-xmark %#x/%#x", uint32(b), uint32(b)) }
func (b bit) clear() string { return fmt.Sprintf("-j MARK --set-xmark 0x0/%#x", uint32(b)) }

// matchInterface returns the match of an interface whose name begins with a prefix, and whether the tools can say it.
func matchInterface(prefix string) (string, bool) {
	const longest = 15 // IFNAMSIZ with the terminating zero is 16
	odd := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"'\\", r) }
	if strings.ContainsFunc(prefix, odd) || prefix[0] == '-' || prefix[0] == '!' {
		return "", false
	}
	if len(prefix) == longest {
		return "-i " + prefix, true
	}
	return "-i " + prefix + "+", true
}
