package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// A kernelSource is a kernel that can be asked for, and where it comes from.
type kernelSource struct {
	name   string   // the start of its version, as -kernel takes it
	suites []string // of Debian
}

// kernelSources are the stock Debian kernels to test on, oldest first.
var kernelSources = []kernelSource{
	{"6.1", []string{"bookworm", "bookworm-security"}},
	{"6.12", []string{"trixie", "trixie-security"}},
	{"7", []string{"trixie-backports"}},
}

// A kernel is one that is there, unpacked.
type kernel struct {
	version string // upstream's, as in 6.1.192
	image   string // the file to boot
	root    string // holds usr/lib/modules
}

// A store keeps kernels in a directory, each below its name: vmlinuz, version
// and root. It is safe for concurrent use, by several processes too.
type store struct {
	dir    string
	mirror string // "" to take apt's
	note   func(format string, args ...any)
}

// get returns a kernel, which it downloads first if the store has none.
func (s store) get(ctx context.Context, source kernelSource) (kernel, error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return kernel{}, err
	}
	unlock, err := lockFile(ctx, filepath.Join(s.dir, source.name+".lock"))
	if err != nil {
		return kernel{}, err
	}
	defer unlock()
	dir := filepath.Join(s.dir, source.name)
	if !exists(dir) {
		if err := s.fetch(ctx, source, dir); err != nil {
			return kernel{}, fmt.Errorf("kernel %s: %w", source.name, err)
		}
	}
	version, err := os.ReadFile(filepath.Join(dir, "version"))
	if err != nil {
		return kernel{}, fmt.Errorf("kernel %s is damaged (remove %s): %w", source.name, dir, err)
	}
	return kernel{
		version: strings.TrimSpace(string(version)),
		image:   filepath.Join(dir, "vmlinuz"),
		root:    filepath.Join(dir, "root"),
	}, nil
}

// fetch downloads a kernel and lays it out in dir, which appears whole or not
// at all.
func (s store) fetch(ctx context.Context, source kernelSource, dir string) error {
	s.note("getting kernel %s of Debian (%s)", source.name, strings.Join(source.suites, ", "))
	work, err := os.MkdirTemp(s.dir, source.name+".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	m, err := findMirrors(ctx, s.mirror)
	if err != nil {
		return err
	}
	apt, err := newAptRoot(ctx, filepath.Join(work, "apt"), m, source.suites)
	if err != nil {
		return err
	}
	packages, err := apt.kernelPackages(ctx)
	if err != nil {
		return err
	}
	debs, err := apt.download(ctx, filepath.Join(work, "debs"), packages)
	if err != nil {
		return err
	}
	unpacked, kernelDir := filepath.Join(work, "unpacked"), filepath.Join(work, "kernel")
	for _, deb := range debs {
		if _, err := (command{name: "dpkg-deb", args: []string{"-x", deb, unpacked}}).run(ctx); err != nil {
			return err
		}
	}
	version, err := packageVersion(debs, source.name)
	if err != nil {
		return err
	}
	if err := layOut(ctx, unpacked, kernelDir, version); err != nil {
		return err
	}
	return os.Rename(kernelDir, dir)
}

// packageVersion takes upstream's version from the packages' file names,
// which read NAME_VERSION-REVISION_ARCH.deb, and checks that it is the one
// asked for: a suite moves on.
func packageVersion(debs []string, want string) (string, error) {
	for _, deb := range debs {
		fields := strings.Split(filepath.Base(deb), "_")
		if len(fields) != 3 {
			continue
		}
		version, _, _ := strings.Cut(fields[1], "-")
		if !strings.HasPrefix(version+".", want+".") {
			return "", fmt.Errorf("the mirror has %s instead", version)
		}
		return version, nil
	}
	return "", errors.New("apt downloaded no package")
}

// layOut arranges an unpacked kernel's files for the store.
func layOut(ctx context.Context, unpacked, dir, version string) error {
	// In /boot, or with the modules; a merged /usr or not.
	image, err := globOne(unpacked, "boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz", "lib/modules/*/vmlinuz")
	if err != nil {
		return err
	}
	modules, err := globOne(unpacked, "usr/lib/modules/*", "lib/modules/*")
	if err != nil {
		return err
	}
	if err := installModules(ctx, modules, filepath.Join(dir, "root")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "version"), []byte(version+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(image, filepath.Join(dir, "vmlinuz"))
}

// globOne returns the one file that a pattern finds, trying one after another.
func globOne(dir string, patterns ...string) (string, error) {
	for _, pattern := range patterns {
		if found, _ := filepath.Glob(filepath.Join(dir, pattern)); len(found) == 1 {
			return found[0], nil
		}
	}
	return "", fmt.Errorf("the packages have none of %s", strings.Join(patterns, ", "))
}

// lockFile takes an exclusive lock that ends with this process at the latest.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if err := pause(ctx); err != nil {
			_ = f.Close()
			return nil, err
		}
	}
}
