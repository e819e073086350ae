package ipvs

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// README.md names every difference.
func TestDifferencesAreTold(t *testing.T) {
	if os.Getenv("HEADGATE_VM") != "" {
		t.Skip("needs README.md: runs on the host")
	}
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	for _, d := range featuresOf(Config{NoShortCut: true}).Differences {
		require.Contains(t, string(readme), "\n| `"+d.ID+"` |")
	}
}
