package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/nlink"
	"github.com/headgate/headgate/model"
)

// maxTries is how often a transaction is tried again while others keep committing theirs, or while clients expire
// that it would delete.
const maxTries = 3

// commitPlan sends a plan's batch, if it says anything.
func (t *Table) commitPlan(ctx context.Context, next *Plan, res *model.Result) error {
	if err := t.planPruning(ctx, next); err != nil {
		return err
	}
	if next.batch.empty() {
		return nil
	}
	var generation uint32
	if !next.fresh && !t.kernel.unconditional {
		generation = t.kernel.generation
	}
	tx := next.batch.transaction(generation)
	if t.cfg.Trace != nil {
		whole := slices.Concat(tx.pieces...)
		t.cfg.Trace(whole)
		tx.pieces = append(tx.pieces[:0], whole)
	}
	res.Transactions++
	res.Bytes += tx.size
	return t.exchange(ctx, func(s *socket) error {
		made, err := s.commit(tx)
		if err == nil {
			t.kernel.unconditional = false
			err = t.kernel.committed(s, next, made, generation != 0)
		}
		return err
	})
}

// planPruning adds to a batch the removal of clients whose endpoint does not serve any more.
func (t *Table) planPruning(ctx context.Context, next *Plan) error {
	for _, pr := range next.prune {
		gone, err := t.clients(ctx, pr)
		if err != nil {
			return err
		}
		next.batch.forget(pr.family, clientMapSet(pr.name, 0, 0), gone, pr.service)
	}
	return nil
}

// clients reads the clients that must go from a map.
func (t *Table) clients(ctx context.Context, pr pruning) (gone []Element, err error) {
	err = t.exchange(ctx, func(s *socket) error {
		err := nlink.Steady(func() (err error) {
			gone, err = s.readClients(t.cfg.Name, pr.family, pr.name, pr.addrs)
			return err
		})
		if errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("map %s: %w", pr.name, model.ErrDrift)
		}
		return err
	})
	return gone, err
}

// pruneAgain forgets clients that were recorded with an endpoint while it was being removed. The rules are in place,
// so a failure is no more than a warning: such a client stays with an endpoint that is gone, until its entry expires.
func (t *Table) pruneAgain(ctx context.Context, done *Plan, res *model.Result) {
	for tries := 0; tries < maxTries && len(done.prune) > 0; tries++ {
		again := &Plan{cfg: &t.cfg, batch: newBatch(t.cfg.Name, t.cfg.Sets), prune: done.prune} // done is not committed yet
		err := t.commitPlan(ctx, again, res)
		if err == nil && again.batch.empty() {
			return
		}
		var no *refusal
		if err != nil && !errors.As(err, &no) {
			res.Warnings = append(res.Warnings, fmt.Sprintf("clients of removed endpoints may remain: %v", err))
			return
		}
	}
}

// tidy removes what a Sync had to leave for a later transaction. What the kernel has not released by then stays for the
// next one: it does no harm.
func (t *Table) tidy(ctx context.Context, res *model.Result) {
	for tries := 0; tries < maxTries && t.record.untidy(); tries++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(grace + time.Millisecond):
		}
		next := newPlan(&t.cfg, t.record, t.record.node, time.Now(), false, &t.memory)
		next.sweep()
		next.finish()
		err := t.commitPlan(ctx, next, res)
		var no *refusal
		switch {
		case err == nil:
			t.record = next.commit()
			res.Deleted += next.batch.deleted
		case !errors.As(err, &no):
			res.Warnings = append(res.Warnings, fmt.Sprintf("unused chains may remain: %v", err))
			return
		}
	}
}

// A manner is how to plan after the kernel refused the plan before.
type manner struct {
	exact bool // so that an error names one service
	anew  bool // from an empty table: somebody has left what a Sync cannot work around
}

// attempt plans and commits until the kernel takes it or refuses services by name.
func (t *Table) attempt(ctx context.Context, res *model.Result, plan func(how manner) (*Plan, error)) (map[model.ServiceName]error, error) {
	var how manner
	for tries := 0; ; tries++ {
		start := time.Now()
		next, err := plan(how)
		if err != nil {
			return nil, t.fail(err)
		}
		res.AddStep("plan", start)
		if len(next.refused) > 0 {
			return next.refused, nil
		}
		start = time.Now()
		err = t.commitPlan(ctx, next, res)
		res.AddStep("commit", start)
		if err == nil {
			t.record = next.commit()
			res.Added += next.batch.added
			res.Changed += next.batch.changed
			res.Deleted += next.batch.deleted
			res.Warnings = append(res.Warnings, next.warnings...)
			t.pruneAgain(ctx, next, res)
			return nil, nil
		}
		culprits, err := t.judge(ctx, next, err, &how, tries)
		switch {
		case err != nil:
			return nil, t.fail(err)
		case len(culprits) > 0:
			return culprits, nil
		}
	}
}

// judge decides what a failed commit means: which services the kernel refuses, which error to return or, with neither,
// to try again.
func (t *Table) judge(ctx context.Context, next *Plan, err error, how *manner, tries int) (map[model.ServiceName]error, error) {
	var no *refusal
	if !errors.As(err, &no) {
		return nil, err
	}
	if no.batch != nil {
		if !errors.Is(no.batch, unix.ERESTART) {
			return nil, err
		}
		return nil, t.overtaken(ctx, tries)
	}
	if next.fresh && tries < maxTries {
		// What the plan builds on may have gone since it was read.
		if id, err := t.generation(ctx); err != nil || id != t.kernel.generation {
			return nil, err
		}
	}
	culprits := map[model.ServiceName]error{}
	for seq, cause := range no.messages {
		owners := next.batch.owners[seq]
		switch {
		case next.batch.volatile[seq] && tries < 10*maxTries:
			return nil, nil // a client expired between reading and deleting it
		case len(owners) == 0 && next.fresh && !how.anew && cause != unix.EINVAL: // what makes no sense would make none then
			how.anew = true
			return nil, nil
		case len(owners) == 0:
			return nil, err
		case next.fresh && next.batch.elements[seq] && (cause == unix.EEXIST || cause == unix.ENOTEMPTY) && tries < maxTries:
			return nil, nil // somebody else has added it, or what overlaps it, since it was read
		case !next.fresh && next.batch.elements[seq] && (cause == unix.ENOENT || cause == unix.EEXIST):
			return nil, fmt.Errorf("elements of service %q: %w: %w", string(owners[0]), model.ErrDrift, cause)
		case len(owners) > 1 && !how.exact:
			how.exact = true
			return nil, nil
		}
		for _, name := range owners {
			culprits[name] = commitError(cause)
		}
	}
	if !next.fresh {
		if drift := t.kernel.compare(ctx, t); drift != nil {
			return nil, drift
		}
	}
	if len(culprits) == 0 {
		return nil, err
	}
	return culprits, nil
}

// commitError turns what the kernel says about one service's objects into the model's terms.
func commitError(cause error) error {
	if errors.Is(cause, unix.ENOENT) {
		return fmt.Errorf("the kernel lacks an expression that this needs: %w: %w", model.ErrNotSupported, cause)
	}
	return nlink.Meaning(cause)
}

// overtaken decides what to do once somebody else has committed since our last look.
func (t *Table) overtaken(ctx context.Context, tries int) error {
	if err := t.kernel.compare(ctx, t); err != nil {
		return err
	}
	if tries >= maxTries {
		t.kernel.unconditional, t.kernel.doubtful = true, true
	}
	return nil
}
