package ops_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestLayerErrors: what is wrong with an op is an error of its constructor that names the op, what was got and wanted.
func TestLayerErrors(t *testing.T) {
	g := G.NewGraph()
	names := 0
	of := func(dt tensor.Dtype, shape ...int) *G.Node {
		names++
		if len(shape) == 0 {
			return G.NewScalar(g, dt, G.WithName(fmt.Sprint("n", names)))
		}
		return G.NewTensor(g, dt, len(shape), G.WithShape(shape...), G.WithName(fmt.Sprint("n", names)))
	}
	f := func(shape ...int) *G.Node { return of(tensor.Float64, shape...) }
	f32 := func(shape ...int) *G.Node { return of(tensor.Float32, shape...) }
	ids := func(shape ...int) *G.Node { return of(tensor.Int32, shape...) }
	type node = *G.Node
	linear := func(x, w node, opts ...ops.LinearOption) func() (node, error) {
		return func() (node, error) { return ops.Linear(x, w, opts...) }
	}
	mean := func(x node, l, d int) func() (node, error) {
		return func() (node, error) { return ops.CompressMean(x, l, d) }
	}
	mlp := func(x, pe, w1, w2 node, l, d int) func() (node, error) {
		return func() (node, error) { return ops.CompressMLP(x, pe, w1, w2, l, d) }
	}
	rope := func(x node, base float64, start int) func() (node, error) {
		return func() (node, error) { return ops.RoPE(x, base, start) }
	}
	norm := func(x, w node, eps float64) func() (node, error) {
		return func() (node, error) { return ops.RMSNorm(x, w, eps) }
	}
	embed := func(w, ids node) func() (node, error) { return func() (node, error) { return ops.Embedding(w, ids) } }
	loss := func(x, y node) func() (node, error) { return func() (node, error) { return ops.CrossEntropy(x, y) } }
	gated := func(x node, b ...node) func() (node, error) {
		return func() (node, error) { return ops.GatedSum(x, b...) }
	}
	add := func(x ...node) func() (node, error) { return func() (node, error) { return ops.Add(x...) } }
	apply := func(spec ops.Spec, in ...node) func() (node, error) {
		return func() (node, error) { return ops.Apply(spec, in...) }
	}
	x, w, kv := f(2, 3, 5), f(4, 5), f(1, 9, 2, 6)
	for _, c := range []struct {
		build func() (*G.Node, error)
		err   string
	}{
		{func() (node, error) { return ops.SiLU(nil) }, "silu: input 0 is nil"},
		{func() (node, error) { return ops.SiLU(ids(3)) }, "silu: x is int32, want float32 or float64"},
		{func() (node, error) { return ops.Sigmoid(ids(3)) }, "sigmoid: x is int32, want float32 or float64"},
		{func() (node, error) { return ops.Softmax(f()) }, "softmax: x is a scalar, want a last axis"},

		{add(f(2, 3), f(3, 2)), "add: x 1 has shape (3, 2), want (2, 3)"},
		{add(f(3), f(3, 1)), "add: x 1 has shape (3, 1), want (3)"},
		{add(f(2), f32(2)), "add: x 1 is float32, the inputs before it are float64"},

		{linear(x, f(4, 6)), "linear: x (2, 3, 5) has no trailing axes of product 6, the inputs of w"},
		{linear(x, f(1, 30)), "linear: x (2, 3, 5) has no trailing axes of product 30, the inputs of w"},
		{linear(f(2, 2, 2, 2, 2, 2, 2), f(1, 32)), "linear: x (2, 2, 2, 2, 2, 2, 2) has no trailing axes of product 32"},
		{linear(f(5), w), "linear: x has rank 1 (5), want rank 2 or more"},
		{linear(x, f(5)), "linear: w has rank 1 (5), want rank 2"},
		{linear(x, f32(4, 5)), "linear: w is float32, the inputs before it are float64"},
		{linear(x, nil), "linear: input 1 is nil"},
		{linear(x, w, ops.WithBias(nil)), "linear: input 2 is nil"},
		{linear(x, w, nil), "linear: option 0 is nil"},
		{linear(x, w, ops.WithBias(f(5))), "linear: bias has shape (5), want (4)"},
		{linear(x, w, ops.WithBias(f(1, 4))), "linear: bias has rank 2 (1, 4), want rank 1"},
		{linear(x, w, ops.WithHeads(3)), "linear: heads 3 do not divide the 4 outputs of w (4, 5)"},
		{linear(x, w, ops.WithHeads(0)), "linear: heads is 0, want at least 1"},
		{linear(x, w, ops.WithHeads(-2)), "linear: heads is -2, want at least 1"},
		{apply(ops.LinearInputGradOp{Axes: ops.Axes{5}}, f(2, 3, 5), w), "end of dy has shape (5), want (4)"},
		{apply(ops.LinearInputGradOp{Axes: ops.Axes{6}}, f(2, 3, 4), w), "axes (6) of x do not have the product 5"},
		{apply(ops.LinearInputGradOp{Heads: 2, Axes: ops.Axes{5}}, f(2, 2), w), "dy has rank 2 (2, 2), want rank 3 or more"},
		{apply(ops.LinearWeightGradOp{Out: 4, In: 5}, x, f(2, 2, 4)), "x (2, 3, 5) and dy (2, 2, 4) are not rows of 5 inputs and 4 outputs"},
		{apply(ops.LinearBiasGradOp{Out: 4}, x), "dy (2, 3, 5) is not rows of 4 outputs"},

		{rope(f(1, 2, 3, 5), 1e4, 0), "rope: dim 5 of x (1, 2, 3, 5) is odd, want pairs"},
		{rope(f(2, 3, 4), 1e4, 0), "rope: x has rank 3 (2, 3, 4), want rank 4"},
		{rope(kv, 0, 0), "rope: base is 0, want a positive number"},
		{rope(kv, 1e4, -1), "rope: start is -1, want at least 0"},

		{norm(x, f(4), 1e-6), "rms norm: weight has shape (4), want (5)"},
		{norm(f(5), f(5), 1e-6), "rms norm: x has rank 1 (5), want rank 2 or more"},
		{norm(x, f(5), 0), "rms norm: eps is 0, want a positive number"},
		{norm(x, f32(5), 1), "rms norm: weight is float32, the inputs before it are float64"},
		{apply(ops.RMSNormGradOp{Eps: 1}, x, f(5), f(2, 3, 4)), "gradient of rms norm: dy has shape (2, 3, 4), want (2, 3, 5)"},

		{embed(w, f(2, 3)), "embedding: ids is float64, want int32 or int"},
		{embed(w, ids(6)), "embedding: ids has rank 1 (6), want rank 2"},
		{embed(f(4), ids(2, 3)), "embedding: weight has rank 1 (4), want rank 2"},
		{apply(ops.EmbeddingGradOp{Vocab: 4}, ids(2, 3), f(3, 2, 5)), "gradient of embedding: dy has shape (3, 2, 5), want (2, 3, 5)"},
		{apply(ops.EmbeddingGradOp{}, ids(2, 3), x), "gradient of embedding: vocabulary V is 0, want at least 1"},

		{loss(x, ids(2, 4)), "cross entropy: targets has shape (2, 4), want (2, 3)"},
		{loss(f(6, 5), ids(2, 3)), "cross entropy: targets has shape (2, 3), want (6)"},
		{loss(f(5), ids(1)), "cross entropy: logits has rank 1 (5), want rank 2 or 3"},
		{loss(f(1, 1, 2, 5), ids(1, 1, 2)), "cross entropy: logits has rank 4 (1, 1, 2, 5), want rank 2 or 3"},
		{loss(f(6, 5), of(tensor.Int, 5)), "cross entropy: targets has shape (5), want (6)"},
		{embed(w, of(tensor.Int64, 2, 3)), "embedding: ids is int64, want int32 or int"},
		{apply(ops.Int32Op{}, ids(3)), "int32: x is int32, want int"},
		{loss(x, f(2, 3)), "cross entropy: targets is float64, want int32 or int"},

		{mean(kv, 4, 3), "compress mean: stride d = 3 does not divide the block length l = 4"},
		{mean(kv, 0, 1), "compress mean: block length l is 0, want at least 1"},
		{mean(kv, 4, 0), "compress mean: stride d is 0, want at least 1"},
		{mean(x, 4, 2), "compress mean: x has rank 3 (2, 3, 5), want rank 4"},
		{apply(ops.CompressMeanGradOp{BlockLen: 4, Stride: 2, Tokens: 9}, f(1, 4, 2, 6)), "dy has shape (1, 4, 2, 6), want (1, 3, 2, 6)"},
		{mlp(kv, f(4, 5), f(3, 24), f(6, 3), 4, 2), "compress mlp: pe has shape (4, 5), want (4, 6)"},
		{mlp(kv, f(4, 6), f(3, 23), f(6, 3), 4, 2), "compress mlp: w1 has shape (3, 23), want (3, 24)"},
		{mlp(kv, f(4, 6), f(3, 24), f(6, 4), 4, 2), "compress mlp: w2 has shape (6, 4), want (6, 3)"},
		{mlp(kv, f(4, 6), f(3, 24), f32(6, 3), 4, 2), "compress mlp: w2 is float32, the inputs before it are float64"},
		{mlp(kv, f(4, 6), f(3, 24), f(6, 3), 4, 8), "compress mlp: stride d = 8 does not divide the block length l = 4"},

		{gated(f(1, 2, 3, 2), f(1, 2, 3, 4)), "gated sum: gates (1, 2, 3, 2) are for 2 branches, got 1"},
		{gated(f(1, 2, 3, 2), f(1, 2, 3, 4), f(1, 2, 3, 5)), "gated sum: branch 1 has shape (1, 2, 3, 5), want (1, 2, 3, 4)"},
		{gated(f(1, 2, 3, 1), f(1, 2, 4, 4)), "gated sum: branch 0 has shape (1, 2, 4, 4), want (1, 2, 3, 4)"},
		{gated(f(1, 2, 3, 1)), "gated sum: no branches"},
		{gated(nil, kv), "gated sum: input 0 is nil"},

		{apply(ops.AdamWOp{}, f(ops.AdamWHyperLen)), "adamw: 1 inputs, want the numbers of the step and 4 for each of 0 tensors"},
		{apply(ops.AdamWOp{Decay: "2"}, f(ops.AdamWHyperLen), w, w, w, w), "adamw: decay of tensor 0 is '2', want '0' or '1'"},
		{apply(ops.AdamWOp{Decay: "1", Copies: ops.BFloat16}, f(ops.AdamWHyperLen), w, w, w, w), "adamw: 5 inputs, want the numbers of the step and 5 for each of 1 tensors"},
		{apply(ops.CastOp{To: tensor.Float64}, w), "cast: from float64 to float64, want float32 on one side and half precision on the other"},
		{apply(ops.AdamWOp{Decay: "1"}, f(7), w, w, w, w), "adamw: hyper is float64 (7), want float64 (9)"},
		{apply(ops.AdamWOp{Decay: "1"}, f(ops.AdamWHyperLen), w, w, w, f(5, 4)), "adamw: v 0 has shape (5, 4), want (4, 5)"},
	} {
		n, err := c.build()
		require.ErrorContains(t, err, c.err)
		require.ErrorContains(t, err, "ops: ")
		require.Nil(t, n)
	}
}

