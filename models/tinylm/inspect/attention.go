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
	"github.com/gorgonia-nsa/nsa/ops"
)

// branch is a branch of a layer: the nodes from which its probabilities are computed, and sums over the windows so far.
type branch struct {
	name         string
	spec         ops.Spec
	q, k, blocks *G.Node // blocks: nil except in the selected branch
	distances    distanceSums
}

// branchesOf returns the branches of the attention of a layer: those of NSA in the order of the gates, or the causal one of dense attention.
func branchesOf(g *G.ExprGraph, l tinylm.Layer) ([]branch, error) {
	named := []struct {
		name string
		node *G.Node
	}{{"compressed", l.Compressed}, {"selected", l.Selected}, {"window", l.Window}}
	if l.Gates == nil { // dense attention: the output is a linear layer over the attention
		named = named[:1]
		named[0].name, named[0].node = "causal", value.Inputs(g, l.Output)[0]
	}
	var list []branch
	for _, b := range named {
		if b.node == nil {
			continue
		}
		spec, ok := ops.SpecOf(b.node.Op())
		in := value.Inputs(g, b.node)
		if !ok || len(in) < 3 {
			return nil, fmt.Errorf("%s branch: node %v with %d inputs, want attention of q, k and v", b.name, b.node, len(in))
		}
		a := branch{name: b.name, spec: spec, q: in[0], k: in[1]}
		if _, ok := spec.(ops.SelectedAttentionOp); ok {
			a.blocks = l.Blocks
		}
		list = append(list, a)
	}
	return list, nil
}

// attention has the values of a branch for one sequence, after a run.
type attention struct {
	spec   ops.Spec
	q, k   []float64 // [S,Hq,D], [T,Hkv,D]
	blocks []int32   // [S,Hkv,n]
	n      int
	tokens int
	heads  int
	groups int
	dim    int
}

// read reads the values of the nodes.
func (a branch) read() (*attention, error) {
	q, err := graph.HostTensor(a.q)
	if err != nil {
		return nil, err
	}
	k, err := graph.HostTensor(a.k)
	if err != nil {
		return nil, err
	}
	s := q.Shape()
	r := &attention{spec: a.spec, q: floatsOf(q), k: floatsOf(k), tokens: s[1], heads: s[2], groups: k.Shape()[2], dim: s[3]}
	if a.blocks != nil {
		b, err := graph.HostTensor(a.blocks)
		if err != nil {
			return nil, err
		}
		r.blocks, r.n = slices.Clone(b.Int32s()), b.Shape()[3]
	}
	return r, nil
}

// floatsOf returns a copy of the elements of a tensor of float32 or float64.
func floatsOf(d *tensor.Dense) []float64 {
	if x, ok := d.Data().([]float64); ok {
		return slices.Clone(x)
	}
	x := d.Float32s()
	list := make([]float64, len(x))
	for i, v := range x {
		list[i] = float64(v)
	}
	return list
}

// keys appends the keys that query t of a group sees to list, ascending.
func (a *attention) keys(list []int, t, group int) []int {
	from, to := 0, 0
	switch s := a.spec.(type) {
	case ops.SlidingWindowOp:
		from, to = max(0, t+1-s.Window), t+1
	case ops.CompressedAttentionOp:
		to = ops.NumVisible(t, s.BlockLen, s.Stride)
	case ops.SelectedAttentionOp:
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

// selected returns the selected blocks of query t in a group.
func (a *attention) selected(t, group int) []int32 {
	i := (t*a.groups + group) * a.n
	return a.blocks[i : i+a.n]
}

// distance returns how many tokens key i lies before query t. A compressed key lies at the middle of its block.
func (a *attention) distance(t, i int) float64 {
	if s, ok := a.spec.(ops.CompressedAttentionOp); ok {
		return float64(t) - (float64(i*s.Stride) + float64(s.BlockLen-1)/2)
	}
	return float64(t - i)
}

// eachQuery calls f for each query of a head, with the keys that it sees and their probabilities. f must not keep these slices.
func (a *attention) eachQuery(head int, f func(t int, keys []int, p []float64)) {
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
