package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// attentionShape is the attention of one layer over one sequence, l 32, d 16, l' 64, n 16, w 512.
type attentionShape struct {
	name           string
	heads, kvHeads int
	dim, valueDim  int
}

var attentionShapes = []attentionShape{{"i", 12, 2, 64, 64}, {"ii", 64, 4, 128, 128}}

// dimShapes are measured at dimLength tokens.
func dimShapes() (list []attentionShape) {
	for _, d := range [][2]int{{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 128}, {256, 192}} {
		list = append(list, attentionShape{fmt.Sprintf("D=%d Dv=%d", d[0], d[1]), 32, 2, d[0], d[1]})
	}
	return list
}

const dimLength = 8192

// attentionBounds are the targets in milliseconds, at most: forward, and forward and backward.
var attentionBounds = map[string][2]float64{
	"all, i 8192": {0.42, 1.35}, "all, i 65536": {5.1, 14.7}, "all, ii 8192": {1.9, 6.6}, "all, ii 65536": {28, 95},
	"sliding window, ii 65536": {2.7, 11.5}, "compressed attention, ii 65536": {8, 39},
	"select blocks, ii 65536": {5}, "selected attention, random blocks, ii 65536": {11, 34},
	"sliding window, i 65536": {0.32, 1.4}, "compressed attention, i 65536": {1.05, 4.8},
	"select blocks, i 65536": {0.8}, "selected attention, random blocks, i 65536": {2.9, 7.6},
}

// benchAttention times each branch, the selection of blocks, all of NSA, and dense attention, with normal inputs. It
// also times selected attention with random blocks, where neighbouring queries share only the forced ones, and with
// blocks that 64 neighbours share. It times other head dimensions at one length.
func benchAttention(r *report) {
	ceiling := sync.OnceValue(func() float64 {
		flops, _ := ceilings(r)
		if gpu, ok := r.backend.(*cuda.Backend); ok {
			c := must(gpu.Ceilings())
			r.add("reads from L2, measured ceiling", "16 MiB by all multiprocessors", c.L2/1e9, "GB/s")
			r.add("exponentials, measured ceiling", "float32", c.Exp/1e12, "T/s")
		}
		return flops / 1e12
	})
	for _, shape := range attentionShapes {
		lengths := []int{2048, 4096, 8192, 16384, 32768, 65536, 131072}
		if r.onlyLength != 0 {
			lengths = []int{r.onlyLength}
		}
		for _, s := range lengths {
			r.part(s, func() {
				at := attentionBench{r, shape, s, ceiling()}
				at.addBranches()
				at.add(at.time("selected attention, random blocks", at.selectedBranch(1))...)
				at.add(at.time("selected attention, shared blocks", at.selectedBranch(64))...)
				if s <= 65536 {
					at.add(at.time("dense attention", at.dense)...)
				}
			})
		}
	}
	for _, shape := range dimShapes() {
		r.part(dimLength, func() {
			at := attentionBench{r, shape, dimLength, ceiling()}
			at.addBranches()
			at.add(at.time("dense attention", at.dense)...)
		})
	}
}

// attentionBench measures a shape at a length.
type attentionBench struct {
	report *report
	attentionShape
	s       int
	ceiling float64 // TFLOP/s
}

// nsa adds attention by three branches and their gates.
func (a attentionBench) nsa(q *G.Node, in func(string, int) *G.Node) *G.Node {
	nc := max(1, ops.NumCompressed(a.s, base.BlockLen, base.Stride)) // one row if there is no complete block
	kc := in("kc", nc)
	compressed := must(ops.CompressedAttention(q, kc, in("vc", nc), base.Params))
	blocks := must(ops.SelectBlocks(q, kc, must(ops.LSE(compressed)), base.Params))
	selected := must(ops.SelectedAttention(q, in("k", a.s), in("v", a.s), blocks, base.SelectBlock))
	window := must(ops.SlidingWindow(q, in("k window", a.s), in("v window", a.s), base.Window))
	gates := must(ops.Sigmoid(input(q.Graph(), "gates", 1, a.s, a.heads, 3)))
	return must(ops.GatedSum(gates, compressed, selected, window))
}

func (a attentionBench) dense(q *G.Node, in func(string, int) *G.Node) *G.Node {
	return must(ops.CausalAttention(q, in("k", a.s), in("v", a.s)))
}

// selectedBranch returns selected attention over randomBlocks.
func (a attentionBench) selectedBranch(share int) graphOf {
	return func(q *G.Node, in func(string, int) *G.Node) *G.Node {
		blocks := inputOf(q.Graph(), "idx", a.randomBlocks(share), 1, a.s, a.kvHeads, base.TopN)
		return must(ops.SelectedAttention(q, in("k", a.s), in("v", a.s), blocks, base.SelectBlock))
	}
}

// randomBlocks returns blocks in the form of ops.SelectBlocks: block 0, the query's own block and the one before, and
// random blocks. `share` neighbouring queries have the same blocks.
func (a attentionBench) randomBlocks(share int) []int32 {
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
	forward, backward runTimes
	flops             float64
	bytes             int  // of the machine
	keys              int  // of the op
	general           bool // an op has no kernel on tensor cores
}

// both returns the times of forward and backward together.
func (b timedBranch) both() runTimes { return b.forward.plus(b.backward) }

