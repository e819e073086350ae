package house

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNoMutableGlobals lets a library have package variables only as tables and errors that nobody writes: two
// Programmers in one process must not meet.
func TestNoMutableGlobals(t *testing.T) {
	all, err := packages()
	require.NoError(t, err)
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		p, ok := all[path]
		if !ok || p.Export == "" {
			return nil, fmt.Errorf("no export data for %s", path)
		}
		return os.Open(p.Export)
	})
	written := map[string]string{} // where a package variable is written, by its name with the package's path
	var declared []global
	for _, p := range ours(t) {
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			require.NoError(t, err)
			files = append(files, f)
		}
		globals, err := inspect(p.ImportPath, fset, files, imports, written)
		require.NoError(t, err)
		if p.library() {
			declared = append(declared, globals...)
		}
	}
	require.NotEmpty(t, declared)
	report(t, "mutable package variables", mutable(declared, written))
}

// A global is one package variable.
type global struct {
	key string // import path and name
	typ types.Type
}

// readOnly are types of the standard library that nobody can write once they are made, though they come as pointers.
var readOnly = []string{"*regexp.Regexp", "*hash/crc32.Table"}

// mutable returns the globals that are written somewhere, or that are of a kind which makes no sense unless written.
func mutable(globals []global, written map[string]string) []string {
	var found []string
	for _, g := range globals {
		if at, ok := written[g.key]; ok {
			found = append(found, fmt.Sprintf("%s, written in %s", g.key, at))
			continue
		}
		switch typ := g.typ.Underlying().(type) {
		case *types.Chan:
			found = append(found, g.key+", a channel")
		case *types.Pointer:
			if !slices.Contains(readOnly, typ.String()) {
				found = append(found, g.key+", a "+typ.String())
			}
		}
	}
	return found
}

// inspect type-checks a package, notes in written which package variables it writes, its own and others', and returns
// its own.
func inspect(path string, fset *token.FileSet, files []*ast.File, imports types.Importer, written map[string]string) ([]global, error) {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{}, Types: map[ast.Expr]types.TypeAndValue{}}
	cfg := types.Config{Importer: imports}
	pkg, err := cfg.Check(path, fset, files, info)
	if err != nil {
		return nil, err
	}
	write := func(e ast.Expr) {
		if v := packageVar(info, e); v != nil {
			pos := fset.Position(e.Pos())
			written[v.Pkg().Path()+"."+v.Name()] = fmt.Sprintf("%s:%d", filepath.Base(pos.Filename), pos.Line)
		}
	}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			writes(info, n, write)
			return true
		})
	}
	var globals []global
	for _, name := range pkg.Scope().Names() {
		if v, ok := pkg.Scope().Lookup(name).(*types.Var); ok {
			globals = append(globals, global{path + "." + name, v.Type()})
		}
	}
	return globals, nil
}

// writes calls write for every expression that a node assigns to, or through which it hands out a way to.
func writes(info *types.Info, n ast.Node, write func(ast.Expr)) {
	switch n := n.(type) {
	case *ast.AssignStmt:
		for _, e := range n.Lhs {
			write(e)
		}
	case *ast.RangeStmt:
		if n.Tok == token.ASSIGN {
			write(n.Key)
			write(n.Value)
		}
	case *ast.IncDecStmt:
		write(n.X)
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			write(n.X)
		}
	case *ast.CallExpr:
		if fun, ok := n.Fun.(*ast.Ident); ok && len(n.Args) > 0 {
			if b, ok := info.Uses[fun].(*types.Builtin); ok && strings.Contains(" delete clear copy ", " "+b.Name()+" ") {
				write(n.Args[0])
			}
		}
		// A method with a pointer receiver, called on a variable, takes the variable's address.
		if sel, ok := n.Fun.(*ast.SelectorExpr); ok {
			if s := info.Selections[sel]; s != nil && s.Kind() == types.MethodVal && takesAddress(s) {
				write(sel.X)
			}
		}
	}
}

func takesAddress(s *types.Selection) bool {
	recv := s.Obj().(*types.Func).Signature().Recv().Type()
	_, wants := recv.(*types.Pointer)
	_, has := s.Recv().(*types.Pointer)
	return wants && !has
}

// packageVar returns the package variable of which an expression is a part: x, x.f, x[i], *x, pkg.X. Nil if none.
func packageVar(info *types.Info, e ast.Expr) *types.Var {
	for {
		switch x := e.(type) {
		case *ast.ParenExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SelectorExpr:
			if v, ok := info.Uses[x.Sel].(*types.Var); ok && !v.IsField() {
				return v
			}
			e = x.X
		case *ast.Ident:
			v, ok := info.Uses[x].(*types.Var)
			if ok && v.Pkg() != nil && v.Parent() == v.Pkg().Scope() {
				return v
			}
			return nil
		default:
			return nil
		}
	}
}

func TestGlobalRuleStopsSomebody(t *testing.T) {
	const source = `package p

import ("errors"; "io"; "regexp"; "sync")

var (
	Err    = errors.New("fine")
	table  = [...]string{"fine"}
	byName = map[string]int{"fine": 1}
	word   = regexp.MustCompile("fine")

	counter int
	cache   = map[string]int{}
	mu      sync.Mutex
	config  struct{ A int }
	handed  int
	queue   chan int
	shared  = new(int)
	list    [3]int
)

func F() *int {
	counter++
	cache["a"] = 1
	mu.Lock()
	config.A = 2
	copy(list[:], list[1:])
	for list[1] = range table {
	}
	io.EOF = nil
	local := byName["fine"]
	local++
	word.MatchString(table[0])
	return &handed
}
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", source, 0)
	require.NoError(t, err)
	written := map[string]string{}
	globals, err := inspect("p", fset, []*ast.File{f}, importer.ForCompiler(fset, "source", nil), written)
	require.NoError(t, err)
	require.Contains(t, written, "io.EOF")
	require.Equal(t, []string{
		"p.cache, written in p.go:23", "p.config, written in p.go:25", "p.counter, written in p.go:22",
		"p.handed, written in p.go:33", "p.list, written in p.go:27", "p.mu, written in p.go:24",
		"p.queue, a channel", "p.shared, a *int",
	}, mutable(globals, written))
}
