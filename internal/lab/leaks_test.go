package lab_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
)

// A recorder is a test that only takes down what it is told.
type recorder struct {
	cleanups []func()
	errors   []string
	skipped  bool
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, a ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, a...))
}
func (r *recorder) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
func (r *recorder) Skipf(string, ...any)           { r.skipped = true }

func (r *recorder) end() string {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
	return strings.Join(r.errors, "\n")
}

func TestCheckLeaksFinds(t *testing.T) {
	lab.NeedRoot(t)
	r := &recorder{}
	lab.CheckLeaksWithin(r, 100*time.Millisecond)
	n, err := lab.NewNetNS("left")
	require.NoError(t, err)
	defer n.Close()
	f, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer f.Close()
	stop := make(chan struct{})
	defer close(stop)
	go func() { <-stop }()
	require.NoError(t, n.Command(context.Background(), "sleep", "1000").Start())
	report := r.end()
	for _, want := range []string{"descriptor: /dev/null", "descriptor: net", "goroutine: ", "TestCheckLeaksFinds", "thread in another namespace", "child process: sleep"} {
		require.Contains(t, report, want)
	}
	require.False(t, r.skipped)
}

func TestCheckLeaksIsContent(t *testing.T) {
	lab.NeedRoot(t)
	r := &recorder{}
	lab.CheckLeaks(r)
	topo := lab.Start(r, lab.Spec{Node: addrs("198.51.100.10"), Hosts: []lab.Host{{Name: "a", Addrs: addrs("10.128.0.11")}}})
	lab.Serve(r, topo, lab.TCP, ap("10.128.0.11:8080"))
	lab.Serve(r, topo, lab.SCTP, ap("10.128.0.11:8080"))
	lab.Serve(r, topo, lab.UDP, ap("192.0.2.1:53"))
	_, err := topo.Ask(t.Context(), query("198.51.100.10", lab.TCP, "10.128.0.11:8080"))
	require.NoError(t, err)
	require.Empty(t, r.end())
}
