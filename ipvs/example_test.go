package ipvs_test

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/ipvs"
	"github.com/headgate/headgate/model"
)

// A service is programmed with the scheduler that its way of balancing asks for, and read with the stock tools. It needs
// a kernel with IPVS.
func ExampleNew() {
	ctx := context.Background()
	node, err := lab.NewNetNS("example") // in a program of one's own: the namespace that it runs in
	if err != nil {
		panic(err)
	}
	defer node.Close()
	lb, err := ipvs.New(ctx, ipvs.Config{NetNS: node.FD(), SetSysctls: true})
	if err != nil {
		panic(err) // names the module or the sysctl that is missing
	}
	defer lb.Close() // leaves everything in place

	tracker := model.NewTracker(model.Node{})
	tracker.SetService("shop/web:http", model.Service{Balance: model.LeastConn, Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.10:80")}}})
	tracker.SetEndpoints("shop/web:http", []model.Endpoint{
		{Addr: netip.MustParseAddrPort("10.244.0.1:8080")},
		{Addr: netip.MustParseAddrPort("10.244.0.2:8080"), Weight: 3},
		{Addr: netip.MustParseAddrPort("10.244.0.3:8080")},
	})
	if _, err := lb.Sync(ctx, tracker.State()); err != nil {
		panic(err)
	}
	show(node, "ipvsadm", "-S", "-n")
	show(node, "ip", "route", "show", "table", "local", "proto", "104")

	// One endpoint goes. Without connections there is nothing to wait for.
	tracker.SetEndpoints("shop/web:http", []model.Endpoint{
		{Addr: netip.MustParseAddrPort("10.244.0.2:8080"), Weight: 3},
		{Addr: netip.MustParseAddrPort("10.244.0.3:8080")},
	})
	if _, err := lb.Apply(ctx, tracker.Diff()); err != nil {
		panic(err)
	}
	remains, err := lb.Drain(ctx)
	fmt.Println(len(remains), err)
	show(node, "ipvsadm", "-S", "-n")
	// This prints, where there is IPVS:
	// -A -t 10.96.0.10:80 -s wlc
	// -a -t 10.96.0.10:80 -r 10.244.0.1:8080 -m -w 1
	// -a -t 10.96.0.10:80 -r 10.244.0.2:8080 -m -w 3
	// -a -t 10.96.0.10:80 -r 10.244.0.3:8080 -m -w 1
	// local 10.96.0.10 dev lo scope host metric 26728
	// 0 <nil>
	// -A -t 10.96.0.10:80 -s wlc
	// -a -t 10.96.0.10:80 -r 10.244.0.2:8080 -m -w 3
	// -a -t 10.96.0.10:80 -r 10.244.0.3:8080 -m -w 1
}

//go:embed example_test.go
var thisFile string

// TestExamples runs the examples where they can run, and compares what they print with what their comments say.
func TestExamples(t *testing.T) {
	needIPVS(t)
	_, comment, _ := strings.Cut(thisFile, "// This prints, where there is IPVS:\n")
	comment, _, _ = strings.Cut(comment, "}\n")
	require.Equal(t, strings.ReplaceAll(comment, "\t// ", ""), printed(t, ExampleNew))
}

// printed returns what a function prints.
func printed(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	stdout := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = stdout }()
	f() // it prints less than a pipe holds
	require.NoError(t, w.Close())
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(text)
}

// show runs a stock tool in a namespace and prints what it says, without blanks at the ends of lines.
func show(ns *lab.NetNS, name string, args ...string) {
	out, err := ns.Command(context.Background(), name, args...).Output()
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(out)) {
		fmt.Println(strings.TrimSpace(line))
	}
}
