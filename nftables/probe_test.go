package nftables

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/internal/netns"
	"github.com/headgate/headgate/model"
)

func probed(t *testing.T, ns *lab.NetNS) *Programmer {
	t.Helper()
	p, err := New(context.Background(), Config{NetNS: ns.FD()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// What stands in the way of traffic is named, with what the administrator can do about it; and that helps.
func TestProbeNamesObstacles(t *testing.T) {
	lab.NeedRoot(t)
	ns := lab.StartNetNS(t, "obstacles")
	p := probed(t, ns)
	find := func(what string) (model.Finding, bool) {
		report, err := p.Probe(context.Background())
		require.NoError(t, err)
		for _, f := range report.Warnings {
			if f.What == what {
				return f, true
			}
		}
		return model.Finding{}, false
	}
	sh := func(command string) {
		out, err := ns.Command(context.Background(), "sh", "-c", command).CombinedOutput()
		require.NoError(t, err, "%s: %s", command, out)
	}
	for _, sysctl := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		sh("echo 0 > " + netns.SysctlPath(sysctl))
		f, ok := find(sysctl)
		require.True(t, ok, sysctl)
		require.Contains(t, f.Remedy, sysctl+"=1")
		sh("echo 1 > " + netns.SysctlPath(sysctl))
		_, ok = find(sysctl)
		require.False(t, ok, sysctl)
	}
	sh("nft add table inet filter; nft 'add chain inet filter forward { type filter hook forward priority 0; policy drop; }'")
	f, ok := find("chain inet filter forward")
	require.True(t, ok)
	sh(f.Remedy)
}

func TestConfig(t *testing.T) {
	for name, cfg := range map[string]Config{
		"same bits":        {BalancedLabel: 5, MasqueradeLabel: 5},
		"bit out of range": {BalancedLabel: 128},
		"negative bit":     {MasqueradeLabel: -1},
		"table":            {Table: `bad name; flush ruleset`},
		"table digits":     {Table: "1st"},
		"size":             {AffinitySize: -1},
		"timeout":          {Timeout: -1},
	} {
		_, err := New(context.Background(), cfg)
		require.ErrorIs(t, err, model.ErrInvalid, name)
	}
	_, err := New(context.Background(), Config{NetNS: 99999})
	require.Error(t, err)
	require.False(t, errors.Is(err, model.ErrInvalid))
}
