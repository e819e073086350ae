package ipvs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/ipvs"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

var seed = flag.Uint64("seed", 0, "repeat what the suite did by chance")

// needIPVS skips a test where the kernel has no IPVS, as on most hosts. The runs in virtual machines have it.
func needIPVS(tb testing.TB) {
	tb.Helper()
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		if os.Getenv("HEADGATE_VM") != "" {
			tb.Fatal("the virtual machine has no IPVS")
		}
		tb.Skip("needs IPVS: runs in the VM")
	}
}

// newIn returns a constructor of Programmers for a world's node.
func newIn(cfg ipvs.Config) func(tb testing.TB, w modeltest.World) model.Programmer {
	return func(tb testing.TB, w modeltest.World) model.Programmer {
		tb.Helper()
		cfg := cfg
		cfg.NetNS, cfg.SetSysctls, cfg.VerifyInterval = w.NetNS(), true, 1
		cfg.Trace = spoil(w)
		p, err := ipvs.New(context.Background(), cfg)
		require.NoError(tb, err)
		tb.Cleanup(func() { require.NoError(tb, p.Close()) })
		return p
	}
}

// run runs a stock tool in the network namespace of a descriptor.
func run(netns int, stdin, name string, args ...string) (string, error) {
	type result struct {
		out []byte
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := unix.Setns(netns, unix.CLONE_NEWNET); err != nil {
			done <- result{err: err}
			return
		}
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		done <- result{out, err}
	}()
	r := <-done
	if r.err != nil {
		return "", fmt.Errorf("%s %q: %w: %s", name, args, r.err, r.out)
	}
	return string(r.out), nil
}

// sh runs a script of stock tools in a world's node.
func sh(tb testing.TB, w modeltest.World, script string) string {
	tb.Helper()
	out, err := run(w.NetNS(), "", "sh", "-ec", script)
	require.NoError(tb, err)
	return out
}

// spoiled has the namespaces, by descriptor, on the way to whose kernel requests are spoiled.
var spoiled sync.Map

// refuse makes the kernel refuse the new endpoint of the service default/api:http, as package modeltest defines it.
func refuse(_ testing.TB, w modeltest.World, _ model.ServiceName, err error) {
	if err == nil {
		spoiled.Delete(w.NetNS())
	} else {
		spoiled.Store(w.NetNS(), true)
	}
}

// spoil returns a trace that asks for a real server of another family than its virtual service, which is only possible
// through a tunnel.
func spoil(w modeltest.World) func(family int, messages []byte) {
	virtual, real := netip.MustParseAddr("172.20.0.11").AsSlice(), netip.MustParseAddr("10.128.0.12").AsSlice()
	return func(family int, messages []byte) {
		if _, ok := spoiled.Load(w.NetNS()); !ok || family != unix.NETLINK_GENERIC {
			return
		}
		each(messages, func(m []byte) {
			of := binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, 6), 11) // IPVS_DEST_ATTR_ADDR_FAMILY
			i := bytes.LastIndex(m, binary.NativeEndian.AppendUint16(of, unix.AF_INET))
			const cmd, delDest = unix.SizeofNlMsghdr, 7
			if i > 0 && m[cmd] != delDest && bytes.Contains(m, virtual) && bytes.Contains(m, real) {
				binary.NativeEndian.PutUint16(m[i+len(of):], unix.AF_INET6)
			}
		})
	}
}

func target() modeltest.Target {
	return modeltest.Target{
		Name:     "ipvs",
		New:      newIn(ipvs.Config{}),
		Second:   newIn(ipvs.Config{Table: "second", RouteProtocol: 105}),
		Snapshot: snapshot,
		Plant:    plant,
		Damage:   damage(),
		Refuse:   refuse,
		Seed:     *seed,
		Skip: map[string]string{
			"balance/source-hash-is-the-same-on-every-node": "hash-order",
			"affinity/switched-off":                         "affinity-entries-stay",
			"affinity/timeout-changed":                      "affinity-entries-stay",
			"affinity/services-are-told-apart":              "affinity-entries-stay",
		},
	}
}

var (
	elements = regexp.MustCompile(`(?s)elements = \{ (.*?) \}\n`)
	block    = regexp.MustCompile(`(?ms)^\t(?:chain|set|map) .*?^\t\}\n`)
	clients  = regexp.MustCompile(`(?s)(\t(?:timeout \w+|flags timeout)\n)\t\telements = \{[^}]*\}\n`)
)

