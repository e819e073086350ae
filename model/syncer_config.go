package model

import (
	"log/slog"
	"time"
)

// SyncerConfig configures [NewSyncer]. The zero SyncerConfig is ready to use.
type SyncerConfig struct {
	// MinInterval is the least time between two programmings of changes on average, Burst how many may follow each
	// other at once before that. The first change is programmed immediately; what comes in too short a time after it is
	// gathered. Programming that takes longer than MinInterval is given as much rest as it took. 0 means 100
	// milliseconds and 2; a negative MinInterval none.
	MinInterval time.Duration
	Burst       int
	// CheckPeriod is the time from one [Programmer.Check] to the next, about. 0 means 10 seconds, a negative one never.
	CheckPeriod time.Duration
	// ResyncPeriod is the time from one [Programmer.Sync] to the next, about, where nothing else asks for one.
	// 0 means an hour, a negative one never.
	ResyncPeriod time.Duration
	// Retry says when a failed attempt to program is repeated. Zero values mean 200 milliseconds to 30 seconds.
	Retry Backoff
	// ServiceRetry says when a service that was refused by itself is tried again, if trying again can help: neither
	// [ErrInvalid] nor [ErrNotSupported]. Zero values mean a second to five minutes.
	ServiceRetry Backoff
	// Timeout bounds each call of the Programmer, and a [Syncer.Switch] in all. 0 means five minutes.
	Timeout time.Duration
	// StopGrace is how long a call that is under way when Run is told to stop may take to finish. 0 means 10 seconds,
	// a negative one that its context is cancelled at once.
	StopGrace time.Duration
	// DrainPeriod is the time from one [Drainer.Drain] to the next while something drains. 0 means a second.
	DrainPeriod time.Duration

	// Cleaner, Nodes and Observer stay the caller's, who closes what has to be closed after Run has ended. To go without
	// one leave it nil: a nil pointer of its type is not nil here.

	// Cleaner forgets the connections that a change made stale, after the rules are in place. Nil forgets none.
	Cleaner Cleaner
	// Nodes tells the addresses of the node. From its first report on they replace those in the Node that was set.
	// Nil leaves that to the caller.
	Nodes NodeWatcher
	// Observer is told what was done. Nil tells nobody.
	Observer Observer
	// Logger logs what the person on call should know, and every attempt at level Debug. Nil logs nothing.
	Logger *slog.Logger
}

// A Backoff says how long to wait before something that failed is tried again: Min after the first failure, twice as
// long after each further one, at most Max; and of that, by chance, between half and all, so that many nodes that
// failed together do not come back together.
type Backoff struct{ Min, Max time.Duration }

// wait returns how long to wait after so many failures, at least one. Random is from [0, 1).
func (b Backoff) wait(failures int, random float64) time.Duration {
	d := b.Min
	for range failures - 1 {
		if d >= b.Max/2 {
			d = b.Max
			break
		}
		d *= 2
	}
	d = min(d, b.Max)
	return d/2 + time.Duration(random*float64(d-d/2))
}

func (b Backoff) withDefaults(least, most time.Duration) Backoff {
	if b.Min <= 0 {
		b.Min = least
	}
	if b.Max <= 0 {
		b.Max = most
	}
	b.Max = max(b.Min, b.Max)
	return b
}

// withDefaults returns cfg with its zero values replaced by what they mean.
func (cfg SyncerConfig) withDefaults() SyncerConfig {
	set := func(d *time.Duration, zero time.Duration) {
		if *d == 0 {
			*d = zero
		}
	}
	set(&cfg.MinInterval, 100*time.Millisecond)
	set(&cfg.CheckPeriod, 10*time.Second)
	set(&cfg.ResyncPeriod, time.Hour)
	set(&cfg.StopGrace, 10*time.Second)
	cfg.MinInterval = max(cfg.MinInterval, 0)
	cfg.StopGrace = max(cfg.StopGrace, 0)
	if cfg.Burst <= 0 {
		cfg.Burst = 2
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 5 * time.Minute
	}
	if cfg.DrainPeriod <= 0 {
		cfg.DrainPeriod = time.Second
	}
	cfg.Retry = cfg.Retry.withDefaults(200*time.Millisecond, 30*time.Second)
	cfg.ServiceRetry = cfg.ServiceRetry.withDefaults(time.Second, 5*time.Minute)
	if cfg.Observer == nil {
		cfg.Observer = Unobserved{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg
}

// A pace keeps programming apart: so many times at once, then once an interval.
type pace struct {
	interval time.Duration
	burst    int
	// due is when all of the burst may be used again.
	due time.Time
}

// next returns the earliest time of the next programming, one that has passed for now.
func (p *pace) next() time.Time {
	return p.due.Add(-time.Duration(p.burst-1) * p.interval)
}

// spend notes that something was programmed. Nothing is earned while that lasts, and it costs an interval or, without
// one to speak of, as much time as it took.
func (p *pace) spend(began, ended time.Time) {
	took := ended.Sub(began)
	due := p.due.Add(took)
	if due.Before(ended) {
		due = ended
	}
	p.due = due.Add(max(p.interval, took))
}
