package main

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/iptables"
	"github.com/headgate/headgate/model"
)

// A backend is what the bench must know of one of headgate's backends. A further one is one more entry in backends,
// and its bars one more in bars.
type backend struct {
	// open returns a Programmer for the namespace, which calls trace, if there is one, with each piece of what it sends
	// to the kernel, in one or more parts, before sending it.
	open func(ctx context.Context, ns *lab.NetNS, trace func(parts ...[]byte)) (model.Programmer, error)
	// floor prepares to send such pieces into another namespace with as little work as can be.
	floor func(ns *lab.NetNS) (floor, error)
	// split takes a file of such pieces, back to back, apart.
	split func(stream []byte) ([][]byte, error)
	// noop measures the least change that can be made to a namespace that holds what a Programmer wrote. Nil: it is not
	// worth knowing.
	noop func(ctx context.Context, ns *lab.NetNS) (time.Duration, error)
	// passed counts how many rules the first packet of a connection passes. Nil: there are no rules to pass.
	passed func(ctx context.Context, cfg config) (int, error)
	// peers, if there are others to compare with, programs a state their way and says how long that took. Nil: none.
	peers func(ctx context.Context, want model.State) (sync, restore time.Duration, err error)
}

// A floor is the least work with which the kernel can be made to take something.
type floor interface {
	// prepare is called with a piece before the clock starts.
	prepare(piece []byte) error
	// send sends the piece and returns when the kernel has taken it.
	send(piece []byte) error
	Close() error
}

// backends returns all backends by what is to be written behind -backend.
func backends() map[string]backend {
	return map[string]backend{
		"iptables -variant legacy": iptablesBackend(iptables.Legacy),
		"iptables -variant nft":    iptablesBackend(iptables.NFT),
		"ipvs":                     {open: openIPVS, floor: openNetlinkSockets, split: splitAddressed, peers: measurePeers},
		"nftables":                 {open: openNftables, floor: openNetfilterSocket, split: splitBatches},
	}
}

func backendNames() []string { return slices.Sorted(maps.Keys(backends())) }
