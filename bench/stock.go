package main

import (
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// stockAttention adds dense causal attention for s tokens to g as a Gorgonia user writes it today, of stock ops alone:
// projections, scores with a mask, softmax, product with the values and the output projection, head by head. It is the
// baseline of the NSA layer, with the same numbers of heads, groups and dims. inputs are the weights, drawn from a normal
// distribution, and x; out is [S,dim].
func stockAttention(g *G.ExprGraph, s, dim, heads, groups, d int) (inputs G.Nodes, out *G.Node) {
	mul := func(a, b *G.Node) *G.Node { return G.Must(G.Mul(a, b)) }
	weight := func(name string, i, rows, cols int) *G.Node {
		w := normal(rows * cols)
		for k := range w {
			w[k] /= float32(math.Sqrt(float64(rows)))
		}
		n := matrix(g, fmt.Sprintf("%s %d", name, i), rows, cols, w)
		inputs = append(inputs, n)
		return n
	}
	future := make([]float32, s*s)
	for i := range s {
		for j := i + 1; j < s; j++ {
			future[i*s+j] = float32(math.Inf(-1))
		}
	}
	x, mask := matrix(g, "x", s, dim, normal(s*dim)), matrix(g, "mask", s, s, future)
	scale := G.NewConstant(float32(1/math.Sqrt(float64(d))), G.WithName("scale"))
	var keys, values G.Nodes
	for j := range groups {
		keys = append(keys, G.Must(G.Transpose(mul(x, weight("wk", j, dim, d)), 1, 0)))
		values = append(values, mul(x, weight("wv", j, dim, d)))
	}
	for h := range heads {
		group := h * groups / heads
		scores := mul(mul(mul(x, weight("wq", h, dim, d)), keys[group]), scale)
		p := G.Must(G.SoftMax(G.Must(G.Add(scores, mask)), 1))
		o := mul(mul(p, values[group]), weight("wo", h, d, dim))
		if out == nil {
			out = o
		} else {
			out = G.Must(G.Add(out, o))
		}
	}
	return append(inputs, x), out
}

// matrix is an input of float32.
func matrix(g *G.ExprGraph, name string, rows, cols int, data []float32) *G.Node {
	v := tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(data))
	return G.NewMatrix(g, tensor.Float32, G.WithShape(rows, cols), G.WithName(name), G.WithValue(v))
}
