package house

import (
	"fmt"
	"go/ast"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPackageDocs(t *testing.T) {
	report(t, "packages without a word about them", undocumentedPackages(sources(t)))
}

// undocumentedPackages returns the folders whose files carry no package comment. That of a library begins with
// "Package" and its name, as go doc shows it.
func undocumentedPackages(files []sourceFile) []string {
	docs := map[string]string{}
	for _, f := range files {
		if f.test() {
			continue
		}
		dir := filepath.Dir(f.path)
		doc := f.Doc.Text()
		if f.inLibrary() && !strings.HasPrefix(doc, "Package "+f.Name.Name+" ") {
			doc = ""
		}
		docs[dir] += doc
	}
	maps.DeleteFunc(docs, func(_, doc string) bool { return doc != "" })
	return slices.Sorted(maps.Keys(docs))
}

func TestExportedDocs(t *testing.T) {
	var found []string
	for _, f := range sources(t) {
		if f.inLibrary() {
			found = append(found, undocumented(f)...)
		}
	}
	report(t, "exported and undocumented", found)
}

// wellKnown are methods whose meaning the standard library's documentation gives.
var wellKnown = []string{"String", "Error", "Unwrap", "Is", "Len", "Less", "Swap", "Read", "Write", "Close",
	"MarshalText", "UnmarshalText", "MarshalJSON", "UnmarshalJSON", "Format", "GoString"}

// undocumented returns the exported identifiers of a file that have no comment of their own nor one of their group:
// constants, variables, types, functions, methods of exported types, and, in what others may import, the methods of
// an exported interface that has more of them than its own comment explains.
func undocumented(f sourceFile) []string {
	var found []string
	miss := func(n ast.Node, name string) { found = append(found, f.at(n)+": "+name) }
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			recv := receiver(d)
			method := d.Recv != nil
			if !d.Name.IsExported() || d.Doc != nil || method && (!ast.IsExported(recv) || slices.Contains(wellKnown, d.Name.Name)) {
				continue
			}
			miss(d, strings.TrimPrefix(recv+"."+d.Name.Name, "."))
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				undocumentedSpec(spec, d.Doc != nil, miss)
				if t, ok := spec.(*ast.TypeSpec); ok && !within(f.path, "internal") {
					undocumentedMethods(t, miss)
				}
			}
		}
	}
	return found
}

func undocumentedSpec(spec ast.Spec, group bool, miss func(ast.Node, string)) {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			if name.IsExported() && !group && s.Doc == nil && s.Comment == nil {
				miss(name, name.Name)
			}
		}
	case *ast.TypeSpec:
		if s.Name.IsExported() && !group && s.Doc == nil {
			miss(s, s.Name.Name)
		}
	}
}

func undocumentedMethods(s *ast.TypeSpec, miss func(ast.Node, string)) {
	iface, ok := s.Type.(*ast.InterfaceType)
	if !ok || !s.Name.IsExported() || len(iface.Methods.List) < 3 {
		return
	}
	for _, m := range iface.Methods.List {
		for _, name := range m.Names {
			if name.IsExported() && m.Doc == nil && m.Comment == nil && !slices.Contains(wellKnown, name.Name) {
				miss(m, s.Name.Name+"."+name.Name)
			}
		}
	}
}

// receiver names the type of a method's receiver, "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	expr := d.Recv.List[0].Type
	for {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return e.Name
		default:
			return fmt.Sprintf("%T", expr)
		}
	}
}

func TestDocRulesStopSomebody(t *testing.T) {
	f := parse(t, "p/bare.go", `package p

type T struct{}
func (T) M() {}
func (t *T) String() string { return "" }
func (u) Hidden() {}
type u struct{}
func F() {}
const C = 1
var V, w int
type I interface { Do(); Undo(); Redo() }
// J is fine.
type J interface { Do(); Undo() }

// Group.
const (
	A = 1
)
type G[X any] struct{}
func (g *G[X]) N() {}
`)
	require.Equal(t, []string{"p/bare.go:3: T", "p/bare.go:4: T.M", "p/bare.go:8: F", "p/bare.go:9: C", "p/bare.go:10: V",
		"p/bare.go:11: I", "p/bare.go:11: I.Do", "p/bare.go:11: I.Undo", "p/bare.go:11: I.Redo", "p/bare.go:19: G", "p/bare.go:20: G.N"}, undocumented(f))

	require.Equal(t, []string{"bare", "mis", "tool"}, undocumentedPackages([]sourceFile{
		parse(t, "bare/a.go", "package bare"),
		parse(t, "mis/a.go", "// This does things.\npackage mis"),
		parse(t, "tool/main.go", "package main"),
		parse(t, "good/a.go", "package good"),
		parse(t, "good/doc.go", "// Package good is.\npackage good"),
		parse(t, "cmd/main.go", "// Cmd does.\npackage main"),
		parse(t, "only/x_test.go", "package only"),
	}))
}
