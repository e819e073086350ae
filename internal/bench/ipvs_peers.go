package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	peer "github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

// The schedulers and flags that the peers ask for are those that headgate would.
const (
	peerScheduler  = "rr"
	peerPersistent = 1 // IP_VS_SVC_F_PERSISTENT
)

// measurePeers programs the same state without headgate: the virtual services over moby/ipvs, one request at a time, and
// their addresses on a dummy device, as most proxies do; and both by the stock tools in one go, ipvsadm --restore and
// ip -batch, with local routes like ours. Neither decides who may come in and who is masqueraded.
func measurePeers(ctx context.Context, want model.State) (sync, restore time.Duration, err error) {
	if sync, err = inEmpty(func(ns *lab.NetNS) (time.Duration, error) { return oneAtATime(ns, want) }); err != nil {
		return 0, 0, fmt.Errorf("moby/ipvs: %w", err)
	}
	if restore, err = inEmpty(func(ns *lab.NetNS) (time.Duration, error) { return restoreTools(ctx, ns, want) }); err != nil {
		return 0, 0, fmt.Errorf("stock tools: %w", err)
	}
	return sync, restore, nil
}

// inEmpty runs f with an empty namespace.
func inEmpty(f func(ns *lab.NetNS) (time.Duration, error)) (time.Duration, error) {
	ns, err := lab.NewNetNS("peer")
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	return f(ns)
}

// eachService calls f with every service's address, and its number of seconds of affinity, as modeltest.Big makes them:
// TCP over IPv4, one frontend each.
func eachService(want model.State, f func(at netip.AddrPort, affinity uint32, endpoints []model.Endpoint) error) error {
	for _, name := range slices.Sorted(maps.Keys(want.Services)) {
		s := want.Services[name]
		if err := f(s.Frontends[0].Addr, uint32(s.Affinity/time.Second), want.Endpoints[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// oneAtATime sends a request for each address, virtual service and real server, and waits for its answer.
func oneAtATime(ns *lab.NetNS, want model.State) (took time.Duration, err error) {
	handle, err := peer.New(fmt.Sprintf("/proc/self/fd/%d", ns.FD()))
	if err != nil {
		return 0, err
	}
	defer handle.Close()
	links, err := netlinkIn(ns)
	if err != nil {
		return 0, err
	}
	defer links.Close()
	dummy := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "virtual0"}}
	if err := links.LinkAdd(dummy); err != nil {
		return 0, err
	}
	if err := links.LinkSetUp(dummy); err != nil {
		return 0, err
	}
	started := time.Now()
	err = eachService(want, func(at netip.AddrPort, affinity uint32, endpoints []model.Endpoint) error {
		ip, host := net.IP(at.Addr().AsSlice()), net.CIDRMask(32, 32)
		if err := links.AddrAdd(dummy, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: host}}); err != nil {
			return err
		}
		virtual := &peer.Service{Address: ip, Port: at.Port(), Protocol: unix.IPPROTO_TCP, AddressFamily: unix.AF_INET,
			SchedName: peerScheduler, Netmask: math.MaxUint32}
		if affinity > 0 {
			virtual.Flags, virtual.Timeout = peerPersistent, affinity
		}
		if err := handle.NewService(virtual); err != nil {
			return err
		}
		for _, e := range endpoints {
			err := handle.NewDestination(virtual, &peer.Destination{Address: e.Addr.Addr().AsSlice(), Port: e.Addr.Port(),
				AddressFamily: unix.AF_INET, Weight: 1, ConnectionFlags: peer.ConnectionFlagMasq})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return time.Since(started), err
}

func netlinkIn(ns *lab.NetNS) (links *netlink.Handle, err error) {
	err = ns.Do(func() error {
		links, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	return links, err
}

// restoreTools has the stock tools program the state, from input that is there already.
func restoreTools(ctx context.Context, ns *lab.NetNS, want model.State) (took time.Duration, err error) {
	services, routes := restoreInput(want)
	started := time.Now()
	for _, tool := range []struct{ input, name, args string }{{services, "ipvsadm", "--restore"}, {routes, "ip", "-batch -"}} {
		cmd := ns.Command(ctx, tool.name, strings.Fields(tool.args)...)
		cmd.Stdin = strings.NewReader(tool.input)
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("%s %s: %w: %s", tool.name, tool.args, err, out)
		}
	}
	return time.Since(started), nil
}

// restoreInput returns what the stock tools are to read.
func restoreInput(want model.State) (services, routes string) {
	var s, r strings.Builder
	_ = eachService(want, func(at netip.AddrPort, affinity uint32, endpoints []model.Endpoint) error { // returns nil
		fmt.Fprintf(&s, "-A -t %s -s %s", at, peerScheduler)
		if affinity > 0 {
			fmt.Fprintf(&s, " -p %d", affinity)
		}
		fmt.Fprintln(&s)
		for _, e := range endpoints {
			fmt.Fprintf(&s, "-a -t %s -r %s -m -w 1\n", at, e.Addr)
		}
		fmt.Fprintf(&r, "route add local %s dev lo table local proto 104\n", at.Addr())
		return nil
	})
	return s.String(), r.String()
}
