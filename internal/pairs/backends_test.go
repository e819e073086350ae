package pairs

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/iptables"
	"github.com/headgate/headgate/ipvs"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/nftables"
)

// TestMain keeps the tests from waiting for, or holding up, whoever else uses the host's xtables lock.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "headgate-pairs")
	if err != nil {
		panic(err)
	}
	os.Setenv("XTABLES_LOCKFILE", filepath.Join(dir, "lock"))
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// emulated says that the processor is emulated: slow, and with a kernel that has IPVS.
var emulated = os.Getenv("HEADGATE_VM") != ""

// A backend is one side of a pair.
type backend struct {
	name string
	new  func(ctx context.Context, netns int) (model.Programmer, error)
	// list is a script of stock tools that prints, of what is in a namespace, also what is the backend's; mine matches that.
	list string
	mine *regexp.Regexp
	// inVM says that only the kernel of the virtual machine has it.
	inVM bool
}

var backends = []backend{
	{
		name: "nftables",
		new: func(ctx context.Context, netns int) (model.Programmer, error) {
			return nftables.New(ctx, nftables.Config{NetNS: netns})
		},
		list: "nft list tables", mine: regexp.MustCompile(`(?m)^table ip6? headgate$`),
	},
	iptablesOf(iptables.Legacy),
	iptablesOf(iptables.NFT),
	{
		name: "ipvs",
		new: func(ctx context.Context, netns int) (model.Programmer, error) {
			return ipvs.New(ctx, ipvs.Config{NetNS: netns, SetSysctls: true})
		},
		list: "ipvsadm -Sn; ip route show table local proto 104; ip -6 route show table local proto 104; nft list tables",
		mine: regexp.MustCompile(`(?m)^-[Aa] .*|^local .*|^table ip6? headgate-ipvs$`),
		inVM: true,
	},
}

// families are those that iptables programs: an emulated processor is too slow to start programs for both.
func families() []model.Family {
	if emulated {
		return []model.Family{model.IPv4}
	}
	return nil
}

// iptablesOf has a prefix for each variant: with a common one they would be the same backend in another place.
func iptablesOf(v iptables.Variant) backend {
	prefix := "HG" + strings.ToUpper(v.String())
	return backend{
		name: "iptables-" + v.String(),
		new: func(ctx context.Context, netns int) (model.Programmer, error) {
			return iptables.New(ctx, iptables.Config{NetNS: netns, Variant: v, Prefix: prefix, Families: families()})
		},
		list: strings.ReplaceAll("iptables-X-save; ip6tables-X-save", "X", v.String()),
		mine: regexp.MustCompile(`(?m)^.*\b` + prefix + `\b.*$`),
	}
}

// open returns a Programmer that is closed with the test.
func (b backend) open(t *testing.T, ns *lab.NetNS) model.Programmer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := b.new(ctx, ns.FD())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// left returns what the stock tools list that is the backend's.
func (b backend) left(t *testing.T, ns *lab.NetNS) []string {
	t.Helper()
	out, err := ns.Command(context.Background(), "sh", "-ec", b.list).Output()
	require.NoError(t, err)
	return b.mine.FindAllString(string(out), -1)
}

// eachPair runs a test for every ordered pair of backends that this kernel has. Those with IPVS are for the virtual
// machine alone, and all others for the host alone.
func eachPair(t *testing.T, f func(t *testing.T, from, to backend)) {
	for _, from := range backends {
		for _, to := range backends {
			if from.name == to.name {
				continue
			}
			t.Run(from.name+"-to-"+to.name, func(t *testing.T) {
				switch inVM := from.inVM || to.inVM; {
				case inVM && !emulated:
					t.Skip("needs IPVS: runs in the VM")
				case !inVM && emulated:
					t.Skip("needs no other kernel: runs on the host")
				}
				f(t, from, to)
			})
		}
	}
}
