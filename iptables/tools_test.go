package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

// fakePrograms makes a directory of programs that do what the scripts say, by their names, and run the real ones otherwise.
func fakePrograms(t *testing.T, v Variant, scripts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range model.Families {
		for _, name := range programNames(f, v) {
			real, err := exec.LookPath(name)
			require.NoError(t, err)
			script, faked := scripts[name]
			if !faked {
				require.NoError(t, os.Symlink(real, filepath.Join(dir, name)))
				continue
			}
			text := "#!/bin/sh\nreal=" + real + "\n" + script + "\nexec $real \"$@\"\n"
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
		}
	}
	return dir
}

// A program that never ends is killed when the context does, with all that it started.
func TestEndOfContextKillsThePrograms(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	hangs := filepath.Join(t.TempDir(), "hangs")
	dir := fakePrograms(t, NFT, map[string]string{
		"iptables-nft-restore": fmt.Sprintf("if [ -e %s ]; then echo $$ >> %s; sleep 1000 & echo $! >> %s; wait; fi", hangs, pids, pids),
	})
	ns := newNS(t)
	lab.CheckLeaks(t)
	p := open(t, Config{NetNS: ns.FD(), Variant: NFT, Dir: dir})
	require.NoError(t, os.WriteFile(hangs, nil, 0o600))
	var started []string // the program, and what it started
	ctx, cancel := context.WithCancel(within(t))
	go func() {
		for len(started) < 2 && ctx.Err() == nil {
			time.Sleep(5 * time.Millisecond)
			text, _ := os.ReadFile(pids)
			started = strings.Fields(string(text))
		}
		cancel()
	}()
	_, err := p.Sync(ctx, model.State{})
	require.ErrorIs(t, err, context.Canceled)
	<-ctx.Done()
	require.Len(t, started, 2)
	for _, pid := range started {
		n, err := strconv.Atoi(pid)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return errors.Is(unix.Kill(n, 0), unix.ESRCH) }, time.Minute, 10*time.Millisecond, "process %d lives", n)
	}
	_, err = p.Apply(within(t), model.Diff{})
	require.ErrorIs(t, err, model.ErrNotSynced)
	require.NoError(t, os.Remove(hangs))
	_, err = p.Sync(within(t), model.State{})
	require.NoError(t, err)
	require.NoError(t, p.Check(within(t)))
}

