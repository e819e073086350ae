package model

import (
	"context"
	"errors"
	"fmt"
)

// A Candidate is a backend that may be chosen.
type Candidate struct {
	// Name is the backend's name, "nftables" say.
	Name string
	// New makes its Programmer: what the constructor of its package does, with the caller's configuration.
	New func(ctx context.Context) (Programmer, error)
}

// A Refusal is why a candidate was not chosen. It unwraps to Err.
type Refusal struct {
	Name string
	Err  error
}

func (r Refusal) Error() string { return fmt.Sprintf("%s: %v", r.Name, r.Err) }

// Unwrap returns r.Err.
func (r Refusal) Unwrap() error { return r.Err }

// A Choice is what [FirstSupported] found.
type Choice struct {
	// Name and Programmer are the candidate that was chosen. The Programmer is the caller's to close.
	Name       string
	Programmer Programmer
	// Report is what its Probe said: Missing is empty, Warnings may not be.
	Report Report
	// Refused are the candidates before it, in their order.
	Refused []Refusal
}

// FirstSupported returns the first of the candidates that can work here: whose New succeeds and whose Probe misses
// nothing. It writes nothing. If none can, or ctx is over, the error joins the Refusal of each that was asked; Refused
// has them too.
func FirstSupported(ctx context.Context, candidates ...Candidate) (Choice, error) {
	var c Choice
	for _, candidate := range candidates {
		if err := ctx.Err(); err != nil {
			return c, fmt.Errorf("no backend chosen: %w", errors.Join(context.Cause(ctx), refusals(c.Refused)))
		}
		p, report, err := try(ctx, candidate)
		if err == nil {
			c.Name, c.Programmer, c.Report = candidate.Name, p, report
			return c, nil
		}
		c.Refused = append(c.Refused, Refusal{candidate.Name, err})
	}
	if len(candidates) == 0 {
		return c, fmt.Errorf("no backend to choose from: %w", ErrNotSupported)
	}
	return c, fmt.Errorf("no backend can work here: %w", refusals(c.Refused))
}

// try makes a candidate's Programmer and asks whether it can work. If it cannot, it is closed.
func try(ctx context.Context, c Candidate) (Programmer, Report, error) {
	p, err := c.New(ctx)
	if err != nil {
		return nil, Report{}, err
	}
	report, err := p.Probe(ctx)
	if err == nil {
		err = report.Err()
	}
	if err != nil {
		return nil, report, errors.Join(err, p.Close())
	}
	return p, report, nil
}

func refusals(all []Refusal) error {
	errs := make([]error, len(all))
	for i, r := range all {
		errs[i] = r
	}
	return errors.Join(errs...)
}