// attentionRuns is the number of measured runs, after one to warm up.
const attentionRuns = 5

// plus returns the sum of both times for each run. A nil t is no time.
func (t runTimes) plus(u runTimes) runTimes {
	if t == nil {
		return u
	}
	sum := slices.Clone(t)
	for i := range u {
		sum[i] += u[i]
	}
	return sum
}

// spread returns the difference between the longest and the shortest time, over the median.
func (t runTimes) spread() float64 {
	return (slices.Max(t) - slices.Min(t)).Seconds() / t.median().Seconds()
}

// graphOf makes an output from q and from inputs. It gets an input by its name and its number of rows. Inputs whose
// names begin with v are values.
type graphOf func(q *G.Node, in func(name string, rows int) *G.Node) *G.Node

func (a attentionBench) graph(q *G.Node, build graphOf) *G.Node {
	return build(q, func(name string, rows int) *G.Node {
		dim := a.dim
		if strings.HasPrefix(name, "v") {
			dim = a.valueDim
		}
		return input(q.Graph(), name, 1, rows, a.kvHeads, dim)
	})
}

// time returns the times of the attention ops of a graph, with their gradients. If name is not empty, they are summed
// under this name.
func (a attentionBench) time(name string, build graphOf, opts ...graph.Option) (list []timedBranch) {
	g := G.NewGraph()
	out := a.graph(input(g, "q", 1, a.s, a.heads, a.dim), build)
	do := input(g, "do", out.Shape()...)
	constant := func(n *G.Node) bool { return n == do || n.Name() == "idx" }
	addGradients(out, do, slices.DeleteFunc(g.Inputs(), constant)...)
	plan, times := a.report.profileGraph(g, attentionRuns, opts...)
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
			at = len(list)
			bytes := plan.Arena + plan.Workspace
			list = append(list, timedBranch{name: branch, bytes: bytes, keys: s.Inputs[1].Shape[1]})
		}
		b := &list[at]
		b.general = b.general || s.Implementation == "cuda"
		if b.flops += s.Cost.FLOPs; backward {
			b.backward = b.backward.plus(times[i])
		} else {
			b.forward = b.forward.plus(times[i])
		}
	}
	return list
}

func (a attentionBench) addBranches() {
	branches := a.time("", a.nsa)
	whole := timedBranch{name: "all", bytes: branches[0].bytes}
	for i := range branches {
		b := &branches[i]
		whole.forward, whole.backward = whole.forward.plus(b.forward), whole.backward.plus(b.backward)
		whole.flops += b.flops
		b.bytes = 0
	}
	a.add(append(branches, whole)...)
}

func (a attentionBench) add(list ...timedBranch) {
	for _, b := range list {
		size := fmt.Sprintf("%s %d", a.name, a.s)
		key := b.name + ", " + size
		for i, times := range []runTimes{b.forward, b.both()} {
			if i == 1 && b.backward == nil {
				continue
			}
			bound, what := attentionBounds[key][i], b.name+[]string{", forward", ", forward and backward"}[i]
			peer := cuDNNFigure("gpu_peers.csv", []string{"forward_ms", "forward_and_backward_ms"}[i],
				map[string]string{"shape": a.name, "length": strconv.Itoa(a.s), "attention": "dense"})
			a.report.add(what, size, times.median().Seconds()*1e3, "ms",
				when(bound > 0, atMost(bound)), when(b.name == "all", against(densePeer, peer)))
		}
		a.report.add(b.name+", spread", size, 100*b.both().spread(), "%")
		if b.flops > 0 {
			rate := b.flops / b.both().median().Seconds() / 1e12
			a.report.add(b.name, size, rate, "TFLOP/s", against("measured ceiling", a.ceiling))
		}
		if b.bytes > 0 {
			a.report.add(b.name+", memory of the machine", size, float64(b.bytes)/(1<<20), "MiB")
		}
	}
}

// benchThresholds finds the least number of keys from which on kernels on tensor cores are no slower than the general
// ones, forward and backward together, for each branch and head dimension.
func benchThresholds(r *report) {
	for _, dim := range []int{64, 96, 128, 192, 256} {
		least := map[string]int{} // by branch
		for s := 1; s <= 4096; s *= 2 {
			shape := attentionShape{heads: 16, kvHeads: 2, dim: dim, valueDim: min(dim, 192)}
			at := attentionBench{report: r, attentionShape: shape, s: s}
			timed := func(b graph.BranchPolicy) []timedBranch {
				return at.time("", at.nsa, graph.WithPolicy(graph.Policy{Window: b, Compressed: b, Selected: b}))
			}
			general := timed(graph.BranchPolicy{General: true})
			for _, fast := range timed(graph.BranchPolicy{MinKeys: 1}) {
				slow := slices.IndexFunc(general, func(b timedBranch) bool { return b.name == fast.name })
				if slow < 0 || fast.general || fast.both().median() > general[slow].both().median() {
					delete(least, fast.name)
				} else if inBranch(fast.name) && least[fast.name] == 0 {
					least[fast.name] = fast.keys
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(least)) {
			r.add("least keys on tensor cores", fmt.Sprintf("%s, D=%d", name, dim), float64(least[name]), "keys")
		}
	}
}
