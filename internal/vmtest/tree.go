package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A tree is a file system in the making: what stands at each path of the
// guest. Paths are absolute. The guest has a merged /usr, as Debian has, so
// that /sbin/ip and /usr/sbin/ip are one path.
type tree map[string]node

// A node is one file, link or directory.
type node struct {
	mode    fs.FileMode // the type and the permissions
	target  string      // of a link
	source  string      // the file of the host with the contents, or
	content []byte      // the contents
}

// mergedDirs are links into /usr.
var mergedDirs = []string{"bin", "sbin", "lib", "lib64"}

func newTree() tree {
	t := tree{}
	for _, d := range mergedDirs {
		t["/"+d] = node{mode: fs.ModeSymlink, target: "usr/" + d}
		t.dir("/usr/" + d)
	}
	for _, d := range []string{"/dev", "/proc", "/sys", "/run", "/tmp", "/root", "/etc", "/var"} {
		t.dir(d)
	}
	t.link("/var/run", "../run")
	return t
}

// merged returns where a path leads in a merged /usr.
func merged(p string) string {
	p = path.Clean("/" + p)
	for _, d := range mergedDirs {
		if strings.HasPrefix(p, "/"+d+"/") {
			return "/usr" + p
		}
	}
	return p
}

// put places a node and the directories above it.
func (t tree) put(p string, n node) {
	p = merged(p)
	if parent := path.Dir(p); parent != "/" {
		if _, there := t[parent]; !there {
			t.dir(parent)
		}
	}
	t[p] = n
}

func (t tree) dir(p string)          { t.put(p, node{mode: fs.ModeDir | 0o755}) }
func (t tree) link(p, target string) { t.put(p, node{mode: fs.ModeSymlink, target: target}) }

// text places a file with the given contents.
func (t tree) text(p, content string) { t.put(p, node{mode: 0o644, content: []byte(content)}) }

// copy places a file of the host, following links.
func (t tree) copy(p, source string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: not a regular file", source)
	}
	t.put(p, node{mode: info.Mode().Perm(), source: source})
	return nil
}

// copyAll places a directory of the host with all that is in it. Links stay
// links.
func (t tree) copyAll(p, source string) error {
	return filepath.WalkDir(source, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(source, file)
		if err != nil {
			return err
		}
		to := path.Join(p, filepath.ToSlash(rel))
		switch {
		case d.IsDir():
			t.dir(to)
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(file)
			if err != nil {
				return err
			}
			t.link(to, target)
		case d.Type().IsRegular():
			return t.copy(to, file)
		}
		return nil
	})
}

// writeTo writes the whole tree as a cpio archive. Directories come before
// what they hold.
func (t tree) writeTo(w io.Writer) error {
	c := newCpioWriter(w)
	for _, p := range slices.Sorted(maps.Keys(t)) {
		n, name := t[p], strings.TrimPrefix(p, "/")
		switch {
		case n.mode.IsDir():
			c.dir(name)
		case n.mode.Type() == fs.ModeSymlink:
			c.link(name, n.target)
		case n.source != "":
			if err := c.copyFile(name, n); err != nil {
				return err
			}
		default:
			c.file(name, n.mode, int64(len(n.content)), bytes.NewReader(n.content))
		}
	}
	return c.close()
}

func (c *cpioWriter) copyFile(name string, n node) error {
	f, err := os.Open(n.source)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	c.file(name, n.mode, info.Size(), f)
	return c.err
}
