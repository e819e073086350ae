package main

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/example/exampletest"
	"github.com/headgate/headgate/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(exampletest.Main(m, main)) }

func TestEachBackend(t *testing.T) {
	lab.NeedRoot(t)
	for name, b := range backends {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat("/proc/net/ip_vs"); err != nil && name == "ipvs" {
				t.Skip("needs IPVS: runs in the VM")
			}
			if strings.HasPrefix(name, "iptables") && os.Getenv("HEADGATE_VM") != "" {
				t.Skip("an emulated processor starts programs too slowly: runs on the host")
			}
			_, err := exec.LookPath(b.list[0])
			require.NoError(t, err, "the rules cannot be shown")
			out := exampletest.Succeed(t, "-backend", name)

			served := regexp.MustCompile(`(?m)^(alpha|beta|gamma): (\d+)$`).FindAllStringSubmatch(out, -1)
			require.Len(t, served, 3, out)
			total := 0
			for _, m := range served {
				n := number(t, m[2])
				require.Greater(t, n, 40, "of 300 requests, an even share is 100: %s", out)
				total += n
			}
			require.Equal(t, 300, total)

			load := regexp.MustCompile(`(\d+) requests meanwhile, 0 failed`).FindStringSubmatch(out)
			require.NotNil(t, load, out)
			require.Positive(t, number(t, load[1]))

			require.Regexp(t, `Written to the kernel:\n  [1-9]\d* added, `, out)
			require.Regexp(t, `removed: .* bytes in \d+ transactions`, out)
			require.Regexp(t, `added: .* bytes in \d+ transactions`, out)
			require.Contains(t, out, "10.96.0.10", "the rules are not shown")
			require.Contains(t, out, string(web), "the rules do not name the service")
			require.Contains(t, out, "Cleaned up")
		})
	}
}

// A kernel without IPVS is named for what it lacks, with what to do about it.
func TestWithoutIPVS(t *testing.T) {
	lab.NeedRoot(t)
	if _, err := os.Stat("/proc/net/ip_vs"); err == nil {
		t.Skip("the kernel has IPVS: runs on hosts without")
	}
	out, errs, code := exampletest.Run(t, exampletest.Command(t, "-backend", "ipvs"))
	require.Equal(t, 1, code, out)
	require.Contains(t, errs, "ip_vs: listing virtual services: the kernel does not have IPVS")
	require.Contains(t, errs, "modprobe ip_vs")
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}

func TestWithoutTheToolThatShowsTheRules(t *testing.T) {
	lab.NeedRoot(t)
	cmd := exampletest.Command(t, "-backend", "nftables")
	cmd.Env = append(cmd.Env, "PATH=/nowhere")
	out, errs, code := exampletest.Run(t, cmd)
	require.Zero(t, code, "%s%s", out, errs)
	require.Contains(t, out, "nft is not installed")
	require.Contains(t, out, "Cleaned up")
}

func TestUnprivilegedUserIsToldWhatToDo(t *testing.T) {
	exampletest.TellWhatIsMissing(t, "./examples/quickstart")
}

func TestUnknownBackend(t *testing.T) {
	_, errs, code := exampletest.Run(t, exampletest.Command(t, "-backend", "teleport"))
	require.Equal(t, 1, code)
	require.Regexp(t, `^quickstart: no backend "teleport"; there is iptables, .*nftables\n$`, errs)
}
