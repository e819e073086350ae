package lab_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/headgate/headgate/internal/lab"
)

func BenchmarkBuild(b *testing.B) {
	spec := lab.Spec{Node: addrs("198.51.100.10 2001:db8:a::10")}
	for i := range 10 {
		spec.Hosts = append(spec.Hosts, lab.Host{
			Name:  fmt.Sprint(i),
			Place: lab.Place(i % 2),
			Addrs: addrs(fmt.Sprintf("10.128.0.%d fd10::%d", i+1, i+1)),
		})
	}
	for b.Loop() {
		topo, err := lab.Build(spec)
		if err != nil {
			b.Fatal(err)
		}
		if err := topo.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAsk(b *testing.B) {
	topo, err := lab.Build(lab.Spec{Node: addrs("198.51.100.10"), Hosts: []lab.Host{
		{Name: "client", Addrs: addrs("10.128.0.100")},
		{Name: "server", Addrs: addrs("10.128.0.11")},
	}})
	if err != nil {
		b.Fatal(err)
	}
	defer topo.Close()
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP, lab.SCTP} {
		if _, err := topo.Serve(p, netip.MustParseAddrPort("10.128.0.11:8080")); err != nil {
			b.Fatal(err)
		}
		b.Run(string(p), func(b *testing.B) {
			for b.Loop() {
				a, err := topo.Ask(b.Context(), query("10.128.0.100", p, "10.128.0.11:8080"))
				if err != nil || a.Verdict != lab.Answered {
					b.Fatal(a, err)
				}
			}
		})
	}
}
