package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A tree is what there is to test in the checkout. All paths are relative to its root.
type tree struct {
	modules     []string // folders with a go.mod, the root as "." first
	programs    []string // folders of the examples' programs
	kernelTests []string // packages of the root module whose tests need a kernel
}

// readTree looks through the checkout in the current directory.
func readTree(ctx context.Context) (t tree, err error) {
	if t.modules, err = modules("."); err != nil {
		return t, err
	}
	for _, m := range t.modules {
		programs, err := programs(ctx, m)
		if err != nil {
			return t, err
		}
		t.programs = append(t.programs, programs...)
	}
	t.kernelTests, err = kernelTests(ctx)
	return t, err
}

// modules returns the folders below root that hold a go.mod.
func modules(root string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case d.Name() == "go.mod":
			rel, err := filepath.Rel(root, filepath.Dir(path))
			found = append(found, rel)
			return err
		}
		return nil
	})
	if err == nil && !slices.Contains(found, ".") {
		err = errors.New("no go.mod here: start this from the root of the checkout")
	}
	slices.Sort(found) // "." comes first
	return found, err
}

// A listed is what "go list" says about a package.
type listed struct {
	ImportPath, Name, Dir string
	Deps                  []string
}

// programs returns the folders of the programs in a module that are examples.
func programs(ctx context.Context, module string) ([]string, error) {
	all, err := list(ctx, module, "./...")
	if err != nil {
		return nil, err
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, p := range all {
		dir, err := filepath.Rel(root, p.Dir)
		if err != nil {
			return nil, err
		}
		if p.Name == "main" && strings.HasPrefix(dir, "examples"+string(filepath.Separator)) {
			found = append(found, dir)
		}
	}
	return found, nil
}

// hostOnly are packages whose tests CI runs on the host alone: they start thousands of programs, for each of which an
// emulated processor takes a tenth of a second. By hand: go run ./internal/vmtest ./iptables
var hostOnly = []string{"github.com/headgate/headgate/iptables"}

// kernelTests returns the packages of the root module whose tests build namespaces: they import the lab, or something
// that does.
func kernelTests(ctx context.Context) ([]string, error) {
	all, err := list(ctx, ".", "-test", "./...")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, p := range all {
		name, isTest := strings.CutSuffix(p.ImportPath, ".test")
		if isTest && !slices.Contains(hostOnly, name) && slices.ContainsFunc(p.Deps, isLab) {
			found = append(found, name)
		}
	}
	return found, nil
}

// isLab reports whether a dependency is the test kit, be it compiled for a test or not.
func isLab(dep string) bool {
	path, _, _ := strings.Cut(dep, " ")
	return path == "github.com/headgate/headgate/internal/lab"
}

// list runs "go list" in a module.
func list(ctx context.Context, module string, args ...string) ([]listed, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Name,Dir,Deps"}, args...)...)
	cmd.Dir = module
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w", module, err)
	}
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, p)
	}
}
