package ipvs

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
)

// mostConnections is how many connections are looked at, at most: a tenth of a second's work.
const mostConnections = 100_000

func (n *namespace) open(ctx context.Context, keys []virtualKey) (counts map[virtualKey]int, more bool, err error) {
	err = n.netns.Do(func() error {
		f, err := os.Open("/proc/thread-self/net/ip_vs_conn")
		if err != nil {
			return err
		}
		defer f.Close()
		counts, more, err = countOpen(ctx, f, keys)
		return err
	})
	return counts, more, wrap("listing connections", err)
}

// countOpen counts connections in the kernel's list of them: protocol, client, virtual service and real server, each an
// address and a port in hexadecimal digits, and the state.
func countOpen(ctx context.Context, list io.Reader, keys []virtualKey) (counts map[virtualKey]int, more bool, err error) {
	wanted := make(map[string]virtualKey, len(keys))
	for _, k := range keys {
		wanted[virtualInProc(k)] = k
	}
	counts = map[virtualKey]int{}
	lines := bufio.NewScanner(list)
	for seen := 0; lines.Scan(); seen++ {
		if seen >= mostConnections {
			return counts, true, nil
		}
		if seen%1024 == 0 && ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
		f := bytes.Fields(lines.Bytes())
		const proto, toAddr, toPort, state = 0, 3, 4, 7
		if len(f) <= state || !isOpen(string(f[state])) {
			continue
		}
		if k, ok := wanted[string(f[proto])+" "+string(f[toAddr])+" "+string(f[toPort])]; ok {
			counts[k]++
		}
	}
	return counts, false, lines.Err()
}

// virtualInProc returns how a virtual service is written in that list.
func virtualInProc(k virtualKey) string {
	addr := fmt.Sprintf("%X", k.at.Addr().AsSlice())
	if k.at.Addr().Is6() {
		addr = k.at.Addr().StringExpanded()
	}
	return fmt.Sprintf("%s %s %04X", strings.ToUpper(k.proto.String()), addr, k.at.Port())
}

// isOpen reports whether a state, of TCP or SCTP, is one of a connection that was established.
func isOpen(state string) bool {
	switch state {
	case "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK",
		"SHUTDOWN_SENT", "SHUTDOWN_RECEIVED", "SHUTDOWN_ACK_SENT":
		return true
	}
	return false
}
