package lab_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"github.com/headgate/headgate/internal/lab"
)

func Example() {
	pod, client := netip.MustParseAddr("10.128.0.11"), netip.MustParseAddr("203.0.113.5")
	topo, err := lab.Build(lab.Spec{
		Node: []netip.Addr{netip.MustParseAddr("198.51.100.10")},
		Hosts: []lab.Host{
			{Name: "a", Addrs: []netip.Addr{pod}},
			{Name: "client", Place: lab.Far, Addrs: []netip.Addr{client}},
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer topo.Close()
	if _, err := topo.Serve(lab.TCP, netip.AddrPortFrom(pod, 8080)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	// ... program rules in topo.Node ...
	answer, err := topo.Ask(context.Background(), lab.Query{
		Source: netip.AddrPortFrom(client, 0),
		Proto:  lab.TCP,
		To:     netip.MustParseAddrPort("172.20.0.1:80"),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	fmt.Println(answer) // answered by 10.128.0.11:8080, who saw 198.51.100.10:40312, asked from 203.0.113.5:40312
}
