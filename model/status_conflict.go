package model

import (
	"errors"
	"fmt"
)

// A ConflictError says that a service does without a frontend which another one holds. It unwraps to [ErrConflict].
type ConflictError struct {
	Frontend FrontendKey
	Holder   ServiceName
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s: %v by %q", e.Frontend, ErrConflict, string(e.Holder))
}

// Unwrap returns [ErrConflict].
func (e *ConflictError) Unwrap() error { return ErrConflict }

// conflictsIn returns every ConflictError in the tree of an error.
func conflictsIn(err error) []ConflictError {
	if err == nil {
		return nil
	}
	if c, ok := err.(*ConflictError); ok {
		return []ConflictError{*c}
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		var all []ConflictError
		for _, e := range many.Unwrap() {
			all = append(all, conflictsIn(e)...)
		}
		return all
	}
	return conflictsIn(errors.Unwrap(err))
}

// conflictError makes one error of several conflicts of a service.
func conflictError(name ServiceName, backend string, conflicts []ConflictError) error {
	errs := make([]error, len(conflicts))
	for i := range conflicts {
		errs[i] = &conflicts[i]
	}
	return &ServiceError{Service: name, Backend: backend, Op: "resolve", Err: errors.Join(errs...)}
}
