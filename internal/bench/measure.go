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

// samples are what the repetitions of one run took.
type samples struct {
	sync, syncCPU, floor, floorCPU         []time.Duration
	restart, cleanup                       []time.Duration
	apply, applyFloor, remove, removeFloor []time.Duration
	objects, removeTransactions            int
}

// measure makes one run.
func measure(ctx context.Context, b backend, cfg config) (*report, error) {
	peak, err := peakMemoryOfChild(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("peak memory: %w", err)
	}
	s, err := measurePrograming(ctx, b, cfg)
	if err != nil {
		return nil, err
	}
	r := &report{
		Backend:                 cfg.backend,
		Services:                cfg.services,
		Endpoints:               cfg.endpoints,
		SyncSeconds:             seconds(median(s.sync)),
		SyncCPUSeconds:          seconds(median(s.syncCPU)),
		FloorSeconds:            seconds(median(s.floor)),
		ApplyMicroseconds:       microseconds(median(s.apply)),
		ApplyFloorMicroseconds:  microseconds(median(s.applyFloor)),
		RemoveMicroseconds:      microseconds(median(s.remove)),
		RemoveFloorMicroseconds: microseconds(median(s.removeFloor)),
		RestartSeconds:          seconds(median(s.restart)),
		CleanupSeconds:          seconds(median(s.cleanup)),
		PeakRSSBytes:            peak,
		Objects:                 s.objects,
		floorCPUSeconds:         seconds(median(s.floorCPU)),
		removeTransactions:      s.removeTransactions,
	}
	if cfg.connect > 0 {
		if r.connectReport, err = measureConnect(ctx, b, cfg); err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
	}
	return r, nil
}

// measurePrograming repeats everything that has to do with programming. The namespaces of all repetitions live until
// the end: the kernel takes apart what is gone in the background, and would do so during the next measurement.
func measurePrograming(ctx context.Context, b backend, cfg config) (s samples, err error) {
	rec, err := newRecorder()
	if err != nil {
		return s, err
	}
	var pairs []*pair
	defer func() {
		for _, p := range pairs {
			p.close()
		}
		err = errors.Join(err, rec.Close())
	}()
	for n := range cfg.runs {
		p, err := newPair(b, rec)
		if err != nil {
			return s, err
		}
		pairs = append(pairs, p)
		dump := ""
		if n == 0 {
			dump = cfg.dump
		}
		if err := p.repetition(ctx, cfg, dump, &s); err != nil {
			return s, err
		}
	}
	for _, p := range pairs {
		took, err := p.cleanup(ctx)
		if err != nil {
			return s, fmt.Errorf("cleanup: %w", err)
		}
		s.cleanup = append(s.cleanup, took)
	}
	return s, nil
}

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
func (p *pair) repetition(ctx context.Context, cfg config, dump string, s *samples) error {
	tracker := cfg.track()
	want := tracker.State()
	first, err := p.sync(ctx, want, dump)
	if err != nil {
		return fmt.Errorf("first sync: %w", err)
	}
	first.programmer.Close()
	s.sync, s.syncCPU = append(s.sync, first.took), append(s.syncCPU, first.cpu)
	s.floor, s.floorCPU = append(s.floor, first.floor), append(s.floorCPU, first.floorCPU)
	s.objects = first.result.Written()

	again, err := p.sync(ctx, want, "")
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	defer again.programmer.Close()
	s.restart = append(s.restart, again.took)

	c := newChurn(cfg, want)
	for n := range changes {
		took, floor, _, err := p.apply(ctx, again.programmer, tracker, c.add(n))
		if err != nil {
			return fmt.Errorf("add an endpoint: %w", err)
		}
		s.apply, s.applyFloor = append(s.apply, took), append(s.applyFloor, floor)
	}
	for n := range changes {
		took, floor, result, err := p.apply(ctx, again.programmer, tracker, c.remove(n))
		if err != nil {
			return fmt.Errorf("remove an endpoint: %w", err)
		}
		s.remove, s.removeFloor = append(s.remove, took), append(s.removeFloor, floor)
		s.removeTransactions = max(s.removeTransactions, result.Transactions)
	}
	return nil
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
	if err == nil {
		out.floor, err = send(p.floor, pieces)
	}
	out.floorCPU = cpuTime() - cpu
	return out, err
}

// apply measures one change, from the Tracker on, and sends the same to the twin.
func (p *pair) apply(ctx context.Context, prog model.Programmer, tracker *model.Tracker, e edit) (took, floor time.Duration, result model.Result, err error) {
	started := time.Now()
	tracker.SetEndpoints(e.name, e.endpoints)
	result, err = prog.Apply(ctx, tracker.Diff())
	took = time.Since(started)
	if err = errors.Join(err, result.Err()); err != nil {
		return took, 0, result, err
	}
	floor, err = send(p.floor, p.rec.take())
	return took, floor, result, err
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

// cpuTime returns the CPU time that this process has used so far, in user space and in the kernel.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(os.NewSyscallError("getrusage", err)) // fails for no argument of ours
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
