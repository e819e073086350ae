package main

import (
	"slices"
	"strings"
	"sync"
)

// A tail keeps the end of what is written to it. It is safe for concurrent
// use.
type tail struct {
	mu   sync.Mutex // guards text
	text []byte
}

// tailSize is more than forty of the kernel's longest lines.
const tailSize = 32 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - tailSize; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

// lines returns the last n lines, and more if the kernel's complaint begins
// before them. The serial console's carriage returns are left out.
func (t *tail) lines(n int) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(strings.ReplaceAll(string(t.text), "\r", ""))
	if text == "" {
		return nil
	}
	all := strings.Split(text, "\n")
	first := max(0, len(all)-n)
	if i := slices.IndexFunc(all, complaint); i >= 0 {
		const before = 3
		first = min(first, max(0, i-before))
	}
	return all[first:]
}

// complaint reports whether a line of the console begins what a kernel has to
// say about its own end.
func complaint(line string) bool {
	for _, s := range []string{"Kernel panic", "BUG:", "Oops"} {
		if strings.Contains(line, s) {
			return true
		}
	}
	return false
}

// contains reports whether s is in what is kept.
func (t *tail) contains(s string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Contains(string(t.text), s)
}
