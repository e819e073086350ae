package model

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A Programmer makes the kernel hold a State. It is safe for concurrent use; calls that write wait for each other.
//
// What is passed in is copied. Services that cannot be programmed are listed in [Result.Rejected], never in the error:
// each keeps the form in which it was last programmed, if it is still wanted at all, and everything else is committed.
// Any error means that the state of the kernel is unknown to the Programmer: until the next successful Sync, Apply
// returns [ErrNotSynced]. The exceptions are ErrNotSynced and [ErrClosed] themselves, which mean that nothing was done.
type Programmer interface {
	// Sync makes the kernel hold want and nothing else of ours, whatever it holds now. It is for the start, for after
	// an error, and for drift. It replaces or adopts what is there without disturbing connections or affinity.
	Sync(ctx context.Context, want State) (Result, error)
	// Apply programs a diff against the state last synced or applied; its cost follows the diff. The Programmer
	// compares with its own record, so Change.Before need not be right. Before the first Sync it returns ErrNotSynced.
	Apply(ctx context.Context, diff Diff) (Result, error)
	// Check reports, cheaply, whether the kernel still holds what was last written: nil, or an error that wraps
	// [ErrDrift] and says what differs. Before the first Sync it returns ErrNotSynced.
	Check(ctx context.Context) error
	// Cleanup removes everything ours from the kernel and nothing else, whoever wrote it; it may be called without a
	// Sync, and twice. Afterwards only Sync programs again.
	Cleanup(ctx context.Context) error
	// Probe says what the kernel and the host lack for this backend, and what stands in the way. It writes nothing.
	Probe(ctx context.Context) (Report, error)
	// Close releases sockets and leaves the rules in place. Further calls return ErrClosed, Close itself nil.
	Close() error
	// Features says what this backend can do. Whatever it cannot is rejected per service, never silently approximated.
	Features() FeatureSet
}

// A Result says what one Sync or Apply did.
type Result struct {
	// Added, Changed and Deleted count objects in the kernel: set elements, rules, chains, virtual and real servers, routes.
	Added, Changed, Deleted int
	// Transactions counts the kernel transactions (batches, restores, bursts of requests), Bytes what was sent in them.
	Transactions, Bytes int
	// Steps says how long each step took, in order.
	Steps []Step
	// Rejected has an error for each service of this call that could not be programmed, or only without some of its
	// frontends ([ErrConflict]) or endpoints, sorted by service.
	Rejected []*ServiceError
	// Promoted names services that took over a frontend in this call which another one had held.
	Promoted []ServiceName
	// Warnings are what the person on call should know though nothing failed.
	Warnings []string
}

// A Step is one step of the work, "plan" say, and how long it took.
type Step struct {
	Name string
	Took time.Duration
}

// AddStep adds to the time that a step took, which began then and ends now. A step that is taken again is no new one.
func (r *Result) AddStep(name string, began time.Time) {
	i := slices.IndexFunc(r.Steps, func(s Step) bool { return s.Name == name })
	if i < 0 {
		if i = len(r.Steps); i == 0 {
			r.Steps = make([]Step, 0, 4)
		}
		r.Steps = append(r.Steps, Step{Name: name})
	}
	r.Steps[i].Took += time.Since(began)
}

// Written returns how many objects were written in all.
func (r Result) Written() int { return r.Added + r.Changed + r.Deleted }

// Took returns how long all steps took.
func (r Result) Took() time.Duration {
	var sum time.Duration
	for _, s := range r.Steps {
		sum += s.Took
	}
	return sum
}

// Err returns the errors of all rejected services joined, nil if there are none.
func (r Result) Err() error {
	errs := make([]error, len(r.Rejected))
	for i, e := range r.Rejected {
		errs[i] = e
	}
	return errors.Join(errs...)
}

func (r Result) String() string {
	return fmt.Sprintf("%d added, %d changed, %d deleted, %d bytes in %d transactions, %d rejected, %v",
		r.Added, r.Changed, r.Deleted, r.Bytes, r.Transactions, len(r.Rejected), r.Took().Round(time.Microsecond))
}

// A Report is what a backend found out about the kernel and the host.
type Report struct {
	Backend string
	// Missing is what the backend cannot work without. Empty means that it can work.
	Missing []Finding
	// Warnings is what stands in the way of some traffic: sysctls that are not set, a forward hook that drops.
	Warnings []Finding
}

// Err returns the errors of all that is missing joined, nil if nothing is.
func (r Report) Err() error {
	errs := make([]error, len(r.Missing))
	for i, f := range r.Missing {
		errs[i] = f
	}
	return errors.Join(errs...)
}

// A Finding is one thing that a Probe noticed. It is an error that unwraps to Err.
type Finding struct {
	// What is the thing, by the name that its documentation uses: "nft_fib", "CAP_NET_ADMIN", "net.ipv4.ip_forward".
	What string
	// Err says what is wrong with it. It wraps [ErrNotSupported] or [ErrPermission] for what is missing.
	Err error
	// Remedy is what the administrator can do: a command, as a rule.
	Remedy string
}

func (f Finding) Error() string {
	if f.Remedy == "" {
		return fmt.Sprintf("%s: %v", f.What, f.Err)
	}
	return fmt.Sprintf("%s: %v (%s)", f.What, f.Err, f.Remedy)
}

// Unwrap returns f.Err.
func (f Finding) Unwrap() error { return f.Err }

// A FeatureSet says what a backend can do.
type FeatureSet struct {
	Backend string
	// Balances are the ways of balancing that it can do.
	Balances []Balance
	// HashPort says that it can hash the client's port along with its address.
	HashPort bool
	// AffinityFloor is the shortest affinity that it can do. 0 means every one that a Service may have.
	AffinityFloor time.Duration
	// Differences are the points in which its answers differ from those of the other backends.
	Differences []Difference
}

// A Difference is one documented point in which a backend differs.
type Difference struct {
	ID   string // a short name, "affinity-limit"
	Text string // what exactly is different
}

// Differs reports whether the backend has the named difference.
func (f FeatureSet) Differs(id string) bool {
	return slices.ContainsFunc(f.Differences, func(d Difference) bool { return d.ID == id })
}

// Check returns nil if the backend can do all that a service asks for, else an error that wraps [ErrNotSupported] and
// names what it cannot do.
func (f FeatureSet) Check(s Service) error {
	hashes := s.Balance == SourceHash || s.Balance == Maglev
	switch {
	case !slices.Contains(f.Balances, s.Balance):
		return fmt.Errorf("balance %s: %w", s.Balance, ErrNotSupported)
	case s.HashPort && hashes && !f.HashPort:
		return fmt.Errorf("hashing the port: %w", ErrNotSupported)
	case s.Affinity > 0 && s.Affinity < f.AffinityFloor:
		return fmt.Errorf("affinity of %v, less than %v: %w", s.Affinity, f.AffinityFloor, ErrNotSupported)
	}
	return nil
}
