//go:build !linux

package modeltest

import (
	"os/exec"
	"testing"

	"github.com/headgate/headgate/model"
)

// NewLab skips the test: only Linux has network namespaces.
func NewLab(tb testing.TB, _ model.Node) World {
	tb.Helper()
	tb.Skip("needs Linux")
	return nil
}

// endWithUs does nothing: without a lab there is no child.
func endWithUs(*exec.Cmd) {}
