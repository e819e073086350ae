package modeltest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/headgate/headgate/model"
)

// A Kernel is the pretended kernel of a node: tables of objects, each with one owner, and packets that obey them.
// Several [Fake] values can share one, as programs share a network namespace: what one of them wrote is still there
// after it was closed. Make one with [NewKernel]. It is safe for concurrent use.
//
// Like a real kernel it refuses to add what is there, to delete or change what is not, to refer to what is not, to
// delete what something refers to, and ranges that overlap; and it applies a transaction wholly or not at all.
type Kernel struct {
	// mu guards all fields.
	mu         sync.Mutex
	addrs      []netip.Addr
	tables     map[string]*table
	generation uint64
	clock      time.Time
	chance     *rand.Rand
	seen       Commits
	faults     faults
}

// Commits counts what was asked of a Kernel.
type Commits struct {
	Committed int // transactions that were applied
	Refused   int // transactions that were not
	Objects   int // objects added, changed and deleted by those applied
}

// faults are what the kernel was told to do wrong.
type faults struct {
	refuse   []error // one for each of the next transactions
	after    []error
	hang     int
	services map[model.ServiceName]error
}

// NewKernel returns a Kernel that holds nothing, of a node with the given addresses; loopback it has in any case.
func NewKernel(addrs ...netip.Addr) *Kernel {
	return &Kernel{addrs: slices.Clone(addrs), tables: map[string]*table{}, clock: time.Unix(1_000_000_000, 0),
		chance: rand.New(rand.NewPCG(1, 2)), faults: faults{services: map[model.ServiceName]error{}}}
}

// An Object is one thing that a Kernel holds, as text.
type Object struct {
	Table      string // its owner's
	Key, Value string
}

func (o Object) String() string { return strings.TrimSpace(o.Table + ": " + o.Key + ": " + o.Value) }

// Objects returns everything in a table, sorted by key; everything in all tables if no table is named.
func (k *Kernel) Objects(tables ...string) []Object {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []Object
	for name, t := range k.tables {
		if len(tables) == 0 || slices.Contains(tables, name) {
			t.each(func(key, value any) { out = append(out, Object{name, key.(fmt.Stringer).String(), text(value)}) })
		}
	}
	slices.SortFunc(out, func(a, b Object) int { return strings.Compare(a.Table+"\x00"+a.Key, b.Table+"\x00"+b.Key) })
	return out
}

// String lists everything that the kernel holds, one object a line.
func (k *Kernel) String() string {
	var b strings.Builder
	for _, o := range k.Objects() {
		fmt.Fprintln(&b, o)
	}
	return b.String()
}

// Put adds an object that means nothing to the kernel, or changes its value: as another owner, in a table of another
// name, or to damage a table.
func (k *Kernel) Put(table, key, value string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.table(table).strangers[key] = value
	k.generation++
}

// Delete deletes the object with the given key, as in [Object], with everything that belongs or refers to it.
// It fails if there is none.
func (k *Kernel) Delete(table, key string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.tables[table]
	if t == nil {
		return syscall.ENOENT
	}
	var found any
	t.each(func(id, _ any) {
		if id.(fmt.Stringer).String() == key {
			found = id
		}
	})
	if found == nil {
		return syscall.ENOENT
	}
	k.generation++
	return t.uproot(found)
}

// uproot deletes an object, and first what stands in the way.
func (t *table) uproot(key any) error {
	var dependents []any
	t.each(func(other, value any) {
		if dependsOn(other, value, key) {
			dependents = append(dependents, other)
		}
	})
	for _, d := range dependents {
		if err := t.uproot(d); err != nil {
			return err
		}
	}
	_, err := t.remove(key)
	return err
}

// dependsOn reports whether an object belongs or refers to the one with the given key.
func dependsOn(other, value, key any) bool {
	switch o := other.(type) {
	case memberKey:
		return o.group == key
	case rangeKey:
		return o.front == key
	case frontKey:
		return value.(frontValue).group == key
	}
	return false
}

// Flush deletes everything in the named tables, in all of them if none is named.
func (k *Kernel) Flush(tables ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name := range k.tables {
		if len(tables) == 0 || slices.Contains(tables, name) {
			delete(k.tables, name)
		}
	}
	k.generation++
}

// Generation returns a number that every write to the kernel raises.
func (k *Kernel) Generation() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.generation
}

// Commits returns what was asked of the kernel so far.
func (k *Kernel) Commits() Commits {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen
}

// Sleep lets time pass: affinity expires.
func (k *Kernel) Sleep(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.clock = k.clock.Add(d)
}

// AddAddr gives the node an address.
func (k *Kernel) AddAddr(a netip.Addr) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.Contains(k.addrs, a) {
		return syscall.EEXIST
	}
	k.addrs = append(k.addrs, a)
	return nil
}

// DelAddr takes an address of the node away.
func (k *Kernel) DelAddr(a netip.Addr) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.Index(k.addrs, a)
	if i < 0 {
		return syscall.EADDRNOTAVAIL
	}
	k.addrs = slices.Delete(k.addrs, i, i+1)
	return nil
}

// FailNext refuses the next n transactions with err: an errno such as syscall.ENOBUFS, as a rule.
func (k *Kernel) FailNext(n int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults.refuse = append(k.faults.refuse, slices.Repeat([]error{err}, n)...)
}

// FailAfter applies the next n transactions and reports err all the same, as if the answer was lost.
func (k *Kernel) FailAfter(n int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults.after = append(k.faults.after, slices.Repeat([]error{err}, n)...)
}

// FailService refuses every transaction that adds or changes something for the named service; no longer if err is nil.
func (k *Kernel) FailService(name model.ServiceName, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		delete(k.faults.services, name)
		return
	}
	k.faults.services[name] = err
}

// Hang makes the next n transactions wait until their context ends, and applies none of them.
func (k *Kernel) Hang(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults.hang += n
}
