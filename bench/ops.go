package main

import (
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops"
)

// opInputs are the inputs of the ops of opCases.
type opInputs struct {
	x, w, gain    *G.Node // [1,S,dim], [dim,dim], [dim]
	q, k, v       *G.Node // [1,S,Hq,D], [1,S,Hkv,D]
	kc, vc, gates *G.Node // [1,Nc,Hkv,D], [1,S,Hq,3]
}

// opCases are the ops of the attention layer.
var opCases = []struct {
	name        string
	build       func(in *opInputs) (*G.Node, error)
	forwardOnly bool // it has no gradient
	longest     int  // largest S at which it is measured; 0: no limit
}{
	{name: "linear", build: func(in *opInputs) (*G.Node, error) { return ops.Linear(in.x, in.w) }},
	{name: "rms norm", build: func(in *opInputs) (*G.Node, error) { return ops.RMSNorm(in.x, in.gain, 1e-6) }},
	{name: "silu", build: func(in *opInputs) (*G.Node, error) { return ops.SiLU(in.x) }},
	{name: "rope", build: func(in *opInputs) (*G.Node, error) { return ops.RoPE(in.q, 10000, 0) }},
	{name: "compress mean", build: func(in *opInputs) (*G.Node, error) {
		return ops.CompressMean(in.k, base.Params)
	}},
	{name: "compressed attention", build: compressedAttention},
	{name: "select blocks (with compressed attention)", build: selectBlocks, forwardOnly: true},
	{name: "selected attention (with block selection)", build: func(in *opInputs) (*G.Node, error) {
		return ops.SelectedAttention(in.q, in.k, in.v, must(selectBlocks(in)), base.SelectBlock)
	}},
	{name: "sliding window", build: func(in *opInputs) (*G.Node, error) {
		return ops.SlidingWindow(in.q, in.k, in.v, base.Window)
	}},
	{name: "dense causal", longest: 2048, build: func(in *opInputs) (*G.Node, error) {
		return ops.CausalAttention(in.q, in.k, in.v)
	}},
	{name: "gated sum", build: func(in *opInputs) (*G.Node, error) { return ops.GatedSum(in.gates, in.q, in.q, in.q) }},
}

func compressedAttention(in *opInputs) (*G.Node, error) {
	return ops.CompressedAttention(in.q, in.kc, in.vc, base.Params)
}

func selectBlocks(in *opInputs) (*G.Node, error) {
	return ops.SelectBlocks(in.q, in.kc, must(ops.LSE(must(compressedAttention(in)))), base.Params)
}

// benchOps times every op alone, forward and forward with backward.
func benchOps(r *report) {
	for _, s := range []int{2048, 8192} {
		for _, c := range opCases {
			if c.longest != 0 && s > c.longest {
				continue
			}
			for _, pass := range []string{"forward", "forward and backward"} {
				backward := pass != "forward"
				if backward && c.forwardOnly {
					continue
				}
				r.part(s, func() {
					t, flop := timeOp(c.build, s, backward)
					size := fmt.Sprintf("S=%d", s)
					r.add(c.name+", "+pass, size, t*1e3, "ms")
					if flop > 0 {
						r.add(c.name+", "+pass, size, flop/t/1e9, "GFLOP/s")
					}
				})
			}
		}
	}
}

// timeOp returns the seconds of a run over s tokens and the floating-point operations of its products.
func timeOp(build func(*opInputs) (*G.Node, error), s int, backward bool) (t, flop float64) {
	g, nc := G.NewGraph(), ops.NumCompressed(s, base.BlockLen, base.Stride)
	out := must(build(&opInputs{
		x: input(g, "x", 1, s, base.Dim), w: input(g, "w", base.Dim, base.Dim), gain: input(g, "gain", base.Dim),
		q: input(g, "q", 1, s, base.Heads, base.KeyDim),
		k: input(g, "k", 1, s, base.KVHeads, base.KeyDim), v: input(g, "v", 1, s, base.KVHeads, base.KeyDim),
		kc: input(g, "kc", 1, nc, base.KVHeads, base.KeyDim), vc: input(g, "vc", 1, nc, base.KVHeads, base.KeyDim),
		gates: input(g, "gates", 1, s, base.Heads, 3),
	}))
	keep := G.Nodes{out}
	if backward {
		keep = append(keep, pullBack(g, out)...)
	}
	m := must(graph.NewMachine(g, graph.WithKeep(keep...)))
	defer mustClose(m)
	for _, st := range m.Plan().Steps {
		flop += st.Cost.FLOPs
	}
	return seconds(3, m.RunAll), flop
}

// pullBack adds the gradients of out's inputs to the graph. The gradient of out is another input of the graph.
func pullBack(g *G.ExprGraph, out *G.Node) G.Nodes {
	grads := must(out.Op().(G.SDOp).SymDiff(value.Inputs(g, out), out, input(g, "gradient of the output", out.Shape()...)))
	return slices.DeleteFunc(grads, func(n *G.Node) bool { return n == nil })
}
