package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/headgate/headgate/conntrack"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/nftables"
)

// program makes the kernel hold a state, whatever it holds, and forgets the flows of UDP that the change made stale.
// Services that cannot be programmed make it fail if they are among the mine; others keep nobody from anything.
//
// A Sync writes everything in one transaction: with 1,000 containers some 20 ms. It disturbs no connection, and it
// repairs whatever anybody did to the rules in the meantime.
func program(ctx context.Context, p *nftables.Programmer, before, after state, mine []model.ServiceName) error {
	addrs, err := nodeAddrs()
	if err != nil {
		return err
	}
	was, want := before.wanted(addrs), after.wanted(addrs)
	var result model.Result
	if len(want.Services) > 0 {
		result, err = p.Sync(ctx, want)
	} else {
		err = p.Cleanup(ctx) // the last one switches off the light
	}
	if err != nil {
		return err
	}
	var failed []error
	for _, r := range result.Rejected {
		if slices.Contains(mine, r.Service) {
			failed = append(failed, r)
		} else {
			warn("programming", r)
		}
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	warn("forgetting flows", forget(ctx, was, want, result))
	return nil
}

// nodeAddrs returns the addresses of the node, loopback left out.
func nodeAddrs() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && !prefix.Addr().IsLoopback() {
			addrs = append(addrs, prefix.Addr())
		}
	}
	return addrs, nil
}

// forget makes conntrack forget the flows of UDP to what the change took away, moved or brought: a client that keeps
// sending would be answered by nobody, or by the wrong one, for as long as it does.
func forget(ctx context.Context, was, want model.State, result model.Result) error {
	diff := model.DiffStates(was, want)
	if !slices.ContainsFunc(diff.Changes, concernsUDP) {
		return nil
	}
	// The second look is for packets that met the old rules and are not in the table yet: those of a moment ago.
	cleaner, err := conntrack.New(ctx, conntrack.Config{SecondLook: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	defer cleaner.Close()
	cleaner.Syncing(was)
	cleaner.Programmed(model.Result{}, nil)
	cleaner.Applying(diff)
	cleaner.Programmed(result, nil)
	_, err = cleaner.Settle(ctx)
	return err
}

func concernsUDP(c model.Change) bool {
	udp := func(e *model.Entry) bool { return e != nil && e.Service.Protocol == model.UDP }
	return udp(c.Before) || udp(c.After)
}
