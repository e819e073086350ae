package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/headgate/headgate/internal/vmtest/wire"
)

// A binary is something built, or given, to be run in the guest.
type binary struct {
	name     string
	file     string
	guestDir string // where it runs
	testdata string // a directory to have beside it, "" for none
	test     bool   // made by go test
}

// A builder runs the go command. What it builds is static, so that it runs in
// a guest without this host's libraries.
type builder struct {
	dir string // where patterns are taken from
	out string // where binaries go
}

func (b builder) tool(ctx context.Context, args ...string) (string, error) {
	return command{
		name: "go", args: args, dir: b.dir,
		env: []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64"},
	}.run(ctx)
}

// smaller leaves out what only a debugger reads; stack traces stay as they are.
const smaller = "-ldflags=-s -w"

// program builds a main package.
func (b builder) program(ctx context.Context, name, pkg string) (string, error) {
	file := filepath.Join(b.out, name)
	_, err := b.tool(ctx, "build", "-buildvcs=false", smaller, "-o", file, pkg)
	return file, err
}

// A goPackage is what go list tells of a package.
type goPackage struct {
	Dir, ImportPath           string
	TestGoFiles, XTestGoFiles []string
	Module                    *struct{ Dir string }
}

func (p goPackage) hasTests() bool { return len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 }

// list expands patterns.
func (b builder) list(ctx context.Context, patterns []string) ([]goPackage, error) {
	out, err := b.tool(ctx, append([]string{"list", "-json=Dir,ImportPath,TestGoFiles,XTestGoFiles,Module", "--"}, patterns...)...)
	if err != nil {
		return nil, err
	}
	packages, err := parseList(out)
	if err == nil && len(packages) == 0 {
		err = fmt.Errorf("no packages match %s", strings.Join(patterns, " "))
	}
	return packages, err
}

func parseList(text string) ([]goPackage, error) {
	var packages []goPackage
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var p goPackage
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return packages, nil
		case err != nil:
			return nil, fmt.Errorf("go list: %w", err)
		}
		packages = append(packages, p)
	}
}

// tests builds the test binaries of those packages that have tests and names
// the others.
func (b builder) tests(ctx context.Context, packages []goPackage) (binaries []binary, without []string, err error) {
	for i, p := range packages {
		if !p.hasTests() {
			without = append(without, p.ImportPath)
			continue
		}
		file := filepath.Join(b.out, fmt.Sprint(i), path.Base(p.ImportPath)+".test")
		if _, err := b.tool(ctx, "test", "-c", smaller, "-o", file, p.ImportPath); err != nil {
			return nil, nil, err
		}
		t := binary{name: p.ImportPath, file: file, guestDir: guestDir(p), test: true}
		if data := filepath.Join(p.Dir, "testdata"); exists(data) {
			t.testdata = data
		}
		binaries = append(binaries, t)
	}
	return binaries, without, nil
}

// guestDir is where a package's tests run. Two packages of a module are as far
// from each other as they are in it.
func guestDir(p goPackage) string {
	if p.Module != nil {
		if rel, err := filepath.Rel(p.Module.Dir, p.Dir); err == nil {
			return path.Join(wire.ModuleDir, filepath.ToSlash(rel))
		}
	}
	return path.Join(wire.ModuleDir, p.ImportPath)
}

// given makes a binary of a file that is an executable already, and reports
// whether name is one.
func (b builder) given(name string) (binary, bool) {
	file := name
	if !filepath.IsAbs(file) {
		file = filepath.Join(b.dir, file)
	}
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() {
		return binary{}, false
	}
	return binary{name: name, file: file, guestDir: "/root"}, true
}