// TestInferZeroSizes: no op accepts an operand without elements.
func TestInferZeroSizes(t *testing.T) {
	g := G.NewGraph()
	x := G.NewTensor(g, tensor.Float64, 4, G.WithShape(1, 0, 2, 4), G.WithName("x"))
	_, err := ops.CompressMean(x, 4, 2)
	require.EqualError(t, err, "ops: compress mean: input 0 has a zero size: float64 (1, 0, 2, 4)")
}

// TestInferHugeSizes: operands that could not be counted in bytes are refused before anything is computed of their sizes.
func TestInferHugeSizes(t *testing.T) {
	g := G.NewGraph()
	of := func(name string, shape ...int) *G.Node {
		return G.NewTensor(g, tensor.Float64, len(shape), G.WithShape(shape...), G.WithName(name))
	}
	_, err := ops.SiLU(of("x", 1<<31, 1<<31, 1, 1))
	require.EqualError(t, err, "ops: silu: input 0 is too large: float64 (2147483648, 2147483648, 1, 1)")
	// (2^62 + 1)*4 = 4 for an int.
	_, err = ops.CompressMLP(of("kv", 1, 9, 2, 4), of("pe", 1<<62+1, 4), of("w1", 3, 4), of("w2", 4, 3), 1<<62+1, 1)
	require.EqualError(t, err, "ops: compress mlp: input 1 is too large: float64 (4611686018427387905, 4)")
	q, lse := of("q", 1, 9, 2, 4), of("lse", 1, 2, 9)
	_, err = ops.SelectBlocks(q, of("kc", 1, 2, 2, 4), lse, ops.Params{BlockLen: 8, Stride: 1, SelectBlock: 8, TopN: math.MaxInt, Window: 1})
	require.EqualError(t, err, "ops: select blocks: output 0 is too large: int32 (1, 9, 2, 9223372036854775807)")
}

