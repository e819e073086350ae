package iptables

import (
	"os"

	"github.com/headgate/headgate/internal/netns"
)

const routeLocalnet = "net.ipv4.conf.all.route_localnet"

// routesLoopback reports whether packets from and to loopback addresses may pass other interfaces than lo.
func routesLoopback(ns *netns.NetNS) bool {
	var value string
	err := ns.Do(func() (err error) {
		value, err = netns.ReadSysctl(routeLocalnet)
		return err
	})
	return err == nil && value == "1"
}

// routeLoopback says whether they may.
func routeLoopback(ns *netns.NetNS, may bool) error {
	value := "0"
	if may {
		value = "1"
	}
	return ns.Do(func() error { return netns.WriteSysctl(routeLocalnet, value) })
}

// hasIPv6 reports whether the kernel does IPv6.
func hasIPv6(ns *netns.NetNS) bool {
	err := ns.Do(func() error {
		_, err := os.Stat("/proc/sys/net/ipv6")
		return err
	})
	return err == nil
}
