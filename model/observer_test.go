package model

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A notebook is an Observer that keeps what it is told.
type notebook struct {
	mu      sync.Mutex // guards what follows
	started *Syncer
	synced  []SyncReport
	checked []CheckReport
	cleaned []CleanReport
}

func (n *notebook) Started(s *Syncer) { n.started = s }

func (n *notebook) Synced(r SyncReport) {
	n.started.Overview() // it may ask
	n.mu.Lock()
	defer n.mu.Unlock()
	n.synced = append(n.synced, r)
}

func (n *notebook) Checked(r CheckReport) {
	n.started.Overview()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.checked = append(n.checked, r)
}

func (n *notebook) Cleaned(r CleanReport) {
	n.started.Overview()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cleaned = append(n.cleaned, r)
}

func (n *notebook) last() SyncReport {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.synced[len(n.synced)-1]
}

func TestObserver(t *testing.T) {
	cfg := quiet
	cfg.CheckPeriod = time.Minute
	n := &notebook{}
	cfg.Observer = n
	withSweeper(t, cfg, func(t *testing.T, b *bench, c *sweeper) {
		require.Same(t, b.Syncer, n.started)
		r := n.last()
		require.Equal(t, SyncReport{Backend: "scripted", Full: true, Reason: ReasonStart, Began: b.p.began}, r)

		b.p.set(func() { b.p.took = time.Second })
		b.SetService("a", svc("10.0.0.1:80"))
		b.after(time.Second / 4)
		b.SetService("b", svc("10.0.0.2:80"))
		b.SetEndpoints("a", eps("10.244.0.1:80"))
		b.after(time.Second / 4)
		b.SetEndpoints("a", eps("10.244.0.2:80"))
		b.SetService("c", svc("10.0.0.3:80"))
		b.after(30 * time.Second)
		require.Len(t, n.synced, 3)
		require.Equal(t, time.Second, n.synced[1].Took)
		require.Equal(t, time.Second, n.synced[1].Latency)
		require.Equal(t, ReasonChange, n.synced[1].Reason)
		require.False(t, n.synced[1].Full)
		r = n.last()
		require.Equal(t, 3, r.Changes)
		require.Equal(t, 3, r.Result.Changed)
		require.Equal(t, 2750*time.Millisecond, r.Latency, "since the first change that was not seen: the rest of the first, its rest, its own time")
		require.ElementsMatch(t, []time.Duration{2750 * time.Millisecond, 2750 * time.Millisecond, 2500 * time.Millisecond}, r.Latencies)

		// The latency of what had to be repeated goes on.
		b.p.set(func() { b.p.took, b.p.fail = 0, []error{ErrBusy} })
		b.SetService("d", svc("10.0.0.4:80"))
		require.NoError(t, b.Wait(t.Context()))
		synctest.Wait()
		failed := n.synced[len(n.synced)-2]
		require.ErrorIs(t, failed.Err, ErrBusy)
		require.Zero(t, failed.Latency)
		require.Equal(t, SyncReport{Backend: "scripted", Full: true, Reason: ReasonRetry, Began: failed.Began.Add(150 * time.Millisecond), Changes: 4,
			Latency: 150 * time.Millisecond, Latencies: []time.Duration{150 * time.Millisecond}, Result: Result{Changed: 1}}, n.last())

		b.p.set(func() { b.p.checks = []error{ErrDrift} })
		b.after(2 * time.Minute)
		require.ErrorIs(t, n.checked[1].Err, ErrDrift)
		require.NoError(t, n.checked[0].Err)
		require.Equal(t, ReasonDrift, n.last().Reason)
		require.Zero(t, n.last().Latency)
		require.NoError(t, b.Resync(t.Context()))
		synctest.Wait()
		require.Equal(t, ReasonAsked, n.last().Reason)
		require.NotEmpty(t, n.cleaned)
		require.Positive(t, n.cleaned[0].Result.Deleted)
		o := b.Overview()
		require.Equal(t, 4, o.Services)
		require.EqualValues(t, 6, o.Changes, "calls, not differences")
		require.True(t, o.Running && o.Synced && o.Ready)
	})
}

func TestFailureClass(t *testing.T) {
	for want, err := range map[string]error{
		"": nil, "other": errBroken, "busy": ErrBusy, "drift": ErrDrift, "closed": ErrClosed, "invalid": ErrInvalid, "not_synced": ErrNotSynced,
		"permission": ErrPermission, "not_supported": ErrNotSupported, "timeout": context.DeadlineExceeded, "canceled": context.Canceled,
	} {
		if err != nil {
			err = fmt.Errorf("nftables: %w", errors.Join(err, errBroken))
			require.Contains(t, FailureClasses(), want)
		}
		require.Equal(t, want, FailureClass(err))
	}
	require.Len(t, FailureClasses(), 10)
	require.Equal(t, "timeout", FailureClass(errors.Join(ErrBusy, context.DeadlineExceeded)))
}

func TestLog(t *testing.T) {
	var mu sync.Mutex
	var buf bytes.Buffer
	write := func(b []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return buf.Write(b) }
	cfg := quiet
	cfg.CheckPeriod = time.Minute
	cfg.Logger = slog.New(slog.NewTextHandler(writer(write), &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "took" || a.Key == "latency" {
			return slog.Attr{}
		}
		return a
	}}))
	bubble(t, cfg, func(t *testing.T, b *bench) {
		logged := func(want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			got := strings.Split(strings.TrimSpace(buf.String()), "\n")
			buf.Reset()
			require.Equal(t, want, got)
		}
		b.start()
		logged("level=INFO msg=programmed backend=scripted reason=start full=true services=0 added=0 changed=0 deleted=0")
		b.SetService("a", svc("10.0.0.1:80"))
		b.SetService("bad", Service{Protocol: 9})
		require.NoError(t, b.Wait(t.Context()))
		logged(`level=WARN msg="service is not programmed as wanted" service=bad phase=rejected err="scripted: validate: service \"bad\": protocol 9: invalid"`)
		b.p.set(func() { b.p.warnings = []string{"a forward hook drops"} })
		require.NoError(t, b.Resync(t.Context()))
		require.NoError(t, b.Resync(t.Context()))
		logged(`level=WARN msg="a forward hook drops" backend=scripted`) // once, and of the bad one no more
		b.p.set(func() { b.p.fail = []error{ErrBusy} })
		b.SetService("c", svc("10.0.0.3:80"))
		require.NoError(t, b.Wait(t.Context()))
		logged("level=WARN msg=\"cannot program\" backend=scripted reason=change full=false services=1 err=busy retry_in=150ms",
			"level=INFO msg=programmed backend=scripted reason=retry full=true services=3 added=0 changed=1 deleted=0 failures=1")
		b.p.set(func() { b.p.checks = []error{ErrDrift} })
		b.after(time.Minute)
		logged(`level=WARN msg="somebody else changed the kernel: repairing" backend=scripted err="kernel state has drifted"`,
			"level=INFO msg=programmed backend=scripted reason=drift full=true services=3 added=0 changed=0 deleted=0")
		for i := range 30 {
			b.SetService(ServiceName(fmt.Sprint("bad", i)), Service{Protocol: 9})
		}
		require.NoError(t, b.Wait(t.Context()))
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		require.LessOrEqual(t, strings.Count(buf.String(), "\n"), 30)
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
