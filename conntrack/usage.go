package conntrack

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
)

// Usage says how full a table is.
type Usage struct {
	// Entries is how many flows the table of the namespace holds, Limit how many each namespace's table may hold.
	// A Limit of 0 is none.
	Entries, Limit int
	// Dropped counts the packets that were dropped for want of an entry, Evicted the entries that went early to make
	// room, Clashed those that could not be inserted. They count since the namespace was made, over all CPUs.
	Dropped, Evicted, Clashed uint64
}

// Fraction returns how much of the limit is in use: 1 is full, 0 empty or without limit.
func (u Usage) Fraction() float64 {
	if u.Limit <= 0 {
		return 0
	}
	return float64(u.Entries) / float64(u.Limit)
}

func (u Usage) String() string {
	return fmt.Sprintf("%d of %d entries (%.0f %%), %d packets dropped, %d entries evicted", u.Entries, u.Limit, 100*u.Fraction(), u.Dropped, u.Evicted)
}

// Usage asks the kernel how full the table is.
func (c *Cleaner) Usage(ctx context.Context) (Usage, error) {
	if err := c.acquire(ctx); err != nil {
		return Usage{}, c.failed("usage", err)
	}
	defer c.release()
	u, err := c.usage(ctx)
	if err == nil {
		err = c.losses(ctx, &u)
	}
	return u, c.failed("usage", err)
}

// Attributes of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctaStatsEntries    = 1 // CTA_STATS_GLOBAL_ENTRIES
	ctaStatsMaxEntries = 2 // CTA_STATS_GLOBAL_MAX_ENTRIES

	ctaStatsInsertFailed = 9  // CTA_STATS_INSERT_FAILED
	ctaStatsDrop         = 10 // CTA_STATS_DROP
	ctaStatsEarlyDrop    = 11 // CTA_STATS_EARLY_DROP
)

// usage asks for entries and limit.
func (c *Cleaner) usage(ctx context.Context) (u Usage, err error) {
	m, err := netfilter.MarshalNetlink(header(msgStats, netlink.Acknowledge, netfilter.ProtoUnspec), nil)
	if err != nil {
		return u, err
	}
	err = c.table.ask(ctx, m, func(msgs [][]byte) error {
		eachCounter(msgs, func(typ uint16, n uint32) {
			switch typ {
			case ctaStatsEntries:
				u.Entries = int(n)
			case ctaStatsMaxEntries:
				u.Limit = int(n)
			}
		})
		return nil
	})
	return u, err
}

// losses asks every CPU for what could not be kept.
func (c *Cleaner) losses(ctx context.Context, u *Usage) error {
	m, err := netfilter.MarshalNetlink(header(msgStatsCPU, netlink.Dump, netfilter.ProtoUnspec), nil)
	if err != nil {
		return err
	}
	return c.table.ask(ctx, m, func(msgs [][]byte) error {
		eachCounter(msgs, func(typ uint16, n uint32) {
			switch typ {
			case ctaStatsDrop:
				u.Dropped += uint64(n)
			case ctaStatsEarlyDrop:
				u.Evicted += uint64(n)
			case ctaStatsInsertFailed:
				u.Clashed += uint64(n)
			}
		})
		return nil
	})
}

// eachCounter calls f with each 32-bit attribute of each message.
func eachCounter(msgs [][]byte, f func(typ uint16, n uint32)) {
	for _, msg := range msgs {
		if len(msg) < nfHeaderLen {
			continue
		}
		for a, rest := nextAttribute(msg[nfHeaderLen:]); a.whole != nil; a, rest = nextAttribute(rest) {
			if len(a.data) == 4 {
				f(a.typ, binary.BigEndian.Uint32(a.data))
			}
		}
	}
}
