package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sampleTree has an entry of every kind and file sizes of every remainder by
// four.
func sampleTree(t *testing.T) tree {
	t.Helper()
	source := filepath.Join(t.TempDir(), "tool")
	require.NoError(t, os.WriteFile(source, []byte("#!/bin/sh\n"), 0o755))
	tr := newTree()
	for n := range 9 {
		tr.text("/etc/deep/er/"+strings.Repeat("n", n+1), strings.Repeat("x", n))
	}
	require.NoError(t, tr.copy("/sbin/tool", source))
	tr.link("/usr/sbin/alias", "tool")
	return tr
}

func TestTreeReadsBack(t *testing.T) {
	tr := sampleTree(t)
	var archive bytes.Buffer
	require.NoError(t, tr.writeTo(&archive))

	got := readNewc(t, archive.Bytes())
	require.Len(t, got, len(tr))
	seen := map[string]bool{}
	for _, e := range got {
		if last := strings.LastIndex(e.name, "/"); last >= 0 {
			require.True(t, seen[e.name[:last]], "%s before its directory", e.name)
		}
		seen[e.name] = true
		n, ok := tr["/"+e.name]
		require.True(t, ok, e.name)
		want := entry{name: e.name, content: string(n.content)}
		switch {
		case n.mode.IsDir():
			want.mode = modeDir | 0o755
		case n.mode.Type() == fs.ModeSymlink:
			want.mode, want.content = modeLink|0o777, n.target
		case n.source != "":
			want.mode, want.content = modeRegular|0o755, "#!/bin/sh\n"
		default:
			want.mode = modeRegular | 0o644
		}
		require.Equal(t, want, e)
	}
}

func TestCpioToolUnpacksTree(t *testing.T) {
	tool, err := exec.LookPath("cpio")
	if err != nil {
		t.Skip("no cpio tool here; the format's own reader is used in TestTreeReadsBack")
	}
	var archive bytes.Buffer
	require.NoError(t, sampleTree(t).writeTo(&archive))
	cmd := exec.Command(tool, "-i", "-d", "--quiet")
	cmd.Dir, cmd.Stdin = t.TempDir(), &archive
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for n := range 9 {
		content, err := os.ReadFile(filepath.Join(cmd.Dir, "etc/deep/er", strings.Repeat("n", n+1)))
		require.NoError(t, err)
		require.Equal(t, strings.Repeat("x", n), string(content))
	}
	// Through two links: sbin leads to usr/sbin and alias to tool.
	info, err := os.Stat(filepath.Join(cmd.Dir, "sbin/alias"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o755), info.Mode())
}

func TestCpioRefusesAFileThatShrank(t *testing.T) {
	c := newCpioWriter(io.Discard)
	c.file("f", 0o644, 10, strings.NewReader("short"))
	require.ErrorContains(t, c.close(), "f: shorter than the 10 bytes announced")
}

func TestMergedPaths(t *testing.T) {
	for in, want := range map[string]string{
		"/sbin/ip":               "/usr/sbin/ip",
		"lib64/ld.so":            "/usr/lib64/ld.so",
		"/usr/lib/x":             "/usr/lib/x",
		"/lib":                   "/lib",
		"/library/x":             "/library/x",
		"/lib/a/../modules/6.1/": "/usr/lib/modules/6.1",
	} {
		require.Equal(t, want, merged(in))
	}
}

func TestTreeKeepsLinksOfACopiedDirectory(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a/b/f"), []byte("f"), 0o600))
	require.NoError(t, os.Symlink("b/f", filepath.Join(dir, "a/l")))
	tr := tree{}
	require.NoError(t, tr.copyAll("/data", dir))
	require.Equal(t, tree{
		"/data":       {mode: fs.ModeDir | 0o755},
		"/data/a":     {mode: fs.ModeDir | 0o755},
		"/data/a/b":   {mode: fs.ModeDir | 0o755},
		"/data/a/b/f": {mode: 0o600, source: filepath.Join(dir, "a/b/f")},
		"/data/a/l":   {mode: fs.ModeSymlink, target: "b/f"},
	}, tr)
}

type entry struct {
	name    string
	mode    uint64
	content string
}

// readNewc is a reader of the format as the kernel reads it: init/initramfs.c
// takes the thirteen numbers, the name, and the contents, each aligned to four.
func readNewc(t *testing.T, b []byte) []entry {
	t.Helper()
	var entries []entry
	at := 0
	take := func(n int) string {
		require.LessOrEqual(t, at+n, len(b))
		s := string(b[at : at+n])
		at += n
		return s
	}
	align := func() { at = (at + 3) &^ 3 }
	for {
		require.Equal(t, "070701", take(6))
		var f [13]uint64
		for i := range f {
			v, err := strconv.ParseUint(take(8), 16, 32)
			require.NoError(t, err)
			f[i] = v
		}
		name := take(int(f[11]))
		require.Equal(t, byte(0), name[len(name)-1])
		name = name[:len(name)-1]
		align()
		if name == "TRAILER!!!" {
			require.Equal(t, len(b), at)
			return entries
		}
		entries = append(entries, entry{name, f[1], take(int(f[6]))})
		align()
	}
}
