package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// repetitions is how often one run measures everything. The best counts: what disturbs a measurement makes it longer,
// never shorter.
const repetitions = 3

// A sample is what one repetition took, or the best of several, or the median of those.
type sample struct {
	sync, syncCPU, floor, floorCPU         time.Duration
	restart, cleanup                       time.Duration
	apply, applyFloor, remove, removeFloor time.Duration // medians of all changes
	noop                                   time.Duration // median of some; 0 where it is not measured

	peerSync, restore time.Duration // 0 where there are no peers

	objects, removeTransactions int
}

// figures returns pointers to all times in s.
func (s *sample) figures() []*time.Duration {
	return []*time.Duration{&s.sync, &s.syncCPU, &s.floor, &s.floorCPU, &s.restart, &s.cleanup,
		&s.apply, &s.applyFloor, &s.remove, &s.removeFloor, &s.noop, &s.peerSync, &s.restore}
}

// combine returns a sample with each time as choose chooses it from those of the samples; counts are the highest.
func combine(samples []sample, choose func([]time.Duration) time.Duration) sample {
	out := samples[0]
	for i, figure := range out.figures() {
		var all []time.Duration
		for _, s := range samples {
			all = append(all, *s.figures()[i])
		}
		*figure = choose(all)
	}
	for _, s := range samples {
		out.objects, out.removeTransactions = max(out.objects, s.objects), max(out.removeTransactions, s.removeTransactions)
	}
	return out
}

// measure measures all that the config asks for.
func measure(ctx context.Context, b backend, cfg config) (*report, error) {
	peak, err := peakMemoryOfChild(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("peak memory: %w", err)
	}
	s, err := measureProgramming(ctx, b, cfg)
	if err != nil {
		return nil, err
	}
	r := &report{
		Backend:                 cfg.backend,
		Variant:                 cfg.variant,
		Services:                cfg.services,
		Endpoints:               cfg.endpoints,
		SyncSeconds:             seconds(s.sync),
		SyncCPUSeconds:          seconds(s.syncCPU),
		FloorSeconds:            seconds(s.floor),
		ApplyMicroseconds:       microseconds(s.apply),
		ApplyFloorMicroseconds:  microseconds(s.applyFloor),
		RemoveMicroseconds:      microseconds(s.remove),
		RemoveFloorMicroseconds: microseconds(s.removeFloor),
		RestartSeconds:          seconds(s.restart),
		CleanupSeconds:          seconds(s.cleanup),
		PeakRSSBytes:            peak,
		Objects:                 s.objects,
		floorCPUSeconds:         seconds(s.floorCPU),
		removeTransactions:      s.removeTransactions,
	}
	if b.passed != nil {
		passed, err := b.passed(ctx, cfg)
		if err != nil {
			return nil, fmt.Errorf("rules passed: %w", err)
		}
		r.ruleReport = &ruleReport{RulesPassed: passed, NoopRestoreSeconds: seconds(s.noop)}
	}
	if s.peerSync > 0 {
		r.peerReport = &peerReport{seconds(s.peerSync), seconds(s.restore)}
	}
	if cfg.connect > 0 {
		if r.connectReport, err = measureConnect(ctx, b, cfg); err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
	}
	if cfg.churn > 0 {
		if r.churnReport, err = measureChurn(ctx, b, cfg); err != nil {
			return nil, fmt.Errorf("churn: %w", err)
		}
	}
	return r, nil
}

// measureProgramming makes the runs of everything that has to do with programming: in each, the best of some
// repetitions. The namespaces of all of them live until the end: the kernel takes apart what is gone in the background,
// and would do so during the next measurement.
func measureProgramming(ctx context.Context, b backend, cfg config) (out sample, err error) {
	rec, err := newRecorder()
	if err != nil {
		return out, err
	}
	var pairs []*pair
	defer func() {
		for _, p := range pairs {
			p.close()
		}
		err = errors.Join(err, rec.Close())
	}()
	var samples []sample
	for n := range cfg.runs * repetitions {
		p, err := newPair(b, rec)
		if err != nil {
			return out, err
		}
		pairs = append(pairs, p)
		dump := ""
		if n == 0 {
			dump = cfg.dump
		}
		s, err := p.repetition(ctx, cfg, dump)
		if err != nil {
			return out, err
		}
		if b.peers != nil && !cfg.alone {
			if s.peerSync, s.restore, err = b.peers(ctx, cfg.state()); err != nil {
				return out, err
			}
		}
		samples = append(samples, s)
	}
	for i, p := range pairs {
		if samples[i].cleanup, err = p.cleanup(ctx); err != nil {
			return out, fmt.Errorf("cleanup: %w", err)
		}
	}
	var runs []sample
	for run := range slices.Chunk(samples, repetitions) {
		runs = append(runs, combine(run, slices.Min))
	}
	return combine(runs, median), nil
}
