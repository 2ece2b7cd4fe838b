package main

import (
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// nsaLayer plans one NSA layer of Base()'s shape over s tokens, with the gradients of its parameters and of its input.
func nsaLayer(s int) *graph.Machine {
	g := G.NewGraph()
	l := must(nn.NewNSA(g, "layer.", base.NSAConfig, nn.Random(tensor.Float32, 1)))
	x := input(g, "x", 1, s, base.Dim)
	y := must(l.Apply(x))
	cost := must(spec.Apply(givenGradient{}, y, input(g, "gradient of y", 1, s, base.Dim)))
	must(graph.Grad(cost, append(l.Learnables(), x)...))
	return must(graph.NewMachine(g))
}

// givenGradient is a cost whose gradient with respect to y is its second input: y, dy -> 0. It takes no time, so that
// only the layer is measured.
type givenGradient struct{}

func (givenGradient) Name() string { return "given gradient" }

func (givenGradient) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return []spec.Operand{{Dtype: in[0].Dtype}}, nil
}

func (givenGradient) Bind(k *cpu.Kernel, _, out []spec.Arg) {
	k.Phase(1, func(int, *cpu.Worker) { clear(cpu.Slice[float32](out[0].Buf)) })
}

func (givenGradient) Grad(_ []bool, in G.Nodes, _, _ *G.Node) (G.Nodes, error) {
	return G.Nodes{in[1], nil}, nil
}

// benchLayer measures the layer's time and memory, forward and backward, against the sequence length. The lengths run
// in turn, so that a slow phase of the machine affects all of them.
func benchLayer(r *report) {
	var lengths []int
	for _, s := range []int{1024, 2048, 4096, 8192} {
		r.part(s, func() { lengths = append(lengths, s) })
	}
	var runs []func() error
	memory := map[int]float64{} // planned bytes
	for _, s := range lengths {
		m := nsaLayer(s)
		defer mustClose(m)
		p := m.Plan()
		runs, memory[s] = append(runs, m.RunAll), float64(p.Arena+p.Workspace)
	}
	times := map[int]float64{}
	for i, t := range secondsInTurn(9, runs...) {
		s := lengths[i]
		times[s] = t
		size := fmt.Sprintf("S=%d", s)
		r.add("NSA layer, forward and backward", size, t, "s")
		r.add("NSA layer, planned memory", size, memory[s]/(1<<20), "MiB")
		r.add("NSA layer, planned memory a token", size, memory[s]/float64(s), "bytes")
	}
	if len(lengths) > 1 {
		r.add("NSA layer, time of 8192 over 2048", "f+b", times[8192]/times[2048], "times", atMost(5))
		r.add("NSA layer, memory a token of 8192 over 1024", "f+b", memory[8192]/8192/(memory[1024]/1024), "times",
			atMost(1.05))
	}
}

// benchStock compares the layer with dense attention of stock Gorgonia ops on a TapeMachine, forward and backward.
func benchStock(r *report) {
	const s = 2048
	r.part(s, func() {
		m := nsaLayer(s)
		defer mustClose(m)
		t := seconds(3, m.RunAll)
		g := G.NewGraph()
		inputs, out := stockAttention(g, s)
		must(G.Grad(must(G.Sum(must(G.HadamardProd(out, input(g, "r", s, base.Dim))))), inputs...))
		vm := G.NewTapeMachine(g)
		defer mustClose(vm)
		stock := seconds(1, func() error {
			defer vm.Reset()
			return vm.RunAll()
		})
		size := fmt.Sprintf("S=%d", s)
		r.add("NSA layer, forward and backward", size, t, "s", against("dense attention of stock ops, same run", stock))
		r.add("NSA layer, speed over stock dense attention", size, stock/t, "times", atLeast(10))
	})
}

// stockAttention adds dense causal attention for s tokens to g as a Gorgonia user writes it, with stock ops only:
// projections, scores with a mask, softmax, product with the values and the output projection, head by head. It is the
// baseline of the NSA layer and has its shape. inputs are the weights, drawn from a normal distribution, and x; out is
// [S,dim].
func stockAttention(g *G.ExprGraph, s int) (inputs G.Nodes, out *G.Node) {
	mul := func(a, b *G.Node) *G.Node { return must(G.Mul(a, b)) }
	weight := func(name string, i, rows, cols int) *G.Node {
		w := normal(rows * cols)
		for k := range w {
			w[k] /= float32(math.Sqrt(float64(rows)))
		}
		n := inputOf(g, fmt.Sprintf("%s %d", name, i), w, rows, cols)
		inputs = append(inputs, n)
		return n
	}
	future := make([]float32, s*s)
	for i := range s {
		for j := i + 1; j < s; j++ {
			future[i*s+j] = float32(math.Inf(-1))
		}
	}
	x, mask := input(g, "x", s, base.Dim), inputOf(g, "mask", future, s, s)
	scale := G.NewConstant(float32(1/math.Sqrt(float64(base.KeyDim))), G.WithName("scale"))
	var keys, values G.Nodes
	for j := range base.KVHeads {
		keys = append(keys, must(G.Transpose(mul(x, weight("wk", j, base.Dim, base.KeyDim)), 1, 0)))
		values = append(values, mul(x, weight("wv", j, base.Dim, base.KeyDim)))
	}
	for h := range base.Heads {
		group := h * base.KVHeads / base.Heads
		scores := mul(mul(mul(x, weight("wq", h, base.Dim, base.KeyDim)), keys[group]), scale)
		p := must(G.SoftMax(must(G.Add(scores, mask)), 1))
		o := mul(mul(p, values[group]), weight("wo", h, base.KeyDim, base.Dim))
		if out == nil {
			out = o
		} else {
			out = must(G.Add(out, o))
		}
	}
	return append(inputs, x), out
}
