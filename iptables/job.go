package iptables

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/headgate/headgate/model"
)

// A job is what one work does in one family.
type job struct {
	*side
	to    *env
	after programmed
	// want is all that shall be there, where the job goes by what the kernel holds.
	want   ruleset
	stages []stage
	script *script
	// warnings are about what others have in the tables.
	warnings []string
}

// changeJob plans a change of what is known to be there.
func (s *side) changeJob(to *env, changes []model.ResolvedChange) *job {
	j := &job{side: s, to: to}
	j.after, j.stages = plan(s.now, to, changes)
	return j
}

// wholeJob plans everything.
func (s *side) wholeJob(to *env, forms []*model.Resolved) *job {
	j := &job{side: s, to: to}
	j.after, j.want = rulesetOf(to, forms)
	return j
}

// converge leaves only what differs from what the kernel holds to be done. The nat table comes first: where nothing was,
// services work before anything is rejected.
func (j *job) converge(n names, held [len(tables)]listing) {
	for _, t := range tables {
		have := held[t]
		if !have.readable {
			j.warnings = append(j.warnings, fmt.Sprintf("%s: table %s: somebody's rules cannot be listed by iptables: all of ours are written anew", j.family, t))
		}
		if t == filter {
			if why := have.forwardStops(n, true); why != "" {
				j.warnings = append(j.warnings, fmt.Sprintf("%s: FORWARD: %s", j.family, why))
			}
		}
		if s := converge(n, t, j.want[t], j.to.jumps(), have); !s.empty() {
			j.stages = append(j.stages, s)
		}
	}
}

// each does something for all jobs: at the same time where that is of any use.
func (w *work) each(jobs []*job, together bool, do func(*job) error) error {
	errs := make([]error, len(jobs))
	if !together {
		for i, j := range jobs {
			if errs[i] = do(j); errs[i] != nil {
				break
			}
		}
		return errors.Join(errs...)
	}
	var wg sync.WaitGroup
	for i, j := range jobs {
		wg.Go(func() { errs[i] = do(j) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// A scriptError is the failure of a script.
type scriptError struct {
	script *script
	family model.Family
	err    error
}

func (e *scriptError) Error() string { return fmt.Sprintf("%s: %v", e.family, e.err) }
func (e *scriptError) Unwrap() error { return e.err }

// run commits the jobs and notes what is there now. The marks were taken before anything was looked at.
func (w *work) run(jobs []*job, before []marks) error {
	for _, j := range jobs {
		j.script = newScript(j.stages)
		if j.script.transactions > 0 && w.cfg.Trace != nil {
			w.cfg.Trace(j.family, j.script.text)
		}
		if err := w.unrouteFor(j.family, j.stages); err != nil {
			return err
		}
	}
	// The programs of the legacy variant would wait for one lock.
	err := w.each(jobs, w.variant != Legacy, func(j *job) error {
		if err := j.commit(w.ctx, j.script); err != nil {
			return &scriptError{j.script, j.family, err}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if err := w.route(j); err != nil {
			return err
		}
		w.count(j)
		j.now = j.after
	}
	w.step("commit")
	return w.settleMarks(jobs, before)
}

// count adds to the result what a job wrote.
func (w *work) count(j *job) {
	for _, s := range j.stages {
		w.res.Added += s.added
		w.res.Changed += s.changed
		w.res.Deleted += s.deleted
		if len(s.kept) > 0 {
			w.res.Warnings = append(w.res.Warnings, fmt.Sprintf("%s: table %s: rules of others lead to %s, which we no longer use: emptied, not deleted", j.family, s.table, few(s.kept)))
		}
	}
	w.res.Warnings = append(w.res.Warnings, j.warnings...)
	w.res.Transactions += j.script.transactions
	if j.script.transactions > 0 {
		w.res.Bytes += len(j.script.text)
	}
}

// route lets packets from loopback addresses leave the node, once the rules are there that keep others from sending to
// loopback addresses.
func (w *work) route(j *job) error {
	if !j.to.loopback || routesLoopback(w.ns) {
		return nil
	}
	return routeLoopback(w.ns, true)
}

// unrouteFor takes back what route did, before stages take those rules away.
func (p *Programmer) unrouteFor(f model.Family, stages []stage) error {
	goes := slices.ContainsFunc(stages, func(s stage) bool {
		return s.table == filter && slices.Contains(s.gone, p.names.fixed(chainLoopback))
	})
	if !goes || !p.cfg.SetSysctls || f != model.IPv4 {
		return nil
	}
	return routeLoopback(p.ns, false)
}
