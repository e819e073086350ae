package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const qemuCommand = "qemu-system-x86_64"

// A need is a program or file that a run takes from the host, and the Debian
// package that has it.
type need struct {
	tool    string // looked up in PATH and the sbin directories, or
	file    string // an absolute path
	pkg     string
	inGuest bool // the guest gets it too
}

// needs are all of them. zstd is missing: Debian compresses modules with xz.
var needs = []need{
	{tool: qemuCommand, pkg: "qemu-system-x86"},
	{tool: "depmod", pkg: "kmod"},
	{tool: "xz", pkg: "xz-utils"},
	{tool: "dpkg-deb", pkg: "dpkg"},
	{tool: "modprobe", pkg: "kmod", inGuest: true},
	{tool: "lsmod", pkg: "kmod", inGuest: true},
	{tool: "rmmod", pkg: "kmod", inGuest: true},
	{tool: "busybox", pkg: "busybox-static", inGuest: true},
	{tool: "dash", pkg: "dash", inGuest: true},
	{tool: "ip", pkg: "iproute2", inGuest: true},
	{tool: "tc", pkg: "iproute2", inGuest: true},
	{tool: "ss", pkg: "iproute2", inGuest: true},
	{tool: "nft", pkg: "nftables", inGuest: true},
	{tool: "conntrack", pkg: "conntrack", inGuest: true},
	{tool: "ipset", pkg: "ipset", inGuest: true},
	{tool: "ipvsadm", pkg: "ipvsadm", inGuest: true},
	{tool: "iptables-nft", pkg: "iptables", inGuest: true},
	{tool: "iptables-legacy", pkg: "iptables", inGuest: true},
	{file: "/etc/protocols", pkg: "netbase", inGuest: true},
	{file: "/etc/services", pkg: "netbase", inGuest: true},
}

// missing returns the packages of those needs that found does not find, each
// once.
func missing(needs []need, found func(need) bool) []string {
	var packages []string
	for _, n := range needs {
		if !found(n) && !slices.Contains(packages, n.pkg) {
			packages = append(packages, n.pkg)
		}
	}
	if !slices.ContainsFunc(keyrings, func(k string) bool { return found(need{file: k}) }) {
		packages = append(packages, "debian-archive-keyring")
	}
	return packages
}

func onHost(n need) bool {
	if n.file != "" {
		return exists(n.file)
	}
	return findTool(n.tool) != ""
}

// provide installs what is missing, all in one go. Not being root it only
// says what it would install.
func provide(ctx context.Context, note func(format string, args ...any)) error {
	packages := missing(needs, onHost)
	if len(packages) == 0 {
		return nil
	}
	list := strings.Join(packages, " ")
	if findTool("apt-get") == "" {
		return fmt.Errorf("this host has no apt-get and lacks what these Debian packages hold: %s", list)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("missing Debian packages; as root:\n\tapt-get install %s", list)
	}
	note("installing %s", list)
	apt := func(args ...string) error {
		_, err := command{
			name: "apt-get", args: append([]string{"-q", "-o", "DPkg::Lock::Timeout=600"}, args...),
			env: []string{"DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"},
		}.run(ctx)
		return err
	}
	// A host's lists may be older than its mirror or never have been read. If
	// they cannot be read now, old ones may still do.
	if err := apt("update"); err != nil {
		note("%v", err)
	}
	if err := apt(append([]string{"install", "-y", "--no-install-recommends"}, packages...)...); err != nil {
		return err
	}
	if left := missing(needs, onHost); len(left) > 0 {
		return fmt.Errorf("installed, and yet something is missing of: %s", strings.Join(left, " "))
	}
	return nil
}

// findTool returns a program's path, "" if there is none. Users other than
// root mostly have no sbin in PATH.
func findTool(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// pause waits a little, less if ctx ends.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(200 * time.Millisecond):
		return nil
	}
}
