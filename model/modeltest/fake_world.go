package modeltest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/headgate/headgate/model"
)

// A FakeWorld is a pretended [World]: a node with a [Kernel], and whoever is needed around it. Packets cost nothing
// and time passes by [Kernel.Sleep].
type FakeWorld struct{ *Kernel }

// NewFakeWorld returns a world whose node has the addresses in node.Addrs and whose kernel holds nothing.
func NewFakeWorld(node model.Node) *FakeWorld { return &FakeWorld{NewKernel(node.Addrs...)} }

// NetNS returns -1: there is no such namespace.
func (w *FakeWorld) NetNS() int { return -1 }

// Send implements [World].
func (w *FakeWorld) Send(ctx context.Context, p Packet, n int) ([]Outcome, error) {
	out := make([]Outcome, n)
	for i := range out {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var err error
		if out[i], err = w.Kernel.Send(p); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Open implements [Connector].
func (w *FakeWorld) Open(ctx context.Context, p Packet) (Connection, error) {
	out, err := w.Send(ctx, p, 1)
	if err != nil {
		return nil, err
	}
	if out[0].Verdict != Translated {
		return nil, fmt.Errorf("modeltest: packet %q: %s", p.Name, out[0].Verdict)
	}
	return &fakeConnection{at: out[0].Endpoint}, nil
}

// A fakeConnection goes on whatever the tables say, as connections do that are tracked.
type fakeConnection struct {
	at     netip.AddrPort
	closed bool
}

func (c *fakeConnection) Endpoint() netip.AddrPort { return c.at }

func (c *fakeConnection) Exchange(ctx context.Context) error {
	if c.closed {
		return errors.New("modeltest: the connection is closed")
	}
	return ctx.Err()
}

func (c *fakeConnection) Close() error { c.closed = true; return nil }

// FakeTarget returns the [Target] that is a Fake, with every hook: the suite's own test, and a pattern for others.
func FakeTarget() Target {
	kernel := func(w World) *Kernel { return w.(*FakeWorld).Kernel }
	return Target{
		Name:     "fake",
		NewWorld: func(_ testing.TB, n model.Node) World { return NewFakeWorld(n) },
		New: func(_ testing.TB, w World) model.Programmer {
			return NewFake(kernel(w), FakeConfig{})
		},
		Second: func(_ testing.TB, w World) model.Programmer {
			return NewFake(kernel(w), FakeConfig{Table: "second"})
		},
		Snapshot: func(_ testing.TB, w World) string { return kernel(w).String() },
		Plant: func(_ testing.TB, w World) {
			kernel(w).Put("theirs", "chain FORWARD", "policy drop")
			kernel(w).Put("theirs", "frontend tcp 192.0.2.10:80", "their own idea of it")
		},
		Damage: map[string]func(testing.TB, World) error{
			"flush everything": func(_ testing.TB, w World) error { kernel(w).Flush(); return nil },
			"delete table":     func(_ testing.TB, w World) error { kernel(w).Flush("headgate"); return nil },
			"delete endpoint":  deleteFirst(kernel, "member "),
			"delete frontend":  deleteFirst(kernel, "frontend "),
			"delete range":     deleteFirst(kernel, "range "),
			"delete service":   deleteFirst(kernel, "group "),
			"delete settings":  deleteFirst(kernel, "node"),
			"add stranger": func(_ testing.TB, w World) error {
				kernel(w).Put("headgate", "a rule", "accept everything")
				return nil
			},
			"change weight": changeWeight(kernel),
		},
		Refuse: func(_ testing.TB, w World, name model.ServiceName, err error) { kernel(w).FailService(name, err) },
	}
}

// deleteFirst deletes our first object whose key begins as given.
func deleteFirst(kernel func(World) *Kernel, prefix string) func(testing.TB, World) error {
	return func(_ testing.TB, w World) error {
		for _, o := range kernel(w).Objects("headgate") {
			if len(o.Key) >= len(prefix) && o.Key[:len(prefix)] == prefix {
				return kernel(w).Delete("headgate", o.Key)
			}
		}
		return fmt.Errorf("there is no %q", prefix)
	}
}

func changeWeight(kernel func(World) *Kernel) func(testing.TB, World) error {
	return func(_ testing.TB, w World) error {
		k := kernel(w)
		k.mu.Lock()
		defer k.mu.Unlock()
		for key, g := range k.table("headgate").groups {
			if ms := slices.Clone(g.members[model.Cluster]); len(ms) > 0 {
				_, err := k.table("headgate").put(memberKey{key, model.Cluster, ms[0].addr}, memberValue{weight: 77}, true)
				k.generation++
				return err
			}
		}
		return errors.New("there is no endpoint")
	}
}
