package iptables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

// A tree's shape must follow from its keys alone, or Apply and Sync would write different chains.
func TestTreeShapeDoesNotDependOnOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, draw := range []func() string{denseKeys(r), sparseKeys(r), clusteredKeys(r)} {
		var grown tree
		have := map[string]entry{}
		for step := range 3000 {
			e := entry{key: draw(), rest: fmt.Sprint(step % 7)}
			if r.IntN(3) == 0 && len(have) > 0 {
				e.key = anyKey(r, have)
				grown = grown.without(e.key)
				delete(have, e.key)
			} else {
				grown = grown.with(e)
				have[e.key] = e
			}
			if step%100 == 0 {
				require.Equal(t, newTreeOf(have), grown)
			}
		}
		require.Equal(t, newTreeOf(have), grown)
		for key, e := range have {
			got, ok := grown.find(key)
			require.True(t, ok)
			require.Equal(t, e.rest, got.rest)
		}
		_, ok := grown.find(draw() + "\x00")
		require.False(t, ok)
		for key := range have {
			grown = grown.without(key)
		}
		require.Nil(t, grown.root)
	}
}

func newTreeOf(have map[string]entry) tree {
	var entries []entry
	for _, key := range sortedKeys(have) {
		entries = append(entries, have[key])
	}
	return tree{build(entries)}
}

func anyKey(r *rand.Rand, have map[string]entry) string {
	keys := sortedKeys(have)
	return keys[r.IntN(len(keys))]
}

// How keys may be spread.

func keyOf(v uint32, port uint16) string {
	l := layout{family: model.IPv4, addr: "-d ", ports: true}
	return l.key(netip.AddrPortFrom(netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), port), model.TCP)
}

func denseKeys(r *rand.Rand) func() string {
	return func() string { return keyOf(0x0a600000+uint32(r.IntN(1500)), 80) }
}

func sparseKeys(r *rand.Rand) func() string {
	return func() string { return keyOf(r.Uint32(), uint16(r.IntN(3))) }
}

func clusteredKeys(r *rand.Rand) func() string {
	return func() string {
		if r.IntN(4) == 0 {
			return keyOf(0x0a600000|1<<r.IntN(28), 80)
		}
		return keyOf(0x0a600000+uint32(r.IntN(4)), uint16(r.IntN(700)))
	}
}

// Entries that several services share go when the last one does.
func TestTreeCountsReferences(t *testing.T) {
	var tr tree
	key := keyOf(1, 1)
	for range 3 {
		tr = tr.add(entry{key: key, rest: "x"})
	}
	require.Equal(t, newTree([]entry{{key: key, rest: "x"}, {key: key, rest: "x"}, {key: key, rest: "x"}}), tr)
	for range 2 {
		tr = tr.release(key)
		_, ok := tr.find(key)
		require.True(t, ok)
	}
	tr = tr.release(key)
	require.Nil(t, tr.root)
	require.Nil(t, tr.release(key).root)
}

func testDispatch() dispatch {
	return dispatch{names: names{"TEST"}, layout: layout{family: model.IPv4, addr: "-d ", ports: true}, kind: kindTree, levels: treeLevels}
}

// What diff says must lead from the chains of one tree to those of the other, however they differ, and a small change must
// not look at the whole tree.
func TestTreeDiff(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, levels := range []int{treeLevels, 3, 2} {
		for _, draw := range []func() string{denseKeys(r), sparseKeys(r), clusteredKeys(r)} {
			d := testDispatch()
			d.levels, d.otherwise = levels, targetDrop
			var now tree
			held := map[string][]rule{}
			for step := range 400 {
				next := now
				for range 1 + r.IntN(1+step/20) {
					if key := draw(); r.IntN(3) == 0 {
						next = next.without(key)
					} else {
						next = next.with(entry{key: key, rest: fmt.Sprint(r.IntN(5))})
					}
				}
				var e edits
				d.diff(now, next, &e)
				applyEdits(t, held, e)
				now = next
				require.Equal(t, chainsOf(d, now), held, "step %d", step)
			}
		}
	}
}

func chainsOf(d dispatch, t tree) map[string][]rule {
	out := map[string][]rule{}
	var e edits
	d.diff(tree{}, t, &e)
	for _, c := range e.write {
		out[c.name] = c.rules
	}
	return out
}

// applyEdits does to chains what iptables-restore would.
func applyEdits(t *testing.T, held map[string][]rule, e edits) {
	t.Helper()
	for _, c := range e.write {
		held[c.name] = c.rules
	}
	for _, name := range e.gone {
		require.Contains(t, held, name)
		delete(held, name)
	}
}

func TestTreeDiffIsLocal(t *testing.T) {
	var entries []entry
	for i := range 10_000 {
		entries = append(entries, entry{key: keyOf(0x0a600000+uint32(i), 80)})
	}
	before := newTree(entries)
	for i := range 200 {
		after := before.with(entry{key: keyOf(0x0a600000+uint32(50*i), 81)})
		olds, news := testDispatch().unshared(before, after)
		require.LessOrEqual(t, len(olds)+len(news), 2*treeLevels+fanOut)
	}
	after := before.with(entry{key: keyOf(0x0b000000, 80)}) // above the old root
	olds, news := testDispatch().unshared(before, after)
	require.LessOrEqual(t, len(olds)+len(news), 4)
}

