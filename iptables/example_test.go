package iptables_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/headgate/headgate/iptables"
	"github.com/headgate/headgate/model"
)

// A service with two endpoints, by whatever iptables the host uses. It needs root.
func ExampleNew() {
	ctx := context.Background()
	p, err := iptables.New(ctx, iptables.Config{RejectOtherPorts: true})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close() // leaves the rules in place
	report, err := p.Probe(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range report.Warnings {
		log.Print(f)
	}
	res, err := p.Sync(ctx, model.State{
		Services: model.ServiceMap{"web": {Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.1:80")}}}},
		Endpoints: model.EndpointMap{"web": {
			{Addr: netip.MustParseAddrPort("10.244.0.1:8080")},
			{Addr: netip.MustParseAddrPort("10.244.0.2:8080"), Weight: 2},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.Variant(), res)
}

func ExampleProgrammer_Features() {
	p, err := iptables.New(context.Background(), iptables.Config{Variant: iptables.NFT})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	for _, d := range p.Features().Differences {
		fmt.Println(d.ID)
	}
}
