package peers

import (
	"fmt"
	"strings"
)

// A Trace is what was seen of one exchange.
type Trace []Sighting

// A Sighting is one packet that came out of the node, or was delivered to it.
type Sighting struct {
	link   string // empty: delivered to the node
	packet packet
	broken bool // a checksum is wrong
}

func (s Sighting) String() string {
	at := s.link
	if at == "" {
		at = "node"
	}
	if s.broken {
		at += ", checksum wrong"
	}
	return fmt.Sprintf("[%s] %s", at, s.packet)
}

func (t Trace) String() string {
	var b strings.Builder
	for i, s := range t {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(s.String())
	}
	return b.String()
}
