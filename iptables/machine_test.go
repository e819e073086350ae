package iptables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate/headgate/model"
)

// A machine evaluates rules as the kernel does, as far as rules of ours go. Where a rule leaves it to chance, it takes
// both ways and knows how likely each is.
type machine struct {
	tb     testing.TB
	family model.Family
	tables [len(tables)]map[string][]rule
	jumps  []jump
	local  []netip.Addr // the node's addresses
	turns  map[*rule]int
	lists  map[string]map[netip.Addr]bool
	// passed counts the rules that were evaluated.
	passed int
	// programs are those of xt_bpf that were read before.
	programs map[string][]instruction
}

func newMachine(tb testing.TB, f model.Family, local ...netip.Addr) *machine {
	m := &machine{tb: tb, family: f, local: local, turns: map[*rule]int{}, lists: map[string]map[netip.Addr]bool{}, programs: map[string][]instruction{}}
	for t := range m.tables {
		m.tables[t] = map[string][]rule{}
	}
	return m
}

// load replaces everything by a ruleset.
func (m *machine) load(e *env, rs ruleset) {
	for t := range m.tables {
		m.tables[t] = map[string][]rule{}
		for _, c := range rs[t] {
			m.tables[t][c.name] = c.rules
		}
	}
	m.jumps = e.jumps()
}

// commit does what iptables-restore would do with a stage.
func (m *machine) commit(s stage) {
	chains := m.tables[s.table]
	for _, c := range s.write {
		chains[c.name] = c.rules
	}
	for _, name := range s.gone {
		if _, ok := chains[name]; !ok {
			m.tb.Fatalf("%s: chain %s is to be deleted, but is not there", s.table, name)
		}
		delete(chains, name)
	}
	m.jumps = append(m.jumps, s.jumps...)
	m.jumps = slices.DeleteFunc(m.jumps, func(j jump) bool { return slices.Contains(s.unjumps, j) })
	for _, rules := range chains {
		for _, r := range rules {
			if to := target(r.text); strings.HasPrefix(to, "HEADGATE-") {
				if _, ok := chains[to]; !ok {
					m.tb.Fatalf("%s: %q leads nowhere", s.table, r.text)
				}
			}
		}
	}
}

// A fate is what becomes of a packet.
type fate struct {
	verdict string // "dnat", "drop", "reject", "none"
	to      netip.AddrPort
	masq    bool
}

// send returns how likely each fate is.
func (m *machine) send(p packet) map[fate]float64 {
	out := map[fate]float64{}
	m.traverse(nat, m.hooks(nat, m.first(p)), p, 1, func(p packet, verdict string, likely float64) {
		hook := "FORWARD"
		switch {
		case p.in == "":
			hook = "OUTPUT"
		case slices.Contains(m.local, p.dst):
			hook = "INPUT"
		}
		m.traverse(filter, m.hooks(filter, hook), p, likely, func(p packet, verdict string, likely float64) {
			f := fate{verdict: "none"}
			switch {
			case verdict == "DROP":
				f.verdict = "drop"
			case verdict == "REJECT":
				f.verdict = "reject"
			case p.balanced:
				f = fate{verdict: "dnat", to: netip.AddrPortFrom(p.dst, p.dport)}
			}
			if f.verdict != "dnat" || hook == "INPUT" {
				out[f] += likely
				return
			}
			m.traverse(nat, m.hooks(nat, "POSTROUTING"), p, likely, func(p packet, verdict string, likely float64) {
				f.masq = verdict == "MASQUERADE"
				out[f] += likely
			})
		})
	})
	return out
}

func (m *machine) first(p packet) string {
	if p.in == "" {
		return "OUTPUT"
	}
	return "PREROUTING"
}

// hooks returns the jumps from a built-in chain as rules.
func (m *machine) hooks(t table, from string) []rule {
	var front, back []rule
	for _, j := range m.jumps {
		if j.table != t || j.from != from {
			continue
		}
		if j.last {
			back = append(back, rule{text: j.text})
		} else {
			front = append(front, rule{text: j.text})
		}
	}
	return append(front, back...)
}

// A frame is where a traversal goes on when a chain ends.
type frame struct{ rules []rule }

// traverse evaluates rules and calls end for each way that they can end: with a verdict, or "" at the end of the chain.
func (m *machine) traverse(t table, rules []rule, p packet, likely float64, end func(packet, string, float64)) {
	m.step(t, []frame{{rules}}, p, likely, end, 0)
}

func (m *machine) step(t table, stack []frame, p packet, likely float64, end func(packet, string, float64), passed int) {
	for {
		if passed++; passed > 100_000 {
			m.tb.Fatal("the rules never end")
		}
		top := len(stack) - 1
		if len(stack[top].rules) == 0 {
			if top == 0 {
				end(p, "", likely)
				return
			}
			stack = stack[:top]
			continue
		}
		at := &stack[top].rules[0]
		m.passed++
		stack = append(slices.Clone(stack[:top]), frame{stack[top].rules[1:]})
		chance, rest := m.match(&p, at)
		if chance < 1 && chance > 0 {
			m.step(t, stack, p, likely*(1-chance), end, passed)
			likely *= chance
		}
		if chance == 0 {
			continue
		}
		if len(rest) == 0 {
			continue // a rule without a target
		}
		if next, ok := m.tables[t][rest[1]]; ok {
			if rest[0] == "-g" {
				stack = stack[:len(stack)-1]
				if len(stack) == 0 {
					stack = []frame{{nil}}
				}
			}
			stack = append(stack, frame{next})
			continue
		}
		switch rest[1] {
		case "RETURN":
			if stack = stack[:len(stack)-1]; len(stack) == 0 {
				end(p, "", likely)
				return
			}
		case "MARK":
			p.setMark(rest)
		case "DNAT":
			p.translate(rest)
			end(p, "DNAT", likely)
			return
		default:
			end(p, rest[1], likely)
			return
		}
	}
}

