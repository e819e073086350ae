// Package crash takes the kernel down with it.
package crash

import (
	"os"
	"testing"
	"time"
)

func TestCrash(t *testing.T) {
	t.Log("about to crash the kernel")
	time.Sleep(3 * time.Second) // what is on its way out of the guest would be lost with it
	t.Fatal(os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0))
}
