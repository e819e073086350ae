package prometheus

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// promtool runs Prometheus's own tool.
func promtool(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("there is no promtool; .ci/test gets it from Debian's package prometheus")
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	require.NoError(t, err, "promtool %q:\n%s", args, out)
	return string(out)
}

func TestAlertRules(t *testing.T) {
	require.Contains(t, promtool(t, "check", "rules", "alerts.yaml"), "SUCCESS")
	require.Contains(t, promtool(t, "test", "rules", "alerts_test.yaml"), "SUCCESS")
}

// The alerts ask for metrics that there are, and each alert is tried.
func TestAlertsAskForWhatThereIs(t *testing.T) {
	rules, err := os.ReadFile("alerts.yaml")
	require.NoError(t, err)
	tests, err := os.ReadFile("alerts_test.yaml")
	require.NoError(t, err)
	there := names(New(Config{Usage: usage}))
	asked := regexp.MustCompile(`headgate_\w+`).FindAllString(string(rules)+string(tests), -1)
	require.NotEmpty(t, asked)
	for _, name := range asked {
		require.True(t, slices.Contains(there, strings.TrimSuffix(name, "_bucket")), name)
	}
	alerts := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(rules), -1)
	require.Len(t, alerts, 9)
	for _, a := range alerts {
		require.Equal(t, 2, strings.Count(string(tests), "alertname: "+a[1]+",")+strings.Count(string(tests), `alertname="`+a[1]+`"`), a[1])
	}
}