// snapshot is the whole ruleset, every virtual service and every route, without what changes by itself.
func snapshot(tb testing.TB, w modeltest.World) string {
	listed := elements.ReplaceAllStringFunc(sh(tb, w, "nft -s list ruleset"), func(list string) string {
		all := regexp.MustCompile(`,\s+`).Split(elements.FindStringSubmatch(list)[1], -1)
		slices.Sort(all)
		return "elements = {\n\t\t\t" + strings.Join(all, ",\n\t\t\t") + "\n\t\t}\n"
	})
	listed = clients.ReplaceAllString(listed, "$1")
	tables := strings.SplitAfter(listed, "\n}\n")
	for i, table := range tables {
		blocks := block.FindAllString(table, -1)
		slices.Sort(blocks)
		tables[i] = block.ReplaceAllString(table, "") + strings.Join(blocks, "")
	}
	slices.Sort(tables)
	virtual := strings.Split(sh(tb, w, "ipvsadm -Sn"), "\n")
	slices.Sort(virtual)
	routes := strings.Split(sh(tb, w, "ip route show table all; ip -6 route show table all; ip addr"), "\n")
	slices.Sort(routes)
	return strings.Join(tables, "") + strings.Join(virtual, "\n") + strings.Join(routes, "\n")
}

// plant makes what others may have: virtual services, also at addresses of services of ours, local routes, tables whose
// names inside are ours.
func plant(tb testing.TB, w modeltest.World) {
	sh(tb, w, `
ipvsadm -A -t 10.103.97.1:6443 -s rr
ipvsadm -a -t 10.103.97.1:6443 -r 198.51.100.20:6443 -m
ipvsadm -A -t 172.20.0.10:8443 -s rr -p 60
ipvsadm -A -f 7 -s rr
ipvsadm -A -t 198.51.100.10:31999 -s rr
ip route add local 10.103.97.1 dev lo proto 99
ip -6 route add local fd20:99::1 dev lo proto 99
ip route add local 172.20.9.9 dev lo
`)
	_, err := run(w.NetNS(), `
table ip headgate { map services { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 172.20.0.10 . tcp . 80 : accept }; }; }
table ip nat { chain PREROUTING { type nat hook prerouting priority dstnat; counter; }; }
`, "nft", "-f", "-")
	require.NoError(tb, err)
}

// damage is what careless hands do to what is ours.
func damage() map[string]func(testing.TB, modeltest.World) error {
	out := map[string]func(testing.TB, modeltest.World) error{}
	for name, script := range map[string]string{
		"ipvsadm-C":             "ipvsadm -C",
		"virtual-service-gone":  "ipvsadm -D -t 172.20.0.10:80",
		"node-port-gone":        "ipvsadm -D -t 198.51.101.10:30010",
		"scheduler-changed":     "ipvsadm -E -t 172.20.0.10:80 -s lc",
		"persistence-changed":   "ipvsadm -E -t 172.20.0.10:80 -s rr -p 77",
		"server-gone":           "ipvsadm -d -t 172.20.0.10:80 -r 10.128.0.11:8080",
		"server-of-others":      "ipvsadm -a -t 172.20.0.10:80 -r 10.128.0.99:8080 -m",
		"weight-changed":        "ipvsadm -e -t 172.20.0.10:80 -r 10.128.0.11:8080 -m -w 0",
		"thresholds":            "ipvsadm -e -t 172.20.0.10:80 -r 10.128.0.11:8080 -m -x 3 -y 1",
		"route-gone":            "ip route del local 172.20.0.10 dev lo table local proto 104",
		"route-changed":         "ip route replace local 172.20.0.10 dev lo table local proto 104 metric 26728",
		"routes-gone":           "ip route flush table local proto 104; ip -6 route flush table local proto 104",
		"route-of-others":       "ip route add local 172.20.9.1 dev lo table local proto 104 metric 26728",
		"flush-ruleset":         "nft flush ruleset",
		"delete-table":          "nft delete table ip headgate-ipvs",
		"flush-table":           "nft flush table ip headgate-ipvs",
		"flush-services":        "nft flush map ip headgate-ipvs services",
		"flush-record":          "nft flush set ip headgate-ipvs virtual-services",
		"set-gone":              "nft delete set ip headgate-ipvs draining",
		"sets-gone":             "nft flush table ip headgate-ipvs; nft delete set ip headgate-ipvs virtual-services; nft delete set ip headgate-ipvs virtual-ips",
		"rule-in-front":         "nft insert rule ip headgate-ipvs dispatch tcp dport 80 drop",
		"ipvsadm-C-and-ruleset": "ipvsadm -C; nft flush ruleset; ip route flush table local proto 104",
	} {
		out[name] = func(_ testing.TB, w modeltest.World) error {
			_, err := run(w.NetNS(), "", "sh", "-ec", script)
			return err
		}
	}
	return out
}

func TestSuite(t *testing.T) {
	needIPVS(t)
	modeltest.Run(t, target())
}

func TestVectors(t *testing.T) {
	needIPVS(t)
	modeltest.RunVectors(t, target())
}
