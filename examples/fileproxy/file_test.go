package main

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

func TestSample(t *testing.T) {
	text, err := os.ReadFile("services.yaml")
	require.NoError(t, err)
	doc, err := parse(text)
	require.NoError(t, err)
	wrong, err := doc.verify()
	require.NoError(t, err)
	require.Empty(t, wrong)

	addr, prefix := netip.MustParseAddrPort, netip.MustParsePrefix
	require.Equal(t, model.State{
		Node: model.Node{
			Name: "node-1", Zone: "a", Primary: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			Detector:      model.LocalDetector{Prefixes: []netip.Prefix{prefix("10.244.0.0/16")}},
			ServiceRanges: []netip.Prefix{prefix("10.96.0.0/12")},
			NodePorts:     model.NodePortScope{Prefixes: []netip.Prefix{prefix("192.0.2.0/24")}},
		},
		Services: model.ServiceMap{
			"shop/web": {Affinity: 10 * time.Minute, ExternalTraffic: model.Local, Frontends: []model.Frontend{
				{Addr: addr("10.96.0.10:80")}, {Addr: addr("[fd00:96::10]:80")},
				{Kind: model.External, Addr: addr("198.51.100.10:80"), SourceRanges: []netip.Prefix{prefix("203.0.113.0/24"), prefix("2001:db8::/32")}},
				{Kind: model.NodePort, Addr: netip.AddrPortFrom(netip.Addr{}, 30080)},
			}},
			"shop/dns": {Protocol: model.UDP, Balance: model.RoundRobin, Frontends: []model.Frontend{{Addr: addr("10.96.0.53:53")}}},
		},
		Endpoints: model.EndpointMap{
			"shop/web": {
				{Addr: addr("10.244.0.5:8080"), Local: true, Weight: 1}, {Addr: addr("10.244.1.5:8080"), Weight: 2},
				{Addr: addr("10.244.1.6:8080"), State: model.Draining, Weight: 1}, {Addr: addr("[fd00:244::5]:8080"), Local: true, Weight: 1},
			},
			"shop/dns": {{Addr: addr("10.244.0.6:5353"), Zones: []string{"a"}, Weight: 1}, {Addr: addr("10.244.1.7:5353"), Zones: []string{"b"}, Weight: 1}},
		},
	}, doc.state)
}

// TestRefused has files of which nothing can be used.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"indentation":      {"services:\n  a:\n    balance: random\n  b:\n    balance: random\n   c:\n      balance: random\n", "near line 7: did not find expected key\n     5 |     balance: random\n     6 |    c:\n     7 |       balance: random"},
		"tab":              {"services:\n\ta: {}\n", "near line 2: found character that cannot start any token\n     1 | services:\n     2 | \ta: {}"},
		"bracket":          {"services:\n  a: {frontends: [\n  b: {}\n", "near line 3: did not find expected ',' or ']'\n     1 | services:\n     2 |   a: {frontends: [\n     3 |   b: {}"},
		"unknown field":    {"service: {}\n", `line 1: unknown field "service"; there is node, services`},
		"twice":            {"services: {}\nservices: {}\n", `line 2: "services" is in line 1 already`},
		"service twice":    {"services:\n  a: {}\n  b: {}\n  a: {}\n", `line 4: "a" is in line 2 already`},
		"no services":      {"node: {name: a}\n", `line 1: no "services": a file without any says "services: {}"`},
		"empty services":   {"services:\n", "line 1: expected fields and their values, found nothing"},
		"list of services": {"services:\n- a\n", "line 2: expected fields and their values, found a list"},
		"two documents":    {"services: {}\n---\nservices: {}\n", "line 2: a second document, where one is expected"},
		"comment alone":    {"# soon\n", `the file is empty: one without services says "services: {}"`},
		"node": {"services: {}\nnode:\n  nodePorts: {primary: yes}\n  zones: a\n",
			"line 3: \"yes\" is not true or false\nline 4: unknown field \"zones\"; there is internalInterfaces, internalRanges, keepClientAddress, " +
				"masqueradeAll, name, nodePorts, primary, serviceRanges, zone"},
		"node that makes no sense": {"node: {primary: [fe80::1%eth0]}\nservices: {}\n", "line 1: node: address fe80::1%eth0: invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse([]byte(c.text))
			require.EqualError(t, err, c.want)
		})
	}
}

