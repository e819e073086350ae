package nft

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// Names of chains that tables of several backends have. Those of the balancing chains are made by route.chain.
const (
	NATPrerouting       = "nat-prerouting"
	NATOutput           = "nat-output"
	NATPostrouting      = "nat-postrouting"
	NATInput            = "nat-input"
	NATRecord           = "nat-record"
	DispatchChain       = "dispatch"
	NodePortChain       = "dispatch-node-ports"
	CheckSourceChain    = "check-source"
	CheckSourceNPChain  = "check-source-node-port"
	MarkInternalChain   = "mark-internal"
	MarkExternalChain   = "mark-external"
	ExternalLocalChain  = "external-local"
	NodePortLocalChain  = "node-port-local"
	RefuseChain         = "refuse"
	RecordChain         = "record-affinity"
	GuardLoopbackChain  = "guard-loopback"
	ForwardInvalidChain = "forward-invalid"
	recordPrefix        = "record-"
	clientsPrefix       = "to-"
	localClientsPrefix  = "local-to-"
)

// NFProto returns the family's number in netfilter's messages.
func NFProto(f model.Family) byte {
	if f == model.IPv4 {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}

// maxComment is how many bytes of comment nft can read, the NUL left out.
const maxComment = 127

// Comment returns a service's name in a form that nft prints, and loads again from what it printed, whatever the name
// contains: valid UTF-8 in one line, without quotes, at most maxComment bytes. What was cut is told apart by a hash.
func Comment(name model.ServiceName) string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '"' || r == '\\' || r == utf8.RuneError {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(string(name), "?"))
	if len(clean) <= maxComment {
		return clean
	}
	tail := "~" + hash(name)
	cut := maxComment - len(tail)
	for !utf8.RuneStart(clean[cut]) {
		cut--
	}
	return clean[:cut] + tail
}

// identifier returns a service's name as part of a name of a chain or map: readable as far as nft's grammar lets it,
// and never that of another service.
func identifier(name model.ServiceName) string {
	const readable = 60
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
			return r
		}
		return '-'
	}, string(name[:min(len(name), readable)]))
	return fmt.Sprintf("%s-%s", clean, hash(name))
}

// shortID is a service's part of the names of its maps. The kernel finds a set by measuring and comparing the names of
// all, so every letter counts: these are 65 bits, which two of a million services share once in 70 million times.
func shortID(name model.ServiceName) string { return hash(name)[:13] }

// hash returns 16 letters and digits for a name, 80 bits of SHA-256.
func hash(name model.ServiceName) string {
	sum := sha256.Sum256([]byte(name))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:10]))
}

// ValidName reports whether a table's name is one that the kernel takes and that nft reads.
func ValidName(name string) bool {
	const longest = 200 // the kernel takes 255 bytes
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'
		if !letter && (i == 0 || (r < '0' || r > '9') && r != '-' && r != '.') {
			return false
		}
	}
	return len(name) <= longest
}
