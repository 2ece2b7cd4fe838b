package inspect

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// branch is a branch of a layer: the nodes from which its probabilities are computed, and sums over the windows so far.
type branch struct {
	name         string
	spec         spec.Spec
	q, k, blocks *G.Node // blocks: nil except in the selected branch
	distances    distanceSums
}

// branchesOf returns the branches of the attention of a layer, in the order of the gates, or the causal one of dense
// attention.
func branchesOf(g *G.ExprGraph, l tinylm.Layer) ([]branch, error) {
	names, nodes := decode.BranchNames(), G.Nodes{l.Compressed, l.Selected, l.Window}
	if l.Gates == nil { // dense attention: the output is a linear layer over the attention
		names[0], nodes = "causal", value.Inputs(g, l.Output)[:1]
	}
	var list []branch
	for i, n := range nodes {
		if n == nil { // a layer of the window alone has no other
			continue
		}
		spec, ok := spec.SpecOf(n.Op())
		in := value.Inputs(g, n)
		if !ok || len(in) < 3 {
			const format = "%s branch: node %v with %d inputs, want attention of q, k and v"
			return nil, fmt.Errorf(format, names[i], n, len(in))
		}
		b := branch{name: names[i], spec: spec, q: in[0], k: in[1]}
		if _, ok := spec.(attention.Selected); ok {
			b.blocks = l.Blocks
		}
		list = append(list, b)
	}
	return list, nil
}

// attention has the values of a branch for one sequence, after a run.
type attentionOf struct {
	spec   spec.Spec
	q, k   []float64 // [S,Hq,D], [T,Hkv,D]
	blocks []int32   // [S,Hkv,n]
	n      int
	tokens int
	heads  int
	groups int
	dim    int
}

func (b branch) read() (*attentionOf, error) {
	q, s, err := valuesOf(b.q)
	if err != nil {
		return nil, err
	}
	k, ks, err := valuesOf(b.k)
	if err != nil {
		return nil, err
	}
	a := &attentionOf{spec: b.spec, q: q, k: k, tokens: s[1], heads: s[2], groups: ks[2], dim: s[3]}
	if b.blocks != nil {
		blocks, err := graph.HostTensor(b.blocks)
		if err != nil {
			return nil, err
		}
		a.blocks, a.n = slices.Clone(blocks.Int32s()), blocks.Shape()[3]
	}
	return a, nil
}

// valuesOf returns a copy of the elements of a node of float32 or float64, and its shape.
func valuesOf(n *G.Node) ([]float64, tensor.Shape, error) {
	d, err := graph.HostTensor(n)
	if err != nil {
		return nil, nil, err
	}
	if x, ok := d.Data().([]float64); ok {
		return slices.Clone(x), d.Shape(), nil
	}
	list := make([]float64, d.Shape().TotalSize())
	for i, x := range d.Float32s() {
		list[i] = float64(x)
	}
	return list, d.Shape(), nil
}

// keys appends the keys that query t of a group sees to list, ascending.
func (a *attentionOf) keys(list []int, t, group int) []int {
	from, to := 0, 0
	switch s := a.spec.(type) {
	case attention.SlidingWindow:
		from, to = max(0, t+1-s.Window), t+1
	case attention.Compressed:
		to = spec.NumVisible(t, s.BlockLen, s.Stride)
	case attention.Selected:
		for _, b := range a.selected(t, group) {
			if b >= 0 {
				for i := int(b) * s.SelectBlock; i < min(t+1, (int(b)+1)*s.SelectBlock); i++ {
					list = append(list, i)
				}
			}
		}
	}
	for i := from; i < to; i++ {
		list = append(list, i)
	}
	return list
}

func (a *attentionOf) selected(t, group int) []int32 {
	i := (t*a.groups + group) * a.n
	return a.blocks[i : i+a.n]
}

// distance returns how many tokens key i lies before query t. A compressed key lies at the middle of its block.
func (a *attentionOf) distance(t, i int) float64 {
	if s, ok := a.spec.(attention.Compressed); ok {
		return float64(t) - (float64(i*s.Stride) + float64(s.BlockLen-1)/2)
	}
	return float64(t - i)
}

// eachQuery calls f for each query of a head, with the keys that it sees and their probabilities. f must not keep these
// slices.
func (a *attentionOf) eachQuery(head int, f func(t int, keys []int, p []float64)) {
	group := head / (a.heads / a.groups)
	row := func(x []float64, i, heads, h int) []float64 { return x[(i*heads+h)*a.dim:][:a.dim] }
	scale := 1 / math.Sqrt(float64(a.dim))
	var keys []int
	var p []float64
	for t := range a.tokens {
		keys, p = a.keys(keys[:0], t, group), p[:0]
		for _, i := range keys {
			p = append(p, scale*floats.Dot(row(a.q, t, a.heads, head), row(a.k, i, a.groups, group)))
		}
		if len(keys) > 0 {
			lse := floats.LogSumExp(p)
			for j := range p {
				p[j] = math.Exp(p[j] - lse)
			}
		}
		f(t, keys, p)
	}
}