// A lot is the machine as it judges one rule, and how likely the rule matches.
type lot struct {
	*machine
	chance float64
}

func (l *lot) local(a netip.Addr) bool { return slices.Contains(l.machine.local, a) }

func (l *lot) met(p *packet, r *rule, option string, behind []string) (met bool, taken int) {
	switch option {
	case "--bytecode":
		text := behind[0]
		if l.programs[text] == nil {
			l.programs[text] = parseProgram(l.tb, text)
		}
		return runProgram(l.tb, l.programs[text], header(p)), 1
	case "--mode":
		if behind[0] == "random" {
			l.chance, _ = strconv.ParseFloat(behind[2], 64)
			return true, 3
		}
		every, _ := strconv.Atoi(behind[2])
		l.turns[r]++
		return (l.turns[r]-1)%every == 0, 5
	case "--update", "--set":
		name, end := behind[slices.Index(behind, "--name")+1], slices.Index(behind, "--rsource")+1
		if option == "--update" {
			return l.lists[name][p.src], end
		}
		if l.lists[name] == nil {
			l.lists[name] = map[netip.Addr]bool{}
		}
		l.lists[name][p.src] = true
		return true, end
	}
	l.tb.Fatalf("%q: what is %q?", r.text, option)
	return false, 0
}

// match returns how likely a rule matches, and its target.
func (m *machine) match(p *packet, r *rule) (chance float64, rest []string) {
	l := &lot{m, 1}
	met, rest := p.meets(r, l)
	if !met {
		return 0, nil
	}
	return l.chance, rest
}

// header returns what a program sees of a packet.
func header(p *packet) []byte {
	var b []byte
	if p.src.Is4() {
		b = make([]byte, 20)
		b[0] = 0x45
		copy(b[12:], p.src.AsSlice())
		copy(b[16:], p.dst.AsSlice())
	} else {
		b = make([]byte, 40)
		b[0] = 0x60
		copy(b[8:], p.src.AsSlice())
		copy(b[24:], p.dst.AsSlice())
	}
	b = binary.BigEndian.AppendUint16(b, p.sport)
	return binary.BigEndian.AppendUint16(b, p.dport)
}

// parseProgram reads classic BPF from its text form.
func parseProgram(tb testing.TB, text string) []instruction {
	parts := strings.Split(text, ",")
	var prog []instruction
	for _, s := range parts[1:] {
		var i instruction
		if _, err := fmt.Sscanf(s, "%d %d %d %d", &i.code, &i.jt, &i.jf, &i.k); err != nil {
			tb.Fatalf("%q: %v", s, err)
		}
		prog = append(prog, i)
	}
	if strconv.Itoa(len(prog)) != parts[0] || len(prog) > 64 {
		tb.Fatalf("%d instructions, said to be %s", len(prog), parts[0])
	}
	return prog
}

// runProgram runs a program over a packet.
func runProgram(tb testing.TB, prog []instruction, packet []byte) bool {
	var a, x uint32
	var mem [16]uint32
	jump := func(pc *int, taken bool, i instruction) {
		if taken {
			*pc += int(i.jt)
		} else {
			*pc += int(i.jf)
		}
	}
	for pc := 0; pc < len(prog); pc++ {
		switch i := prog[pc]; i.code {
		case bpfLoadWord:
			a = binary.BigEndian.Uint32(packet[i.k:])
		case bpfLoadHalfX:
			a = uint32(binary.BigEndian.Uint16(packet[x+i.k:]))
		case bpfLoadImm:
			a = i.k
		case bpfLoadHeaderX:
			x = 4 * uint32(packet[i.k]&15)
		case bpfLoadImmX:
			x = i.k
		case bpfLoadMemX:
			x = mem[i.k]
		case bpfStore:
			mem[i.k] = a
		case bpfTax:
			x = a
		case bpfMulK:
			a *= i.k
		case bpfXorK:
			a ^= i.k
		case bpfXorX:
			a ^= x
		case bpfRshK:
			a >>= i.k
		case bpfAndK:
			a &= i.k
		case bpfLshX:
			a <<= x
		case bpfJumpEqX:
			jump(&pc, a == x, i)
		case bpfJumpGeK:
			jump(&pc, a >= i.k, i)
		case bpfJumpSetK:
			jump(&pc, a&i.k != 0, i)
		case bpfReturn:
			return i.k != 0
		default:
			tb.Fatalf("opcode %#x", i.code)
		}
	}
	tb.Fatal("a program without an end")
	return false
}
