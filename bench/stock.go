package main

import (
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// stockAttention is dense causal attention as a Gorgonia user writes it today, of stock ops alone: projections, scores
// with a mask, softmax, product with the values and the output projection, head by head. It is the baseline of the NSA
// layer: same input, same numbers of heads, groups and dims.
type stockAttention struct {
	x, mask        *G.Node
	wq, wo, wk, wv G.Nodes // one for each head; keys and values: one for each group
	out            *G.Node // [S,dim]
}

// newStockAttention builds the layer in g for one sequence of s tokens with all weights drawn from a normal distribution.
func newStockAttention(g *G.ExprGraph, s, dim, heads, groups, d int) (*stockAttention, error) {
	mask := make([]float32, s*s)
	for i := range s {
		for j := i + 1; j < s; j++ {
			mask[i*s+j] = float32(math.Inf(-1))
		}
	}
	a := &stockAttention{
		x:    matrix(g, "x", s, dim, normal(s*dim)),
		mask: matrix(g, "mask", s, s, mask),
	}
	weight := func(name string, i, rows, cols int) *G.Node {
		w := normal(rows * cols)
		for k := range w {
			w[k] /= float32(math.Sqrt(float64(rows)))
		}
		return matrix(g, fmt.Sprintf("%s %d", name, i), rows, cols, w)
	}
	var keys, values G.Nodes
	for j := range groups {
		a.wk = append(a.wk, weight("wk", j, dim, d))
		a.wv = append(a.wv, weight("wv", j, dim, d))
		k, err := G.Mul(a.x, a.wk[j])
		if err != nil {
			return nil, err
		}
		if k, err = G.Transpose(k, 1, 0); err != nil {
			return nil, err
		}
		v, err := G.Mul(a.x, a.wv[j])
		if err != nil {
			return nil, err
		}
		keys, values = append(keys, k), append(values, v)
	}
	scale := G.NewConstant(float32(1/math.Sqrt(float64(d))), G.WithName("scale"))
	for h := range heads {
		a.wq = append(a.wq, weight("wq", h, dim, d))
		a.wo = append(a.wo, weight("wo", h, d, dim))
		o, err := a.head(h, keys[h*groups/heads], values[h*groups/heads], scale)
		if err != nil {
			return nil, err
		}
		if a.out == nil {
			a.out = o
		} else if a.out, err = G.Add(a.out, o); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// head returns one head's part of the output, [S,dim].
func (a *stockAttention) head(h int, k, v, scale *G.Node) (*G.Node, error) {
	q, err := G.Mul(a.x, a.wq[h])
	if err != nil {
		return nil, err
	}
	s, err := G.Mul(q, k)
	if err != nil {
		return nil, err
	}
	if s, err = G.Mul(s, scale); err != nil {
		return nil, err
	}
	if s, err = G.Add(s, a.mask); err != nil {
		return nil, err
	}
	p, err := G.SoftMax(s, 1)
	if err != nil {
		return nil, err
	}
	o, err := G.Mul(p, v)
	if err != nil {
		return nil, err
	}
	return G.Mul(o, a.wo[h])
}

// learnables returns the weights.
func (a *stockAttention) learnables() G.Nodes {
	var all G.Nodes
	for _, w := range []G.Nodes{a.wq, a.wk, a.wv, a.wo} {
		all = append(all, w...)
	}
	return all
}

// matrix is an input of float32.
func matrix(g *G.ExprGraph, name string, rows, cols int, data []float32) *G.Node {
	v := tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(data))
	return G.NewMatrix(g, tensor.Float32, G.WithShape(rows, cols), G.WithName(name), G.WithValue(v))
}