// The Config's own deadline does the same where the context has none.
func TestTimeoutKillsThePrograms(t *testing.T) {
	hangs := filepath.Join(t.TempDir(), "hangs")
	dir := fakePrograms(t, NFT, map[string]string{"iptables-nft-save": fmt.Sprintf("if [ -e %s ]; then sleep 1000; fi", hangs)})
	p := open(t, Config{NetNS: newNS(t).FD(), Variant: NFT, Dir: dir})
	p.sides[0].timeout = 200 * time.Millisecond
	require.NoError(t, os.WriteFile(hangs, nil, 0o600))
	_, err := p.Sync(context.Background(), model.State{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// While somebody else holds the lock of the legacy programs, what is asked for is ErrBusy, after LockWait, and is done
// as soon as the lock is free. Nothing here takes the lock itself.
func TestLockIsBusy(t *testing.T) {
	p := open(t, Config{NetNS: newNS(t).FD(), Variant: Legacy, LockWait: time.Second})
	lock, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB), "the lock is free while nothing runs")
	_, err = p.Sync(within(t), model.State{})
	require.ErrorIs(t, err, model.ErrBusy)
	require.ErrorContains(t, err, "exit code 4")
	require.ErrorContains(t, err, "lock")
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
	_, err = p.Sync(within(t), model.State{})
	require.NoError(t, err)
}

// One that holds it for less than LockWait goes unnoticed.
func TestLockIsWaitedFor(t *testing.T) {
	p := open(t, Config{NetNS: newNS(t).FD(), Variant: Legacy, LockWait: time.Minute})
	lock, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	defer lock.Close()
	fd := int(lock.Fd())
	require.NoError(t, unix.Flock(fd, unix.LOCK_EX))
	freed := make(chan error, 1)
	time.AfterFunc(500*time.Millisecond, func() { freed <- unix.Flock(fd, unix.LOCK_UN) })
	_, err = p.Sync(within(t), model.State{})
	require.NoError(t, <-freed)
	require.NoError(t, err)
}

// A Check that has to ask while somebody else holds it is ErrBusy: that is no drift.
func TestLockedCheckIsNoDrift(t *testing.T) {
	p := open(t, Config{NetNS: newNS(t).FD(), Variant: Legacy, LockWait: time.Second})
	_, err := p.Sync(within(t), model.State{})
	require.NoError(t, err)
	lock, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	p.checks = checks{unsure: true, nextFull: time.Now().Add(time.Hour)} // so only the structure is asked for
	err = p.Check(within(t))
	require.ErrorIs(t, err, model.ErrBusy)
	require.NotErrorIs(t, err, model.ErrDrift)
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
	require.NoError(t, p.Check(within(t)))
}

type exited int

func (e exited) Error() string { return fmt.Sprintf("exit status %d", int(e)) }
func (e exited) ExitCode() int { return int(e) }

// What the programs say, as iptables 1.8.9 says it, and what it means.
func TestToolErrors(t *testing.T) {
	for _, c := range []struct {
		code    int
		stderr  string
		means   error
		refused bool
		line    int
	}{
		{4, "Another app is currently holding the xtables lock. Perhaps you want to use the -w option?\n", model.ErrBusy, false, 0},
		{4, "Another app is currently holding the xtables lock; still 1s 0us time ahead to have a chance to grab the lock...\nAnother app is currently holding the xtables lock. Stopped waiting after 1s.\n", model.ErrBusy, false, 0},
		{4, "iptables-restore v1.8.9 (nf_tables): \nline 4: CHAIN_DEL failed (Device or resource busy): chain HEADGATE-I\n", model.ErrBusy, false, 4},
		{4, "iptables-restore v1.8.9 (nf_tables): Could not fetch rule set generation id: Permission denied (you must be root)\n", model.ErrPermission, false, 0},
		{4, "", model.ErrBusy, false, 0},
		{4, "iptables-restore v1.8.9 (nf_tables): \nline 3: RULE_APPEND failed (Invalid argument): rule in chain HG-A\n", nil, true, 3},
		{1, "iptables-restore: line 4 failed\n", nil, true, 4},
		{1, "iptables-restore: line 12 failed: Resource temporarily unavailable.\n", model.ErrBusy, false, 12},
		{2, "iptables-restore v1.8.9 (legacy): Couldn't load match `recent':No such file or directory\n\nError occurred at line: 7\nTry `iptables-restore -h' or 'iptables-restore --help' for more information.\n", model.ErrNotSupported, true, 7},
		{1, "Warning: Extension connlabel revision 0 not supported, missing kernel module?\niptables-restore: line 20 failed\n", model.ErrNotSupported, true, 20},
		{3, "iptables v1.8.9 (legacy): can't initialize iptables table `nat': Permission denied (you must be root)\n", model.ErrPermission, false, 0},
		{3, "iptables v1.8.9 (legacy): can't initialize iptables table `nat': Table does not exist (do you need to insmod?)\n", model.ErrNotSupported, false, 0},
	} {
		err := newToolError("/usr/sbin/iptables-restore", exited(c.code), c.stderr)
		var te *toolError
		require.ErrorAs(t, err, &te)
		require.Equal(t, c.means, te.cause, "%s", c.stderr)
		require.Equal(t, c.refused, refusalOf(err) != nil, "%s", c.stderr)
		require.Equal(t, c.line, te.line, "%s", c.stderr)
		require.Contains(t, err.Error(), "iptables-restore: exit code "+strconv.Itoa(c.code))
		require.NotContains(t, err.Error(), "\n")
		require.NotContains(t, err.Error(), "--help")
	}
	err := newToolError("x", context.DeadlineExceeded, "")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Nil(t, refusalOf(err))
	require.Less(t, len(newToolError("x", exited(1), strings.Repeat("word ", 1000)).Error()), 500)
}
