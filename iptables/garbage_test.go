package iptables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// garbageNames are names that a parser of rules could take for something else: each single byte, words of the language of
// iptables-restore, long ones, and some by chance.
func garbageNames() []model.ServiceName {
	names := modeltest.OddNames()
	for b := range 256 {
		names = append(names, model.ServiceName([]byte{byte(b)}))
	}
	for _, text := range []string{"--", "-j", "-j DROP", "! -j", "-A", "*nat", "*filter\n", "COMMIT", "\nCOMMIT\n", ":HEADGATE-SERVICES - [0:0]", "-X", "#", "# comment",
		"  two  spaces  ", "\ttab", "a\x00b", `"`, `""`, `\"`, `\\`, `a" -j DROP -m comment --comment "b`, "$(reboot)", "`reboot`", "'; reboot; '", "%s%n", "%22", "%", "~", "[0:0]",
		strings.Repeat("x", 1000), strings.Repeat(`"`, 1000), strings.Repeat("\n", 1000), strings.Repeat("é", 500), strings.Repeat("é", 500) + "!", strings.Repeat("\xff", 255)} {
		names = append(names, model.ServiceName(text))
	}
	r := rand.New(rand.NewPCG(5, 5))
	for range 200 {
		raw := make([]byte, 1+r.IntN(300))
		for i := range raw {
			raw[i] = byte(r.IntN(256))
		}
		names = append(names, model.ServiceName(raw))
	}
	return names
}

// Whatever services are called, each is programmed, listed as it was written, and told apart; after a restart nothing is
// written anew; and nothing is left in the end.
func TestGarbageNames(t *testing.T) {
	state := model.State{Node: modeltest.StageNode(), Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	for i, name := range garbageNames() {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 20, byte(i >> 8), byte(i)}), 80)
		state.Services[name] = model.Service{Frontends: []model.Frontend{{Addr: at}}}
		if i%3 > 0 { // the others are rejected in the filter table
			state.Endpoints[name] = []model.Endpoint{{Addr: netip.MustParseAddrPort("10.128.0.11:8080")}}
		}
	}
	eachVariant(t, func(t *testing.T, v Variant) {
		ns := newNS(t)
		p := open(t, Config{NetNS: ns.FD(), Variant: v})
		res, err := p.Sync(within(t), state)
		require.NoError(t, err)
		require.NoError(t, res.Err())
		p.checks.unsure = true
		require.NoError(t, p.Check(within(t)))
		listed := saved(t, ns.FD(), v)
		for name := range state.Services {
			require.True(t, name == "" || strings.Contains(listed, counters.ReplaceAllString(comment(string(name)), "")+" -"), "%q", name)
		}
		for line := range strings.Lines(listed) {
			require.Regexp(t, `^(\*|:|-A |COMMIT|nft IPv|legacy IPv)`, line, "no line begins in the middle of a name")
		}
		again := open(t, Config{NetNS: ns.FD(), Variant: v})
		res, err = again.Sync(within(t), state)
		require.NoError(t, err)
		require.Zero(t, res.Written(), "%v", res)
		require.NoError(t, again.Cleanup(within(t)))
		require.Empty(t, saved(t, ns.FD(), v))
	})
}

// Somebody empties or deletes any one of our chains by hand, or a rule of it. Check says so, and Sync repairs just that.
func TestEveryChainIsWatched(t *testing.T) {
	sc := scenario(t, "ranges-with-node")
	eachVariant(t, func(t *testing.T, v Variant) {
		ns := newNS(t)
		p := open(t, Config{NetNS: ns.FD(), Variant: v, RejectOtherPorts: true, DropInvalid: true})
		_, err := p.Sync(within(t), sc.State)
		require.NoError(t, err)
		whole := saved(t, ns.FD(), v)
		_, want := rulesetOf(p.sides[model.IPv4].now.env, p.resolver.Forms())
		for _, tbl := range tables {
			for _, c := range want[tbl] {
				if len(c.rules) == 0 {
					continue // nothing to empty; the canary's deletion is tried elsewhere
				}
				script := fmt.Sprintf("*%s\n-F %s\nCOMMIT\n", tbl, c.name)
				if len(c.rules) > 1 {
					script = fmt.Sprintf("*%s\n-D %s %d\nCOMMIT\n", tbl, c.name, len(c.rules))
				}
				require.NoError(t, restore(ns.FD(), model.IPv4, v, script))
				err := p.Check(within(t))
				require.ErrorIs(t, err, model.ErrDrift, "%s", script)
				require.ErrorContains(t, err, c.name)
				res, err := p.Sync(within(t), sc.State)
				require.NoError(t, err)
				require.LessOrEqual(t, res.Written(), len(c.rules), "%s: %v", script, res)
				require.NoError(t, p.Check(within(t)))
			}
		}
		require.Equal(t, whole, saved(t, ns.FD(), v))
	})
}