// No tree is deeper than the kernel allows, and reasonable ones are not cut off.
func TestTreeBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	vips := func(n int, addr func(int) uint32, port func(int) uint16) []entry {
		var out []entry
		for i := range n {
			out = append(out, entry{key: keyOf(addr(i), port(i))})
		}
		return out
	}
	http := func(int) uint16 { return 80 }
	one := func(int) uint32 { return 0x0a600001 }
	scattered := []uint32{0x0a000001, 0xc0000201, 0xcb007101, 0x0a610000, 0x0a680000, 0x0a700000, 0x0b000000, 0xac100001, 0x64400001}
	for _, c := range []struct {
		name    string
		entries []entry
		passed  int // rules at most
	}{
		{"10,000 in a row", vips(10_000, func(i int) uint32 { return 0x0a600001 + uint32(i) }, http), 40},
		{"10,000 by chance in a /12", vips(10_000, func(int) uint32 { return 0x0a600000 | r.Uint32N(1<<20) }, http), 42},
		{"10,000 in a row and some elsewhere", append(vips(10_000, func(i int) uint32 { return 0x0a600001 + uint32(i) }, http), vips(len(scattered), func(i int) uint32 { return scattered[i] }, http)...), 48},
		{"1,000 ports of one address", vips(1000, one, func(i int) uint16 { return uint16(20_000 + i) }), 36},
		{"1,000 ports by chance", vips(1000, one, func(int) uint16 { return uint16(r.IntN(1 << 16)) }), 38},
		{"10,000 addresses of two ports", vips(20_000, func(i int) uint32 { return 0x0a600001 + uint32(i/2) }, func(i int) uint16 { return uint16(80 + i%2) }), 42},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := testDispatch()
			tr := newTree(c.entries)
			var most, levels int
			var walk func(s spot, passed int)
			walk = func(s spot, passed int) {
				levels = max(levels, s.level)
				n := len(d.rules(s))
				most = max(most, passed+n)
				require.LessOrEqual(t, n, leafSize, "a chain of %d rules", n)
				for _, k := range d.below(s) {
					at := slices.IndexFunc(d.rules(s), func(r rule) bool { return target(r.text) == d.chainName(k.slot) })
					require.GreaterOrEqual(t, at, 0)
					walk(k, passed+at+1)
				}
			}
			walk(spot{rootSlot, tr.root, 1}, 1)
			t.Logf("%d levels, %d rules", levels, most)
			require.LessOrEqual(t, most, c.passed)
			require.LessOrEqual(t, levels, treeLevels)
		})
	}
}

// Even keys chosen to make the tree as deep as can be stay within the levels that there are.
func TestTreeDepthIsLimited(t *testing.T) {
	var entries []entry
	l := layout{family: model.IPv6, addr: "-d ", ports: true}
	for digit := range 60 {
		for i := range 8 {
			key := make([]byte, l.addrDigits()+protoDigits+portDigits)
			key[digit] = 1
			key[digit+1] = byte(i) & 3
			key[digit+2] = byte(i) >> 2
			entries = append(entries, entry{key: string(key), rest: fmt.Sprintf("-j R%d", digit)})
		}
	}
	d := dispatch{names: names{"TEST"}, layout: l, kind: kindTree, levels: treeLevels}
	tr := newTree(entries)
	require.Greater(t, tr.root.height, treeLevels)
	found := 0
	var walk func(s spot)
	walk = func(s spot) {
		require.LessOrEqual(t, s.level, treeLevels)
		for _, r := range d.rules(s) {
			if strings.Contains(r.text, "-j R") {
				found++
			}
		}
		for _, k := range d.below(s) {
			walk(k)
		}
	}
	walk(spot{rootSlot, tr.root, 1})
	require.Equal(t, tr.root.count, found, "every entry is in some chain")
}

// The match between two prefixes must be what the tools would print, and say just what the longer one adds.
func TestLayoutMatch(t *testing.T) {
	four := layout{family: model.IPv4, addr: "-d ", ports: true}
	key := four.key(netip.MustParseAddrPort("10.96.0.1:8080"), model.UDP)
	six := layout{family: model.IPv6, addr: "-s "}
	long := six.key(netip.MustParseAddrPort("[2001:db8::ff]:0"), 0)
	ports := layout{ports: true}
	port := ports.key(netip.MustParseAddrPort("0.0.0.0:30080"), model.SCTP)
	for _, c := range []struct {
		layout   layout
		from, to string
		want     string
	}{
		{four, "", key[:9], "-d 10.96.0.0/18"},
		{four, "", key[:16], "-d 10.96.0.1/32"},
		{four, key[:9], key[:16], "-d 10.96.0.1/32"},
		{four, key[:16], key[:16], ""},
		{four, key[:9], key[:17], "-d 10.96.0.1/32 -p udp"},
		{four, key[:16], key[:17], "-p udp"},
		{four, "", key, "-d 10.96.0.1/32 -p udp -m udp --dport 8080"},
		{four, key[:17], key[:18], "-p udp -m udp --dport 0:16383"},
		{four, key[:18], key[:24], "-p udp -m udp --dport 8080:8083"},
		{four, key[:24], key, "-p udp -m udp --dport 8080"},
		{four, key[:18], key[:18], ""},
		{six, "", long[:16], "-s 2001:db8::/32"},
		{six, long[:16], long, "-s 2001:db8::ff/128"},
		{ports, "", port[:1], "-p sctp"},
		{ports, "", port[:3], "-p sctp -m sctp --dport 28672:32767"},
		{ports, port[:1], port, "-p sctp -m sctp --dport 30080"},
	} {
		require.Equal(t, c.want, c.layout.match(c.from, c.to))
	}
}
