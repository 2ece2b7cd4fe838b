package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
)

// profiled is an op of the step, all its places together.
type profiled struct {
	name  string
	calls int
	time  time.Duration
	graph.Cost
}

// benchProfile prints the share of each op in a training step, and its rate against the ceilings that the same run has
// measured: of the matrix product for ops of products, of a sum of vectors for others.
func benchProfile(r *report) (err error) {
	t, err := warmTrainer(r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	m := t.model.Machine()
	begin := time.Now()
	if err := errors.Join(t.steps(trainRuns), m.Synchronize()); err != nil {
		return err
	}
	step := time.Since(begin) / trainRuns
	all, outside, err := t.profile()
	if err != nil {
		return err
	}
	flops, bytes, err := ceilings(r)
	if err != nil {
		return err
	}
	size := trainSize(r)
	r.add("matrix product, measured ceiling", "8192x8192x8192", flops/1e12, "TFLOP/s")
	r.add("sum of vectors, measured ceiling", "2 x 128 Mi", bytes/1e9, "GB/s")
	total := time.Duration(0)
	for _, p := range all {
		total += p.time
	}
	for _, p := range all {
		share := 100 * p.time.Seconds() / total.Seconds()
		r.add(p.name, fmt.Sprintf("%d calls, %.1f %%", p.calls, share), p.time.Seconds()*1e3, "ms")
		if p.FLOPs > 0 {
			r.add(p.name, size, p.FLOPs/p.time.Seconds()/1e12, "TFLOP/s", against("measured ceiling", flops/1e12))
		} else {
			r.add(p.name, size, p.Bytes/p.time.Seconds()/1e9, "GB/s", against("measured ceiling", bytes/1e9))
		}
	}
	r.add("all ops", size, total.Seconds()*1e3, "ms")
	r.add("all ops, one by one, over a replayed step", size, 100*total.Seconds()/step.Seconds(), "%")
	r.add("outside the attention branches", size, outside.Seconds()/(trainBatch*trainSeq)*1e6, "us/token", atMost(2.3),
		against("whole dense step, compiled PyTorch, peer figure", 1.55))
	return nil
}

// profile returns the ops of a step, the longest first, and the time of those that are not of an attention branch.
func (t *trainer) profile() (all []*profiled, outside time.Duration, err error) {
	m := t.model.Machine()
	times, err := profileSteps(m, 2)
	if err != nil {
		return nil, 0, err
	}
	adamw, err := t.optimizer()
	if err != nil {
		return nil, 0, err
	}
	byName := map[string]*profiled{adamw.name: adamw}
	outside = adamw.time
	for i, s := range m.Plan().Steps {
		if s.Prologue {
			continue // no part of a step, since the optimizer makes them
		}
		name := s.Op + ", " + s.Implementation
		p := byName[name]
		if p == nil {
			p = &profiled{name: name}
			byName[name] = p
		}
		p.calls, p.time, p.FLOPs, p.Bytes = p.calls+1, p.time+times[i], p.FLOPs+s.Cost.FLOPs, p.Bytes+s.Cost.Bytes
		if !inBranch(s.Op) {
			outside += times[i]
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b *profiled) int { return cmp.Compare(b.time, a.time) }), outside, nil
}

// optimizer times a step of AdamW alone: it reads weight, gradient and two moments, and writes all but the gradient and the
// copy in half precision.
func (t *trainer) optimizer() (*profiled, error) {
	m := t.model.Machine()
	p := &profiled{name: "adamw, cuda", calls: 1, Cost: graph.Cost{Bytes: float64(t.weights.Config.Parameters()) * (7*4 + 2)}}
	for range 3 {
		if err := m.Synchronize(); err != nil {
			return nil, err
		}
		took, err := deviceTime(m, func() error { return t.solver.Step(G.NodesToValueGrads(t.model.Learnables())) })
		if err != nil {
			return nil, err
		}
		if p.time == 0 || took < p.time {
			p.time = took
		}
	}
	return p, nil
}

// inBranch reports whether an op is of an attention branch.
func inBranch(name string) bool {
	return strings.Contains(name, "attention") || strings.Contains(name, "sliding window") || strings.Contains(name, "select blocks") ||
		strings.Contains(name, "compress")
}
