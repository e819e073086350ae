// Package kernel uses what headgate needs of a kernel, through the stock tools,
// with nothing loaded beforehand that loads itself.
package kernel

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// run runs a script with the guest's shell and tools.
func run(t *testing.T, script string) string {
	t.Helper()
	cmd := exec.Command("sh", "-e")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// Each module is asked for by a transaction of its own, before the ruleset
// that needs them all.
func TestNftables(t *testing.T) {
	run(t, `
nft add table inet a
nft 'add chain inet a nat { type nat hook prerouting priority 0; }'
nft 'add chain inet a c'
nft 'add chain inet a d { type filter hook input priority 0; }'
while read -r rule; do nft "add rule inet a $rule" </dev/null; done <<EOF
c fib daddr type local
c numgen random mod 2 0
c meta mark set jhash ip saddr mod 7
c ct state new
nat dnat ip to 10.0.0.1
nat redirect
d reject
c limit rate 1/second
c log prefix "x"
c queue
c quota 1 bytes
c ct count 1
c socket transparent 1
EOF
nft 'add chain inet a p { type nat hook postrouting priority 0; }'
nft 'add rule inet a p masquerade fully-random'
lsmod > /tmp/loaded
for m in nft_fib_inet nft_numgen nft_hash nft_ct nft_chain_nat nft_nat nft_redir nft_reject_inet nft_limit nft_log nft_masq; do
	grep -q "^$m " /tmp/loaded
done
nft -f testdata/rules.nft
nft list ruleset > /tmp/f; nft -c -f /tmp/f; nft -j list ruleset > /dev/null
nft flush ruleset`)
}

func TestIptables(t *testing.T) {
	for _, variant := range []string{"legacy", "nft"} {
		for family, addrs := range map[string][2]string{
			"iptables":  {"10.96.0.1", "10.0.0.1:80"},
			"ip6tables": {"fd00::1", "[fd00::2]:80"},
		} {
			tool := family + "-" + variant
			t.Run(tool, func(t *testing.T) {
				reject := map[string]string{"iptables": "icmp-port-unreachable", "ip6tables": "icmp6-port-unreachable"}[family]
				out := run(t, fmt.Sprintf(`
%[1]s-restore --noflush -w 5 <<EOF
*nat
:SVC - [0:0]
-A PREROUTING -m comment --comment "default/web:http" -m addrtype --dst-type LOCAL -j SVC
-A SVC -d %[2]s -p tcp -m tcp --dport 80 -m statistic --mode random --probability 0.5 -j DNAT --to-destination %[3]s
-A SVC -p tcp -m recent --name A --rcheck --seconds 10 --reap -m multiport --dports 1,2 -j RETURN
-A SVC -p sctp -m sctp --dport 80 -m recent --name A --set -j DNAT --to-destination %[3]s
-A SVC -p udp -m udp --dport 80 -m statistic --mode nth --every 2 --packet 0 -j REDIRECT --to-ports 80
-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully
-A POSTROUTING -p tcp -m conntrack --ctstate DNAT --ctorigdst %[2]s -j SNAT --to-source %[2]s
COMMIT
*mangle
-A PREROUTING -j MARK --set-xmark 0x4000/0x4000
-A PREROUTING -j CONNMARK --save-mark
-A PREROUTING -m connmark --mark 1 -m physdev --physdev-is-bridged -j ACCEPT
COMMIT
*raw
-A PREROUTING -p tcp -j CT --notrack
COMMIT
*filter
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A FORWARD -d %[2]s -p tcp -j REJECT --reject-with tcp-reset
-A FORWARD -j REJECT --reject-with %[4]s
-A FORWARD -m limit --limit 1/s -j LOG --log-prefix x
COMMIT
EOF
%[1]s -t nat -C POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully
%[1]s-save -t nat
for t in nat mangle raw filter; do %[1]s -w 5 -t $t -F; %[1]s -w 5 -t $t -X; done`, tool, addrs[0], addrs[1], reject))
				if !strings.Contains(out, `--comment "default/web:http"`) {
					t.Errorf("not what was restored:\n%s", out)
				}
			})
		}
	}
	run(t, "iptables --version | grep nf_tables; ip6tables-save; iptables-restore </dev/null")
}

func TestIpvs(t *testing.T) {
	for _, scheduler := range []string{"rr", "wrr", "lc", "wlc", "sh", "mh"} {
		run(t, "ipvsadm -A -t 10.96.0.1:80 -s "+scheduler+" -p 60; ipvsadm -a -t 10.96.0.1:80 -r 127.0.0.1:8080 -m; ipvsadm -C")
	}
	run(t, "ipvsadm -A --sctp-service 10.96.0.1:80; ipvsadm -A -u [fd00::1]:80; ipvsadm -C")
}

func TestSCTP(t *testing.T) {
	for _, family := range []int{syscall.AF_INET, syscall.AF_INET6} {
		fd, err := syscall.Socket(family, syscall.SOCK_STREAM, syscall.IPPROTO_SCTP)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Listen(fd, 1); err != nil {
			t.Error(err)
		}
		_ = syscall.Close(fd)
	}
}

func TestNamespacesAndLinks(t *testing.T) {
	run(t, `
ip netns add a
ip link add v0 type veth peer name v1 netns a
ip -n a addr add fd00::2/64 dev v1 nodad; ip -n a link set v1 up; ip -n a link set lo up
ip addr add fd00::1/64 dev v0 nodad; ip link set v0 up
ip link add d0 type dummy; ip link add b0 type bridge; ip link add m0 link v0 type macvlan; ip link add x0 type vxlan id 1 dev v0 dstport 4789
tc qdisc add dev v0 root netem delay 1ms
ping -c1 -W5 fd00::2
ip netns exec a ss -lnt
ip netns exec a nft add table ip t
ip netns exec a ipset create s hash:ip
ip link del b0; ip link del d0; ip link del x0; ip link del m0; ip link del v0; ip netns del a`)
}

func TestConntrack(t *testing.T) {
	run(t, `
conntrack -I -p udp -s 10.0.0.1 -d 10.96.0.1 --sport 1 --dport 53 --timeout 60 --dst-nat 10.0.0.2
conntrack -L -p udp --orig-dst 10.96.0.1 | grep dport=53
conntrack -D -p udp --orig-dst 10.96.0.1
test "$(sysctl -n net.netfilter.nf_conntrack_max)" -gt 1000`)
}

// Every tool is the real one, except where there is none.
func TestToolsAreReal(t *testing.T) {
	for _, name := range strings.Fields("ip tc ss nft conntrack ipset ipvsadm modprobe sh") {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if target, _ := os.Readlink(path); strings.Contains(target, "busybox") {
			t.Errorf("%s is busybox", name)
		}
	}
	run(t, "vi --help 2>&1; find /etc -name passwd | grep passwd; cat /etc/protocols | grep -q sctp")
}
