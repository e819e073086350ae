package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/model"
)

// A work is one Sync or Apply.
type work struct {
	*Programmer
	ctx     context.Context
	resolve func(refused map[model.ServiceName]error) (*model.Delta, error)
	// all says that everything is being programmed, not what changes alone.
	all bool
	// candidates are the services that are to be programmed; refused those that cannot be, and why.
	candidates []model.ServiceName
	refused    map[model.ServiceName]error
	delta      *model.Delta
	res        model.Result
	began      time.Time
}

func (p *Programmer) newWork(ctx context.Context) *work {
	return &work{Programmer: p, ctx: ctx, refused: map[model.ServiceName]error{}, began: time.Now()}
}

// step notes how long the step took that now ends.
func (w *work) step(name string) {
	now := time.Now()
	w.res.Steps = append(w.res.Steps, model.Step{Name: name, Took: now.Sub(w.began)})
	w.began = now
}

// consider notes a service that is to be programmed, and refuses it if that cannot be.
func (w *work) consider(name model.ServiceName, svc model.Service, eps []model.Endpoint) {
	w.candidates = append(w.candidates, name)
	err := checkBalance(svc, eps)
	for _, s := range w.sides {
		switch {
		case svc.Protocol == model.SCTP && !s.sctp:
			err = fmt.Errorf("%s without xt_sctp: %w", svc.Protocol, model.ErrNotSupported)
		case svc.Affinity > 0 && !s.recent:
			err = fmt.Errorf("affinity without xt_recent: %w", model.ErrNotSupported)
		}
	}
	if err != nil {
		w.refused[name] = err
	}
}

// end commits the record if nothing failed.
func (w *work) end(err error) (model.Result, error) {
	if err != nil {
		return model.Result{}, fmt.Errorf("iptables: %w", err)
	}
	w.resolver.Commit(w.delta)
	w.synced = true
	w.res.Rejected, w.res.Promoted = w.delta.Rejected, w.delta.Promoted
	w.res.Warnings = distinct(w.res.Warnings)
	w.tell(w.res.Warnings)
	w.res.Warnings = append(w.warnings, w.res.Warnings...) // those of New were told
	w.warnings = nil
	w.cfg.Logger.Debug("programmed", "backend", "iptables", "result", w.res.String())
	return w.res, nil
}

// change programs what changes, and everything if that is refused.
func (w *work) change() error {
	var err error
	if w.delta, err = w.resolve(w.refused); err != nil {
		return err
	}
	w.step("resolve")
	targets := w.targets()
	jobs := make([]*job, len(w.sides))
	for i, s := range w.sides {
		jobs[i] = s.changeJob(targets[i], w.changesFor(s, targets[i]))
	}
	w.step("plan")
	before, err := w.takeMarks()
	if err != nil {
		return err
	}
	if !w.known(before) {
		w.checks.unsure = true
	}
	err = w.run(jobs, before)
	if refusalOf(err) != nil {
		return w.isolate(err)
	}
	return err
}

// changesFor returns the services whose rules change in a family: those of the delta and, if the node changed so that it
// concerns all services, all of them.
func (w *work) changesFor(s *side, to *env) []model.ResolvedChange {
	if s.now.env.sameServices(to) {
		return w.delta.Changes
	}
	changes := slices.Clone(w.delta.Changes)
	changed := map[model.ServiceName]bool{}
	for _, c := range changes {
		changed[c.Name] = true
	}
	for _, f := range w.resolver.Forms() {
		if !changed[f.Name] {
			changes = append(changes, model.ResolvedChange{Name: f.Name, Before: f, After: f})
		}
	}
	return changes
}

// whole programs everything that shall be there, by what the kernel holds.
func (w *work) whole() error {
	err := w.attempt(w.refused)
	if refusalOf(err) != nil {
		return w.isolate(err)
	}
	return err
}

// attempt makes the kernel hold everything but the refused services' new forms.
func (w *work) attempt(refused map[model.ServiceName]error) error {
	w.checks = checks{}
	before, err := w.takeMarks()
	if err != nil {
		return err
	}
	wait := w.startReading()
	jobs, err := w.planWhole(refused)
	held, readErr := wait() // the programs have ended, whatever else happened
	if err = errors.Join(err, readErr); err != nil {
		return err
	}
	w.step("read")
	for i, j := range jobs {
		j.converge(w.names, held[i])
	}
	return w.run(jobs, before)
}

// planWhole plans everything but the refused services' new forms, a job for each side.
func (w *work) planWhole(refused map[model.ServiceName]error) (jobs []*job, err error) {
	if w.delta, err = w.resolve(refused); err != nil {
		return nil, err
	}
	w.step("resolve")
	targets := w.targets()
	forms := w.resolver.FormsAfter(w.delta)
	for i, s := range w.sides {
		jobs = append(jobs, s.wholeJob(targets[i], forms))
	}
	w.step("plan")
	return jobs, nil
}

// startReading begins to list what the kernel holds, while something else is done. It returns what waits for all of it,
// by side.
func (w *work) startReading() (wait func() ([][len(tables)]listing, error)) {
	held := make([][len(tables)]listing, len(w.sides))
	errs := make([]error, len(w.sides))
	var reading sync.WaitGroup
	for i, s := range w.sides {
		reading.Go(func() {
			for _, t := range tables {
				if held[i][t], errs[i] = s.read(w.ctx, t, w.names, allJumps(s.family, w.names)); errs[i] != nil {
					return
				}
			}
		})
	}
	return func() ([][len(tables)]listing, error) {
		reading.Wait()
		return held, errors.Join(errs...)
	}
}

// targets returns the env of each side for the node of the delta.
func (w *work) targets() []*env {
	node := w.delta.Node
	routable := w.cfg.SetSysctls || node.NodePorts.Loopback && routesLoopback(w.ns)
	envs := make([]*env, len(w.sides))
	for i, s := range w.sides {
		envs[i] = newEnv(s.family, w.names, w.cfg.settings(), s.ability.features, node, routable)
		if w.delta.NodeChanged || s.now.env == nil {
			w.res.Warnings = append(w.res.Warnings, envs[i].warnings...)
		}
	}
	return envs
}

// distinct returns texts in order, each once.
func distinct(texts []string) []string {
	var out []string
	for _, t := range texts {
		if !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}
