package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

// A pair is two namespaces that hold the same: the subject, which a Programmer programs, and the twin, which gets the
// same bytes from somebody who does nothing else. As the twin gets every transaction, the kernel's counts of
// generations and handles are the same on both sides, and what is valid in one is valid in the other.
type pair struct {
	backend
	rec           *recorder
	subject, twin *lab.NetNS
	floor         floor
}

func newPair(b backend, rec *recorder) (p *pair, err error) {
	p = &pair{backend: b, rec: rec}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.subject, err = lab.NewNetNS("subject"); err != nil {
		return nil, err
	}
	if p.twin, err = lab.NewNetNS("twin"); err != nil {
		return nil, err
	}
	if p.floor, err = b.floor(p.twin); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *pair) close() {
	if p.floor != nil {
		p.floor.Close()
	}
	for _, ns := range []*lab.NetNS{p.subject, p.twin} {
		if ns != nil {
			ns.Close()
		}
	}
}

// repetition measures everything but Cleanup once, from two empty namespaces on.
func (p *pair) repetition(ctx context.Context, cfg config, dump string) (s sample, err error) {
	tracker := cfg.track()
	want := tracker.State()
	first, err := p.sync(ctx, want, dump)
	if err != nil {
		return s, fmt.Errorf("first sync: %w", err)
	}
	first.programmer.Close()
	s.sync, s.syncCPU, s.floor, s.floorCPU = first.took, first.cpu, first.floor, first.floorCPU
	s.objects = first.result.Written()

	again, err := p.sync(ctx, want, "")
	if err != nil {
		return s, fmt.Errorf("restart: %w", err)
	}
	defer again.programmer.Close()
	s.restart = again.took

	c := newChurn(cfg, want)
	add, err := p.changes(ctx, again.programmer, tracker, c.add, changes)
	if err != nil {
		return s, fmt.Errorf("add an endpoint: %w", err)
	}
	remove, err := p.changes(ctx, again.programmer, tracker, c.remove, min(len(add.took), cfg.services))
	if err != nil {
		return s, fmt.Errorf("remove an endpoint: %w", err)
	}
	s.apply, s.applyFloor = median(add.took), median(add.floor)
	s.remove, s.removeFloor, s.removeTransactions = median(remove.took), median(remove.floor), remove.transactions
	s.noop, err = p.noops(ctx)
	return s, err
}

// noops measures changes of nothing in the twin, where the backend has such.
func (p *pair) noops(ctx context.Context) (time.Duration, error) {
	if p.noop == nil {
		return 0, nil
	}
	var all []time.Duration
	for range fewestChanges {
		took, err := p.noop(ctx, p.twin)
		if err != nil {
			return 0, fmt.Errorf("change nothing: %w", err)
		}
		all = append(all, took)
	}
	return median(all), nil
}

// A changed is what changes of one kind took, each, and the most transactions of one of them.
type changed struct {
	took, floor  []time.Duration
	transactions int
}

// changes measures at most so many changes one after the other, from the Tracker on, and sends each to the twin at once.
func (p *pair) changes(ctx context.Context, prog model.Programmer, tracker *model.Tracker, change func(n int) edit, most int) (out changed, err error) {
	began := time.Now()
	for n := range most {
		if n >= fewestChanges && time.Since(began) > changesTime {
			break
		}
		e := change(n)
		started := time.Now()
		tracker.SetEndpoints(e.name, e.endpoints)
		result, err := prog.Apply(ctx, tracker.Diff())
		out.took = append(out.took, time.Since(started))
		if err = errors.Join(err, result.Err()); err != nil {
			return out, err
		}
		floor, err := send(p.floor, p.rec.take())
		if err != nil {
			return out, err
		}
		out.floor = append(out.floor, floor)
		out.transactions = max(out.transactions, result.Transactions)
	}
	return out, nil
}

// A synced is what one Sync took.
type synced struct {
	programmer      model.Programmer
	result          model.Result
	took, cpu       time.Duration
	floor, floorCPU time.Duration
}

// sync makes a new Programmer, measures its Sync, and sends the same to the twin. Memory that the measurement before
// left behind is collected first.
func (p *pair) sync(ctx context.Context, want model.State, dump string) (out synced, err error) {
	if out.programmer, err = p.open(ctx, p.subject, p.rec.record); err != nil {
		return out, err
	}
	runtime.GC()
	cpu, started := cpuTime(), time.Now()
	out.result, err = out.programmer.Sync(ctx, want)
	out.took, out.cpu = time.Since(started), cpuTime()-cpu
	if err = errors.Join(err, out.result.Err()); err != nil {
		out.programmer.Close()
		return out, err
	}
	pieces := p.rec.take()
	if dump != "" {
		err = writeDump(dump, pieces)
	}
	runtime.GC()
	cpu = cpuTime()
	if err == nil && (len(pieces) > 0 || out.result.Written() > 0) {
		out.floor, err = send(p.floor, pieces)
	}
	out.floorCPU = cpuTime() - cpu
	return out, err
}

// cleanup measures the Cleanup of a Programmer that knows nothing yet.
func (p *pair) cleanup(ctx context.Context) (time.Duration, error) {
	prog, err := p.open(ctx, p.subject, nil)
	if err != nil {
		return 0, err
	}
	defer prog.Close()
	started := time.Now()
	err = prog.Cleanup(ctx)
	return time.Since(started), err
}

// send sends all pieces and returns how long the kernel took over them.
func send(f floor, pieces [][]byte) (took time.Duration, err error) {
	if len(pieces) == 0 {
		return 0, errors.New("the backend reported nothing that it sent")
	}
	for _, piece := range pieces {
		if err := f.prepare(piece); err != nil {
			return 0, err
		}
		started := time.Now()
		if err := f.send(piece); err != nil {
			return 0, err
		}
		took += time.Since(started)
	}
	return took, nil
}

// cpuTime returns the CPU time that this process and the programs that it waited for have used so far, in user space and
// in the kernel.
func cpuTime() (total time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			panic(os.NewSyscallError("getrusage", err)) // fails for no argument of ours
		}
		total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return total
}
