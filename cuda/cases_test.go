package cuda_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// opCase is an op with its gradient.
type opCase struct {
	name   string
	inputs []input
	build  func(in G.Nodes) (*G.Node, error)
	// chooses is set where the result depends on an order of scores, which half precision may change.
	chooses bool
}

// input is an array: normal numbers, or the integers.
type input struct {
	name  string
	shape []int
	ints  []int32
	scale float64 // of the numbers; 0 is 1
}

func floats(name string, shape ...int) input { return input{name: name, shape: shape} }

// node returns the input's node, with its value. The numbers are the same in both types.
func (a input) node(g *G.ExprGraph, dt tensor.Dtype, seed uint64) *G.Node {
	n := tensor.Shape(a.shape).TotalSize()
	if a.ints != nil {
		v := tensor.New(tensor.WithShape(a.shape...), tensor.WithBacking(a.ints))
		return G.NewTensor(g, tensor.Int32, len(a.shape), G.WithShape(a.shape...), G.WithName(a.name), G.WithValue(v))
	}
	f32 := testutil.Convert[float32](testutil.Normal(seed, n))
	for i := range f32 {
		if a.scale != 0 {
			f32[i] *= float32(a.scale)
		}
	}
	if len(a.shape) == 0 {
		if dt == tensor.Float32 {
			return G.NewScalar(g, dt, G.WithName(a.name), G.WithValue(G.NewF32(f32[0])))
		}
		return G.NewScalar(g, dt, G.WithName(a.name), G.WithValue(G.NewF64(float64(f32[0]))))
	}
	var backing any = f32
	if dt == tensor.Float64 {
		backing = testutil.Convert[float64](f32)
	}
	v := tensor.New(tensor.WithShape(a.shape...), tensor.WithBacking(backing))
	return G.NewTensor(g, dt, len(a.shape), G.WithShape(a.shape...), G.WithName(a.name), G.WithValue(v))
}

// graph builds the op and its gradients by a normal dy. The results are the main output and the gradients there are, or all
// outputs of an op without gradients.
func (c opCase) graph(t testing.TB, dt tensor.Dtype) (*G.ExprGraph, G.Nodes) {
	t.Helper()
	g := G.NewGraph()
	var in G.Nodes
	for i, a := range c.inputs {
		in = append(in, a.node(g, dt, uint64(1+i)))
	}
	y, err := c.build(in)
	require.NoError(t, err)
	results := G.Nodes{y}
	spec, _ := ops.SpecOf(y.Op())
	if _, ok := spec.(ops.Differentiable); !ok {
		for i := 1; i < len(ops.OutputsOf(y.Op())); i++ {
			results = append(results, G.Must(ops.Output(y, i)))
		}
		return g, results
	}
	var of G.Nodes // of the op, which may have others before it
	for it := g.From(y.ID()); it.Next(); {
		of = append(of, it.Node().(*G.Node))
	}
	grads, err := y.Op().(G.SDOp).SymDiff(of, y, floats("dy", y.Shape()...).node(g, dt, 99))
	require.NoError(t, err)
	for _, d := range grads {
		if d != nil {
			results = append(results, d)
		}
	}
	return g, results
}

// chosen returns valid choices of n blocks of l' tokens for s queries: [b,s,h,n].
func chosen(b, s, h, n, size int) []int32 {
	var idx []int32
	for i := range b * s * h {
		t, g := i/h%s, i%h
		own := t / size
		for j := range n {
			switch {
			case own < n && j > own:
				idx = append(idx, -1)
			case own < n:
				idx = append(idx, int32(j))
			case j == 0:
				idx = append(idx, 0)
			case j >= n-2:
				idx = append(idx, int32(own-(n-1-j)))
			default: // ascending, between the first and the two newest
				idx = append(idx, int32(j+(t+g)%(own-n+2)))
			}
		}
	}
	return idx
}

