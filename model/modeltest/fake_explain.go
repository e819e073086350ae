package modeltest

import (
	"context"
	"fmt"

	"github.com/headgate/headgate/model"
)

// Explain implements [model.Explainer]. The way leads through the objects that the [Kernel] lists.
func (f *Fake) Explain(ctx context.Context, q model.Query) (model.Explanation, error) {
	select {
	case f.busy <- struct{}{}:
	case <-ctx.Done():
		return model.Explanation{}, ctx.Err()
	}
	defer f.done()
	switch {
	case f.closed:
		return model.Explanation{}, model.ErrClosed
	case !f.synced.Load():
		return model.Explanation{}, model.ErrNotSynced
	}
	e := f.resolver.Explain(q, nil)
	hop := func(key fmt.Stringer, rule string) {
		e.Path = append(e.Path, model.Hop{Where: f.table + " " + key.String(), Rule: rule})
	}
	if !e.Frontend.Addr.IsValid() {
		hop(nodeKey{}, e.Why)
		return e, nil
	}
	form, group := f.resolver.Form(e.Service), groupKey{e.Service, e.Frontend.Family()}
	hop(frontKey{form.Key(e.Frontend)}, e.Why)
	for _, t := range e.Endpoints {
		policy := form.Service.Policy(e.Frontend.Kind)
		if _, local := form.Selections[group.family].Serving(policy); len(local) != len(e.Endpoints) {
			policy = model.Cluster // the short cut
		}
		hop(memberKey{group, policy, t.Endpoint.Addr}, "translate")
	}
	return e, nil
}
