package model

import (
	"context"
	"errors"
	"time"
)

// An Observer is told what a [Syncer] does. Its methods are called by the goroutines that do the work, which wait for
// it: it should be quick, and be safe for concurrent use. It may call the Syncer's methods, but not those that wait.
// Embed [Unobserved] to be spared the methods that do not matter, and those that come with later versions.
type Observer interface {
	// Started is called once, when Run begins, before everything else. The Syncer may be kept, to ask for its
	// [Syncer.Overview].
	Started(s *Syncer)
	// Synced is called after every Sync and Apply.
	Synced(r SyncReport)
	// Checked is called after every Check.
	Checked(r CheckReport)
	// Cleaned is called after every attempt to forget stale connections.
	Cleaned(r CleanReport)
}

// Unobserved is an Observer that does nothing.
type Unobserved struct{}

// Started does nothing.
func (Unobserved) Started(*Syncer) {}

// Synced does nothing.
func (Unobserved) Synced(SyncReport) {}

// Checked does nothing.
func (Unobserved) Checked(CheckReport) {}

// Cleaned does nothing.
func (Unobserved) Cleaned(CleanReport) {}

// A Reason is why a Syncer programs.
type Reason string

// The reasons.
const (
	ReasonStart   Reason = "start"   // nothing has been programmed yet
	ReasonChange  Reason = "change"  // something changed
	ReasonService Reason = "service" // services that were refused by themselves are tried again
	ReasonRetry   Reason = "retry"   // an attempt failed
	ReasonDrift   Reason = "drift"   // the kernel does not hold what was written
	ReasonPeriod  Reason = "period"  // the resync period is over
	ReasonAsked   Reason = "asked"   // [Syncer.Resync] was called
	ReasonSwitch  Reason = "switch"  // another backend takes over
)

// A SyncReport is about one Sync or Apply.
type SyncReport struct {
	Backend string
	// Full says that it was a Sync, with everything.
	Full   bool
	Reason Reason
	Began  time.Time
	Took   time.Duration
	// Changes counts the services that were named: those that changed or, of a Sync, all.
	Changes int
	// Latency is the time from the first change that no earlier attempt had programmed to now; 0 after an error and
	// where nothing had changed. Latencies has that of each changed service, the node counting as one, in no order.
	Latency   time.Duration
	Latencies []time.Duration
	Result    Result
	Err       error
}

// A CheckReport is about one Check.
type CheckReport struct {
	Backend string
	Began   time.Time
	Took    time.Duration
	Err     error // wraps [ErrDrift] if the kernel does not hold what was written
}

// A CleanReport is about one attempt to forget stale connections.
type CleanReport struct {
	Began  time.Time
	Took   time.Duration
	Result Result // Deleted counts the connections forgotten
	Err    error
}

// FailureClass names the kind of an error in one word, for metrics: "busy", "permission", "not_supported", "invalid",
// "drift", "not_synced", "closed", "timeout", "canceled" or "other"; "" for nil.
func FailureClass(err error) string {
	if err == nil {
		return ""
	}
	for _, class := range failureClasses {
		if errors.Is(err, class.err) {
			return class.name
		}
	}
	return "other"
}

// FailureClasses lists all that [FailureClass] returns for errors.
func FailureClasses() []string {
	names := make([]string, 0, len(failureClasses)+1)
	for _, class := range failureClasses {
		names = append(names, class.name)
	}
	return append(names, "other")
}

// failureClasses are in the order in which they are tried: what an administrator must act upon comes first.
var failureClasses = [...]struct {
	name string
	err  error
}{
	{"permission", ErrPermission},
	{"not_supported", ErrNotSupported},
	{"invalid", ErrInvalid},
	{"closed", ErrClosed},
	{"timeout", context.DeadlineExceeded},
	{"canceled", context.Canceled},
	{"drift", ErrDrift},
	{"not_synced", ErrNotSynced},
	{"busy", ErrBusy},
}
