package model

import (
	"errors"
	"fmt"
)

// Errors to test for with errors.Is. What a Programmer returns wraps one of them where a caller may want to decide by it.
var (
	// ErrNotSupported: the backend, or the kernel below it, cannot do this. Trying again does not help.
	ErrNotSupported = errors.New("not supported")
	// ErrInvalid: the service, as given, makes no sense.
	ErrInvalid = errors.New("invalid")
	// ErrConflict: another service already holds the frontend. It is handed over when that one goes.
	ErrConflict = errors.New("frontend is taken")
	// ErrPermission: the process may not do this; usually CAP_NET_ADMIN is missing.
	ErrPermission = errors.New("permission denied")
	// ErrBusy: something else holds a lock or keeps changing the kernel's rules. Try again.
	ErrBusy = errors.New("busy")
	// ErrDrift: the kernel does not hold what was last written. Sync repairs it.
	ErrDrift = errors.New("kernel state has drifted")
	// ErrNotSynced: Apply was called before the first Sync, or after a failure that only Sync can mend.
	ErrNotSynced = errors.New("not synced")
	// ErrClosed: the Programmer was closed.
	ErrClosed = errors.New("closed")
)

// A ServiceError names the service that one backend could not program, or not wholly, and the step that failed.
// It unwraps to its cause.
type ServiceError struct {
	Service ServiceName
	Backend string // "nftables", "iptables" or "ipvs"
	Op      string // "validate", "resolve", "plan" or "commit"
	Err     error
}

func (e *ServiceError) Error() string {
	return fmt.Sprintf("%s: %s: service %q: %v", e.Backend, e.Op, string(e.Service), e.Err)
}

// Unwrap returns the cause.
func (e *ServiceError) Unwrap() error { return e.Err }
