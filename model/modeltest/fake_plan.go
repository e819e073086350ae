package modeltest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/headgate/headgate/model"
)

// The plan: what the pretended kernel shall hold, and the steps from one state to another. It touches nothing.

// An object is something to be held, and for whom.
type object struct {
	service model.ServiceName
	value   any
}

// objects is what a table shall hold, or part of it, by key.
type objects map[any]object

// render adds what one service needs.
func (os objects) render(r *model.Resolved, node model.Node) {
	if r == nil {
		return
	}
	for _, f := range r.Frontends {
		group := groupKey{r.Name, f.Family()}
		if _, ok := os[group]; !ok {
			os.renderGroup(r, group)
		}
		key := frontKey{r.Key(f)}
		os[key] = object{r.Name, frontValue{group: group, kind: f.Kind, policy: r.Service.Policy(f.Kind), restricted: f.Restricted()}}
		for _, p := range r.Sources(f, node.Primary) {
			os[rangeKey{key, p}] = object{r.Name, nothing{}}
		}
	}
}

func (os objects) renderGroup(r *model.Resolved, k groupKey) {
	s := r.Service
	os[k] = object{r.Name, groupValue{balance: s.Balance, hashPort: s.HashPort, affinity: s.Affinity}}
	sel := r.Selections[k.family]
	for policy, eps := range map[model.TrafficPolicy][]model.Endpoint{model.Cluster: sel.Cluster, model.Local: sel.Local} {
		for _, e := range eps {
			os[memberKey{k, policy, e.Addr}] = object{r.Name, memberValue{weight: e.Weight, local: e.Local}}
		}
	}
}

// renderNode adds the settings of the table.
func (os objects) renderNode(n model.Node) {
	os[nodeKey{}] = object{value: &n}
}

// steps returns the transaction from what is held to what shall be, in an order that the kernel allows: what others
// refer to comes first and goes last, and ranges go before others take their place.
func steps(held, want objects) []op {
	var ops []op
	for key, o := range want {
		h, ok := held[key]
		switch {
		case !ok:
			ops = append(ops, newOp(add, o.service, key, o.value))
		case !sameValue(h.value, o.value):
			ops = append(ops, newOp(change, o.service, key, o.value))
		}
	}
	for key, h := range held {
		if _, ok := want[key]; !ok {
			ops = append(ops, newOp(remove, h.service, key, nil))
		}
	}
	slices.SortFunc(ops, func(a, b op) int {
		if c := a.rank() - b.rank(); c != 0 {
			return c
		}
		return strings.Compare(a.name, b.name)
	})
	return ops
}

func newOp(do verb, service model.ServiceName, key, value any) op {
	return op{do: do, service: service, key: key, value: value, name: key.(fmt.Stringer).String()}
}

// rank orders the steps of a transaction.
func (o op) rank() int {
	kind := 0
	switch o.key.(type) {
	case groupKey:
		kind = 1
	case memberKey:
		kind = 2
	case frontKey:
		kind = 3
	case rangeKey:
		kind = 4
	}
	switch {
	case o.do != remove:
		return 10 + kind
	case kind == 4:
		return 0
	}
	return 30 - kind
}
