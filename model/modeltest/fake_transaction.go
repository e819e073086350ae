package modeltest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/headgate/headgate/model"
)

// A KernelError is why a Kernel refused a transaction. It unwraps to what it was told, or to an errno.
type KernelError struct {
	// Service is the one whose object was refused; Object is that object. Both are empty if it was none in particular.
	Service model.ServiceName
	Object  string
	Err     error

	told bool // it was told to refuse the service
}

func (e *KernelError) Error() string {
	if e.Object == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("%s: %v", e.Object, e.Err)
}

// Unwrap returns the cause.
func (e *KernelError) Unwrap() error { return e.Err }

// An op is one step of a transaction.
type op struct {
	do         verb
	service    model.ServiceName // whom it is for
	key, value any
	name       string // the key as text
}

type verb uint8

const (
	add verb = iota
	change
	remove
)

// errGeneration says that somebody else wrote since the generation that the transaction is based on.
var errGeneration = errors.New("somebody else wrote in between")

// commit applies a transaction to one table and returns the new generation. It must be based on the current one.
func (k *Kernel) commit(ctx context.Context, name string, base uint64, ops []op) (uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.obstacle(ctx); err != nil {
		k.seen.Refused++
		return k.generation, err
	}
	if base != k.generation {
		k.seen.Refused++
		return k.generation, &KernelError{Err: errGeneration}
	}
	t := k.table(name)
	undos := make([]undo, 0, len(ops))
	for _, o := range ops {
		u, err := k.step(t, o)
		if err != nil {
			for _, u := range slices.Backward(undos) {
				u()
			}
			k.seen.Refused++
			return k.generation, err
		}
		undos = append(undos, u)
	}
	maps.DeleteFunc(k.tables, func(_ string, t *table) bool { return t.empty() })
	k.generation++
	k.seen.Committed++
	k.seen.Objects += len(ops)
	return k.generation, take(&k.faults.after)
}

// obstacle does what the kernel was told to do wrong. It is called with mu held, and gives it away while it hangs.
func (k *Kernel) obstacle(ctx context.Context) error {
	if k.faults.hang > 0 {
		k.faults.hang--
		k.mu.Unlock()
		<-ctx.Done()
		k.mu.Lock()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return take(&k.faults.refuse)
}

// take takes the first error out of a list; nil if there is none.
func take(errs *[]error) error {
	if len(*errs) == 0 {
		return nil
	}
	err := (*errs)[0]
	*errs = (*errs)[1:]
	return &KernelError{Err: err}
}

func (k *Kernel) step(t *table, o op) (undo, error) {
	refused := k.faults.services[o.service]
	_, settings := o.key.(nodeKey)
	told := refused != nil && o.do != remove && !settings
	var u undo
	err := refused
	switch {
	case told:
	case o.do == remove:
		u, err = t.remove(o.key)
	default:
		u, err = t.put(o.key, o.value, o.do == change)
	}
	if err != nil && (told || u == nil) {
		return nil, &KernelError{Service: o.service, Object: o.name, Err: err, told: told}
	}
	return u, nil
}

// table returns a table, which it makes if need be.
func (k *Kernel) table(name string) *table {
	t := k.tables[name]
	if t == nil {
		t = newTable()
		k.tables[name] = t
	}
	return t
}

// read returns everything in a table, and the generation that it is of.
func (k *Kernel) read(name string) (map[any]any, uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	held := map[any]any{}
	if t := k.tables[name]; t != nil {
		t.each(func(key, value any) { held[key] = value })
	}
	return held, k.generation
}
