package nftables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// maxTries is how often a transaction is tried again while others keep committing theirs, or while clients expire
// that it would delete.
const maxTries = 3

// commitPlan sends a plan's batch, if it says anything.
func (p *Programmer) commitPlan(ctx context.Context, next *plan, res *model.Result) error {
	if err := p.planPruning(ctx, next); err != nil {
		return err
	}
	if next.batch.empty() {
		return nil
	}
	var generation uint32
	if !next.fresh && !p.kernel.unconditional {
		generation = p.kernel.generation
	}
	buf, last := next.batch.bytes(generation)
	if p.cfg.Trace != nil {
		p.cfg.Trace(buf)
	}
	res.Transactions++
	res.Bytes += len(buf)
	return p.exchange(ctx, func(s *socket) error {
		if generation == 0 {
			if err := p.kernel.before(s); err != nil {
				return err
			}
		}
		made, err := s.commit(buf, messageSeq(buf), last)
		if err == nil {
			p.kernel.unconditional = false
			err = p.kernel.committed(s, next, made, generation != 0)
		}
		return err
	})
}

// planPruning adds to a batch the removal of clients whose endpoint does not serve any more.
func (p *Programmer) planPruning(ctx context.Context, next *plan) error {
	for _, pr := range next.prune {
		gone, err := p.clients(ctx, pr)
		if err != nil {
			return err
		}
		next.batch.forget(pr.family, pr.name, gone, pr.service)
	}
	return nil
}

// clients reads the clients that must go from a map.
func (p *Programmer) clients(ctx context.Context, pr pruning) (gone []element, err error) {
	err = p.exchange(ctx, func(s *socket) error {
		gone, err = s.readClients(p.cfg.Table, pr.family, pr.name, pr.addrs)
		if errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("map %s: %w", pr.name, model.ErrDrift)
		}
		return err
	})
	return gone, err
}

// pruneAgain forgets clients that were recorded with an endpoint while it was being removed. The rules are in place,
// so a failure is no more than a warning: such a client stays with an endpoint that is gone, until its entry expires.
func (p *Programmer) pruneAgain(ctx context.Context, done *plan, res *model.Result) {
	for tries := 0; tries < maxTries && len(done.prune) > 0; tries++ {
		again := newPlan(p.cfg, done.old, done.node, done.now, false, &p.memory)
		again.prune = done.prune
		err := p.commitPlan(ctx, again, res)
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
func (p *Programmer) tidy(ctx context.Context, res *model.Result) {
	for tries := 0; tries < maxTries && p.record.untidy(); tries++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(grace + time.Millisecond):
		}
		next := newPlan(p.cfg, p.record, p.record.node, time.Now(), false, &p.memory)
		next.sweep()
		next.finish()
		err := p.commitPlan(ctx, next, res)
		var no *refusal
		switch {
		case err == nil:
			p.record = next.commit()
			res.Deleted += next.batch.deleted
		case !errors.As(err, &no):
			res.Warnings = append(res.Warnings, fmt.Sprintf("unused chains may remain: %v", err))
			return
		}
	}
}

// judge decides what a failed commit means: whether to try again, after noting which services are to be left out, or
// which error to return.
func (p *Programmer) judge(ctx context.Context, next *plan, err error, refused *map[model.ServiceName]error, exact *bool, tries int) (bool, error) {
	var no *refusal
	if !errors.As(err, &no) {
		return false, err
	}
	if no.batch != nil {
		if !errors.Is(no.batch, unix.ERESTART) {
			return false, err
		}
		return p.overtaken(ctx, tries)
	}
	culprits := map[model.ServiceName]error{}
	for seq, cause := range no.messages {
		owners := next.batch.owners[seq]
		switch {
		case next.batch.volatile[seq] && tries < 10*maxTries:
			return true, nil // a client expired between reading and deleting it
		case len(owners) == 0:
			return false, err
		case !next.fresh && next.batch.elements[seq] && (cause == unix.ENOENT || cause == unix.EEXIST):
			return false, fmt.Errorf("elements of service %q: %w: %w", string(owners[0]), model.ErrDrift, cause)
		case len(owners) > 1 && !*exact:
			*exact = true
			return true, nil
		}
		for _, name := range owners {
			culprits[name] = commitError(cause)
		}
	}
	if !next.fresh {
		if drift := p.kernel.compare(ctx, p); drift != nil {
			return false, drift
		}
	}
	for name, cause := range culprits {
		switch {
		case (*refused)[name] == nil:
			put(refused, name, cause)
		case next.fresh && p.resolver.Form(name) != nil:
			p.resolver.Forget(name) // not even what it was before
		default:
			return false, err // it was left out already
		}
	}
	return len(culprits) > 0, err
}

// commitError turns what the kernel says about one service's objects into the model's terms.
func commitError(cause error) error {
	if errors.Is(cause, unix.ENOENT) {
		return fmt.Errorf("the kernel lacks an expression that this needs: %w: %w", model.ErrNotSupported, cause)
	}
	return meaning(cause)
}

// overtaken decides what to do once somebody else has committed since our last look.
func (p *Programmer) overtaken(ctx context.Context, tries int) (bool, error) {
	if err := p.kernel.compare(ctx, p); err != nil {
		return false, err
	}
	if tries >= maxTries {
		p.kernel.unconditional, p.kernel.doubtful = true, true
	}
	return true, nil
}
