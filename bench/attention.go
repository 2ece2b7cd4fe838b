package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// attentionShape is the attention of one layer over one sequence, l 32, d 16, l' 64, n 16, w 512.
type attentionShape struct {
	name                string
	heads, kvHeads, dim int
}

var attentionShapes = []attentionShape{{"i", 12, 2, 64}, {"ii", 64, 4, 128}}

// attentionBounds are the milliseconds that a branch may take at most, forward, and forward and backward.
var attentionBounds = map[string][2]float64{
	"all, i 8192": {0.42, 1.35}, "all, i 65536": {5.1, 14.7}, "all, ii 8192": {1.9, 6.6}, "all, ii 65536": {28, 95},
	"sliding window, ii 65536": {2.7, 11.5}, "compressed attention, ii 65536": {8, 39}, "select blocks, ii 65536": {5}, "selected attention, random blocks, ii 65536": {11, 34},
	"sliding window, i 65536": {0.32, 1.4}, "compressed attention, i 65536": {1.05, 4.8}, "select blocks, i 65536": {0.8}, "selected attention, random blocks, i 65536": {2.9, 7.6},
}

// attentionPeers are the same of cuDNN's dense attention.
var attentionPeers = map[string][2]float64{
	"all, i 2048": {0.035, 0.169}, "all, i 8192": {0.268, 1.07}, "all, i 32768": {3.63, 13.5}, "all, i 65536": {14.4, 53.1},
	"all, ii 2048": {0.147, 0.841}, "all, ii 8192": {1.80, 7.44}, "all, ii 32768": {29.8, 110.6}, "all, ii 65536": {119.0, 445.6},
}

// benchAttention times each branch, the choice of blocks and the whole, with normal inputs; selected attention also with random
// blocks, of which neighbouring queries share the forced ones alone, and with blocks that 64 neighbours share; and dense attention.
func benchAttention(r *report) {
	ceiling, _ := ceilings(r)
	if gpu, ok := r.backend.(*cuda.Backend); ok {
		c := must(gpu.Ceilings())
		r.add("reads from L2, measured ceiling", "16 MiB by all multiprocessors", c.L2/1e9, "GB/s")
		r.add("exponentials, measured ceiling", "float32", c.Exp/1e12, "T/s")
	}
	for _, shape := range attentionShapes {
		for s := 2048; s <= 131072; s *= 2 {
			if skipsLength(s) {
				continue
			}
			at := attentionAt{r, shape, s, ceiling / 1e12}
			branches := at.time("", at.nsa)
			whole := timedBranch{name: "all", bytes: branches[0].bytes}
			for i := range branches {
				b := &branches[i]
				whole.forward, whole.backward, whole.flops = whole.forward+b.forward, whole.backward+b.backward, whole.flops+b.flops
				b.bytes = 0
			}
			at.add(append(branches, whole)...)
			for _, share := range []int{1, 64} {
				name := map[int]string{1: "selected attention, random blocks", 64: "selected attention, shared blocks"}[share]
				at.add(at.time(name, func(q *G.Node, in func(string, ...int) *G.Node) *G.Node {
					idx := tensor.New(tensor.WithShape(1, s, shape.kvHeads, base.TopN), tensor.WithBacking(at.choice(share)))
					blocks := G.NewTensor(q.Graph(), tensor.Int32, 4, G.WithShape(idx.Shape()...), G.WithName("idx"), G.WithValue(idx))
					return must(ops.SelectedAttention(q, in("k"), in("v"), blocks, base.SelectBlock))
				})...)
			}
			if s <= 65536 {
				at.add(at.time("dense attention", func(q *G.Node, in func(string, ...int) *G.Node) *G.Node {
					return must(ops.CausalAttention(q, in("k"), in("v")))
				})...)
			}
		}
	}
}

// attentionAt is a shape at a length.
type attentionAt struct {
	*report
	attentionShape
	s       int
	ceiling float64 // TFLOP/s
}

// nsa adds attention by three branches and their gates.
func (a attentionAt) nsa(q *G.Node, in func(string, ...int) *G.Node) *G.Node {
	nc := max(1, ops.NumCompressed(a.s, base.BlockLen, base.Stride)) // one row of zeros where there is no complete block
	kc := in("kc", nc)
	compressed := must(ops.CompressedAttention(q, kc, in("vc", nc), base.BlockLen, base.Stride))
	blocks := must(ops.SelectBlocks(q, kc, must(ops.LSE(compressed)), base.Params))
	selected := must(ops.SelectedAttention(q, in("k"), in("v"), blocks, base.SelectBlock))
	window := must(ops.SlidingWindow(q, in("k window"), in("v window"), base.Window))
	gates := must(ops.Sigmoid(input(q.Graph(), "gates", 1, a.s, a.heads, 3)))
	return must(ops.GatedSum(gates, compressed, selected, window))
}

