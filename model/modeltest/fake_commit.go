package modeltest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/model"
)

// refusals are services that the kernel refused, and why.
type refusals map[model.ServiceName]error

// A job is what Sync and Apply have in common: resolve, plan, commit, and once more without whom the kernel refuses.
type job struct {
	// diff resolves. Who is refused keeps what it has; who is dropped, since the kernel refuses even that, has nothing.
	diff func(refused, dropped refusals) (*model.Delta, error)
	// plan turns what is resolved into steps.
	plan func(*model.Delta) []op
	// look reads again what somebody else may have changed meanwhile.
	look func() error
}

// write does a job. It is called with busy held.
func (f *Fake) write(ctx context.Context, j job) (model.Result, error) {
	refused, dropped := refusals{}, refusals{}
	for tries := 0; ; {
		if err := ctx.Err(); err != nil {
			return model.Result{}, err
		}
		start := time.Now()
		d, err := j.diff(refused, dropped)
		if err != nil {
			return model.Result{}, err
		}
		resolved := time.Now()
		ops := j.plan(d)
		planned := time.Now()
		err = f.commit(ctx, ops)
		var ke *KernelError
		switch {
		case err == nil:
			f.resolver.Commit(d)
			f.synced.Store(true)
			f.verified = true
			res := f.result(d, ops, dropped)
			res.Steps = []model.Step{{Name: "resolve", Took: resolved.Sub(start)}, {Name: "plan", Took: planned.Sub(resolved)}, {Name: "commit", Took: time.Since(planned)}}
			return res, nil
		case errors.Is(err, errGeneration) && tries < 100:
			tries++
			if err := j.look(); err != nil {
				return model.Result{}, err
			}
		case errors.As(err, &ke) && ke.told && dropped[ke.Service] == nil:
			if refused[ke.Service] != nil {
				dropped[ke.Service] = err
			}
			refused[ke.Service] = err
		default:
			return model.Result{}, meaning(err)
		}
	}
}

// commit sends a transaction, unless there is nothing to send.
func (f *Fake) commit(ctx context.Context, ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	generation, err := f.kernel.commit(ctx, f.table, f.generation, ops)
	if err == nil {
		f.generation = generation
	}
	return err
}

// result tells what was done.
func (f *Fake) result(d *model.Delta, ops []op, dropped refusals) model.Result {
	r := model.Result{Rejected: d.Rejected, Promoted: d.Promoted}
	for _, o := range ops {
		switch o.do {
		case add:
			r.Added++
		case change:
			r.Changed++
		case remove:
			r.Deleted++
		}
		r.Bytes += len(o.name) + len(o.service) + 16
	}
	if len(ops) > 0 {
		r.Transactions = 1
	}
	for name, err := range dropped {
		r.Rejected = append(r.Rejected, &model.ServiceError{Service: name, Backend: f.features.Backend, Op: "commit", Err: err})
	}
	slices.SortFunc(r.Rejected, func(a, b *model.ServiceError) int { return strings.Compare(string(a.Service), string(b.Service)) })
	return r
}

// plan turns what changes into steps.
func (f *Fake) plan(d *model.Delta) []op {
	held, want := objects{}, objects{}
	node := f.resolver.Node()
	if d.NodeChanged {
		held.renderNode(node)
		want.renderNode(d.Node)
	}
	changed := make(map[model.ServiceName]bool, len(d.Changes))
	for _, c := range d.Changes {
		changed[c.Name] = true
		held.render(c.Before, node)
		want.render(c.After, d.Node)
	}
	if slices.Equal(node.Primary, d.Node.Primary) {
		return steps(held, want)
	}
	// Who may come in depends on the primary addresses, see ranges.
	for _, r := range f.resolver.Forms() {
		if !changed[r.Name] && slices.ContainsFunc(r.Frontends, model.Frontend.Restricted) {
			held.render(r, node)
			want.render(r, d.Node)
		}
	}
	return steps(held, want)
}

// after returns all that the table shall hold once d is committed.
func (f *Fake) after(d *model.Delta) objects {
	want := objects{}
	want.renderNode(d.Node)
	for _, r := range f.resolver.FormsAfter(d) {
		want.render(r, d.Node)
	}
	return want
}
