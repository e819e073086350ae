package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/nftables"
)

// verify fails unless the kernel holds what it is wanted to hold, whatever else it holds. How that looks nobody knows
// but the Programmer: so it is made to write it into an empty network namespace, a twin, and all that is there must be
// here as well.
func verify(ctx context.Context, conf config, want model.State) error {
	if len(want.Services) == 0 {
		return nil
	}
	empty, err := emptyNamespace()
	if err != nil {
		return err
	}
	defer empty.Close()
	p, err := nftables.New(ctx, nftables.Config{Table: conf.Table, NetNS: int(empty.Fd())})
	if err != nil {
		return err
	}
	defer p.Close()
	if _, err := p.Sync(ctx, want); err != nil {
		return err
	}
	twin, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(empty.Fd())})
	if err != nil {
		return err
	}
	defer twin.Close()
	real, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer real.Close()
	for _, family := range []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		if err := compare(table{twin, family, conf.Table}, table{real, family, conf.Table}); err != nil {
			return fmt.Errorf("table %s: %w", conf.Table, err)
		}
	}
	return nil
}

// emptyNamespace returns a new network namespace, which lasts until it is closed.
func emptyNamespace() (ns *os.File, err error) {
	made := make(chan struct{})
	go func() {
		defer close(made)
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		if err = os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWNET)); err == nil {
			ns, err = os.Open("/proc/thread-self/ns/net")
		}
	}()
	<-made
	return ns, err
}

// compare fails unless one table has all that another has: the same rules in its chains, and its sets' elements.
func compare(twin, real table) error {
	wanted, err := twin.rules()
	if err != nil {
		return err
	}
	found, err := real.rules()
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("%w: it is gone, or has no rules", model.ErrDrift)
	}
	for chain, rules := range wanted {
		if !slices.Equal(found[chain], rules) {
			return fmt.Errorf("%w: chain %s does not have the rules that it should have", model.ErrDrift, chain)
		}
	}
	sets, err := twin.sets()
	if err != nil {
		return err
	}
	for _, set := range sets {
		wanted, err := twin.elements(set)
		if err != nil {
			return err
		}
		found, err := real.elements(set)
		if err != nil {
			return fmt.Errorf("%w: set %s: %w", model.ErrDrift, set, err)
		}
		missing := slices.DeleteFunc(slices.Clone(wanted), func(e string) bool {
			_, there := slices.BinarySearch(found, e)
			return there
		})
		if len(missing) > 0 {
			return fmt.Errorf("%w: set %s lacks %d of %d elements", model.ErrDrift, set, len(missing), len(wanted))
		}
	}
	return nil
}
