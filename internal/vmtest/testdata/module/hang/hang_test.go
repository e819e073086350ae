// Package hang never comes to its end.
package hang

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

func TestHang(t *testing.T) {
	if os.Getenv("DEAF") != "" {
		signal.Ignore(syscall.SIGQUIT)
	}
	t.Log("about to hang")
	for {
		time.Sleep(time.Hour)
	}
}
