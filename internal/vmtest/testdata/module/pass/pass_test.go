// Package pass looks at the guest from within and finds all well.
package pass

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestTestdata(t *testing.T) {
	for _, path := range []string{"testdata/hello", "../pass/testdata/hello"} {
		if text, err := os.ReadFile(path); err != nil || string(text) != "from testdata\n" {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
}

func TestEnvironment(t *testing.T) {
	if os.Getenv("HEADGATE_VM") != "1" || os.Getenv("GREETING") != "good day" {
		t.Errorf("environment: %q", os.Environ())
	}
	if os.Getuid() != 0 {
		t.Errorf("user %d", os.Getuid())
	}
}

func TestLoopback(t *testing.T) {
	if out, err := exec.Command("ping", "-c1", "-W5", "127.0.0.1").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// A process whose parent has gone is process 1's to gather.
func TestOrphansAreGathered(t *testing.T) {
	out, err := exec.Command("sh", "-c", "(sleep 0.1 & echo $!)").Output()
	if err != nil {
		t.Fatal(err)
	}
	for range 300 {
		if _, err := os.Stat("/proc/" + strings.TrimSpace(string(out))); err != nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Error("the orphan is still there")
}

func TestTimeoutIsSet(t *testing.T) {
	if _, limited := t.Deadline(); !limited {
		t.Error("no deadline")
	}
}

func TestSkipped(t *testing.T) { t.Skip("skipped on purpose") }
