package house

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who embeds headgate may work, and test with the Fake, on another system than Linux.
func TestModelBuildsElsewhere(t *testing.T) {
	cmd := exec.Command("go", "build", "-buildvcs=false", "./model/...")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=darwin", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
