package main

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// moduleDirs are the parts of a kernel's modules that the guest gets: all of
// networking, and what that needs.
var moduleDirs = []string{
	"kernel/net/", "kernel/drivers/net/", "kernel/lib/", "kernel/crypto/", "kernel/arch/x86/crypto/",
}

// wantedModule reports whether a file of a module tree, by its path in it,
// goes to the guest. depmod needs the lists.
func wantedModule(path string) bool {
	switch path {
	case "modules.order", "modules.builtin", "modules.builtin.modinfo":
		return true
	}
	name := filepath.Base(path)
	for _, suffix := range []string{".ko", ".ko.xz", ".ko.zst"} {
		if strings.HasSuffix(name, suffix) {
			for _, dir := range moduleDirs {
				if strings.HasPrefix(path, dir) {
					return true
				}
			}
		}
	}
	return false
}

// installModules moves the wanted ones of the module tree from (its base name
// is the kernel's release) below root, uncompressed, and indexes them.
func installModules(ctx context.Context, from, root string) error {
	release := filepath.Base(from)
	to := filepath.Join(root, "usr/lib/modules", release)
	var xz, zst []string
	err := filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, file)
		if err != nil || !wantedModule(rel) {
			return err
		}
		target := filepath.Join(to, rel)
		switch filepath.Ext(rel) {
		case ".xz":
			xz = append(xz, target)
		case ".zst":
			zst = append(zst, target)
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return os.Rename(file, target)
	})
	if err != nil {
		return err
	}
	if len(xz) > 0 {
		if _, err := (command{name: "xz", args: append([]string{"-d", "--"}, xz...)}).run(ctx); err != nil {
			return err
		}
	}
	if len(zst) > 0 {
		if _, err := (command{name: "zstd", args: append([]string{"-q", "-d", "--rm", "--"}, zst...)}).run(ctx); err != nil {
			return err
		}
	}
	// depmod looks in /lib/modules or in /usr/lib/modules, as it was built.
	if err := os.Symlink("usr/lib", filepath.Join(root, "lib")); err != nil {
		return err
	}
	_, err = command{name: findTool("depmod"), args: []string{"-b", root, release}}.run(ctx)
	return err
}
