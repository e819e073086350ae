package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/headgate/headgate/model"
)

// marks are those of all tables of a family.
type marks [len(tables)]mark

// checks is what Check remembers.
type checks struct {
	// unsure says that somebody else may have written between what was read and what was written, so that the marks prove
	// nothing until everything was read once more.
	unsure bool
	// nextFull is when everything may be read again.
	nextFull time.Time
}

// Reading everything may take a second of a processor for 20,000 rules. So it takes at most a fiftieth of the time, or
// is cheap. How long it took does not say that: others may have kept the processor busy.
const (
	cheap  = 4000 // rules
	sparse = 50
)

func (p *Programmer) takeMarks() ([]marks, error) {
	out := make([]marks, len(p.sides))
	for i, s := range p.sides {
		for _, t := range tables {
			m, err := s.mark(t)
			if err != nil {
				return nil, err
			}
			out[i][t] = m
		}
	}
	return out, nil
}

// known reports whether marks are those that were noted last.
func (p *Programmer) known(now []marks) bool {
	for i, s := range p.sides {
		if now[i] != s.marks {
			return false
		}
	}
	return true
}

// settleMarks notes the marks once the jobs are committed. If they differ from those before by more than the jobs did,
// somebody else wrote. What a job makes of legacy's marks cannot be told beforehand, so after each of them the next Check
// reads: otherwise the damage that others did in the meantime would count as ours.
func (w *work) settleMarks(jobs []*job, before []marks) error {
	after, err := w.takeMarks()
	if err != nil {
		return err
	}
	own := 0
	for _, j := range jobs {
		own += j.script.transactions
	}
	alone := own == 0 && slices.Equal(before, after)
	if w.variant == NFT {
		alone = generationsApart(before, after, own)
	}
	w.checks.unsure = w.checks.unsure || !alone
	for i, s := range w.sides {
		s.marks = after[i]
	}
	return nil
}

// Check reports whether the kernel still holds what was last written. As long as nobody at all wrote to our tables
// that costs nothing; in the legacy variant, whose kernel tells sizes alone, we are somebody too, and a rule that another
// one of the same size takes the place of is found when a later Check or Sync reads. Otherwise it compares all our chains
// or, if it did so just before and that took long, asks for the jumps and one chain of each table.
func (p *Programmer) Check(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return model.ErrClosed
	case !p.synced:
		return model.ErrNotSynced
	}
	if err := p.check(ctx); err != nil {
		return fmt.Errorf("iptables: %w", err)
	}
	return nil
}

func (p *Programmer) check(ctx context.Context) error {
	now, err := p.takeMarks()
	if err != nil {
		return err
	}
	if p.known(now) && !p.checks.unsure {
		return nil
	}
	if time.Now().Before(p.checks.nextFull) {
		return p.checkStructure(ctx)
	}
	began := time.Now()
	rules, err := p.checkAll(ctx, now)
	if err != nil {
		return err
	}
	for i, s := range p.sides {
		s.marks = now[i]
	}
	p.checks = checks{}
	if rules > cheap {
		p.checks.nextFull = time.Now().Add(sparse * time.Since(began))
	}
	return nil
}

// checkAll compares the chains of the tables that somebody wrote to, and returns how many rules those have.
func (p *Programmer) checkAll(ctx context.Context, now []marks) (rules int, err error) {
	forms := p.resolver.Forms()
	var found []error
	for i, s := range p.sides {
		_, want := rulesetOf(s.now.env, forms)
		for _, t := range tables {
			if now[i][t] == s.marks[t] && !p.checks.unsure {
				continue
			}
			have, err := s.read(ctx, t, p.names, s.now.jumps())
			if err != nil {
				return rules, err
			}
			rules += have.rules
			if what := drift(p.names, t, want[t], s.now.jumps(), have, s.echoes); what != "" {
				found = append(found, fmt.Errorf("%s: %s: %w", s.family, what, model.ErrDrift))
			}
		}
	}
	return rules, errors.Join(found...)
}

// checkStructure asks for canaries and jumps alone.
func (p *Programmer) checkStructure(ctx context.Context) error {
	var found []error
	for _, s := range p.sides {
		for _, t := range tables {
			has, err := s.hasChain(ctx, t, p.names.fixed(chainCanary))
			if err != nil {
				return err
			}
			if !has {
				found = append(found, fmt.Errorf("%s: table %s: no chain %s: %w", s.family, t, p.names.fixed(chainCanary), model.ErrDrift))
			}
		}
		for _, j := range s.now.jumps() {
			has, err := s.hasRule(ctx, j.table, j.from, splitWords(j.text)...)
			if err != nil && ctx.Err() != nil {
				return err
			}
			if err == nil && !has {
				found = append(found, fmt.Errorf("%s: table %s: no jump from %s: %w", s.family, j.table, j.from, model.ErrDrift))
			}
		}
	}
	return errors.Join(found...)
}
