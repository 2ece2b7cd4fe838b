package main

import (
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"
)

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
