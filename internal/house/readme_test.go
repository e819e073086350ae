package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeProgram builds the program in README.md as somebody would who has just copied it.
func TestReadmeProgram(t *testing.T) {
	if os.Getenv("HEADGATE_VM") != "" {
		t.Skip("needs the go command: runs on the host")
	}
	root, err := filepath.Abs(root)
	require.NoError(t, err)
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	program := regexp.MustCompile("(?s)```go\n(package main.*?)```").FindSubmatch(readme)
	require.NotNil(t, program, "README.md has no program")
	require.LessOrEqual(t, strings.Count(string(program[1]), "\n"), 35)

	dir := t.TempDir()
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	text := strings.Replace(string(mod), "module github.com/headgate/headgate", "module example.org/embedder", 1) +
		"\nrequire github.com/headgate/headgate v0.0.0\n\nreplace github.com/headgate/headgate => " + root + "\n"
	for name, content := range map[string]string{"go.mod": text, "go.sum": string(sum), "main.go": string(program[1])} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	cmd := exec.Command("go", "build", "-mod=mod", "-o", os.DevNull, ".")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
