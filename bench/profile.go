package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// profiled has the time and cost of an op in a step, summed over all its calls.
type profiled struct {
	name  string
	calls int
	time  time.Duration
	graph.Cost
}

// benchProfile prints the share of each op in a training step, and its rate against a ceiling measured in the same run:
// that of the matrix product for ops with products, that of a sum of vectors for the others.
// The step has the first of trainSizes with the length of -length.
func benchProfile(r *report) {
	i := slices.IndexFunc(trainSizes, func(c trainSize) bool { return r.onlyLength == 0 || r.onlyLength == c.seq })
	if i >= 0 {
		train(r, tinylm.NSA, trainSizes[i], addProfile)
	}
}

func addProfile(r *report, t *trainer) {
	step := t.steps(trainRuns) / trainRuns
	plan, times := profile(t.Machine(), t.Machine().ProfileStep, 5)
	byName := map[string]*profiled{}
	var total, outside time.Duration // of all ops, and of those that are not of an attention branch
	for i, s := range plan.Steps {
		if s.Prologue {
			continue // not part of a training step: the update does this work there
		}
		name, took := s.Op+", "+s.Implementation, slices.Min(times[i])
		if byName[name] == nil {
			byName[name] = &profiled{name: name}
		}
		p := byName[name]
		p.calls, p.time, p.FLOPs, p.Bytes = p.calls+1, p.time+took, p.FLOPs+s.Cost.FLOPs, p.Bytes+s.Cost.Bytes
		total += took
		if !inBranch(s.Op) {
			outside += took
		}
	}
	flops, bytes := ceilings(r)
	longest := func(a, b *profiled) int { return cmp.Compare(b.time, a.time) }
	for _, p := range slices.SortedFunc(maps.Values(byName), longest) {
		share := 100 * p.time.Seconds() / total.Seconds()
		r.add(p.name, fmt.Sprintf("%d calls, %.1f %%", p.calls, share), p.time.Seconds()*1e3, "ms")
		if p.FLOPs > 0 {
			r.add(p.name, t.size, p.FLOPs/p.time.Seconds()/1e12, "TFLOP/s", against("measured ceiling", flops/1e12))
		} else {
			r.add(p.name, t.size, p.Bytes/p.time.Seconds()/1e9, "GB/s", against("measured ceiling", bytes/1e9))
		}
	}
	r.add("all ops", t.size, total.Seconds()*1e3, "ms")
	r.add("all ops, one by one, over a replayed step", t.size, 100*total.Seconds()/step.Seconds(), "%")
	r.add("outside the attention branches", t.size, outside.Seconds()/t.tokens*1e6, "us/token", atMost(1),
		against("whole dense step, compiled PyTorch, peer figure", 1.55))
}

func inBranch(op string) bool {
	return slices.ContainsFunc([]string{"attention", "sliding window", "select blocks", "compress"},
		func(name string) bool { return strings.Contains(op, name) })
}

// ceilings reports and returns the FLOP/s of the device in a large matrix product and its bytes a second in a sum of
// large vectors. The inputs are normal numbers: with zeros a product would draw less power and so run at a higher
// clock.
func ceilings(r *report) (flops, bytes float64) {
	const n = 8192
	product, t := fastest(r, "linear", func(g *G.ExprGraph) (*G.Node, error) {
		return ops.Linear(input(g, "x", 1, n, n), input(g, "w", n, n))
	})
	flops = product.FLOPs / t.Seconds()
	sum, t := fastest(r, "add", func(g *G.ExprGraph) (*G.Node, error) {
		return ops.Add(input(g, "x", 1, n, 2*n), input(g, "y", 1, n, 2*n))
	})
	bytes = sum.Bytes / t.Seconds()
	r.add("matrix product, measured ceiling", "8192x8192x8192", flops/1e12, "TFLOP/s")
	r.add("sum of vectors, measured ceiling", "2 x 128 Mi", bytes/1e9, "GB/s")
	return flops, bytes
}

// fastest runs the graph that build makes. It returns the cost of its op of the given name, and the shortest time of
// this op.
func fastest(r *report, op string, build func(*G.ExprGraph) (*G.Node, error)) (graph.Cost, time.Duration) {
	g := G.NewGraph()
	must(build(g))
	plan, times := r.profileGraph(g, 8)
	i := slices.IndexFunc(plan.Steps, func(s graph.PlanStep) bool { return s.Op == op })
	return plan.Steps[i].Cost, slices.Min(times[i])
}