// TestFaulty has services that make no sense, each beside one that does.
func TestFaulty(t *testing.T) {
	for name, c := range map[string]struct{ service, want string }{
		"unknown field":   {"{balance: random, endpoint: []}", `line 3: unknown field "endpoint"; there is affinity, balance, endpoints, externalTraffic, frontends, hashPort, internalTraffic, protocol`},
		"twice":           {"{balance: random, balance: random}", `line 3: "balance" is in line 3 already`},
		"word":            {"{balance: fair}", `line 3: "fair" is none of random, round-robin, least-conn, source-hash, maglev`},
		"time":            {"{affinity: 600}", `line 3: "600" is not a time such as 10m`},
		"null":            {"{affinity: }", `line 3: expected a time such as 10m, found nothing`},
		"no list":         {"{endpoints: {address: 10.0.0.1:80}}", "line 3: expected a list, found fields"},
		"no address":      {"{endpoints: [{local: true}]}", "line 3: an endpoint needs an address"},
		"no port":         {"{frontends: [{internal: 10.0.0.1}]}", `line 3: "10.0.0.1" is not an address with a port such as 10.0.0.1:80 or "[fd00::1]:80", in quotes`},
		"two kinds":       {"{frontends: [{internal: 10.0.0.1:80, nodePort: 80}]}", "line 3: a frontend is one of internal, external and nodePort"},
		"no kind":         {"{frontends: [{sourceRanges: []}]}", "line 3: a frontend is one of internal, external and nodePort"},
		"needless family": {"{frontends: [{internal: 10.0.0.1:80, family: ipv4}]}", "line 3: only a nodePort has a family to choose"},
		"weight":          {"{endpoints: [{address: 10.0.0.1:80, weight: 0}]}", `line 3: no weight: an endpoint that shall get no new connections is "state: draining"`},
		"two errors":      {"\n    hashPort: 1\n    affinity: soon", "line 4: \"1\" is not true or false\nline 5: \"soon\" is not a time such as 10m"},
	} {
		t.Run(name, func(t *testing.T) {
			doc, err := parse([]byte("services:\n  good: {frontends: [{nodePort: 30080, family: ipv6}]}\n  bad: " + c.service + "\n"))
			require.NoError(t, err)
			require.Len(t, doc.faults, 1)
			require.EqualError(t, doc.faults["bad"], c.want)
			require.Equal(t, model.ServiceMap{"good": {Frontends: []model.Frontend{{Kind: model.NodePort, Addr: netip.MustParseAddrPort("[::]:30080")}}}}, doc.state.Services)
		})
	}
}

func TestAnchors(t *testing.T) {
	doc, err := parse([]byte("services:\n  a:\n    endpoints: &both [{address: 10.0.0.1:80}, {address: 10.0.0.2:80}]\n  b:\n    endpoints: *both\n"))
	require.NoError(t, err)
	require.Empty(t, doc.faults)
	require.Len(t, doc.state.Endpoints["a"], 2)
	require.Equal(t, doc.state.Endpoints["a"], doc.state.Endpoints["b"])
}

func TestVerifyFindsWhatEveryBackendRefuses(t *testing.T) {
	doc, err := parse([]byte(`
services:
  first: {frontends: [{internal: 10.0.0.1:80}]}
  second: {frontends: [{internal: 10.0.0.1:80}]}
  loop: {frontends: [{internal: 127.0.0.1:80}]}
`))
	require.NoError(t, err)
	wrong, err := doc.verify()
	require.NoError(t, err)
	require.Len(t, wrong, 2)
	require.ErrorIs(t, wrong["second"], model.ErrConflict)
	require.ErrorIs(t, wrong["loop"], model.ErrInvalid)
}

// FuzzParse looks for files that end the program, or that are good and yet mean nothing to the model.
func FuzzParse(f *testing.F) {
	sample, err := os.ReadFile("services.yaml")
	require.NoError(f, err)
	for _, seed := range []string{string(sample), both, broken, brokenWebGoodDNS, "services: &a {b: *a}", "&a [*a]: b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		doc, err := parse([]byte(text))
		if err != nil {
			return
		}
		_, err = doc.verify()
		require.NoError(t, err)
		for name := range doc.faults {
			require.NotContains(t, doc.state.Services, name)
		}
	})
}
