package model

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A sweeper is a Cleaner that owes one look, and a second one a second later, for each attempt that succeeded.
type sweeper struct {
	began time.Time

	mu    sync.Mutex // guards what follows
	blind bool       // the last attempt failed
	owed  []time.Time
	log   []string
	fail  []error
	took  time.Duration
	alert func(call string)
}

func newSweeper() *sweeper { return &sweeper{began: time.Now()} }

func (c *sweeper) note(format string, args ...any) {
	call := fmt.Sprintf(format, args...)
	c.log = append(c.log, fmt.Sprintf("%v %s", time.Since(c.began), call))
	if c.alert != nil {
		c.alert(call)
	}
}

func (c *sweeper) Syncing(want State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note("syncing %s", strings.Join(sortedNames(want.Services), " "))
}

func (c *sweeper) Applying(diff Diff) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note("applying %d", len(diff.Changes))
}

func (c *sweeper) Programmed(_ Result, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note("programmed %v", err)
	if c.blind = err != nil; !c.blind {
		c.owed = append(c.owed, time.Now(), time.Now().Add(time.Second))
	}
}

func (c *sweeper) Due() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blind || len(c.owed) == 0 {
		return time.Time{}, false
	}
	first := c.owed[0]
	for _, at := range c.owed {
		if at.Before(first) {
			first = at
		}
	}
	return first, true
}

func (c *sweeper) Clean(ctx context.Context) (Result, error) {
	c.mu.Lock()
	took, began := c.took, time.Now()
	c.note("clean")
	c.mu.Unlock()
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.fail) > 0 {
		err := c.fail[0]
		c.fail = c.fail[1:]
		return Result{}, err
	}
	var later []time.Time
	for _, at := range c.owed {
		if at.After(began) {
			later = append(later, at)
		}
	}
	res := Result{Deleted: len(c.owed) - len(later)}
	c.owed = later
	return res, nil
}

func (c *sweeper) calls() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	log := c.log
	c.log = nil
	return log
}

func withSweeper(t *testing.T, cfg SyncerConfig, test func(t *testing.T, b *bench, c *sweeper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p, c := newScripted("scripted"), newSweeper()
		cfg.Cleaner = c
		b := &bench{Syncer: NewSyncer(p, cfg), p: p, t: t}
		b.random = func() float64 { return 0.5 }
		b.start()
		b.after(time.Minute)
		require.Equal(t, []string{"0s syncing ", "0s programmed <nil>", "0s clean", "1s clean"}, c.calls())
		test(t, b, c)
	})
}

// The rules come first, then the connections are forgotten, then they are looked for once more.
func TestCleaningFollowsTheRules(t *testing.T) {
	withSweeper(t, quiet, func(t *testing.T, b *bench, c *sweeper) {
		c.alert = func(call string) {
			if call == "clean" {
				require.NotNil(t, b.p.holds("a"), "the rules are in place")
			}
		}
		b.SetService("a", svc("10.0.0.1:80"))
		b.after(time.Hour)
		require.Equal(t, []string{"1m0s applying 1", "1m0s programmed <nil>", "1m0s clean", "1m1s clean"}, c.calls())
	})
}

// What a failure kept from being forgotten is made good once the rules are there.
func TestCleaningIsOwedUntilTheRulesAreThere(t *testing.T) {
	withSweeper(t, quiet, func(t *testing.T, b *bench, c *sweeper) {
		b.p.set(func() { b.p.fail = []error{errBroken, errBroken} })
		b.SetService("a", svc("10.0.0.1:80"))
		b.after(time.Hour)
		require.Equal(t, []string{
			"1m0s applying 1", "1m0s programmed broken",
			"1m0.15s syncing a", "1m0.15s programmed broken",
			"1m0.45s syncing a", "1m0.45s programmed <nil>", "1m0.45s clean", "1m1.45s clean",
		}, c.calls())
	})
}

func TestCleaningIsOwedUntilItIsDone(t *testing.T) {
	withSweeper(t, quiet, func(t *testing.T, b *bench, c *sweeper) {
		c.mu.Lock()
		c.fail = []error{errBroken, ErrPermission}
		c.mu.Unlock()
		b.SetService("a", svc("10.0.0.1:80"))
		b.after(time.Second / 4)
		require.ErrorIs(t, b.Overview().CleanErr, ErrPermission)
		b.after(time.Hour)
		require.NoError(t, b.Overview().CleanErr)
		require.Equal(t, []string{"1m0s applying 1", "1m0s programmed <nil>", "1m0s clean", "1m0.15s clean", "1m0.45s clean", "1m1s clean"}, c.calls())
		require.Equal(t, PhaseProgrammed, b.Status("a").Phase)
	})
}

// Programming does not wait for cleaning.
func TestCleaningDelaysNobody(t *testing.T) {
	withSweeper(t, quiet, func(t *testing.T, b *bench, c *sweeper) {
		c.mu.Lock()
		c.took = 10 * time.Second
		c.mu.Unlock()
		b.SetService("a", svc("10.0.0.1:80"))
		b.after(5 * time.Second)
		b.SetService("b", svc("10.0.0.2:80"))
		require.NoError(t, b.Wait(t.Context()))
		require.Equal(t, 65*time.Second, time.Since(c.began))
		b.after(time.Minute)
		require.Equal(t, []string{
			"1m0s applying 1", "1m0s programmed <nil>", "1m0s clean", "1m5s applying 1", "1m5s programmed <nil>", "1m20s clean",
		}, c.calls(), "and rests as long as it worked")
	})
}

// What is due when we stop is done still, within the grace.
func TestCleaningAtTheEnd(t *testing.T) {
	withSweeper(t, quiet, func(t *testing.T, b *bench, c *sweeper) {
		c.mu.Lock()
		c.took = 2 * time.Second
		c.mu.Unlock()
		b.SetService("a", svc("10.0.0.1:80"))
		b.after(time.Second)
		b.stop()
		require.NoError(t, <-b.done)
		b.done <- nil
		require.Equal(t, []string{"1m0s applying 1", "1m0s programmed <nil>", "1m0s clean", "1m1s clean"}, c.calls())
		require.Equal(t, 63*time.Second, time.Since(c.began), "the one that was under way is broken off, and done once more")
	})
}
