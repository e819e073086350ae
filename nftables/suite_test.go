package nftables_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/netns"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/headgate/headgate/nftables"
)

// newIn returns a constructor of Programmers for a world's node, for a table of the given name.
func newIn(table string) func(tb testing.TB, w modeltest.World) model.Programmer {
	return func(tb testing.TB, w modeltest.World) model.Programmer {
		tb.Helper()
		p, err := nftables.New(context.Background(), nftables.Config{Table: table, NetNS: w.NetNS(), VerifyInterval: 1, Trace: spoil(w)})
		require.NoError(tb, err)
		tb.Cleanup(func() { require.NoError(tb, p.Close()) })
		return p
	}
}

// inNetNS runs f in the network namespace of a descriptor.
func inNetNS(fd int, f func() error) error {
	ns, err := netns.Open(fd)
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.Do(f)
}

// run runs a stock tool in the network namespace of a descriptor.
func run(netns int, stdin, name string, args ...string) (string, error) {
	var out []byte
	err := inNetNS(netns, func() (err error) {
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		return "", fmt.Errorf("%s %q: %w: %s", name, args, err, out)
	}
	return string(out), nil
}

// nft runs the stock nft in a world's node, with a script on its standard input if there is one.
func nft(tb testing.TB, w modeltest.World, script string, args ...string) string {
	tb.Helper()
	if script != "" {
		args = []string{"-f", "-"}
	}
	out, err := run(w.NetNS(), script, "nft", args...)
	require.NoError(tb, err)
	return out
}

// spoiled says which batches are spoiled on their way to the kernel, by the namespace's descriptor: nil for none, else
// the endpoint address in whose slots the kernel shall find no key.
var spoiled sync.Map

// refuse makes the kernel refuse slots of the service default/api:http, as package modeltest defines it.
func refuse(_ testing.TB, w modeltest.World, _ model.ServiceName, err error) {
	if err == nil {
		spoiled.Delete(w.NetNS())
	} else {
		spoiled.Store(w.NetNS(), netip.MustParseAddr("10.128.0.12"))
	}
}

// spoil returns a trace that gives the keys of some elements a type which no kernel knows.
func spoil(w modeltest.World) func([]byte) {
	return func(batch []byte) {
		target, ok := spoiled.Load(w.NetNS())
		if !ok {
			return
		}
		addr := target.(netip.Addr)
		for _, vip := range [...]string{"172.20.0.11", "192.0.2.11"} {
			b := netip.MustParseAddr(vip).As4()
			for at := 0; ; {
				i := bytes.Index(batch[at:], b[:])
				if i < 0 {
					break
				}
				at += i + len(b)
				const element = 44 // bytes of a slot, from its key on
				slot := batch[at:min(len(batch), at+element)]
				// Before the key's value stand its header and that of the attribute around it.
				if header := batch[at-12 : at-4]; header[2] == 1 && header[6] == 1 && bytes.Contains(slot, addr.AsSlice()) {
					header[2] = 0x1f
				}
			}
		}
	}
}

// A service of which the kernel does not even take what it took before is left out of a Sync, and it alone.
func TestRefusedAltogether(t *testing.T) {
	for _, name := range []model.ServiceName{"api", ""} {
		t.Run(fmt.Sprintf("%q", string(name)), func(t *testing.T) { refusedAltogether(t, name) })
	}
}

func refusedAltogether(t *testing.T, name model.ServiceName) {
	ctx := context.Background()
	node := modeltest.StageNode()
	w := modeltest.NewLab(t, node)
	p := target().New(t, w)
	service := func(vip string) model.Service {
		return model.Service{Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort(vip)}}}
	}
	eps := []model.Endpoint{{Addr: netip.MustParseAddrPort("10.128.0.11:8080")}}
	state := model.State{Node: node,
		Services:  model.ServiceMap{name: service("172.20.0.11:80"), "web": service("172.20.0.10:80")},
		Endpoints: model.EndpointMap{name: eps, "web": eps}}
	asks := func(vip string) modeltest.Verdict {
		out, err := w.Send(ctx, modeltest.Packet{Kind: modeltest.FromPod, From: netip.MustParseAddr("10.128.0.100"), To: netip.MustParseAddrPort(vip)}, 1)
		require.NoError(t, err)
		return out[0].Verdict
	}
	for range 2 {
		res, err := p.Sync(ctx, state)
		require.NoError(t, err)
		require.NoError(t, res.Err())
		require.Equal(t, modeltest.Translated, asks("172.20.0.11:80"))

		spoiled.Store(w.NetNS(), netip.MustParseAddr("10.128.0.11"))
		res, err = p.Sync(ctx, state)
		spoiled.Delete(w.NetNS())
		require.NoError(t, err)
		require.Len(t, res.Rejected, 1)
		require.Equal(t, name, res.Rejected[0].Service)
		require.ErrorIs(t, res.Rejected[0], unix.EINVAL)
		require.Equal(t, modeltest.Dropped, asks("172.20.0.11:80"), "an address of the service range that nobody owns")
		require.Equal(t, modeltest.Translated, asks("172.20.0.10:80"))
		require.NoError(t, p.Check(ctx))
	}
}

