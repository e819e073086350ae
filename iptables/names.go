package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/headgate/headgate/model"
)

// The tools allow chain names of 28 bytes. A hashed name is the prefix, a dash, one letter for the kind, a dash and 80
// bits of SHA-256, so a prefix may have nine.
const (
	maxPrefix    = 9
	hashedLength = 16
)

// Chains of which there is one in a table.
const (
	chainServices    = "SERVICES"    // nat: every new connection
	chainInternal    = "INTERNAL"    // nat: mark for masquerade what comes through an internal frontend, pods excepted
	chainExternal    = "EXTERNAL"    // nat: mark for masquerade whatever comes
	chainPostrouting = "POSTROUTING" // nat
	chainMasquerade  = "MASQUERADE"  // nat: what is marked
	chainHairpin     = "HAIRPIN"     // nat: masquerade endpoints that reach themselves
	chainFilter      = "FILTER"      // filter: every new connection
	chainForward     = "FORWARD"     // filter: accept what was balanced
	chainOutside     = "OUTSIDE"     // filter: drop what comes from outside
	chainOthers      = "OTHERS"      // filter: reject other ports of internal addresses
	chainRanges      = "RANGES"      // filter: drop what is for virtual addresses that nobody has
	chainLoopback    = "LOOPBACK"    // filter: drop what other hosts send to 127.0.0.0/8
	chainInvalid     = "INVALID"     // filter: drop what connection tracking finds invalid
	chainCanary      = "CANARY"      // nat and filter: shows that nobody flushed the table
)

var fixedChains = []string{
	chainServices, chainInternal, chainExternal, chainPostrouting, chainMasquerade, chainHairpin,
	chainFilter, chainForward, chainOutside, chainOthers, chainRanges, chainLoopback, chainInvalid, chainCanary,
}

// Kinds of chains of which there are many: the letter in the middle of a hashed name.
const (
	kindInternal  = 'I' // entry of a service's internal frontends
	kindExternal  = 'E' // entry of its external frontends and node ports
	kindCluster   = 'S' // balances over the endpoints of the cluster
	kindLocal     = 'L' // balances over those on this node
	kindKeep      = 'K' // balances over those of the cluster, masquerading only those elsewhere
	kindKept      = 'C' // one endpoint on this node that sees its client's address
	kindSources   = 'F' // nat: the sources that may use a frontend
	kindWall      = 'W' // filter: the same
	kindTree      = 'T' // nat: dispatch by address, protocol and port
	kindPortTree  = 'P' // nat: dispatch by protocol and port
	kindVerdicts  = 'V' // filter: dispatch by address, protocol and port
	kindPortWalls = 'Q' // filter: dispatch by protocol and port
	kindOthers    = 'O' // filter: dispatch by address
	kindExempt    = 'X' // filter: dispatch by address
	kindHairpin   = 'H' // nat: dispatch by source address
	kindInvalid   = 'D' // filter: dispatch by source address
)

const hashedKinds = "IESLKCFWTPVQOXHD"

// names chooses what our objects in the kernel are called. Everything of ours bears the prefix.
type names struct{ prefix string }

// checkPrefix says why a prefix cannot be used. It has no dash, so that no prefix with its dash begins another one.
func checkPrefix(p string) error {
	if len(p) == 0 || len(p) > maxPrefix {
		return fmt.Errorf("prefix %q is not of 1 to %d bytes: %w", p, maxPrefix, model.ErrInvalid)
	}
	for _, c := range []byte(p) {
		if !(c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_') {
			return fmt.Errorf("prefix %q has other bytes than letters, digits and underscores: %w", p, model.ErrInvalid)
		}
	}
	return nil
}

// fixed returns the name of a chain of which there is one in a table.
func (n names) fixed(chain string) string { return n.prefix + "-" + chain }

// hashed returns the name of the chain of that kind that parts identify.
func (n names) hashed(kind byte, parts ...string) string {
	return n.prefix + "-" + string(kind) + "-" + digest(parts...)
}

// recent returns the name of the list that remembers the clients of an endpoint. A changed timeout is another list,
// so that nobody stays who came under the old one.
func (n names) recent(service model.ServiceName, endpoint string, timeout string) string {
	return n.prefix + "-" + digest("recent", string(service), endpoint, timeout)
}

// digest hashes parts so that no two lists of parts are confused.
func digest(parts ...string) string {
	var buf []byte
	for _, p := range parts {
		buf = binary.AppendUvarint(buf, uint64(len(p)))
		buf = append(buf, p...)
	}
	sum := sha256.Sum256(buf)
	return base32.StdEncoding.EncodeToString(sum[:hashedLength*5/8])
}

// owns reports whether a chain is ours by its name.
func (n names) owns(chain string) bool {
	rest, ok := strings.CutPrefix(chain, n.prefix+"-")
	if !ok {
		return false
	}
	if slices.Contains(fixedChains, rest) {
		return true
	}
	if len(rest) != 2+hashedLength || rest[1] != '-' || !strings.Contains(hashedKinds, rest[:1]) {
		return false
	}
	return strings.Trim(rest[2:], "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// maxComment is how many bytes of a name a comment shows. The kernel allows 255, nft 128.
const maxComment = 120

// comment returns a match that shows a text to whoever reads the rules, written as iptables-save writes it; nothing
// for no text. Bytes that a tool or a terminal could take for something else are written as a percent sign and two
// hexadecimal digits. Where that is too long, a hash of the whole replaces the end.
func comment(text string) string {
	shown := escape(text)
	if len(shown) > maxComment {
		shown = cut(shown, maxComment-1-hashedLength) + "~" + digest(text)
	}
	switch {
	case shown == "":
		return ""
	case strings.Trim(shown, plainChars) == "":
		return "-m comment --comment " + shown
	}
	return `-m comment --comment "` + shown + `"`
}

// plainChars are what iptables-save prints without quotes.
const plainChars = "_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

func escape(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && size == 1 || !unicode.IsPrint(r) || strings.ContainsRune("\"'\\`%", r) {
			for _, c := range []byte(text[i : i+size]) {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		} else {
			b.WriteString(text[i : i+size])
		}
		i += size
	}
	return b.String()
}

// cut returns at most n bytes of an escaped text, and no part of a rune or of an escape.
func cut(s string, n int) string {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	if i := strings.LastIndexByte(s[:n], '%'); i >= 0 && i > n-3 {
		n = i
	}
	return s[:n]
}