// TestTokensOutsideTheVocabulary: errors of the run, forward and backward, that say which, where and of how many.
func TestTokensOutsideTheVocabulary(t *testing.T) {
	w, dy := normal("weight", 1, 5, 3), normal("dy", 2, 2, 3, 3)
	logits, lse, one := normal("logits", 3, 2, 3, 5), normal("lse", 4, 2, 3), normal("one", 5)
	for _, bad := range []int32{5, -1, -2, 1 << 30, -1 << 31} {
		ids := array{Name: "ids", Shape: []int{2, 3}, Ints: []int32{0, 4, 1, 2, bad, 3}}
		for _, c := range []struct {
			spec   ops.Spec
			inputs []array
			name   string
		}{
			{ops.EmbeddingOp{}, []array{w, ids}, "id"},
			{ops.EmbeddingGradOp{Vocab: 5}, []array{ids, dy}, "id"},
			{ops.CrossEntropyOp{}, []array{logits, ids}, "target"},
			{ops.CrossEntropyGradOp{}, []array{logits, ids, lse, one}, "target"},
		} {
			x := bind(t, c.spec, tensor.Float64, 1, c.inputs...)
			err := x.kernel.Check()
			if c.name == "target" && bad == -1 {
				require.NoError(t, err)
				continue
			}
			low := map[string]int{"target": -1}[c.name]
			require.EqualError(t, err, fmt.Sprintf("%s %d at (1, 1) is outside the vocabulary [%d, 5)", c.name, bad, low))
		}
	}

	g := G.NewGraph()
	ids := array{Name: "ids", Shape: []int{1, 2}, Ints: testutil.Tokens(1, 2, 5)}
	ids.Ints[1] = 9
	_, err := ops.Embedding(w.Node(g, tensor.Float64), ids.Node(g, tensor.Float64))
	require.NoError(t, err)
	require.ErrorContains(t, G.NewTapeMachine(g).RunAll(), "ops: embedding: id 9 at (0, 1) is outside the vocabulary [0, 5)")
}
