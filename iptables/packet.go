package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/model"
)

// A packet is the first one of a connection, as rules see it.
type packet struct {
	src, dst     netip.Addr
	proto        model.Protocol
	sport, dport uint16
	in           string // the interface that it comes in on; empty for the node's own
	translated   bool   // to another address or port, as connection tracking sees it
	balanced     bool   // to any
	mark         uint32
	labelled     bool
}

// A judge decides what depends on more than the packet.
type judge interface {
	// local reports whether an address is the node's.
	local(netip.Addr) bool
	// met reports whether an option of a match of chance, of memory, or with a program is met, and how many of the words
	// behind it belong to it.
	met(p *packet, r *rule, option string, behind []string) (met bool, taken int)
}

// meets reports whether a packet meets all matches of a rule of ours, and returns the rule's target: "-j" or "-g" and
// what follows, nothing where there is none. A match that labels the connection does so.
func (p *packet) meets(r *rule, j judge) (met bool, target []string) {
	words := splitWords(r.text)
	not := false
	met = true
	is := func(b bool) { met, not = met && b != not, false }
	take := func() string {
		w := words[0]
		words = words[1:]
		return w
	}
	for len(words) > 0 && met {
		switch w := take(); w {
		case "!":
			not = true
		case "-s":
			is(netip.MustParsePrefix(take()).Contains(p.src))
		case "-d":
			is(netip.MustParsePrefix(take()).Contains(p.dst))
		case "-i":
			is(matchesInterface(take(), p.in))
		case "-o":
			is(take() == "lo" && p.in == "" && p.dst.IsLoopback())
		case "-p":
			is(take() == p.proto.String())
		case "-m", "--comment":
			take()
		case "--dport":
			is(inPorts(take(), p.dport))
		case "--src-type":
			take()
			is(j.local(p.src) || p.src.IsLoopback())
		case "--dst-type":
			take()
			is(j.local(p.dst) || p.dst.IsLoopback())
		case "--ctstate":
			is(p.inState(take()))
		case "--mark":
			value, mask := maskedValue(take())
			is(p.mark&mask == value)
		case "--label":
			take()
			if len(words) > 0 && words[0] == "--set" {
				take()
				p.labelled = true
			}
			is(p.labelled)
		case "-j", "-g":
			return met, append([]string{w}, words...)
		default:
			ok, taken := j.met(p, r, w, words)
			is(ok)
			words = words[taken:]
		}
	}
	return met, nil
}

func matchesInterface(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "+"); ok {
		return name != "" && strings.HasPrefix(name, prefix)
	}
	return name == pattern
}

func inPorts(ports string, port uint16) bool {
	lo, hi, ranged := strings.Cut(ports, ":")
	if !ranged {
		hi = lo
	}
	from, _ := strconv.Atoi(lo) // as matchPorts wrote them
	to, _ := strconv.Atoi(hi)
	return int(port) >= from && int(port) <= to
}

func (p *packet) inState(states string) bool {
	return slices.ContainsFunc(strings.Split(states, ","), func(s string) bool { return s == "NEW" || s == "DNAT" && p.translated })
}

// maskedValue reads a value and a mask as bit writes them.
func maskedValue(text string) (value, mask uint32) {
	fmt.Sscanf(text, "0x%x/0x%x", &value, &mask) // else they stay 0
	return value, mask
}

// setMark does what the target MARK does, given its words.
func (p *packet) setMark(target []string) {
	value, mask := maskedValue(target[3])
	p.mark = p.mark&^mask ^ value
}

// translate does what the target DNAT does, given its words.
func (p *packet) translate(target []string) {
	to := netip.MustParseAddrPort(target[3])
	p.translated = to != netip.AddrPortFrom(p.dst, p.dport)
	p.balanced = true
	p.dst, p.dport = to.Addr(), to.Port()
}
