package main

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// base is the model whose sizes most suites use.
var base = tinylm.Base()

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
		return ops.CompressMean(in.k, base.BlockLen, base.Stride)
	}},
	{name: "compressed attention", build: compressedAttention},
	{name: "select blocks (with compressed attention)", build: selectBlocks, forwardOnly: true},
	{name: "selected attention (with choice)", build: func(in *opInputs) (*G.Node, error) {
		return ops.SelectedAttention(in.q, in.k, in.v, must(selectBlocks(in)), base.SelectBlock)
	}},
	{name: "sliding window", build: func(in *opInputs) (*G.Node, error) {
		return ops.SlidingWindow(in.q, in.k, in.v, base.Window)
	}},
	{name: "dense causal", build: func(in *opInputs) (*G.Node, error) { return ops.CausalAttention(in.q, in.k, in.v) }, longest: 2048},
	{name: "gated sum", build: func(in *opInputs) (*G.Node, error) { return ops.GatedSum(in.gates, in.q, in.q, in.q) }},
}

func compressedAttention(in *opInputs) (*G.Node, error) {
	return ops.CompressedAttention(in.q, in.kc, in.vc, base.BlockLen, base.Stride)
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
				t, flop := timeOp(c.build, s, backward)
				size := fmt.Sprintf("S=%d", s)
				r.add(c.name+", "+pass, size, t*1e3, "ms")
				if flop > 0 {
					r.add(c.name+", "+pass, size, flop/t/1e9, "GFLOP/s")
				}
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

// input returns a float32 input of normal numbers.
func input(g *G.ExprGraph, name string, shape ...int) *G.Node {
	return inputOf(g, name, normal(tensor.Shape(shape).TotalSize()), shape...)
}

// inputOf returns a float32 input that holds data.
func inputOf(g *G.ExprGraph, name string, data []float32, shape ...int) *G.Node {
	v := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data))
	return G.NewTensor(g, tensor.Float32, len(shape), G.WithShape(shape...), G.WithName(name), G.WithValue(v))
}

// benchGemm measures the matrix product: the square one against gonum in the same run, and the shapes of Base().
func benchGemm(r *report) {
	const n = 1024
	a, b, c := normal(n*n), normal(n*n), make([]float32, n*n)
	t := seconds(3, func() error {
		gonum.Implementation{}.Sgemm(blas.NoTrans, blas.NoTrans, n, n, n, 1, a, n, b, n, 0, c, n)
		return nil
	})
	gonumRate := 2 * n * n * n / t / 1e9
	rate := gemmRate(cpu.Product{M: n, N: n}, n, 20)
	for _, peer := range []note{against("gonum Sgemm, same run", gonumRate), against("OpenBLAS, peer figure", 231),
		against("PyTorch (MKL), peer figure", 187)} {
		r.add("matrix product float32", "1024x1024x1024", rate, "GFLOP/s", peer)
	}
	r.add("matrix product float32 over gonum", "1024x1024x1024", rate/gonumRate, "times", atLeast(10))

	for _, s := range []struct {
		what string
		k    int
		cpu.Product
	}{
		{"linear forward", 768, cpu.Product{M: 2048, N: 768, TransB: true}},
		{"linear forward", 768, cpu.Product{M: 2048, N: 128, TransB: true}},
		{"linear forward", 768, cpu.Product{M: 2048, N: 3072, TransB: true}},
		{"linear forward", 3072, cpu.Product{M: 2048, N: 768, TransB: true}},
		{"linear forward", 768, cpu.Product{M: 128, N: 768, TransB: true}},
		{"linear forward", 768, cpu.Product{M: 8192, N: 3072, TransB: true}},
		{"linear input gradient", 3072, cpu.Product{M: 2048, N: 768}},
		{"linear weight gradient", 2048, cpu.Product{M: 3072, N: 768, TransA: true}},
	} {
		r.add(s.what, fmt.Sprintf("%dx%dx%d", s.M, s.N, s.k), gemmRate(s.Product, s.k, 10), "GFLOP/s")
	}
}

// gemmRate returns the GFLOP/s of a product of the given K.
func gemmRate(p cpu.Product, k, runs int) float64 {
	var kernel cpu.Kernel
	p.Terms, p.C = []cpu.Term{{K: k, A: cpu.NewBuf(normal(p.M * k)), B: cpu.NewBuf(normal(k * p.N))}}, cpu.NewBuf(make([]float32, p.M*p.N))
	cpu.Products[float32](&kernel, p)
	team := cpu.NewTeam(0)
	mem := cpu.NewBuf(cpu.AlignedBytes(kernel.WorkBytes(team.Workers())))
	t := seconds(runs, func() error { return team.Run(&kernel, mem) })
	return 2 * float64(p.M) * float64(p.N) * float64(k) / t / 1e9
}

// normal returns n numbers of a normal distribution, the same in every run. They repeat with a period that shares no factor with any size.
func normal(n int) []float32 {
	const period = 9_999_991
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	x := make([]float32, n)
	for i := range x[:min(n, period)] {
		x[i] = float32(rng.NormFloat64())
	}
	for at := period; at < n; at += copy(x[at:], x[:period]) {
	}
	return x
}
