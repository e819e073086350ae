package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root   = "../.."
	module = "github.com/headgate/headgate"
)

// A listed is what "go list" says about one package.
type listed struct {
	ImportPath, Name, Dir, Export      string
	Standard                           bool
	GoFiles                            []string
	Imports, TestImports, XTestImports []string
	Deps                               []string
	Module                             *struct {
		Path string
		Main bool
	}
}

// library reports whether others can import the package.
func (p listed) library() bool { return p.Module != nil && p.Module.Main && p.Name != "main" }

// packages lists the packages of the root module with everything below them, by import path.
var packages = sync.OnceValues(func() (map[string]listed, error) {
	cmd := exec.Command("go", "list", "-buildvcs=false", "-export", "-deps", "-json", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.Bytes())
	}
	all := map[string]listed{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all[p.ImportPath] = p
	}
})

// ours returns the packages of the root module, sorted by import path.
func ours(t *testing.T) []listed {
	t.Helper()
	all, err := packages()
	require.NoError(t, err)
	var own []listed
	for _, p := range all {
		if p.Module != nil && p.Module.Main {
			own = append(own, p)
		}
	}
	require.NotEmpty(t, own)
	slices.SortFunc(own, func(a, b listed) int { return strings.Compare(a.ImportPath, b.ImportPath) })
	return own
}

// A sourceFile is one parsed Go file.
type sourceFile struct {
	path string // relative to the root
	*ast.File
	fset *token.FileSet
}

// at says where a node stands.
func (f sourceFile) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.fset.Position(n.Pos()).Line)
}

// inLibrary reports whether the rules for libraries hold in the file.
func (f sourceFile) inLibrary() bool { return f.Name.Name != "main" && !f.test() }

func (f sourceFile) test() bool { return strings.HasSuffix(f.path, "_test.go") }

// parse parses one file, for samples.
func parse(t *testing.T, path, source string) sourceFile {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, source, parser.ParseComments)
	require.NoError(t, err)
	return sourceFile{path: path, File: f, fset: fset}
}

// sources parses every Go file of the tree, those of nested modules included.
func sources(t *testing.T) []sourceFile {
	t.Helper()
	var files []sourceFile
	fset := token.NewFileSet()
	for _, path := range treeFiles(t) {
		if filepath.Ext(path) != ".go" {
			continue
		}
		f, err := parser.ParseFile(fset, filepath.Join(root, path), nil, parser.ParseComments)
		require.NoError(t, err)
		files = append(files, sourceFile{path: path, File: f, fset: fset})
	}
	require.NotEmpty(t, files)
	return files
}

// treeFiles returns the path of every file below the root, testdata and dot-folders other than .ci left out.
func treeFiles(t *testing.T) []string {
	t.Helper()
	var paths []string
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(d.Name(), ".") && path != root && d.Name() != ".ci"
		if d.IsDir() && (hidden || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if d.Type().IsRegular() {
			rel, err := filepath.Rel(root, path)
			paths = append(paths, rel)
			return err
		}
		return nil
	}))
	return paths
}

// report fails the test with all findings of a rule at once.
func report(t *testing.T, rule string, findings []string) {
	t.Helper()
	if len(findings) > 0 {
		t.Errorf("%s:\n\t%s", rule, strings.Join(findings, "\n\t"))
	}
}
