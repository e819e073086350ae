package nftables_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/headgate/headgate/nftables"
)

// restricted is a service with ranges and affinity, and a plain one.
func restricted(ranges ...string) model.State {
	s := model.State{Node: modeltest.StageNode(), Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	f := model.Frontend{Addr: netip.MustParseAddrPort("172.20.0.90:80")}
	for _, r := range ranges {
		f.SourceRanges = append(f.SourceRanges, netip.MustParsePrefix(r))
	}
	s.Services["restricted"] = model.Service{Frontends: []model.Frontend{f}, Affinity: time.Hour}
	s.Services["plain"] = model.Service{Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("172.20.0.91:80")}}}
	for name := range s.Services {
		s.Endpoints[name] = []model.Endpoint{{Addr: netip.MustParseAddrPort("10.128.0.11:8080")}, {Addr: netip.MustParseAddrPort("10.128.0.12:8080")}}
	}
	return s
}

// holds returns the lines of a namespace's rules, in no order: nft lists what was made anew behind the rest.
func holds(t *testing.T, ns *lab.NetNS) []string {
	t.Helper()
	out, err := run(ns.FD(), "", "nft", "list", "ruleset")
	require.NoError(t, err)
	lines := strings.FieldsFunc(out, func(r rune) bool { return r == '\n' || r == ',' })
	for i, l := range lines {
		lines[i] = strings.Trim(strings.TrimPrefix(strings.TrimSpace(l), "elements = { "), " }")
	}
	slices.Sort(lines)
	return lines
}

// Check notices what others did to our table, and a Sync mends it.
func TestForeignHands(t *testing.T) {
	lab.NeedRoot(t)
	ctx := context.Background()
	const (
		frontend = "172.20.0.90 . tcp . 80 . "
		lost     = "delete element ip headgate allowed { " + frontend + "10.0.0.0/8 }; "
		added    = "add element ip headgate allowed { " + frontend
		leading  = " { type ipv4_addr : verdict; elements = { 192.0.2.1 : goto dispatch } }"
	)
	for name, script := range map[string]string{
		"asleep":                     "add table ip headgate { flags dormant; }",
		"policy":                     "add chain ip headgate nat-prerouting { type nat hook prerouting priority -100; policy drop; }",
		"another's policy":           "add chain ip headgate evil { type filter hook forward priority 0; policy drop; }",
		"catch-all":                  "add element ip headgate services { * : drop }",
		"catch-all among ranges":     "add element ip headgate allowed { * }",
		"wider range":                added + "8.0.0.0/6 }",
		"wider ports":                "add element ip headgate allowed { 172.20.0.90 . tcp . 70-90 . 9.0.0.0-11.0.0.0 }",
		"range within":               lost + added + "10.1.0.0/16 }; " + added + "10.0.0.0/8 }",
		"range that overlaps":        lost + added + "9.1.0.0-10.0.0.7 }; " + added + "10.200.0.0-11.200.0.0 }",
		"range with comment":         lost + added + `10.0.0.0/8 comment "x" }`,
		"map to our chain":           "add map ip headgate evil" + leading,
		"chain to our chain":         "add chain ip headgate evil; add rule ip headgate evil ip daddr @cluster-ips jump dispatch",
		"base chain made regular":    "delete chain ip headgate nat-prerouting; add chain ip headgate nat-prerouting; add map ip headgate evil { type ipv4_addr : verdict; elements = { 192.0.2.1 : goto nat-prerouting } }",
		"base chain on another hook": "flush chain ip headgate nat-input; delete chain ip headgate nat-input; add chain ip headgate nat-input { type filter hook forward priority 7; policy drop; }",
		"service's chain made base": "flush table ip headgate; flush map ip headgate services; delete chain ip headgate internal-lb-2; " +
			"add chain ip headgate internal-lb-2 { type filter hook forward priority 7; policy drop; }",
		"set of another type": "flush table ip headgate; delete map ip headgate services; add set ip headgate services { type inet_service; flags interval; elements = { 1-5 } }",
		"ranges that expire":  "flush table ip headgate; delete set ip headgate allowed; add set ip headgate allowed { type ipv4_addr . inet_proto . inet_service . ipv4_addr; flags interval,timeout; }",
		"chain renamed":       "rename chain ip headgate dispatch evil",
		"chain in its place":  "rename chain ip headgate dispatch evil; add chain ip headgate dispatch",
		"chains swapped": "rename chain ip headgate refuse evil && rename chain ip headgate mark-external refuse && " +
			"rename chain ip headgate evil mark-external",
		"rule first": "insert rule ip headgate dispatch accept",
		"rule last":  "add rule ip headgate nat-prerouting accept",
		"rules gone": "flush chain ip headgate draw-2",
	} {
		t.Run(name, func(t *testing.T) {
			ns := lab.StartNetNS(t, "foreign")
			p, err := nftables.New(ctx, nftables.Config{NetNS: ns.FD(), VerifyInterval: 1})
			require.NoError(t, err)
			defer p.Close()
			state := restricted("10.0.0.0/8", "192.0.2.0/24")
			_, err = p.Sync(ctx, state)
			require.NoError(t, err)
			before := holds(t, ns)
			for transaction := range strings.SplitSeq(script, " && ") {
				_, err = run(ns.FD(), strings.ReplaceAll(transaction, "; ", "\n"), "nft", "-f", "-")
				require.NoError(t, err)
			}
			require.ErrorIs(t, p.Check(ctx), model.ErrDrift)
			res, err := p.Sync(ctx, state)
			require.NoError(t, err)
			require.Empty(t, res.Rejected)
			require.Equal(t, before, holds(t, ns))
			require.NoError(t, p.Check(ctx))
		})
	}
}

