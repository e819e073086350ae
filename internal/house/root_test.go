package house

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// top is all that may stand at the top of the tree, dot-files apart.
var top = []string{
	"iptables/", "ipvs/", "nftables/", "conntrack/", "model/", "examples/", "internal/",
	"go.mod", "go.sum", "LICENSE", "README.md",
}

// dependencies are the modules that the root module may import, tests included.
var dependencies = []string{
	"github.com/google/nftables",
	"github.com/moby/ipvs",
	"github.com/coreos/go-iptables",
	"github.com/vishvananda/netlink",
	"github.com/vishvananda/netns",
	"github.com/ti-mo/conntrack",
	"github.com/ti-mo/netfilter",
	"github.com/mdlayher/netlink",
	"golang.org/x/sys",
	"github.com/stretchr/testify",
}

// strangers returns those of the names at the top that have no business there.
func strangers(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return strings.HasPrefix(name, ".") || slices.Contains(top, name) ||
			// What a build leaves behind and .gitignore names.
			strings.HasSuffix(name, ".test") || strings.HasSuffix(name, ".prof")
	})
}

func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir(root)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() {
			name += "/"
		}
		names = append(names, name)
	}
	report(t, "at the top of the tree", strangers(names))
	for _, name := range []string{"model/", "internal/", "go.mod", "go.sum", "LICENSE"} {
		require.Contains(t, names, name)
	}
	require.Equal(t, []string{"pkg/", "main.go", "model"}, strangers([]string{"pkg/", "model/", ".ci/", "main.go", "model"}))
}

// TestDirectDependencies looks at what the code imports; that go.mod names nothing else as direct follows from it.
func TestDirectDependencies(t *testing.T) {
	modules := moduleOf(t)
	used := map[string]string{} // module, one package that imports it
	for _, p := range ours(t) {
		for _, path := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if m := modules(path); m != "" && m != module {
				used[m] = p.ImportPath
			}
		}
	}
	require.Contains(t, used, "github.com/stretchr/testify", "the test sees no import of this very file")
	var found []string
	for _, m := range slices.Sorted(maps.Keys(used)) {
		if !slices.Contains(dependencies, m) {
			found = append(found, fmt.Sprintf("%s imports %s", used[m], m))
		}
	}
	report(t, "dependencies that nobody agreed to", found)
}

// moduleOf returns a function that names the module of an import path, "" for the standard library.
func moduleOf(t *testing.T) func(path string) string {
	t.Helper()
	mod := goMod(t)
	return func(path string) string {
		best := ""
		for _, m := range append(mod.modules(), module) {
			if within(path, m) && len(m) > len(best) {
				best = m
			}
		}
		return best
	}
}

// A modFile is what "go mod edit -json" says.
type modFile struct {
	Require []struct {
		Path     string
		Indirect bool
	}
	Replace []struct{ Old, New struct{ Path string } }
	Tool    []struct{ Path string }
}

func (m modFile) modules() []string {
	var paths []string
	for _, r := range m.Require {
		paths = append(paths, r.Path)
	}
	return paths
}

func goMod(t *testing.T) modFile {
	t.Helper()
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = root
	out, err := cmd.Output()
	require.NoError(t, err)
	var mod modFile
	require.NoError(t, json.Unmarshal(out, &mod))
	return mod
}

func TestGoMod(t *testing.T) {
	mod := goMod(t)
	var found []string
	for _, r := range mod.Require {
		if !r.Indirect && !slices.Contains(dependencies, r.Path) {
			found = append(found, r.Path)
		}
	}
	report(t, "go.mod requires", found)
	require.Empty(t, mod.Replace, "go.mod replaces: those who import this module would not get the same")
	require.Empty(t, mod.Tool, "tools are run by version, not required")
}

// TestNestedModules sees that a nested module builds against this tree and not against a release of it.
func TestNestedModules(t *testing.T) {
	for _, path := range treeFiles(t) {
		if filepath.Base(path) != "go.mod" || path == "go.mod" {
			continue
		}
		require.True(t, within(path, "examples") || path == "model/prometheus/go.mod", "%s: nested modules are examples, or bring what few need", path)
		text, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		up, err := filepath.Rel(filepath.Dir(path), ".")
		require.NoError(t, err)
		require.Contains(t, string(text), module+" => "+filepath.ToSlash(up), path)
	}
}

// TestCIRunsTheTestCommand sees that CI and a reader of the README run the same thing.
func TestCIRunsTheTestCommand(t *testing.T) {
	const command = "./.ci/test"
	script, err := os.ReadFile(filepath.Join(root, ".ci/run"))
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(script)), "\n")
	require.Equal(t, command, lines[len(lines)-1])
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if os.IsNotExist(err) {
		return // it is written last
	}
	require.NoError(t, err)
	require.Contains(t, string(readme), command)
}
