// Command guest is the first program of a test machine. It mounts the usual
// file systems, loads modules, runs the tasks of a wire.Job, tells the host
// about them over the second serial port and switches the machine off.
//
// It is two processes: process 1, which does nothing but gather orphans and
// switch off, and its child, which does the work. Should the child die, its
// last words are in the kernel's console, and the host, having seen no Done,
// takes the run for failed.
//
// Started as anything but process 1 of a machine that carries a job it does
// nothing.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

func main() {
	switch {
	case os.Getpid() == 1:
		first()
	case os.Getppid() == 1 && len(os.Args) == 2 && os.Args[1] == worker:
		if err := work(); err != nil {
			fmt.Fprintln(os.Stderr, "guest:", err)
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "guest: to be started as the first process of a test machine")
		os.Exit(2)
	}
}

// worker is the argument that makes this program process 1's child.
const worker = "work"

// first is process 1. It never returns: the machine is off before.
func first() {
	err := mountAll()
	if err == nil {
		err = runWorker()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
	}
	unix.Sync()
	err = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	// The end of process 1 is a kernel panic, which stops the machine too.
	fmt.Fprintln(os.Stderr, "guest: power off:", err)
}

// runWorker starts the child that does the work and gathers every process
// that ends up without a parent until the child is gone.
func runWorker() error {
	cmd := exec.Command("/proc/self/exe", worker)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait: %w", err)
		case pid == cmd.Process.Pid && status.ExitStatus() != 0:
			return fmt.Errorf("the worker ended with wait status %#x", int(status))
		case pid == cmd.Process.Pid:
			return nil
		}
	}
}
