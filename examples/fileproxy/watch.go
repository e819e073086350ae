package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// quiet is how long a file is left alone after an event: who writes it in place needs a moment. Busy is the longest
	// that events put it off.
	quiet, busy = 100 * time.Millisecond, time.Second
	// slowLook is how often the file is looked at without an event: for file systems that tell of nothing, and folders
	// that were not there.
	slowLook = 10 * time.Second
)

// watch calls look whenever the file may have become another, and every slow, until ctx is over. It watches folders, not
// the file, so that it sees renames, and those of every symbolic link on the way to it: so Kubernetes swaps mounted files.
func watch(ctx context.Context, path string, slow time.Duration, log *slog.Logger, look func()) {
	w, err := fsnotify.NewWatcher()
	if err != nil { // the limit fs.inotify.max_user_instances, as a rule
		log.Warn("cannot watch the file: looking at it now and then", "err", err)
		w = &fsnotify.Watcher{} // tells of nothing
	} else {
		defer w.Close()
		aim(w, path)
	}
	tick := time.NewTicker(slow)
	defer tick.Stop()
	settle := time.NewTimer(0) // once in the beginning: it may have changed before it was watched
	defer settle.Stop()
	var first time.Time // of the events that have not been looked at
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-w.Events:
			switch now := time.Now(); {
			case !ok:
				return
			case first.IsZero():
				first = now
				settle.Reset(quiet)
			case now.Sub(first) < busy:
				settle.Reset(quiet)
			}
			continue
		case err := <-w.Errors: // events were lost
			log.Warn("watching the file", "err", err)
		case <-tick.C:
		case <-settle.C:
		}
		first = time.Time{}
		if err == nil {
			aim(w, path)
		}
		look()
	}
}

// aim makes a watcher watch the folders that matter now. What cannot be watched is left to the slow look.
func aim(w *fsnotify.Watcher, path string) {
	wanted := folders(path)
	watched := w.WatchList()
	for _, dir := range watched {
		if !slices.Contains(wanted, dir) {
			_ = w.Remove(dir)
		}
	}
	for _, dir := range wanted {
		_ = w.Add(dir) // also again: another folder may have taken its place
	}
}

// folders returns those in which a change can make a path lead to another file: the file's, and that of each symbolic
// link on the way to it.
func folders(path string) []string {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	var dirs []string
	add := func(dir string) {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	const mostLinks = 40 // as the kernel has it
	here, rest := "/", strings.Split(path[1:], "/")
	for links := 0; len(rest) > 0 && links <= mostLinks; {
		next := filepath.Join(here, rest[0])
		if target, err := os.Readlink(next); err == nil {
			add(here)
			links++
			if filepath.IsAbs(target) {
				here = "/"
			}
			rest = append(strings.Split(strings.Trim(target, "/"), "/"), rest[1:]...)
			continue
		}
		if len(rest) == 1 {
			add(here)
		}
		here, rest = next, rest[1:]
	}
	return dirs
}