// opCases has every op of package ops, at odd sizes.
func opCases() []opCase {
	var list []opCase
	add := func(name string, build func(in G.Nodes) (*G.Node, error), inputs ...input) {
		list = append(list, opCase{name: name, inputs: inputs, build: build})
	}
	for _, c := range []struct{ B, S, Hq, Hkv, D, Dv, w, l, d, size, n int }{
		{1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 3}, {2, 37, 6, 2, 12, 5, 7, 4, 2, 4, 4}, {1, 133, 4, 4, 32, 48, 300, 32, 16, 16, 5},
		{1, 23, 4, 1, 64, 64, 5, 32, 16, 64, 3}, {1, 259, 8, 2, 64, 32, 64, 16, 8, 16, 6},
	} {
		q, k, v := floats("q", c.B, c.S, c.Hq, c.D), floats("k", c.B, c.S, c.Hkv, c.D), floats("v", c.B, c.S, c.Hkv, c.Dv)
		rows := max(1, ops.NumCompressed(c.S, c.l, c.d))
		kc, vc := floats("kc", c.B, rows, c.Hkv, c.D), floats("vc", c.B, rows, c.Hkv, c.Dv)
		p := ops.Params{BlockLen: c.l, Stride: c.d, SelectBlock: c.size, TopN: c.n, Window: c.w}
		if p.SelectBlock%p.Stride != 0 {
			p.SelectBlock = p.Stride
		}
		add(fmt.Sprintf("sliding window %v", c), func(in G.Nodes) (*G.Node, error) { return ops.SlidingWindow(in[0], in[1], in[2], c.w) }, q, k, v)
		add(fmt.Sprintf("causal attention %v", c), func(in G.Nodes) (*G.Node, error) { return ops.CausalAttention(in[0], in[1], in[2]) }, q, k, v)
		add(fmt.Sprintf("compressed attention %v", c), func(in G.Nodes) (*G.Node, error) {
			return ops.CompressedAttention(in[0], in[1], in[2], c.l, c.d)
		}, q, kc, vc)
		add(fmt.Sprintf("selected attention %v", c), func(in G.Nodes) (*G.Node, error) {
			return ops.SelectedAttention(in[0], in[1], in[2], in[3], c.size)
		}, q, k, v, input{name: "idx", shape: []int{c.B, c.S, c.Hkv, c.n}, ints: chosen(c.B, c.S, c.Hkv, c.n, c.size)})
		list = append(list, opCase{fmt.Sprintf("select blocks %v", c), []input{q, kc, vc}, func(in G.Nodes) (*G.Node, error) {
			o := G.Must(ops.CompressedAttention(in[0], in[1], in[2], c.l, c.d))
			return ops.SelectBlocks(in[0], in[1], G.Must(ops.LSE(o)), p)
		}, true})
	}
	for _, c := range []struct{ B, S, H, D, l, d, hidden int }{
		{1, 1, 1, 1, 1, 1, 1}, {2, 13, 3, 5, 4, 2, 3}, {1, 31, 2, 3, 32, 16, 5}, {2, 33, 1, 3, 32, 16, 5}, {2, 500, 3, 11, 8, 4, 9},
		{1, 300, 2, 64, 32, 16, 130},
	} {
		x := floats("x", c.B, c.S, c.H, c.D)
		scale := 1.0
		if c.D > 16 {
			scale = 0.05
		}
		add(fmt.Sprintf("compress mean %v", c), func(in G.Nodes) (*G.Node, error) { return ops.CompressMean(in[0], c.l, c.d) }, x)
		add(fmt.Sprintf("compress mlp %v", c), func(in G.Nodes) (*G.Node, error) {
			return ops.CompressMLP(in[0], in[1], in[2], in[3], c.l, c.d)
		}, x, floats("pe", c.l, c.D), input{name: "w1", shape: []int{c.hidden, c.l * c.D}, scale: scale}, floats("w2", c.D, c.hidden))
	}
	for _, c := range []struct {
		x       []int
		out, in int
		heads   int
		bias    bool
	}{
		{[]int{1, 1}, 1, 1, 0, false}, {[]int{7, 13}, 3, 13, 0, true}, {[]int{2, 3, 4, 6}, 10, 24, 5, true}, {[]int{2, 3, 5}, 6, 5, 2, false},
		{[]int{1, 97, 65}, 67, 65, 0, false}, {[]int{2, 300, 5, 31}, 130, 155, 10, true}, {[]int{3, 1100, 8}, 16, 8, 0, true},
	} {
		inputs := []input{floats("x", c.x...), floats("w", c.out, c.in)}
		if c.bias {
			inputs = append(inputs, floats("bias", c.out))
		}
		add(fmt.Sprintf("linear %v", c), func(in G.Nodes) (*G.Node, error) {
			var opts []ops.LinearOption
			if c.bias {
				opts = append(opts, ops.WithBias(in[2]))
			}
			if c.heads > 0 {
				opts = append(opts, ops.WithHeads(c.heads))
			}
			return ops.Linear(in[0], in[1], opts...)
		}, inputs...)
	}
	apply := func(spec ops.Spec) func(in G.Nodes) (*G.Node, error) {
		return func(in G.Nodes) (*G.Node, error) { return ops.Apply(spec, in...) }
	}
	for _, c := range []struct {
		B, S, in int
		layers   [][2]int // heads and their dim, of which those of dims above 1 and below 9 are turned
	}{{1, 1, 1, [][2]int{{1, 2}}}, {2, 5, 3, [][2]int{{3, 6}, {1, 1}, {2, 6}}}, {2, 150, 40, [][2]int{{4, 8}, {1, 24}, {2, 8}, {1, 16}}}} {
		forward, backward := ops.LinearsOp{RoPE: ops.RoPEOp{Base: 100, Start: 3}}, ops.LinearsGradOp{In: c.in, RoPE: ops.RoPEOp{Base: 100, Inverse: true}}
		x := floats("x", c.B, c.S, c.in)
		var ws, dys []input
		for i, l := range c.layers {
			ws = append(ws, floats(fmt.Sprint("w", i), l[0]*l[1], c.in))
			backward.Terms[i] = 1 + i%ops.MaxTerms
			for j := range backward.Terms[i] {
				dys = append(dys, floats(fmt.Sprint("dy", i, " ", j), c.B, c.S, l[0], l[1]))
			}
			forward.Heads[i], forward.Turned[i] = l[0], l[1] > 1 && l[1] < 9
			backward.Turned[i] = forward.Turned[i]
		}
		forward.Bias[0] = true
		add(fmt.Sprintf("linears %v", c), apply(forward), slices.Concat([]input{x}, ws, []input{floats("bias", c.layers[0][0]*c.layers[0][1])})...)
		add(fmt.Sprintf("gradient of linears %v", c), apply(backward), slices.Concat([]input{x}, dys, ws)...)
		w, residual := floats("w", 2*c.in, c.in), floats("residual", c.B, c.S, 2*c.in)
		add(fmt.Sprintf("linear with add %v", c), apply(ops.LinearAddOp{}), x, w, residual)
	}
	for _, shape := range [][]int{{1}, {7}, {3, 5, 2}, {3*16384 + 5}} {
		add(fmt.Sprintf("silu %v", shape), func(in G.Nodes) (*G.Node, error) { return ops.SiLU(in[0]) }, floats("x", shape...))
		add(fmt.Sprintf("sigmoid %v", shape), func(in G.Nodes) (*G.Node, error) { return ops.Sigmoid(in[0]) }, floats("x", shape...))
		add(fmt.Sprintf("softmax %v", shape), func(in G.Nodes) (*G.Node, error) { return ops.Softmax(in[0]) }, floats("x", shape...))
	}
	for _, n := range []int{1, 2, 5, 8, 9, 20} {
		var inputs []input
		for i := range n {
			inputs = append(inputs, floats(fmt.Sprint("x", i), 2, 3, 5))
		}
		add(fmt.Sprintf("add %d", n), func(in G.Nodes) (*G.Node, error) { return ops.Add(in...) }, inputs...)
	}
	for _, c := range []struct {
		shape []int
		start int
	}{{[]int{1, 1, 1, 2}, 0}, {[]int{2, 5, 3, 4}, 0}, {[]int{1, 97, 2, 6}, 7}, {[]int{2, 130, 4, 64}, 1000}} {
		add(fmt.Sprintf("rope %v", c), func(in G.Nodes) (*G.Node, error) { return ops.RoPE(in[0], 10000, c.start) }, floats("x", c.shape...))
	}
	for _, shape := range [][]int{{1, 1}, {2, 3, 7}, {1, 130, 33}, {200, 301}} {
		add(fmt.Sprintf("rms norm %v", shape), func(in G.Nodes) (*G.Node, error) { return ops.RMSNorm(in[0], in[1], 0.3) },
			floats("x", shape...), floats("weight", shape[len(shape)-1]))
		add(fmt.Sprintf("gradient of rms norm with add %v", shape), apply(ops.RMSNormGradAddOp{Eps: 0.3}),
			floats("x", shape...), floats("weight", shape[len(shape)-1]), floats("dy", shape...), floats("residual", shape...))
	}
	for _, c := range []struct{ V, dim, B, S int }{{1, 1, 1, 1}, {300, 7, 3, 101}, {700, 130, 2, 150}} {
		add(fmt.Sprintf("embedding %v", c), func(in G.Nodes) (*G.Node, error) { return ops.Embedding(in[0], in[1]) },
			floats("weight", c.V, c.dim), input{name: "ids", shape: []int{c.B, c.S}, ints: testutil.Tokens(2, c.B*c.S, c.V)})
	}
	for _, c := range []struct{ B, S, V int }{{1, 1, 1}, {2, 5, 7}, {2, 300, 97}, {1, 5, 5000}} {
		targets := testutil.Tokens(2, c.B*c.S, c.V)
		for i := 1; i < len(targets); i += 4 {
			targets[i] = -1
		}
		add(fmt.Sprintf("cross entropy %v", c), func(in G.Nodes) (*G.Node, error) { return ops.CrossEntropy(in[0], in[1]) },
			floats("logits", c.B, c.S, c.V), input{name: "targets", shape: []int{c.B, c.S}, ints: targets})
	}
	for _, c := range []struct{ B, S, H, n, dv int }{{1, 1, 1, 1, 1}, {2, 5, 3, 2, 7}, {2, 200, 3, 3, 33}} {
		inputs := []input{floats("gates", c.B, c.S, c.H, c.n)}
		for i := range c.n {
			inputs = append(inputs, floats(fmt.Sprint("branch", i), c.B, c.S, c.H, c.dv))
		}
		add(fmt.Sprintf("gated sum %v", c), func(in G.Nodes) (*G.Node, error) { return ops.GatedSum(in[0], in[1:]...) }, inputs...)
	}
	return list
}
