package modeltest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// childArg tells the test binary that it is the process that shall be killed.
const childArg = "chaos-child"

// ChaosCommand returns a command that runs one test of this very test binary in another process, for [Chaos.Child]. The
// body of that test is [ChaosChild]. Whoever starts it closes its ExtraFiles then.
func ChaosCommand(tb testing.TB, w World, test string) *exec.Cmd {
	tb.Helper()
	self, err := os.Executable()
	require.NoError(tb, err)
	fd, err := unix.FcntlInt(uintptr(w.NetNS()), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(tb, err)
	netns := os.NewFile(uintptr(fd), "netns") // closed when the command has begun
	cmd := exec.Command(self, "-test.run=^"+test+"$", "-test.timeout=1m", childArg)
	cmd.ExtraFiles = []*os.File{netns}
	endWithUs(cmd)
	return cmd
}

// ChaosChild programs one state after the other, until it is killed. It does nothing in a process that ChaosCommand did
// not begin.
func ChaosChild(t *testing.T, target Target) {
	i := slices.Index(flag.Args(), childArg)
	if i < 0 {
		return
	}
	seed, err := strconv.ParseUint(flag.Arg(i+1), 10, 64)
	require.NoError(t, err)
	target.Seed = seed
	h := &harness{target: target}
	w := childWorld{}
	p := target.New(t, w)
	h.features = p.Features()
	s := &storm{h: h, w: w, g: h.generator(t), c: Chaos{Timeout: 10 * time.Second}}
	s.want = s.g.state()
	s.alwaysWanted()
	sensible(&s.want)
	s.first = s.start(t, func(testing.TB, World) model.Programmer { return p }, s.want, 0)
	for range 20_000 { // that is, until it is killed
		s.change()
		time.Sleep(time.Millisecond)
	}
}

// A childWorld is the world as a child sees it: there is the node's namespace.
type childWorld struct{}

// Send implements [World]: a child sends nothing.
func (childWorld) Send(context.Context, Packet, int) ([]Outcome, error) {
	return nil, errors.ErrUnsupported
}

// NetNS is the first descriptor after the standard ones.
func (childWorld) NetNS() int { return 3 }

// killChild lets another process take over, kills it in the middle of it, and takes over again.
func killChild(t *testing.T, s *storm) bool {
	s.first.end(t)
	cmd := s.c.Child(t, s.w)
	cmd.Args = append(cmd.Args, strconv.FormatUint(s.g.chance.Uint64(), 10))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the command ends with the thread that began it
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	err := <-started
	for _, f := range cmd.ExtraFiles {
		require.NoError(t, f.Close())
	}
	require.NoError(t, err)
	select {
	case <-time.After(200*time.Millisecond + time.Duration(s.g.chance.IntN(400_000))*time.Microsecond):
		require.NoError(t, cmd.Process.Kill())
		<-ended
	case err := <-ended:
		require.Fail(t, "the other process ended by itself", "%v\n%s", err, out.Bytes())
	}
	s.first = s.start(t, s.h.target.New, s.want, 0)
	return true
}
