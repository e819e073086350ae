package nftables_test

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/headgate/headgate/nftables"
)

// Ten thousand syncs, some of which fail, leave no goroutine, no descriptor and no memory behind.
func TestNothingLeaks(t *testing.T) {
	lab.NeedRoot(t)
	lab.CheckLeaks(t)
	ns := lab.StartNetNS(t, "leaks")
	ctx := context.Background()
	p, err := nftables.New(ctx, nftables.Config{NetNS: ns.FD()})
	require.NoError(t, err)
	defer p.Close()
	a, b := modeltest.Big(3, 3), modeltest.Big(4, 2)
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var before uint64
	failed := 0
	for i := range times(10000) {
		want := []model.State{a, b}[i%2]
		if i%10 == 5 {
			brief, cancel := context.WithTimeout(ctx, time.Duration(i%7)*50*time.Microsecond)
			if _, err := p.Sync(brief, want); err != nil {
				failed++
			}
			cancel()
		}
		_, err := p.Sync(ctx, want)
		require.NoError(t, err)
		if i == times(1000) {
			before = heap()
		}
	}
	require.NotZero(t, failed, "no sync failed")
	require.Less(t, heap(), before+1<<20, "memory has grown")
}

// A Programmer needs CAP_NET_ADMIN and no other capability; without it, it says so at once.
func TestCapabilities(t *testing.T) {
	if role := os.Getenv("HEADGATE_TEST_ROLE"); role != "" {
		_, err := nftables.New(context.Background(), nftables.Config{})
		if role == "admin" {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, model.ErrPermission)
			require.ErrorContains(t, err, "CAP_NET_ADMIN")
		}
		return
	}
	lab.NeedRoot(t)
	for role, caps := range map[string][]uintptr{"admin": {unix.CAP_NET_ADMIN}, "nobody": nil} {
		t.Run(role, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestCapabilities$", "-test.count=1")
			cmd.Env = append(os.Environ(), "HEADGATE_TEST_ROLE="+role)
			cmd.Dir = "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWNET,
				Credential:  &syscall.Credential{Uid: 65534, Gid: 65534},
				AmbientCaps: caps,
			}
			binary, err := os.ReadFile(os.Args[0])
			require.NoError(t, err)
			dir, err := os.MkdirTemp("", "headgate-test") // one that everybody may enter
			require.NoError(t, err)
			defer os.RemoveAll(dir)
			require.NoError(t, os.Chmod(dir, 0o755))
			cmd.Path = dir + "/nftables.test"
			require.NoError(t, os.WriteFile(cmd.Path, binary, 0o755))
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.True(t, strings.HasSuffix(strings.TrimSpace(string(out)), "PASS"), "%s", out)
		})
	}
}
