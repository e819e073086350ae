package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// port is the serial line to the host. The first one, ttyS0, is the kernel's
// console.
const port = "/dev/ttyS1"

// openPort opens the line for writing bytes as they are: without line endings
// changed, echo, or signals.
func openPort() (*os.File, error) {
	f, err := os.OpenFile(port, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	raw := unix.Termios{
		Cflag:  unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200, // QEMU sends as fast as it can whatever the rate
		Ispeed: unix.B115200,
		Ospeed: unix.B115200,
	}
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, &raw); err != nil {
		return nil, fmt.Errorf("set %s raw: %w", port, err)
	}
	return f, nil
}

// drain waits until everything written has left the machine.
func drain(f *os.File) error {
	return unix.IoctlSetInt(int(f.Fd()), unix.TCSBRK, 1)
}
