package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/vmtest/wire"
)

// guestInit is what the kernel starts first.
const guestInit = "/init"

// etc is the guest's configuration.
var etc = map[string]string{
	"/etc/passwd":        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
	"/etc/group":         "root:x:0:\nnogroup:x:65534:\n",
	"/etc/hosts":         "127.0.0.1 localhost\n::1 localhost\n",
	"/etc/nsswitch.conf": "hosts: files\n",
}

// optionalConfig is taken from the host where it is.
var optionalConfig = []string{"/etc/iproute2", "/usr/share/iproute2", "/usr/lib/tc", "/etc/ethertypes"}

// baseTree is what every guest has: the stock tools with their libraries and
// plug-ins, a shell, busybox for the rest, and a little configuration. Kernel,
// job and tests are added to a copy.
func baseTree(initBinary string) (tree, error) {
	t := newTree()
	if err := t.copy(guestInit, initBinary); err != nil {
		return nil, err
	}
	for p, text := range etc {
		t.text(p, text)
	}
	for _, p := range optionalConfig {
		if exists(p) {
			if err := t.copyAll(p, p); err != nil {
				return nil, err
			}
		}
	}
	programs, err := t.addTools()
	if err != nil {
		return nil, err
	}
	plugins, err := t.addXtables()
	if err != nil {
		return nil, err
	}
	if err := t.addLibraries(append(programs, plugins...)); err != nil {
		return nil, err
	}
	return t, t.addBusybox()
}

// addTools places what the needs name, and returns the programs' files.
func (t tree) addTools() (programs []string, err error) {
	for _, n := range needs {
		if !n.inGuest {
			continue
		}
		if n.file != "" {
			if err := t.copy(n.file, n.file); err != nil {
				return nil, err
			}
			continue
		}
		file, err := t.addTool(n.tool)
		if err != nil {
			return nil, err
		}
		programs = append(programs, file)
	}
	// Debian's iptables is the nf_tables one.
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			for _, variant := range []string{"-nft", "-legacy"} {
				if _, err := t.addTool(family + variant + suffix); err != nil {
					return nil, err
				}
			}
			t.link("/usr/sbin/"+family+suffix, family+"-nft"+suffix)
		}
	}
	// Not busybox's shell: it runs its own "ip" before looking at PATH.
	t.link("/usr/bin/sh", "dash")
	return programs, nil
}

// addTool places a program under its name, by a link if it is one program of
// many names, and returns the file of the host.
func (t tree) addTool(name string) (string, error) {
	found := findTool(name)
	if found == "" {
		return "", fmt.Errorf("no %s on this host: %w", name, exec.ErrNotFound)
	}
	file, err := filepath.EvalSymlinks(found)
	if err != nil {
		return "", err
	}
	if err := t.copy(file, file); err != nil {
		return "", err
	}
	dir := "/usr/bin/"
	if strings.Contains(found, "/sbin/") || name == "modprobe" {
		dir = "/usr/sbin/"
	}
	if p := dir + name; merged(p) != merged(file) {
		t.link(p, merged(file))
	}
	return file, nil
}

// addXtables places the plug-ins of iptables and returns their files.
func (t tree) addXtables() ([]string, error) {
	plugins, _ := filepath.Glob("/usr/lib/*/xtables/*.so")
	if len(plugins) == 0 {
		return nil, fmt.Errorf("iptables has no plug-ins on this host")
	}
	for _, p := range plugins {
		if err := t.copy(p, p); err != nil {
			return nil, err
		}
	}
	return plugins, nil
}

// addBusybox links busybox under each of its names that no real tool has.
func (t tree) addBusybox() error {
	out, err := exec.Command(findTool("busybox"), "--list").Output()
	if err != nil {
		return fmt.Errorf("busybox --list: %w", err)
	}
	for name := range strings.FieldsSeq(string(out)) {
		if !t.has("/usr/bin/"+name) && !t.has("/usr/sbin/"+name) {
			t.link("/usr/bin/"+name, "busybox")
		}
	}
	return nil
}

func (t tree) has(p string) bool {
	_, ok := t[p]
	return ok
}

// addPayload places each package's test binary and its testdata, or a program,
// and returns the tasks that run them.
func (t tree) addPayload(binaries []binary, args []string) ([]wire.Task, error) {
	var tasks []wire.Task
	for _, b := range binaries {
		p := path.Join(b.guestDir, path.Base(filepath.ToSlash(b.file)))
		if err := t.copy(p, b.file); err != nil {
			return nil, err
		}
		if b.testdata != "" {
			if err := t.copyAll(path.Join(b.guestDir, "testdata"), b.testdata); err != nil {
				return nil, err
			}
		}
		tasks = append(tasks, wire.Task{
			Name: b.name, Path: p, Dir: b.guestDir, Args: slices.Clone(args), Timeout: b.test, Merge: b.test,
		})
	}
	return tasks, nil
}

// writeImage writes the tree, a kernel's modules and the job as the guest's
// first file system. The file has no name any more: it is gone when closed.
func writeImage(t tree, k kernel, job wire.Job) (image *os.File, err error) {
	t = maps.Clone(t)
	modules := "/usr/lib/modules"
	if err := t.copyAll(modules, filepath.Join(k.root, modules)); err != nil {
		return nil, err
	}
	text, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	t.text(wire.JobPath, string(text))
	f, err := os.CreateTemp("", "headgate-vm-*.cpio")
	if err != nil {
		return nil, err
	}
	err = cmp.Or(os.Remove(f.Name()), t.writeTo(f))
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
