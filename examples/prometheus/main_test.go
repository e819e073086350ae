package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/example/exampletest"
	"github.com/headgate/headgate/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(exampletest.Main(m, main)) }

func TestMetrics(t *testing.T) {
	lab.NeedRoot(t)
	out := exampletest.Succeed(t)
	const labels = `\{backend="nftables",ip_family="dual"\}`
	for _, want := range []string{
		`headgate_services` + labels + ` 100`,
		`headgate_sync_synced` + labels + ` 1`,
		`headgate_sync_consecutive_failures` + labels + ` 0`,
		`headgate_written_objects_total\{backend="nftables",ip_family="dual",op="added"\} [1-9]\d\d`,
		`headgate_network_programming_duration_seconds_count` + labels + ` 120`, // each service, and each change
		`headgate_services_rejected` + labels + ` 1`,
		`headgate_services_conflicting` + labels + ` 1`,
		`headgate_check_failures_total\{backend="nftables",class="drift",ip_family="dual"\} [1-9]`,
		`headgate_drift_repairs_total` + labels + ` [1-9]`,
		`headgate_conntrack_entries` + labels + ` 0`,
		`headgate_conntrack_entries_limit` + labels + ` [1-9]`,
	} {
		require.Regexp(t, `(?m)^  `+want, out)
	}
	require.NotRegexp(t, `:\n  watched by`, out, "a step shows no metric")

	// Every alert that there is, is shown, and no other.
	rules, err := os.ReadFile("../../model/prometheus/alerts.yaml")
	require.NoError(t, err)
	var alerts, shown []string
	for _, m := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		alerts = append(alerts, m[1])
	}
	for line := range strings.Lines(out) {
		if _, names, ok := strings.Cut(line, "watched by "); ok {
			shown = append(shown, regexp.MustCompile(`Headgate\w+`).FindAllString(names, -1)...)
		}
	}
	require.ElementsMatch(t, alerts, shown)
}

func TestUnprivilegedUserIsToldWhatToDo(t *testing.T) { exampletest.TellWhatIsMissing(t, ".") }
