// Package crash takes the kernel down with it.
package crash

import (
	"os"
	"testing"
)

func TestCrash(t *testing.T) {
	t.Log("about to crash the kernel")
	t.Fatal(os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0))
}
