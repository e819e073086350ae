package conntrack

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRealIPVS has IPVS translate, in a kernel that has it. Its flows look like those of NAT rules once it is told to
// have them tracked.
func TestRealIPVS(t *testing.T) {
	s := newStage(t, Config{})
	ipvs := func(args ...string) error {
		out, err := s.topo.Node.Command(s.ctx, "ipvsadm", args...).CombinedOutput()
		t.Logf("ipvsadm %v: %s", args, out)
		return err
	}
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		t.Skip("this kernel has no IPVS")
	}
	require.NoError(t, s.topo.Node.Sysctl("net/ipv4/vs/conntrack", "1"))
	require.NoError(t, s.topo.Node.AddAddr("lo", vip))
	require.NoError(t, ipvs("-A", "-u", "172.20.9.1:53", "-s", "rr"))
	require.NoError(t, ipvs("-a", "-u", "172.20.9.1:53", "-r", "10.128.0.11:5353", "-m"))
	s.tracker.SetService("dns", service(at(vip, 53)))
	s.tracker.SetEndpoints("dns", endpoints(epA))
	synced(s.cleaner, s.tracker.State())
	require.Zero(t, settle(t, s.cleaner))
	require.Equal(t, epA.String(), s.talk("vip", outside, at(vip, 53)))
	require.Equal(t, []string{"vip"}, s.names())
	synced(s.cleaner, s.tracker.State())
	require.Zero(t, settle(t, s.cleaner), "it leads to its endpoint")

	require.NoError(t, ipvs("-d", "-u", "172.20.9.1:53", "-r", "10.128.0.11:5353"))
	require.NoError(t, ipvs("-a", "-u", "172.20.9.1:53", "-r", "10.128.0.12:5353", "-m"))
	s.tracker.SetEndpoints("dns", endpoints(epB))
	applied(s.cleaner, s.tracker.Diff())
	require.Equal(t, 1, settle(t, s.cleaner))
	require.Equal(t, epB.String(), s.talk("new", outside, at(vip, 53)))
}
