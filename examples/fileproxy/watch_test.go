package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFolders(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	at := func(parts ...string) string { return filepath.Join(append([]string{root}, parts...)...) }
	require.NoError(t, os.MkdirAll(at("etc", "conf"), 0o755))
	require.NoError(t, os.MkdirAll(at("srv", "v1"), 0o755))
	require.NoError(t, os.Symlink("v1", at("srv", "now")))
	require.NoError(t, os.Symlink(at("srv", "now", "f"), at("etc", "conf", "f")))
	require.NoError(t, os.Symlink("../../srv/now/f", at("etc", "conf", "g")))
	require.NoError(t, os.Symlink("loop", at("loop")))

	require.Equal(t, []string{at("etc", "conf")}, folders(at("etc", "conf", "plain")))
	want := []string{at("etc", "conf"), at("srv"), at("srv", "v1")}
	require.Equal(t, want, folders(at("etc", "conf", "f")))
	require.Equal(t, want, folders(at("etc", "conf", "g")))
	require.Equal(t, []string{root}, folders(at("loop")))
}

// TestWatch changes a file in every way that there is. Without the slow look, events alone tell of it.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "conf", "f")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "conf"), 0o755))
	seen := make(chan string, 100)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		last := "?"
		watch(ctx, path, time.Hour, slog.New(slog.DiscardHandler), func() {
			text, _ := os.ReadFile(path)
			if string(text) != last {
				last = string(text)
				seen <- last
			}
		})
	}()
	defer func() { stop(); <-done }()
	sees := func(want string) {
		t.Helper()
		limit := time.After(patience)
		for {
			select {
			case got := <-seen:
				if got == want {
					return
				}
			case <-limit:
				require.Failf(t, "not seen", "%q", want)
			}
		}
	}
	sees("")
	require.NoError(t, os.WriteFile(path, []byte("in place"), 0o644))
	sees("in place")
	writeFile(t, path, "renamed")
	sees("renamed")
	require.NoError(t, os.Remove(path))
	sees("")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "elsewhere"), []byte("linked"), 0o644))
	require.NoError(t, os.Symlink("../elsewhere", path))
	sees("linked")
	writeFile(t, filepath.Join(dir, "elsewhere"), "behind the link")
	sees("behind the link")
}
