package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A view is what the machine shows of itself, by what shows it, one line for each thing.
type view map[string][]string

// lookAround looks at everything that tests which forget themselves would change. What cannot be seen is left out:
// then it is left out both times.
func lookAround(ctx context.Context) view {
	v := view{}
	for _, dir := range []string{"/run/netns", "/sys/class/net"} {
		var names []string
		entries, _ := os.ReadDir(dir) // none there is no entry in it
		for _, e := range entries {
			names = append(names, e.Name())
		}
		v[dir] = names
	}
	for _, file := range []string{"/proc/net/ip_tables_names", "/proc/net/ip6_tables_names", "/proc/net/ip_vs",
		"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"} {
		if text, err := os.ReadFile(file); err == nil {
			v[file] = splitLines(text)
		}
	}
	for _, args := range [][]string{
		{"nft", "list", "tables"},
		{"ip", "rule"}, {"ip", "-6", "rule"},
		{"ip", "-o", "addr"},
		{"ip", "route", "show", "table", "all"},
		{"git", "-c", "safe.directory=*", "status", "--porcelain"},
	} {
		if text, err := exec.CommandContext(ctx, args[0], args[1:]...).Output(); err == nil {
			v[strings.Join(args, " ")] = splitLines(text)
		}
	}
	return v
}

func splitLines(text []byte) []string {
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// changes returns what one view shows and the other does not.
func (v view) changes(after view) []string {
	var found []string
	for _, what := range slices.Sorted(maps.Keys(v)) {
		for _, line := range missing(after[what], v[what]) {
			found = append(found, fmt.Sprintf("%s: new: %s", what, line))
		}
		for _, line := range missing(v[what], after[what]) {
			found = append(found, fmt.Sprintf("%s: gone: %s", what, line))
		}
	}
	return found
}

// missing returns the lines of one list that the other lacks.
func missing(these, from []string) []string {
	return slices.DeleteFunc(slices.Clone(these), func(line string) bool { return slices.Contains(from, line) })
}

// leftovers is the last step: it looks for what the others left on the machine: processes, with whose end every
// namespace without a name ends too, files, and whatever a view shows.
func (w *workshop) leftovers(ctx context.Context, before view) outcome {
	fmt.Fprintf(w.out, "\n=== leftovers\n")
	started := time.Now()
	found := w.processes()
	for len(found) > 0 && time.Since(started) < w.patience {
		time.Sleep(100 * time.Millisecond)
		found = w.processes()
	}
	entries, err := os.ReadDir(w.temp)
	if err != nil {
		found = append(found, err.Error())
	}
	for _, e := range entries {
		found = append(found, "file "+filepath.Join(w.temp, e.Name()))
	}
	found = append(found, before.changes(lookAround(ctx))...)
	o := outcome{name: "leftovers", took: time.Since(started)}
	for _, f := range found {
		fmt.Fprintln(w.out, f)
	}
	if len(found) > 0 {
		o.err = errors.New("left behind: " + strings.Join(found, ", "))
	}
	return o
}

// processes returns those that carry the mark, QEMU's and servers' alike.
func (w *workshop) processes() []string {
	environs, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is well formed
	var found []string
	for _, path := range environs {
		env, err := os.ReadFile(path)
		if err != nil || !slices.ContainsFunc(bytes.Split(env, []byte{0}), func(kv []byte) bool { return string(kv) == w.mark }) {
			continue
		}
		dir := filepath.Dir(path)
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(cmdline) == 0 {
			continue // it has ended
		}
		found = append(found, fmt.Sprintf("process %s: %s", filepath.Base(dir), bytes.TrimSpace(bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '}))))
	}
	return found
}