// What others do between the moment when a Sync reads the kernel and the one when it writes is noticed, and blamed on no
// service.
func TestForeignHandsDuringSync(t *testing.T) {
	lab.NeedRoot(t)
	ctx := context.Background()
	const frontend = "ip headgate allowed { 172.20.0.90 . tcp . 80 . "
	for name, script := range map[string]string{
		"policy":         "add chain ip headgate evil { type filter hook forward priority 0; policy drop; }",
		"range lost":     "delete element " + frontend + "10.0.0.0/8 }",
		"range added":    "add element " + frontend + "172.16.0.0/12 }",
		"wanted range":   "add element " + frontend + "198.51.100.0/24 }",
		"range overlaps": "add element " + frontend + "198.51.0.0-198.51.100.77 }",
		"ranges gone":    "flush table ip headgate\ndelete set ip headgate allowed",
		"table gone":     "delete table ip headgate",
	} {
		t.Run(name, func(t *testing.T) {
			ns := lab.StartNetNS(t, "foreign")
			armed := false
			p, err := nftables.New(ctx, nftables.Config{NetNS: ns.FD(), VerifyInterval: 1, Trace: func([]byte) {
				if armed {
					armed = false
					_, err := run(ns.FD(), script, "nft", "-f", "-")
					require.NoError(t, err)
				}
			}})
			require.NoError(t, err)
			defer p.Close()
			_, err = p.Sync(ctx, restricted("10.0.0.0/8"))
			require.NoError(t, err)
			state := restricted("10.0.0.0/8", "198.51.100.0/24")
			armed = true
			res, err := p.Sync(ctx, state)
			require.NoError(t, err)
			require.Empty(t, res.Rejected)
			found, noticed := holds(t, ns), p.Check(ctx)
			_, err = p.Sync(ctx, state)
			require.NoError(t, err)
			require.NoError(t, p.Check(ctx))
			if noticed == nil {
				require.Equal(t, found, holds(t, ns))
			}
		})
	}
}

// The kernel tells the place of each rule before the first answer is read, so that there must be room for all of them.
func TestManyRules(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	lab.NeedRoot(t)
	ctx := context.Background()
	p, err := nftables.New(ctx, nftables.Config{NetNS: lab.StartNetNS(t, "rules").FD()})
	require.NoError(t, err)
	defer p.Close()
	_, err = p.Sync(ctx, modeltest.Big(15000, 1, func(s *model.Service, _ int) { s.Balance = model.RoundRobin }))
	require.NoError(t, err)
}
