package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// mounts are made in order. Those in /sys are not needed by every test and
// may be missing from a kernel.
var mounts = []struct {
	kind, dir, options string
	optional           bool
}{
	{kind: "proc", dir: "/proc"},
	{kind: "sysfs", dir: "/sys"},
	{kind: "devtmpfs", dir: "/dev"},
	{kind: "devpts", dir: "/dev/pts"},
	{kind: "tmpfs", dir: "/dev/shm", options: "mode=1777"},
	{kind: "tmpfs", dir: "/run"},
	{kind: "tmpfs", dir: "/tmp", options: "mode=1777"},
	{kind: "cgroup2", dir: "/sys/fs/cgroup", optional: true},
	{kind: "tracefs", dir: "/sys/kernel/tracing", optional: true},
	{kind: "bpf", dir: "/sys/fs/bpf", optional: true},
}

func mountAll() error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.dir, 0o755); err != nil && !m.optional {
			return err
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, m.options); err != nil && !m.optional {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.dir, err)
		}
	}
	return nil
}

// prepare brings the machine to where a test expects a host to be: loopback
// up, room for descriptors, modules loaded. What fails is told, not fatal: the
// tests that need it say so better.
func prepare(modules []string, note func(format string, args ...any)) {
	_ = unix.Sethostname([]byte("headgate-vm"))
	files := unix.Rlimit{Cur: 1 << 16, Max: 1 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		note("raise the limit of open files: %v", err)
	}
	// With the machine up, its kernel may say everything: it costs nothing
	// while there is nothing to say, and is all there is after a panic.
	_ = os.WriteFile("/proc/sys/kernel/printk", []byte("7\n"), 0)
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		note("loopback: %v: %s", err, out)
	}
	if len(modules) == 0 {
		return
	}
	// modprobe goes on after a module that it cannot load, and names it.
	if out, err := exec.Command("modprobe", append([]string{"-a", "--"}, modules...)...).CombinedOutput(); err != nil {
		note("%v: %s", err, bytes.TrimSpace(out))
	}
}

// release is the kernel's, as in uname -r.
func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
