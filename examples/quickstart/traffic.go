package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Answers count who answered how many requests.
type answers struct {
	by     map[string]int
	failed int
	err    error // of the first that failed
}

// note counts one request.
func (a *answers) note(name string, err error) {
	if err == nil {
		if a.by == nil {
			a.by = map[string]int{}
		}
		a.by[name]++
		return
	}
	if a.failed++; a.err == nil {
		a.err = err
	}
}

func (a *answers) total() int {
	n := a.failed
	for _, k := range a.by {
		n += k
	}
	return n
}

// String returns a line for each server: its name and how often it answered.
func (a *answers) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(a.by)) {
		fmt.Fprintf(&b, "%s: %d\n", name, a.by[name])
	}
	return b.String()
}

// client returns an HTTP client in the client's namespace. Every request is a connection of its own, so that the kernel
// chooses anew each time.
func (w *world) client() *http.Client {
	dial := func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = w.Host("client").Do(func() error {
			conn, err = new(net.Dialer).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
}

// askOnce sends one request to the service and returns the name that the answer holds.
func askOnce(ctx context.Context, c *http.Client) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+vip.String(), nil)
	if err != nil {
		return "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// ask sends n requests, one after the other.
func (w *world) ask(ctx context.Context, n int) *answers {
	var a answers
	client := w.client()
	for range n {
		a.note(askOnce(ctx, client))
	}
	return &a
}

// A load is clients that keep asking until they are stopped.
type load struct {
	quit chan struct{}
	wg   sync.WaitGroup

	mu sync.Mutex // guards what follows
	answers
}

// startLoad starts so many clients.
func (w *world) startLoad(ctx context.Context, clients int) *load {
	l := &load{quit: make(chan struct{})}
	for range clients {
		l.wg.Go(func() {
			client := w.client()
			for {
				select {
				case <-l.quit:
					return
				default:
				}
				name, err := askOnce(ctx, client)
				l.mu.Lock()
				l.note(name, err)
				l.mu.Unlock()
			}
		})
	}
	return l
}

// stop lets the clients finish what they are asking and returns all that they were answered.
func (l *load) stop() *answers {
	close(l.quit)
	l.wg.Wait()
	return &l.answers
}
