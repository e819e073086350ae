package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/examples/cni/internal/site"
	"github.com/headgate/headgate/internal/lab"
)

// TestKilled kills ADD and DEL with SIGKILL at one step after the other, and sees each time that nobody else is hurt, and
// that the DEL which a runtime sends afterwards puts everything in order.
func TestKilled(t *testing.T) {
	w := newWorld(t, nil)
	c := w.container("bystander", 8080, site.Port(81, 8080))
	w.add(c)
	// The victim needs no namespace of its own to be published: the bystander's server answers for it.
	config := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": %q, "type": "headgate", "stateDir": %q,
		"runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 8080}, {"hostPort": 80, "containerPort": 8080, "protocol": "udp"}]},
		"prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": %q}], "ips": [{"address": "%s/16", "interface": 0}]}}`,
		site.Network, w.StateDir(), c.Path(), c.Addrs[0]), 0o600))
	run := func(command string, step int) (steps int) {
		t.Helper()
		steps, err := w.traced(command, config, step)
		require.NoError(t, err, "%s, step %d", command, step)
		return steps
	}
	inOrder := func(there ...string) {
		t.Helper()
		require.Equal(t, there, w.recorded())
		w.answers(w.Outside, lab.TCP, "192.0.2.1:81", "bystander")
		if slices.Contains(there, "victim") {
			w.answers(w.Outside, lab.TCP, "192.0.2.1:80", "bystander")
			w.answers(w.Outside, lab.UDP, "192.0.2.1:80", "bystander")
			return
		}
		require.Equal(t, lab.Refused, w.ask(w.Outside, lab.TCP, "192.0.2.1:80").Verdict)
		require.Equal(t, lab.Refused, w.ask(w.Outside, lab.UDP, "192.0.2.1:80").Verdict)
	}
	const never, points = 0, 15
	adds := run("ADD", never)
	inOrder("bystander", "victim")
	dels := run("DEL", never)
	inOrder("bystander")
	t.Logf("ADD takes %d steps, DEL %d", adds, dels)
	require.Greater(t, adds, points)
	require.Greater(t, dels, points)
	published, withdrawn := 0, 0
	killed := 0
	for step := 1; step <= adds; step += adds / points {
		run("ADD", step)
		killed++
		if slices.Contains(w.recorded(), "victim") {
			published++
		}
		w.answers(w.Outside, lab.TCP, "192.0.2.1:81", "bystander")
		run("DEL", never)
		inOrder("bystander")
	}
	for step := 1; step <= dels; step += dels / points {
		run("ADD", never)
		inOrder("bystander", "victim")
		run("DEL", step)
		if !slices.Contains(w.recorded(), "victim") {
			withdrawn++
		}
		w.answers(w.Outside, lab.TCP, "192.0.2.1:81", "bystander")
		run("DEL", never)
		inOrder("bystander")
	}
	require.Positive(t, published, "no ADD was killed late")
	require.Less(t, published, killed, "no ADD was killed early")
	require.NoError(t, w.Check(t.Context(), c))
	t.Logf("%d of %d ADDs were killed after they had been recorded, %d DELs", published, killed, withdrawn)
}

// steps are the system calls by which a process leaves traces.
var steps = []uint64{
	unix.SYS_OPENAT, unix.SYS_MKDIRAT, unix.SYS_FLOCK, unix.SYS_WRITE, unix.SYS_FSYNC, unix.SYS_RENAMEAT, unix.SYS_SENDTO, unix.SYS_SENDMSG,
}

// traced runs the plugin for the victim and kills it before the given step, or never if that is 0. It returns how many
// steps were begun. The error says that it failed without being killed.
func (w *world) traced(command, config string, kill int) (begun int, err error) {
	stdin, err := os.Open(config)
	if err != nil {
		return 0, err
	}
	defer stdin.Close()
	err = w.Node.Do(func() error { // on a thread of its own, which becomes the tracer
		cmd := exec.Command(filepath.Join(bin, "headgate"))
		cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_PATH="+bin, "CNI_CONTAINERID=victim", "CNI_IFNAME=eth0", "CNI_NETNS="+config)
		cmd.Stdin = stdin
		cmd.SysProcAttr = &unix.SysProcAttr{Ptrace: true, Pdeathsig: unix.SIGKILL}
		if err := cmd.Start(); err != nil {
			return err
		}
		defer cmd.Process.Release()
		status, err := trace(cmd.Process.Pid, func() bool {
			begun++
			return begun == kill
		})
		if err == nil && kill == 0 && status.ExitStatus() != 0 {
			err = fmt.Errorf("exit status %d", status.ExitStatus())
		}
		return err
	})
	return begun, err
}

// trace lets a process that this thread has started run until its end, and asks before each step whether to kill it.
func trace(pid int, kill func() bool) (status unix.WaitStatus, err error) {
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
	begun := false
	for {
		// Only those that this thread traces: the rest of the process has children, too.
		tid, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return status, os.NewSyscallError("wait4", err)
		}
		if !begun {
			begun = true
			if err := unix.PtraceSetOptions(pid, options); err != nil {
				return status, os.NewSyscallError("ptrace", err)
			}
		}
		if status.Exited() || status.Signaled() {
			if tid == pid {
				return status, nil
			}
			continue
		}
		signal := status.StopSignal()
		switch signal {
		case unix.SIGTRAP | 0x80: // the mark of PTRACE_O_TRACESYSGOOD
			if slices.Contains(steps, systemCall(tid)) && kill() {
				err = unix.Kill(pid, unix.SIGKILL)
			}
			signal = 0
		case unix.SIGTRAP, unix.SIGSTOP: // a new thread
			signal = 0
		}
		// It may be gone already.
		if e := unix.PtraceSyscall(tid, int(signal)); err == nil && !errors.Is(e, unix.ESRCH) {
			err = e
		}
		if err != nil {
			return status, os.NewSyscallError("ptrace", err)
		}
	}
}

// systemCall returns the number of the system call that a thread is about to make; the largest number there is if it
// returns from one. See struct ptrace_syscall_info in ptrace(2).
func systemCall(tid int) uint64 {
	var info [88]byte
	const entry, number = 1, 24 // PTRACE_SYSCALL_INFO_ENTRY; where the number is
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), uintptr(len(info)), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 || info[0] != entry {
		return ^uint64(0)
	}
	return binary.NativeEndian.Uint64(info[number:])
}
