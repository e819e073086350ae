package iptables

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/headgate/headgate/model"
)

// Some rules carry a small program for xt_bpf (classic BPF, linux/bpf_common.h), which sees the packet from its network
// header on.

// Opcodes of classic BPF.
const (
	bpfLoadWord    = 0x20 // A = word at k
	bpfLoadHalfX   = 0x48 // A = half word at X+k
	bpfLoadImm     = 0x00 // A = k
	bpfLoadHeaderX = 0xb1 // X = 4 * (byte at k & 15): the length of an IPv4 header
	bpfLoadImmX    = 0x01 // X = k
	bpfStore       = 0x02 // M[k] = A
	bpfLoadMemX    = 0x61 // X = M[k]
	bpfTax         = 0x07 // X = A
	bpfMulK        = 0x24
	bpfXorK        = 0xa4
	bpfXorX        = 0xac
	bpfRshK        = 0x74
	bpfAndK        = 0x54
	bpfLshX        = 0x6c
	bpfJumpEqX     = 0x1d
	bpfJumpGeK     = 0x35
	bpfJumpSetK    = 0x45
	bpfReturn      = 0x06
)

// An instruction of classic BPF (struct sock_filter).
type instruction struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

// matchProgram matches what a program returns something for.
func matchProgram(p []instruction) string {
	var b strings.Builder
	b.WriteString(`-m bpf --bytecode "`)
	b.WriteString(strconv.Itoa(len(p)))
	for _, i := range p {
		fmt.Fprintf(&b, ",%d %d %d %d", i.code, i.jt, i.jf, i.k)
	}
	b.WriteByte('"')
	return b.String()
}

// whether ends a program: it matches if the jump, which must be its last instruction, is taken.
func whether(p []instruction, jump instruction) []instruction {
	jump.jt, jump.jf = 0, 1
	return append(p, jump, instruction{code: bpfReturn, k: 1}, instruction{code: bpfReturn, k: 0})
}

// unless is whether for a jump that must not be taken.
func unless(p []instruction, jump instruction) []instruction {
	jump.jt, jump.jf = 1, 0
	return append(p, jump, instruction{code: bpfReturn, k: 1}, instruction{code: bpfReturn, k: 0})
}

// sourceIsDestination matches packets that go to the address that they come from.
func sourceIsDestination(f model.Family) string {
	src, dst, words := addrOffsets(f)
	var p []instruction
	for i := range words {
		p = append(p,
			instruction{code: bpfLoadWord, k: src + 4*i},
			instruction{code: bpfTax},
			instruction{code: bpfLoadWord, k: dst + 4*i})
		left := words - 1 - i
		p = append(p, instruction{code: bpfJumpEqX, jt: 0, jf: uint8(4*left) + 1})
	}
	p = append(p, instruction{code: bpfReturn, k: 1}, instruction{code: bpfReturn, k: 0})
	return matchProgram(p)
}

// addrOffsets says where a header has its addresses, and of how many words.
func addrOffsets(f model.Family) (src, dst, words uint32) {
	if f == model.IPv4 {
		return 12, 16, 1
	}
	return 8, 24, 4
}
