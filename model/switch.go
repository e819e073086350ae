package model

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A Drainer is a Programmer whose kernel needs the rules that a connection was opened by until it ends: taking them
// away cuts it. So it leaves them for a while, without new connections. (Where the kernel tracks connections apart from
// the rules, as with nftables and iptables, nothing has to be left.)
type Drainer interface {
	Programmer
	// Drain removes what no connection needs any more, or whose deadline has passed, and returns what remains. It is
	// cheap if nothing drains.
	Drain(ctx context.Context) ([]Drain, error)
	// Retire is Cleanup for one whose place another backend has taken: new connections pass it by, and what the open
	// ones need is left for Drain to remove, until nothing of ours is there. It returns what remains.
	Retire(ctx context.Context) ([]Drain, error)
}

// A Switched is what came of a [Switch].
type Switched struct {
	// Active says that the new backend serves new connections, even if there was an error: that of removing the old.
	Active bool
	// Result is what programming the new one did.
	Result Result
	// Removed says that of the old one nothing is left, or only what Remains.
	Removed bool
	// Remains is what is left of the old one for open connections. It has to go on draining: see [Switched.Drained].
	Remains []Drain

	from Programmer
}

// Drained waits until nothing remains of the old backend, and makes it drain meanwhile. It must not be closed before.
func (sw Switched) Drained(ctx context.Context) error {
	d, ok := sw.from.(Drainer)
	if !ok || len(sw.Remains) == 0 {
		return nil
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		switch remains, err := d.Drain(ctx); {
		case err != nil:
			return err
		case len(remains) == 0:
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// Switch moves a node from one backend to another without losing a connection: it programs want with the new one,
// verifies that the kernel holds it, and removes the old one. The two must own different objects of the kernel; two
// Programmers of one package that are configured for the same table do not, nor do those of package iptables that have
// one prefix, whatever their variants.
//
// Open connections go on. Clients that were tied to an endpoint by affinity may get another one for new connections.
// If the old one is a [Drainer], what its open connections need stays for a while, see [Switched.Remains].
//
// Nothing is changed by an error while Switched.Active is false: what was written is removed again, and the old one is
// still in force. Among the reasons are services that the new one cannot do ([ErrNotSupported]) or that it refuses;
// services that make no sense to any backend and conflicts between services are none. After an error with Active, the
// new one is in force; unless Switched.Removed, the old one has still to be removed, by its Cleanup.
//
// Nobody else may call the two Programmers meanwhile. To switch that of a [Syncer] use [Syncer.Switch].
func Switch(ctx context.Context, from, to Programmer, want State) (Switched, error) {
	sw := Switched{from: from}
	if err := fits(ctx, to, want); err != nil {
		return sw, fmt.Errorf("switch: %w", err)
	}
	var err error
	if sw.Result, err = establish(ctx, to, want); err != nil {
		return sw, fmt.Errorf("switch: %w", errors.Join(err, takeBack(ctx, to)))
	}
	sw.Active = true
	if sw.Remains, err = leave(ctx, from); err != nil {
		return sw, fmt.Errorf("switch: remove %s: %w", from.Features().Backend, err)
	}
	sw.Removed = true
	// The two may have shared something after all, a table that the old one has just removed say.
	if err = to.Check(ctx); errors.Is(err, ErrDrift) {
		sw.Result, err = to.Sync(ctx, want)
	}
	if err != nil {
		return sw, fmt.Errorf("switch: verify again: %w", err)
	}
	return sw, nil
}

// leave removes a backend whose place another one has taken, and returns what remains for open connections.
func leave(ctx context.Context, from Programmer) ([]Drain, error) {
	if d, ok := from.(Drainer); ok {
		return d.Retire(ctx)
	}
	return nil, from.Cleanup(ctx)
}

// fits reports, before anything is written, why a backend cannot take over a state.
func fits(ctx context.Context, to Programmer, want State) error {
	report, err := to.Probe(ctx)
	if err == nil {
		err = report.Err()
	}
	if err != nil {
		return err
	}
	features := to.Features()
	var errs []error
	for name, svc := range want.Services {
		if svc, err := normalise(svc); err == nil {
			if err := features.Check(svc); err != nil {
				errs = append(errs, &ServiceError{Service: name, Backend: features.Backend, Op: "validate", Err: err})
			}
		}
	}
	slices.SortFunc(errs, func(a, b error) int {
		return slices.Compare([]byte(a.Error()), []byte(b.Error()))
	})
	return errors.Join(errs...)
}

// establish programs a state and verifies that it is there.
func establish(ctx context.Context, to Programmer, want State) (Result, error) {
	res, err := to.Sync(ctx, want)
	if err != nil {
		return res, err
	}
	var errs []error
	for _, e := range res.Rejected {
		if !errors.Is(e, ErrInvalid) && !errors.Is(e, ErrConflict) {
			errs = append(errs, e)
		}
	}
	if len(errs) > 0 {
		return res, errors.Join(errs...)
	}
	return res, to.Check(ctx)
}

// takeBack removes what a failed attempt wrote, even if its context is over.
func takeBack(ctx context.Context, p Programmer) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := p.Cleanup(ctx); err != nil {
		return fmt.Errorf("remove %s again: %w", p.Features().Backend, err)
	}
	return nil
}
