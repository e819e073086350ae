package nft

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/netns"
	"github.com/headgate/headgate/internal/nlink"
	"github.com/headgate/headgate/model"
)

// A Config says what a Table is.
type Config struct {
	// Name is the name of the one table in each family; whatever else is found in it is deleted.
	Name string
	// NetNS is the network namespace. It must stay open as long as the Table.
	NetNS *netns.NetNS
	// Sets are the sets and maps that every table has, by [SetID]: those of [BaseSets] first.
	Sets []Set
	// Ruleset returns what one family's table holds on a node.
	Ruleset func(node model.Node, fam model.Family) Ruleset
	// Timeout bounds each exchange with the kernel, should the context allow more.
	Timeout time.Duration
	// VerifyInterval is how often at most Check reads back all set elements; negative, never.
	VerifyInterval time.Duration
	// Trace, if not nil, is called with each batch of netlink messages before it is sent. It must not keep it.
	Trace func(batch []byte)
}

// A Ruleset says what one family's table holds. It must always say the same.
type Ruleset interface {
	// Frame returns the chains that are there whatever the services, those that others lead to first.
	Frame() []Chain
	// RecordAffinity returns those that are there once a service has affinity. They do not depend on the node.
	RecordAffinity() []Chain
	// Route returns the chain of a way of balancing.
	Route(r Route) Chain
	// Lists says which of a service's lists of endpoints are balanced over here.
	Lists(res *model.Resolved) [2]bool
	// Render makes f what a service puts into the table; nothing for nil.
	Render(f *Form, res *model.Resolved, lay Layouts)
}

// A Table programs one table of each family, ip and ip6. It is not safe for concurrent use.
type Table struct {
	cfg    Config
	socket *socket // nil after an error
	record *record // what the kernel holds; nil before the first Sync and while nobody knows
	kernel witness
	memory memory
}

// NewTable returns a Table that knows nothing of the kernel yet.
func NewTable(cfg Config) *Table {
	return &Table{cfg: cfg, memory: memory{last: newBatch(cfg.Name, cfg.Sets)}}
}

// An Input is what a Table shall hold.
type Input struct {
	Node model.Node
	// Forms are all services, for Sync.
	Forms []*model.Resolved
	// Changes are those that change, for Apply, sorted by name. What they were before is known.
	Changes []model.ResolvedChange
	// Extra, if not nil, is called to plan what no service has.
	Extra func(p *Plan)
}

// Known reports whether it is known what the kernel holds: after Sync, until an error.
func (t *Table) Known() bool { return t.record != nil }

// Sync makes the tables hold just what is asked for, in one transaction. If there are services that cannot be planned,
// or that the kernel refuses, it names them and nothing was written. After an error nobody knows what the kernel holds.
// It adds to res what it did.
func (t *Table) Sync(ctx context.Context, in Input, res *model.Result) (refused map[model.ServiceName]error, err error) {
	old := t.record
	if old == nil {
		old = newRecord(in.Node)
	}
	t.record = nil
	started := time.Now()
	refused, err = t.attempt(ctx, res, func(how manner) (*Plan, error) {
		// Whatever others write from now on is not in the plan.
		generation, err := t.generation(ctx)
		if err != nil {
			return nil, err
		}
		t.kernel.generation = generation
		found, err := t.structures(ctx, wholeRuleOf)
		if err != nil {
			return nil, err
		}
		for _, fam := range model.Families {
			err := t.exchange(ctx, func(s *socket) error {
				return nlink.Steady(func() error { return s.readRanges(t.cfg.Name, fam, t.cfg.Sets, &found[fam]) })
			})
			if err != nil {
				return nil, fmt.Errorf("reading table %s: %w", t.cfg.Name, nlink.Meaning(err))
			}
			found[fam].ours = found[fam].ours && !how.anew
		}
		next := newPlan(&t.cfg, old, in.Node, started, how.exact, &t.memory)
		planSync(next, found, in)
		return next, nil
	})
	if err == nil && len(refused) == 0 {
		t.tidy(ctx, res)
	}
	return refused, err
}

// Apply programs changes against what the tables hold, in one transaction. It returns as Sync does.
func (t *Table) Apply(ctx context.Context, in Input, res *model.Result) (refused map[model.ServiceName]error, err error) {
	if t.record == nil {
		return nil, model.ErrNotSynced
	}
	started := time.Now()
	return t.attempt(ctx, res, func(how manner) (*Plan, error) {
		next := newPlan(&t.cfg, t.record, in.Node, started, how.exact, &t.memory)
		planApply(next, in)
		return next, nil
	})
}

// fail notes that nobody knows what the kernel holds.
func (t *Table) fail(err error) error {
	t.Forget()
	return err
}

// Forget makes the Table know nothing of the kernel, as if it were new.
func (t *Table) Forget() {
	t.record = nil
	t.hangUp()
}

// hangUp closes the socket; the next exchange opens a fresh one.
func (t *Table) hangUp() {
	if t.socket != nil {
		_ = t.socket.Close()
		t.socket = nil
	}
}

// exchange runs one exchange with the kernel over a socket that is known to be in order.
func (t *Table) exchange(ctx context.Context, do func(s *socket) error) error {
	if t.socket == nil {
		s, err := nlink.Dial(unix.NETLINK_NETFILTER, t.cfg.NetNS)
		if err != nil {
			return err
		}
		t.socket = &socket{s}
	}
	err := t.socket.Within(ctx, t.cfg.Timeout, func() error { return do(t.socket) })
	var no *refusal
	if err != nil && !errors.As(err, &no) || t.socket.Spent() {
		t.hangUp()
	}
	return err
}

// structures reads what the tables consist of.
func (t *Table) structures(ctx context.Context, rule ruleReader) (found [2]structure, err error) {
	err = t.exchange(ctx, func(s *socket) error {
		for _, fam := range model.Families {
			if found[fam], err = s.readStructure(t.cfg.Name, fam, rule); err != nil {
				return fmt.Errorf("reading table %s: %w", t.cfg.Name, nlink.Meaning(err))
			}
		}
		return nil
	})
	return found, err
}

// Cleanup deletes the tables, whoever wrote them.
func (t *Table) Cleanup(ctx context.Context) error {
	t.record = nil
	for _, fam := range model.Families {
		b := newBatch(t.cfg.Name, t.cfg.Sets)
		b.write(sectionTables, func(w *Wire) { w.deleteTable(t.cfg.Name, fam) })
		err := t.exchange(ctx, func(s *socket) error {
			_, err := s.commit(b.transaction(0))
			return err
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return t.fail(fmt.Errorf("cleaning up: %w", nlink.Meaning(err)))
		}
	}
	return nil
}

// Close releases the socket and leaves the tables in place.
func (t *Table) Close() { t.Forget() }
