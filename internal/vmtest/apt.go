package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// An aptRoot is apt with lists and sources of its own, so that packages of
// any Debian release can be downloaded while the host's apt stays as it is. It
// installs nothing and needs no root.
type aptRoot struct {
	dir     string
	options []string
}

// keyrings verify what is downloaded; Debian ships one of them.
var keyrings = []string{
	"/usr/share/keyrings/debian-archive-keyring.gpg",
	"/usr/share/keyrings/debian-archive-keyring.pgp",
}

// newAptRoot makes the root below dir and reads the package lists of suites
// from the mirrors that carry them.
func newAptRoot(ctx context.Context, dir string, m mirrors, suites []string) (*aptRoot, error) {
	keyring := slices.IndexFunc(keyrings, exists)
	if keyring < 0 {
		return nil, errors.New("no debian-archive-keyring here to verify packages with")
	}
	for _, d := range []string{"state/lists/partial", "cache/archives/partial", "parts"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	files := map[string]string{"status": "", "preferences": "", "sources.list": m.sources(suites, keyrings[keyring])}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	a := &aptRoot{dir: dir, options: []string{
		"-q", "-o", "Dir::State=" + dir + "/state", "-o", "Dir::State::status=" + dir + "/status",
		"-o", "Dir::Cache=" + dir + "/cache",
		"-o", "Dir::Etc::sourcelist=" + dir + "/sources.list", "-o", "Dir::Etc::sourceparts=" + dir + "/parts",
		"-o", "Dir::Etc::preferences=" + dir + "/preferences", "-o", "Dir::Etc::preferencesparts=" + dir + "/parts",
		"-o", "APT::Architecture=amd64", "-o", "APT::Architectures::=amd64",
		"-o", "Acquire::Languages=none", "-o", "Acquire::Retries=3",
		"-o", "APT::Sandbox::User=root", // our directories are ours alone
	}}
	_, err := a.run(ctx, "apt-get", dir, "update")
	return a, err
}

func (a *aptRoot) run(ctx context.Context, tool, dir string, args ...string) (string, error) {
	return command{name: tool, args: append(slices.Clone(a.options), args...), dir: dir, env: []string{"LC_ALL=C"}}.run(ctx)
}

// kernelPackage tells the packages of a kernel from all else that a kernel's
// meta-package wants. Up to 6.12 a kernel is one package; 7 splits it.
var kernelPackage = regexp.MustCompile(`\blinux-(?:image|binary|modules|base)-[0-9]\S*`)

// kernelPackages names what the newest cloud kernel of the suites consists of.
func (a *aptRoot) kernelPackages(ctx context.Context) ([]string, error) {
	out, err := a.run(ctx, "apt-cache", a.dir, "depends", "--recurse", "--important", "linux-image-cloud-amd64")
	if err != nil {
		return nil, err
	}
	names := kernelPackage.FindAllString(out, -1)
	slices.Sort(names)
	if names = slices.Compact(names); len(names) == 0 {
		return nil, errors.New("the mirror has no linux-image-cloud-amd64")
	}
	return names, nil
}

// download puts the packages' files into dir and returns their paths.
func (a *aptRoot) download(ctx context.Context, dir string, packages []string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if _, err := a.run(ctx, "apt-get", dir, append([]string{"download"}, packages...)...); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(dir, "*.deb"))
}

// mirrors are where Debian's packages come from.
type mirrors struct {
	main     string
	security string // "" if none is known: the main archive will do
}

// sources is a sources.list for the suites.
func (m mirrors) sources(suites []string, keyring string) string {
	var b strings.Builder
	for _, suite := range suites {
		mirror := m.main
		if strings.HasSuffix(suite, "-security") {
			if mirror = m.security; mirror == "" {
				continue
			}
		}
		fmt.Fprintf(&b, "deb [arch=amd64 target=Packages signed-by=%s] %s %s main\n", keyring, mirror, suite)
	}
	return b.String()
}

// findMirrors takes the mirrors that the host's apt is configured with. given,
// if not empty, is the main one.
func findMirrors(ctx context.Context, given string) (mirrors, error) {
	out, err := command{name: "apt-get", args: []string{"indextargets", "--format", "$(REPO_URI)"}}.run(ctx)
	if err != nil {
		return mirrors{}, err
	}
	m := parseMirrors(out)
	if m.main = cmp.Or(given, m.main); m.main == "" {
		return m, errors.New("apt is configured with no mirror of Debian; name one with -mirror")
	}
	return m, nil
}

// parseMirrors tells Debian's archives from others by the names that every
// mirror gives them.
func parseMirrors(uris string) mirrors {
	var m mirrors
	for uri := range strings.FieldsSeq(uris) {
		uri = strings.TrimRight(uri, "/")
		switch {
		case strings.HasSuffix(uri, "/debian"):
			m.main = cmp.Or(m.main, uri)
		case strings.HasSuffix(uri, "/debian-security"):
			m.security = cmp.Or(m.security, uri)
		}
	}
	return m
}
