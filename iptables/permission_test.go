package iptables

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

// What a process needs is told by New, by name, and nothing is asked of it that the variant does without.
func TestPermission(t *testing.T) {
	const helper = "HEADGATE_TEST_PERMISSION"
	cases := []struct {
		name    string
		drop    []string // arguments of setpriv
		variant Variant
		needs   []string // what New's error names; none: New works
		not     []string // what it must not name
		warns   []string // what Probe warns of, once
	}{
		{name: "nobody, auto", drop: nobody(), variant: Auto, needs: []string{"CAP_NET_ADMIN", "root"}},
		{name: "nobody, legacy", drop: nobody(), variant: Legacy, needs: []string{"CAP_NET_ADMIN", "CAP_NET_RAW", "root"}},
		{name: "nobody, nft", drop: nobody(), variant: NFT, needs: []string{"CAP_NET_ADMIN", "root"}, not: []string{"CAP_NET_RAW"}},
		{name: "nobody with capabilities, legacy", drop: nobody("net_admin", "net_raw"), variant: Legacy, needs: []string{"root"}, not: []string{"NET_RAW", "NET_ADMIN"}},
		{name: "without net_admin, auto", drop: without("net_admin"), variant: Auto, needs: []string{"CAP_NET_ADMIN"}, not: []string{"root (", "CAP_NET_RAW"}},
		{name: "without net_admin, legacy", drop: without("net_admin"), variant: Legacy, needs: []string{"CAP_NET_ADMIN"}, not: []string{"root (", "CAP_NET_RAW"}},
		{name: "without net_admin, nft", drop: without("net_admin"), variant: NFT, needs: []string{"CAP_NET_ADMIN"}, not: []string{"root (", "CAP_NET_RAW"}},
		{name: "without net_raw, legacy", drop: without("net_raw"), variant: Legacy, needs: []string{"CAP_NET_RAW"}, not: []string{"CAP_NET_ADMIN", "root ("}},
		{name: "without net_raw, nft", drop: without("net_raw"), variant: NFT},
		{name: "without sys_admin, legacy", drop: without("sys_admin"), variant: Legacy, warns: []string{"CAP_SYS_ADMIN"}},
		{name: "without sys_admin, nft", drop: without("sys_admin"), variant: NFT, warns: []string{"CAP_SYS_ADMIN"}},
	}
	if n := os.Getenv(helper); n != "" { // in a namespace of its own
		i, err := strconv.Atoi(n)
		require.NoError(t, err)
		c := cases[i]
		p, err := New(within(t), Config{Variant: c.variant})
		if len(c.needs) > 0 {
			require.ErrorIs(t, err, model.ErrPermission)
			for _, what := range c.needs {
				require.ErrorContains(t, err, what)
			}
			for _, what := range c.not {
				require.NotContains(t, err.Error(), what)
			}
			return
		}
		require.NoError(t, err)
		defer p.Close()
		report, err := p.Probe(within(t))
		require.NoError(t, err)
		require.NoError(t, report.Err())
		for _, what := range c.warns {
			require.Equal(t, 1, count(report.Warnings, what), "%v", report.Warnings)
		}
		_, err = p.Sync(within(t), model.State{})
		require.NoError(t, err)
		require.NoError(t, p.Check(within(t)))
		require.NoError(t, p.Cleanup(within(t)))
		return
	}
	lab.NeedRoot(t)
	self, err := os.Open(os.Args[0]) // the directory may be root's alone
	require.NoError(t, err)
	defer self.Close()
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			args := append(append([]string{"--net", "setpriv"}, c.drop...), "/proc/self/fd/3", "-test.run=^TestPermission$", "-test.v")
			cmd := exec.Command("unshare", args...)
			cmd.ExtraFiles = []*os.File{self}
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", helper, i))
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "--- PASS: TestPermission")
		})
	}
}

// nobody is a user that is not root and has some capabilities.
func nobody(caps ...string) []string {
	args := []string{"--reuid=65534", "--regid=65534", "--clear-groups"}
	if len(caps) > 0 {
		list := "+" + strings.Join(caps, ",+")
		args = append(args, "--inh-caps="+list, "--ambient-caps="+list)
	}
	return args
}

// without is root without a capability.
func without(c string) []string { return []string{"--bounding-set=-" + c} }

func count(findings []model.Finding, what string) (n int) {
	for _, f := range findings {
		if f.What == what {
			n++
		}
	}
	return n
}