// choice returns blocks as ops.SelectBlocks does: block 0, the query's own and the one before, and random ones that `share` queries
// have in common.
func (a attentionAt) choice(share int) []int32 {
	rng, n := rand.New(rand.NewPCG(1, uint64(a.s))), base.TopN
	idx := make([]int32, 0, a.s*a.kvHeads*n)
	for t := range a.s {
		for range a.kvHeads {
			own := t / base.SelectBlock
			row := []int32{}
			if t%share > 0 && (t-1)/base.SelectBlock == own {
				row = append(row, idx[len(idx)-a.kvHeads*n:][:n]...)
			} else if own < n {
				for j := range n {
					if j > own {
						j = -1
					}
					row = append(row, int32(j))
				}
			} else {
				row = append(row, 0, int32(own-1), int32(own))
				for len(row) < n {
					if j := int32(1 + rng.IntN(own-2)); !slices.Contains(row, j) {
						row = append(row, j)
					}
				}
				slices.Sort(row)
			}
			idx = append(idx, row...)
		}
	}
	return idx
}

// timedBranch is an op with its gradient.
type timedBranch struct {
	name              string
	forward, backward time.Duration
	flops             float64
	bytes             int // of the machine
}

// graphOf makes an output of q and of inputs that it asks for by their names and numbers of rows, S if it gives none.
type graphOf func(q *G.Node, in func(name string, rows ...int) *G.Node) *G.Node

// graph returns the output that build makes of q.
func (a attentionAt) graph(q *G.Node, build graphOf) *G.Node {
	return build(q, func(name string, rows ...int) *G.Node {
		if len(rows) == 0 {
			rows = []int{a.s}
		}
		return input(q.Graph(), name, 1, rows[0], a.kvHeads, a.dim)
	})
}

// profile returns the plan of a graph with its gradients, and the medians of the times of its steps.
func (a attentionAt) profile(build graphOf, opts ...graph.Option) (graph.Plan, []time.Duration) {
	g := G.NewGraph()
	q := input(g, "q", 1, a.s, a.heads, a.dim)
	out := a.graph(q, build)
	do := input(g, "do", out.Shape()...)
	cost := must(G.Sum(must(G.HadamardProd(out, do))))
	must(graph.Grad(cost, slices.DeleteFunc(g.Inputs(), func(n *G.Node) bool { return n == do || n.Name() == "idx" })...))
	inputs := must(graph.MoveInputs(a.backend, g.Inputs()...))
	defer closes(inputs)
	m := must(graph.NewMachine(g, append(opts, graph.WithBackend(a.backend), graph.WithPrecision(trainPrecision))...))
	defer closes(m)
	runs := make([][]time.Duration, len(m.Plan().Steps)) // of each step
	for run := range 5 {
		for i, t := range must(m.Profile()) {
			if run > 0 {
				runs[i] = append(runs[i], t)
			}
		}
	}
	medians := make([]time.Duration, len(runs))
	for i, times := range runs {
		slices.Sort(times)
		medians[i] = times[len(times)/2]
	}
	return m.Plan(), medians
}

// time returns the ops of a graph from q, k and v to an output, with their gradients. A name stands for all of them.
func (a attentionAt) time(name string, build graphOf) (list []timedBranch) {
	plan, times := a.profile(build)
	for i, s := range plan.Steps {
		op := strings.TrimSuffix(strings.ReplaceAll(s.Op, "sigmoid gated", "gated"), " with deltas")
		branch, backward := strings.CutPrefix(op, "gradient of ")
		if !inBranch(branch) && branch != "gated sum" {
			continue
		}
		if name != "" {
			branch = name
		}
		at := slices.IndexFunc(list, func(b timedBranch) bool { return b.name == branch })
		if at < 0 {
			at, list = len(list), append(list, timedBranch{name: branch, bytes: plan.Arena + plan.Workspace})
		}
		b, t := &list[at], times[i]
		if b.flops += s.Cost.FLOPs; backward {
			b.backward += t
		} else {
			b.forward += t
		}
	}
	return list
}

// add reports branches.
func (a attentionAt) add(list ...timedBranch) {
	for _, b := range list {
		size := fmt.Sprintf("%s %d", a.name, a.s)
		key := b.name + ", " + size
		for i, t := range []time.Duration{b.forward, b.forward + b.backward} {
			if i == 1 && b.backward == 0 {
				continue
			}
			var notes []note
			if bound := attentionBounds[key][i]; bound > 0 {
				notes = append(notes, atMost(bound))
			}
			if peer := attentionPeers[key][i]; peer > 0 {
				notes = append(notes, against("dense, cuDNN, peer figure", peer))
			}
			a.report.add(b.name+[]string{", forward", ", forward and backward"}[i], size, t.Seconds()*1e3, "ms", notes...)
		}
		if b.flops > 0 {
			rate := b.flops / (b.forward + b.backward).Seconds() / 1e12
			a.report.add(b.name, size, rate, "TFLOP/s", against("measured ceiling", a.ceiling))
		}
		if b.bytes > 0 {
			a.report.add(b.name+", memory of the machine", size, float64(b.bytes)/(1<<20), "MiB")
		}
	}
}