var seed = flag.Uint64("seed", 0, "repeat what the suite did by chance")

func target() modeltest.Target {
	return modeltest.Target{
		Name:     "nftables",
		New:      newIn("headgate"),
		Second:   newIn("second"),
		Snapshot: snapshot,
		Plant:    plant,
		Damage:   damage(),
		Refuse:   refuse,
		Seed:     *seed,
	}
}

// snapshot is the whole ruleset, without what changes by itself: all sorted, clients left out.
func snapshot(tb testing.TB, w modeltest.World) string {
	listed := sorted(nft(tb, w, "", "-s", "list", "ruleset"))
	listed = regexp.MustCompile(`(?s)(\ttimeout \w+\n(?:\t\tcomment [^\n]*\n)?)\t\telements = \{[^}]*\}\n`).ReplaceAllString(listed, "$1")
	tables := strings.SplitAfter(listed, "\n}\n")
	for i, table := range tables {
		blocks := block.FindAllString(table, -1)
		slices.Sort(blocks)
		tables[i] = block.ReplaceAllString(table, "") + strings.Join(blocks, "")
	}
	slices.Sort(tables)
	return strings.Join(tables, "")
}

// plant loads what others may have: tables with the names that we use inside ours, maps that look like ours, chains on
// the same hooks, one with a set that has intervals and timeouts.
func plant(tb testing.TB, w modeltest.World) {
	nft(tb, w, `
table inet headgate { chain dispatch { type filter hook forward priority 0; policy accept; ct state established accept; }; }
table ip headgate2 {
	map services { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 172.20.0.10 . tcp . 80 : accept }; }
	chain nat-prerouting { type nat hook prerouting priority dstnat + 1; ip daddr . meta l4proto . th dport vmap @services; }
}
table ip nat {
	chain DOCKER { iifname "docker0" counter return; }
	chain POSTROUTING { type nat hook postrouting priority srcnat; oifname != "docker0" ip saddr 172.17.0.0/16 counter masquerade; }
	chain PREROUTING { type nat hook prerouting priority dstnat; fib daddr type local counter jump DOCKER; }
}
table ip6 firewalld {
	set ban { type ipv6_addr; flags interval,timeout; elements = { 2001:db8:f::/48 timeout 1d }; }
	chain input { type filter hook input priority 10; ip6 saddr @ban drop; }
}
`)
}

// damage is what careless hands do to our tables.
func damage() map[string]func(testing.TB, modeltest.World) error {
	scripts := map[string]string{
		"flush-ruleset":       "flush ruleset",
		"delete-table":        "delete table ip headgate",
		"delete-table-v6":     "delete table ip6 headgate",
		"flush-table":         "flush table ip headgate",
		"flush-chain":         "flush chain ip headgate dispatch",
		"flush-services":      "flush map ip headgate services",
		"flush-endpoints":     "flush map ip headgate endpoints",
		"rule-in-front":       "insert rule ip headgate dispatch tcp dport 80 drop",
		"chain-on-our-hook":   "add chain ip headgate evil { type nat hook prerouting priority -101; }; add rule ip headgate evil tcp dport 80 accept",
		"element-of-others":   "add element ip headgate cluster-ips { 10.128.0.11 }",
		"endpoints-elsewhere": "flush map ip headgate endpoints; add element ip headgate endpoints { 172.20.0.10 . tcp . 80 . 0 : 10.128.0.99 . 8080 }",
		"set-of-others":       "add set ip headgate extra { type ipv4_addr; }",
		"table-anew":          "delete table ip headgate; add table ip headgate",
	}
	out := map[string]func(testing.TB, modeltest.World) error{}
	for name, script := range scripts {
		out[name] = func(tb testing.TB, w modeltest.World) error {
			_, err := run(w.NetNS(), strings.ReplaceAll(script, "; ", "\n"), "nft", "-f", "-")
			return err
		}
	}
	out["chain-on-our-hook"] = func(tb testing.TB, w modeltest.World) error {
		_, err := run(w.NetNS(), scripts["chain-on-our-hook"], "nft", "-f", "-")
		return err
	}
	return out
}

func TestSuite(t *testing.T)   { modeltest.Run(t, target()) }
func TestVectors(t *testing.T) { modeltest.RunVectors(t, target()) }
