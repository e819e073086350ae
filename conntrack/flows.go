package conntrack

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/model"
)

// A Flow is one entry of the table that belongs to a frontend.
type Flow struct {
	Protocol model.Protocol
	// Client is who sent the first packet, Frontend whom it was sent to.
	Client, Frontend netip.AddrPort
	// Endpoint is who answers, Seen whom it takes for the client: another than Client where the source was masqueraded.
	Endpoint, Seen netip.AddrPort
	Zone           uint16
	Mark           uint32
	// Replied says that the endpoint has answered, Assured that the kernel does not give the entry up when the table
	// is full.
	Replied, Assured bool
	// Expires is how long the entry stays if no further packet comes, in whole seconds.
	Expires time.Duration
	// Sent and Received count what the client sent and got, if the namespace counts (nf_conntrack_acct).
	Sent, Received Traffic
	// Stale says that the flow would be forgotten if everything were looked at now, see the package's comment. It is
	// false as long as no Sync has succeeded.
	Stale bool
}

// Traffic counts packets and their bytes.
type Traffic struct{ Packets, Bytes uint64 }

// Translated reports whether the flow leads elsewhere than it was sent to.
func (f Flow) Translated() bool { return f.Endpoint != f.Frontend }

func (f Flow) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s -> %s", f.Protocol, f.Client, f.Frontend)
	if f.Translated() {
		fmt.Fprintf(&b, " -> %s", f.Endpoint)
	}
	if f.Seen != f.Client {
		fmt.Fprintf(&b, " (as %s)", f.Seen)
	}
	if !f.Replied {
		b.WriteString(", no reply")
	}
	if f.Stale {
		b.WriteString(", stale")
	}
	fmt.Fprintf(&b, ", expires in %v", f.Expires)
	return b.String()
}

// Flows lists who talks to what through a frontend, sorted by client: what the person on call wants to know. A node
// port, whose address is 0.0.0.0 or ::, has the flows to that port of every address on which node ports answer. Any
// protocol may be asked for, and any address and port: it need not be a frontend of a service.
func (c *Cleaner) Flows(ctx context.Context, frontend model.FrontendKey) ([]Flow, error) {
	frontend.Addr = netip.AddrPortFrom(frontend.Addr.Addr().Unmap(), frontend.Addr.Port())
	flows, err := c.flows(ctx, frontend)
	if err != nil {
		return nil, c.failed("flows of "+frontend.String(), err)
	}
	slices.SortFunc(flows, func(a, b Flow) int {
		if n := a.Client.Compare(b.Client); n != 0 {
			return n
		}
		return a.Frontend.Compare(b.Frontend)
	})
	return slices.Compact(flows), nil
}

func (c *Cleaner) flows(ctx context.Context, frontend model.FrontendKey) ([]Flow, error) {
	f, err := toFrontend(frontend)
	if err != nil {
		return nil, err
	}
	requests, err := c.listings([]filter{f})
	if err != nil {
		return nil, err
	}
	if err := c.acquire(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	nodePort := frontend.Addr.Addr().IsUnspecified()
	if nodePort {
		came, err := c.askAddrs(ctx)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		c.owe(came)
		c.mu.Unlock()
	}
	var flows []Flow
	for _, m := range requests {
		err := c.table.list(ctx, m, func(msgs [][]byte) error {
			flows = append(flows, c.describe(msgs, f, nodePort)...)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return flows, nil
}

// describe returns the flows among messages that a filter lists, for a node port those to the node's addresses.
func (c *Cleaner) describe(msgs [][]byte, by filter, nodePort bool) []Flow {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := newTask()
	all.full = true
	j := judge{record: c.record, task: all, zones: c.cfg.Zones, orphans: c.cfg.Orphans}
	var flows []Flow
	var f flow
	for _, msg := range msgs {
		if !f.decode(msg) || !by.matches(&f) || nodePort && !c.record.ownsNodePort(f.to.Addr()) {
			continue
		}
		out := f.exported(msg)
		if v, _ := j.of(&f); v == forget && !c.record.blind {
			out.Stale = true
		}
		flows = append(flows, out)
	}
	return flows
}

// Bits of CTA_STATUS (linux/netfilter/nf_conntrack_common.h).
const (
	statusSeenReply = 1 << 1 // IPS_SEEN_REPLY
	statusAssured   = 1 << 2 // IPS_ASSURED
)

// exported returns a flow with what else its message says.
func (f *flow) exported(msg []byte) Flow {
	out := Flow{Client: f.client, Frontend: f.to, Endpoint: f.from, Seen: f.seen, Zone: f.zone}
	for _, p := range model.Protocols {
		if p.Number() == f.proto {
			out.Protocol = p
		}
	}
	for a, rest := nextAttribute(msg[nfHeaderLen:]); a.whole != nil; a, rest = nextAttribute(rest) {
		switch a.typ {
		case ctaStatus:
			out.Replied, out.Assured = a.uint32()&statusSeenReply != 0, a.uint32()&statusAssured != 0
		case ctaTimeout:
			out.Expires = time.Duration(a.uint32()) * time.Second
		case ctaMark:
			out.Mark = a.uint32()
		case ctaCountersOrig:
			out.Sent = decodeTraffic(a.data)
		case ctaCountersReply:
			out.Received = decodeTraffic(a.data)
		}
	}
	return out
}

func decodeTraffic(b []byte) (t Traffic) {
	for a, rest := nextAttribute(b); a.whole != nil; a, rest = nextAttribute(rest) {
		switch {
		case len(a.data) < 8:
		case a.typ == ctaCountersPackets:
			t.Packets = binary.BigEndian.Uint64(a.data)
		case a.typ == ctaCountersBytes:
			t.Bytes = binary.BigEndian.Uint64(a.data)
		}
	}
	return t
}
