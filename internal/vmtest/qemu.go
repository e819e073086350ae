package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A machine is the hardware of a guest.
type machine struct {
	cpus, memory int // memory in MiB
	kernel       string
	initrd       *os.File // may be unlinked
}

// These go to the kernel's command line. A panic ends QEMU at once (-no-reboot
// turns the reboot into an exit), an oops is a panic, and the timer check is
// off because an emulated clock on a busy host fails it now and then.
const kernelArgs = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off no_timer_check"

// args are QEMU's. The initrd and the console come by descriptor, so that no
// file of a run is ever left behind.
//
// cmpxchg16b is hidden from the guest: QEMU 7.2's emulation of it makes Linux
// 6.12.95 fault at boot more often than not.
func (m machine) args(initrdFD, consoleFD int) []string {
	return []string{
		"-machine", "q35,accel=kvm:tcg", "-cpu", "max,-cx16",
		"-smp", strconv.Itoa(m.cpus), "-m", strconv.Itoa(m.memory),
		"-no-reboot", "-display", "none", "-nodefaults", "-no-user-config",
		"-chardev", fmt.Sprintf("file,id=console,path=/proc/self/fd/%d", consoleFD),
		"-chardev", "stdio,id=line,signal=off",
		"-serial", "chardev:console", "-serial", "chardev:line",
		"-kernel", m.kernel, "-initrd", fmt.Sprintf("/proc/self/fd/%d", initrdFD),
		"-append", kernelArgs,
	}
}

// run starts QEMU and returns when it has ended. What the guest sends goes to
// line, what its kernel prints to console. QEMU ends with ctx, with the death
// of this process, and with the guest.
func (m machine) run(ctx context.Context, line, console io.Writer) error {
	// Pdeathsig is sent when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	consoleOut, consoleIn, err := os.Pipe()
	if err != nil {
		return err
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(console, consoleOut)
	}()

	var complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, qemuCommand, m.args(3, 4)...)
	cmd.ExtraFiles = []*os.File{m.initrd, consoleIn} // descriptors 3 and 4
	cmd.Stdout, cmd.Stderr = line, &complaint
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()

	_ = consoleIn.Close()
	<-copied
	_ = consoleOut.Close()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return fmt.Errorf("%s: %w: %s", qemuCommand, err, strings.TrimSpace(complaint.String()))
	}
	return err
}
