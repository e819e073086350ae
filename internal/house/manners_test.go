package house

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestLibrariesAreQuiet(t *testing.T) {
	var found []string
	for _, f := range sources(t) {
		if f.inLibrary() {
			found = append(found, noise(f)...)
		}
	}
	report(t, "a library returns what it has to say, and never ends the process", found)
}

// loud are the members of packages that a library leaves alone.
var loud = map[string][]string{
	"fmt": {"Print", "Printf", "Println"},
	"os":  {"Exit", "Stdout", "Stderr"},
}

// noise returns the places where a file prints, logs through the global logger, ends the process or works before main.
func noise(f sourceFile) []string {
	names := map[string]string{} // import path by the name it has in this file
	var found []string
	for _, imp := range f.Imports {
		path, _ := strconv.Unquote(imp.Path.Value)
		name := filepath.Base(path)
		if imp.Name != nil {
			name = imp.Name.Name
		}
		names[name] = path
		if path == "log" {
			found = append(found, f.at(imp)+": imports log")
		}
	}
	ast.Inspect(f.File, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil && n.Name.Name == "init" {
				found = append(found, f.at(n)+": func init")
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && slices.Contains(loud[names[x.Name]], n.Sel.Name) {
				found = append(found, f.at(n)+": "+x.Name+"."+n.Sel.Name)
			}
		case *ast.CallExpr:
			if x, ok := n.Fun.(*ast.Ident); ok && (x.Name == "print" || x.Name == "println") && x.Obj == nil {
				found = append(found, f.at(n)+": "+x.Name)
			}
		}
		return true
	})
	return found
}

// unfinished matches a note of unfinished work. What it is about must be told where everybody can read it.
var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)

func TestUnfinishedWorkIsLinked(t *testing.T) {
	var found []string
	for _, path := range treeFiles(t) {
		text, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		found = append(found, unlinked(path, text)...)
	}
	report(t, "unfinished work without a link", found)
}

// unlinked returns the lines of a text file that speak of unfinished work and not of where it is told.
func unlinked(path string, text []byte) []string {
	if !utf8.Valid(text) {
		return nil
	}
	var found []string
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if unfinished.MatchString(line) && !strings.Contains(line, "https://") {
			found = append(found, path+":"+strconv.Itoa(number)+": "+strings.TrimSpace(line))
		}
	}
	return found
}

func TestMannersStopSomebody(t *testing.T) {
	f := parse(t, "p/loud.go", `package p

import (
	"fmt"
	"log"
	o "os"
	"log/slog"
)

func init() { fmt.Println() }
func F(l *slog.Logger) { o.Exit(1); println(); fmt.Fprint(o.Stderr); l.Info("fine"); log.Print() }
func (t T) init() {}
`)
	require.Equal(t, []string{"p/loud.go:5: imports log", "p/loud.go:10: func init", "p/loud.go:10: fmt.Println",
		"p/loud.go:11: o.Exit", "p/loud.go:11: println", "p/loud.go:11: o.Stderr"}, noise(f))

	word := "TO" + "DO"
	require.Equal(t, []string{"a:2: // " + word + ": later"},
		unlinked("a", []byte("x\n// "+word+": later\n// "+word+" https://example.org/1\n"+word+"S\n")))
}
