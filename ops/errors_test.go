package ops_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

// TestOpErrors: wrong inputs or parameters are errors of the constructor, which name the op, what it got and what it
// wants.
func TestOpErrors(t *testing.T) {
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
	type build = func() (node, error)
	apply := func(s spec.Spec, in ...node) build { return func() (node, error) { return spec.Apply(s, in...) } }
	linearOf := func(x, w node, opts ...ops.LinearOption) build {
		return func() (node, error) { return ops.Linear(x, w, opts...) }
	}
	embed := func(w, ids node) build { return func() (node, error) { return ops.Embedding(w, ids) } }
	loss := func(x, y node) build { return func() (node, error) { return ops.CrossEntropy(x, y) } }
	lse := func(o node) build { return func() (node, error) { return attention.LSE(o) } }
	losses := func(o node) build { return func() (node, error) { return ops.Losses(o) } }
	mean := func(x node, l, d int) build { return apply(compress.Mean{BlockLen: l, Stride: d}, x) }
	mlp := func(l, d int, in ...node) build { return apply(compress.MLP{BlockLen: l, Stride: d}, in...) }
	rope := func(x node, base float64, start int) build { return apply(pointwise.RoPE{Base: base, Start: start}, x) }
	normOf := func(x, w node, eps float64) build { return apply(norm.RMSNorm{Eps: eps}, x, w) }
	gated := func(in ...node) build { return apply(pointwise.GatedSum{}, in...) }
	add := func(in ...node) build { return apply(pointwise.Add{}, in...) }
	window := func(q, k, v node, w int) build { return apply(attention.SlidingWindow{Window: w}, q, k, v) }
	q, k, kc, idx, lses := f(1, 10, 4, 8), f(1, 10, 2, 8), f(1, 4, 2, 8), ids(1, 10, 2, 3), f(1, 4, 10)
	compressed := func(kc, vc node, l, d int) build {
		return apply(attention.Compressed{BlockLen: l, Stride: d}, q, kc, vc)
	}
	selected := func(idx node, block int) build {
		return apply(attention.Selected{SelectBlock: block}, q, k, k, idx)
	}
	selectOp := func(kc, lse node, block, n int) build {
		return apply(attention.SelectBlocks{Params: ops.Params{BlockLen: 4, Stride: 2, SelectBlock: block, TopN: n,
			Window: 4}}, q, kc, lse)
	}
	x, w, v, kv := f(2, 3, 5), f(4, 5), f(6, 5), f(1, 9, 2, 6)
	many := slices.Repeat([]node{w}, linear.MaxFused+2)
	many[0] = x
	type counts = [linear.MaxFused]int
	type flags = [linear.MaxFused]bool
	documents := func(cu node, B, S, l, d int) build {
		return func() (node, error) { return ops.DocumentTable(cu, B, S, ops.Params{BlockLen: l, Stride: d}) }
	}
	with := func(table node) build {
		return func() (node, error) {
			return ops.CompressMean(k, ops.Params{BlockLen: 4, Stride: 2}, ops.WithDocuments(table))
		}
	}
	table := func(B, S, l, d int) node {
		return G.Must(ops.DocumentTable(ids(5), B, S, ops.Params{BlockLen: l, Stride: d}))
	}
	rotation := pointwise.RoPE{Base: 10}
	for _, c := range []struct {
		build build
		err   string
	}{
		{apply(pointwise.SiLU{}, nil), "silu: x is nil"},
		{apply(pointwise.SwiGLU{}, f(3), f(4)), "swiglu: up has shape (4), want (3)"},
		{apply(pointwise.SiLU{}, ids(3)), "silu: x is int32, want float32 or float64"},
		{apply(pointwise.Sigmoid{}, ids(3)), "sigmoid: x is int32, want float32 or float64"},
		{apply(norm.Softmax{}, f()), "softmax: x is a scalar, want a last axis"},

		{apply(vocab.TopK{K: 1}, f(3)), "top k: logits has rank 1 (3), want rank 2 or more"},
		{apply(vocab.TopK{}, f(2, 3)), "top k: k is 0, want at least 1"},

		{add(f(2, 3), f(3, 2)), "add: x 1 has shape (3, 2), want (2, 3)"},
		{add(f(3), f(3, 1)), "add: x 1 has shape (3, 1), want (3)"},
		{add(f(2), f32(2)), "add: x 1 is float32, the inputs before it are float64"},

		{linearOf(x, f(4, 6)), "linear: x (2, 3, 5) has no trailing axes of product 6, the inputs of w"},
		{linearOf(x, f(1, 30)), "linear: x (2, 3, 5) has no trailing axes of product 30, the inputs of w"},
		{linearOf(f(2, 2, 2, 2, 2, 2, 2), f(1, 32)), "linear: x (2, 2, 2, 2, 2, 2, 2) has no trailing axes of product 32"},
		{linearOf(f(5), w), "linear: x has rank 1 (5), want rank 2 or more"},
		{linearOf(x, f(5)), "linear: w has rank 1 (5), want rank 2"},
		{linearOf(x, f32(4, 5)), "linear: w is float32, the inputs before it are float64"},
		{linearOf(x, nil), "linear: w is nil"},
		{linearOf(x, w, ops.WithBias(nil)), "linear: bias is nil"},
		{linearOf(x, w, nil), "linear: option 0 is nil"},
		{linearOf(x, w, ops.WithBias(f(5))), "linear: bias has shape (5), want (4)"},
		{linearOf(x, w, ops.WithBias(f(1, 4))), "linear: bias has rank 2 (1, 4), want rank 1"},
		{linearOf(x, w, ops.WithHeads(3)), "linear: heads 3 do not divide the 4 outputs of w (4, 5)"},
		{linearOf(x, w, ops.WithHeads(0)), "linear: heads is 0, want at least 1"},
		{linearOf(x, w, ops.WithHeads(-2)), "linear: heads is -2, want at least 1"},
		{apply(linear.InputGrad{Axes: linear.Axes{5}}, f(2, 3, 5), w), "end of dy has shape (5), want (4)"},
		{apply(linear.InputGrad{Axes: linear.Axes{6}}, f(2, 3, 4), w), "axes (6) of x do not have the product 5"},
		{apply(linear.InputGrad{Heads: 2, Axes: linear.Axes{5}}, f(2, 2), w), "dy has rank 2 (2, 2), want rank 3 or more"},
		{apply(linear.WeightGrad{Out: 4, In: 5}, x, f(2, 2, 4)),
			"x (2, 3, 5) and dy (2, 2, 4) are not rows of 5 inputs and 4 outputs"},
		{apply(linear.BiasGrad{Out: 4}, x), "dy (2, 3, 5) is not rows of 4 outputs"},

		{apply(linear.Fused{}, x), "linears: 0 layers, want 1 to 12"},
		{apply(linear.Fused{}, many...), "linears: 13 layers, want 1 to 12"},
		{apply(linear.Fused{Bias: flags{true, true}}, x, w), "linears: -1 layers, want 1 to 12"},
		{apply(linear.Fused{Bias: flags{2: true}}, x, w, v, f(6)), "linears: 4 inputs are those of 2 layers"},
		{apply(linear.Fused{Heads: counts{2: 1}}, x, w, v), "linears: 3 inputs are those of 2 layers"},
		{apply(linear.Fused{}, x, w, f(4, 6)), "linears: layer 1: x (2, 3, 5) has no trailing axes of product 6"},
		{apply(linear.Fused{}, x, w, f(4, 15)), "linears: w 1 has shape (4, 15), want the 5 inputs of w 0"},
		{apply(linear.Fused{Heads: counts{0, 4}}, x, w, v), "linears: layer 1: heads 4 do not divide the 6 outputs"},
		{apply(linear.Fused{Bias: flags{1: true}}, x, w, v, f(4)), "linears: layer 1: bias has shape (4), want (6)"},
		{apply(linear.Fused{}, x, w, f32(6, 5)), "linears: layer 1: w is float32"},
		{apply(linear.Fused{Activation: [linear.MaxFused]linear.Activation{3}}, x, w),
			"linears: layer 0: activation is 3, want 0 to 2"},
		{apply(linear.Fused{Activation: [linear.MaxFused]linear.Activation{2: 1}}, x, w, v),
			"linears: 3 inputs are those of 2 layers"},
		{apply(linear.Fused{Norm: -1}, x, w, f(5)), "linears: norm: eps is -1"},
		{apply(linear.Fused{Norm: 1}, x, w, f(4)), "linears: norm: weight has shape (4), want (5)"},
		{apply(linear.Fused{Rotated: flags{2: true}}, x, w, v), "linears: 3 inputs are those of 2 layers"},
		{apply(linear.Fused{Rotated: flags{true}, RoPE: rotation}, x, w, v), "linears: layer 0: rope: x has rank 3"},
		{apply(linear.Fused{Rotated: flags{true}, Heads: counts{1}}, x, w, v), "linears: layer 0: rope: base is 0"},
		{apply(linear.Fused{Rotated: flags{true, true}, RoPE: rotation, Heads: counts{1, 1}}, x, w, v),
			"layer 1: heads of 6 are rotated, those of another layer have 4"},
		{apply(linear.FusedGrad{In: 5, Terms: counts{1}}, x, f(2, 3, 4)), "gradient of linears: 2 inputs, want 3"},
		{apply(linear.FusedGrad{In: 5, Terms: counts{1}, WeightsOnly: true}, x), "gradient of linears: 1 inputs, want 2"},
		{apply(linear.FusedGrad{In: 5}, x), "gradient of linears: numbers of terms are [0 0 0 0 0 0 0 0 0 0 0 0] and rotated dy are"},
		{apply(linear.FusedGrad{In: 5, Terms: counts{0, 1}}, x, f(2, 3, 4), w), "numbers of terms are [0 1 0"},
		{apply(linear.FusedGrad{In: 5, Terms: counts{1}, Rotated: flags{1: true}}, x, f(2, 3, 4), w),
			"rotated dy are [false true false"},
		{apply(linear.FusedGrad{In: 5, Terms: counts{4}}, x, f(2, 3, 4), f(2, 3, 4), f(2, 3, 4), f(2, 3, 4), w),
			"dy 0 has 4 terms, want 1 to 3"},
		{apply(linear.FusedGrad{In: 5, Terms: counts{2}}, x, f(2, 3, 4), f(3, 2, 4), w),
			"a term of dy 0 has shape (3, 2, 4), want (2, 3, 4)"},
		{apply(linear.FusedGrad{In: 7, Terms: counts{1}}, x, f(2, 3, 4), w), "x (2, 3, 5) is not rows of 7 inputs"},
		{apply(linear.FusedGrad{In: 5, Terms: counts{1, 1}}, x, f(2, 3, 4), f(2, 3, 6), w, w),
			"w 1 has shape (4, 5), want (6, 5)"},
		{apply(linear.FusedGrad{In: 5, Terms: counts{1}}, x, f(2, 3, 4), f32(4, 5)), "w 0 is float32"},
		{apply(linear.FusedGrad{In: 5, Terms: counts{1, 1}, WeightsOnly: true}, x, f(2, 3, 4), f(7)),
			"layer 1: x (2, 3, 5) and dy (7) are not rows"},
		{apply(linear.FusedGrad{In: 5, Terms: counts{1}, Rotated: flags{true}, RoPE: rotation}, x, f(2, 3, 4), w),
			"layer 0: rope: x has rank 3"},
		{apply(linear.LinearAdd{}, x, w), "linear with add: 2 inputs, want those of linear and residual"},
		{apply(linear.LinearAdd{}, x, w, f(2, 3, 6)), "linear with add: residual has shape (2, 3, 6), want (2, 3, 4)"},
		{apply(linear.LinearAdd{}, x, w, f32(2, 3, 4)), "linear with add: residual is float32"},
		{apply(linear.LinearSiLU{Heads: 3}, x, w), "linear with silu: heads 3 do not divide"},
		{apply(linear.LinearSiLU{}, x, f(4, 7)), "linear with silu: x (2, 3, 5) has no trailing axes"},
		{apply(norm.RMSNormGradAdd{Eps: 1}, x, f(5), f(2, 3, 5), f(2, 5)),
			"with add: residual has shape (2, 5), want (2, 3, 5)"},
		{apply(norm.RMSNormGradAdd{Eps: 1}, x, f(5), f(2, 5), f(2, 3, 5)), "with add: dy has shape (2, 5), want (2, 3, 5)"},
		{apply(norm.RMSNormGradAdd{}, x, f(5), f(2, 3, 5), f(2, 3, 5)), "with add: eps is 0"},

		{rope(f(1, 2, 3, 5), 1e4, 0), "rope: dim 5 of x (1, 2, 3, 5) is odd, want an even one"},
		{rope(f(2, 3, 4), 1e4, 0), "rope: x has rank 3 (2, 3, 4), want rank 4"},
		{rope(kv, 0, 0), "rope: base is 0, want a positive number"},
		{rope(kv, 1e4, -1), "rope: start is -1, want 0 to 2147483647"},

		{normOf(x, f(4), 1e-6), "rms norm: weight has shape (4), want (5)"},
		{normOf(f(5), f(5), 1e-6), "rms norm: x has rank 1 (5), want rank 2 or more"},
		{normOf(x, f(5), 0), "rms norm: eps is 0, want a positive number"},
		{normOf(x, f32(5), 1), "rms norm: weight is float32, the inputs before it are float64"},
		{apply(norm.RMSNormGrad{Eps: 1}, x, f(5), f(2, 3, 4)),
			"gradient of rms norm: dy has shape (2, 3, 4), want (2, 3, 5)"},

		{embed(w, f(2, 3)), "embedding: ids is float64, want int32 or int"},
		{embed(w, ids(6)), "embedding: ids has rank 1 (6), want rank 2"},
		{embed(f(4), ids(2, 3)), "embedding: weight has rank 1 (4), want rank 2"},
		{apply(vocab.EmbeddingGrad{Vocab: 4}, ids(2, 3), f(3, 2, 5)),
			"gradient of embedding: dy has shape (3, 2, 5), want (2, 3, 5)"},
		{apply(vocab.EmbeddingGrad{}, ids(2, 3), x), "gradient of embedding: vocabulary V is 0, want at least 1"},

		{loss(x, ids(2, 4)), "cross entropy: targets has shape (2, 4), want (2, 3)"},
		{loss(f(6, 5), ids(2, 3)), "cross entropy: targets has shape (2, 3), want (6)"},
		{loss(f(5), ids(1)), "cross entropy: logits has rank 1 (5), want rank 2 or 3"},
		{loss(f(1, 1, 2, 5), ids(1, 1, 2)), "cross entropy: logits has rank 4 (1, 1, 2, 5), want rank 2 or 3"},
		{loss(f(6, 5), of(tensor.Int, 5)), "cross entropy: targets has shape (5), want (6)"},
		{embed(w, of(tensor.Int64, 2, 3)), "embedding: ids is int64, want int32 or int"},
		{apply(spec.Int32{}, ids(3)), "int32: x is int32, want int"},
		{loss(x, f(2, 3)), "cross entropy: targets is float64, want int32 or int"},

		{mean(kv, 4, 3), "compress mean: stride d = 3 does not divide the block length l = 4"},
		{mean(kv, 0, 1), "compress mean: block length l is 0, want at least 1"},
		{mean(kv, 4, 0), "compress mean: stride d is 0, want at least 1"},
		{mean(x, 4, 2), "compress mean: x has rank 3 (2, 3, 5), want rank 4"},
		{apply(compress.MeanGrad{BlockLen: 4, Stride: 2, Tokens: 9}, f(1, 4, 2, 6)),
			"dy has shape (1, 4, 2, 6), want (1, 3, 2, 6)"},
		{mlp(4, 2, kv, f(4, 5), f(3, 24), f(6, 3)), "compress mlp: pe has shape (4, 5), want (4, 6)"},
		{mlp(4, 2, kv, f(4, 6), f(3, 23), f(6, 3)), "compress mlp: w1 has shape (3, 23), want (3, 24)"},
		{mlp(4, 2, kv, f(4, 6), f(3, 24), f(6, 4)), "compress mlp: w2 has shape (6, 4), want (6, 3)"},
		{mlp(4, 2, kv, f(4, 6), f(3, 24), f32(6, 3)), "compress mlp: w2 is float32, the inputs before it are float64"},
		{mlp(4, 8, kv, f(4, 6), f(3, 24), f(6, 3)), "compress mlp: stride d = 8 does not divide the block length l = 4"},

		{documents(nil, 1, 10, 4, 2), "ops: document table: cu_seqlens is nil"},
		{documents(f(5), 1, 10, 4, 2), "ops: document table: cu_seqlens is float64, want int32 or int"},
		{documents(ids(5, 1), 1, 10, 4, 2), "ops: document table: cu_seqlens has rank 2 (5, 1), want rank 1"},
		{documents(ids(5), 1, 10, 4, 3), "ops: document table: stride d = 3 does not divide the block length l = 4"},
		{documents(ids(5), 1, 10, 0, 3), "ops: document table: block length l is 0, want at least 1"},
		{documents(ids(5), 0, 10, 0, 0), "ops: document table: a batch of 0 x 10 tokens, want 1 to 1073741824"},
		{documents(ids(5), 2, 1<<30, 0, 0), "ops: document table: a batch of 2 x 1073741824 tokens, want 1 to 1073741824"},
		{documents(ids(5), 5, 10, 0, 0), "ops: document table: cu_seqlens has 5 boundaries, want at least 6 for 5 rows"},
		{with(ids(1, 10, 4)), "are not a result of DocumentTable"},
		{with(table(1, 10, 4, 4)), "ops: compress mean: documents have compression blocks of 4 tokens, 4 apart, want 4 and 2"},
		{with(table(1, 10, 0, 0)), "ops: compress mean: documents have compression blocks of 0 tokens, 0 apart, want 4 and 2"},
		{with(table(1, 9, 4, 2)), "ops: compress mean: documents has shape (1, 9, 4), want (1, 10, 4)"},
		{with(table(2, 5, 4, 2)), "ops: compress mean: documents has shape (2, 5, 4), want (1, 10, 4)"},
		{func() (node, error) { return ops.RoPE(k, 10, 0, nil) }, "ops: rope: nil option"},
		{func() (node, error) { return ops.RoPE(k, 10, 0, ops.WithDocuments(table(2, 5, 0, 0))) },
			"ops: rope: documents has shape (2, 5, 4), want (1, 10, 4)"},
		{func() (node, error) { return ops.CausalAttention(q, k, k, ops.WithDocuments(k)) },
			"ops: sliding window: documents"},
		{func() (node, error) {
			return ops.SelectedAttention(q, k, k, idx, 4, ops.WithDocuments(table(1, 11, 4, 2)))
		}, "ops: selected attention: documents has shape"},

		{gated(f(1, 2, 3, 2), f(1, 2, 3, 4)), "gated sum: gates (1, 2, 3, 2) are for 2 branches, got 1"},
		{gated(f(1, 2, 3, 2), f(1, 2, 3, 4), f(1, 2, 3, 5)), "gated sum: branch 1 has shape (1, 2, 3, 5), want (1, 2, 3, 4)"},
		{gated(f(1, 2, 3, 1), f(1, 2, 4, 4)), "gated sum: branch 0 has shape (1, 2, 4, 4), want (1, 2, 3, 4)"},
		{gated(f(1, 2, 3, 1)), "gated sum: no branches"},
		{gated(nil, kv), "gated sum: gates is nil"},

		{apply(spec.Cast{To: tensor.Float64}, w), "cast: from float64 to float64, want float32 on one side and half precision on the other"},
		{apply(spec.Cast{To: ops.BFloat16}, f32(2)), "cast: no op of a graph"},
		{apply(optimizer.SumSquares{}, f(optimizer.HyperLen), w), "sum of squares: no op of a graph"},

		{window(f(1, 10, 12, 8), f(1, 10, 5, 8), f(1, 10, 5, 8), 4),
			"ops: sliding window: heads 12 not a multiple of kv heads 5"},
		{window(q, k, k, 0), "ops: sliding window: window w is 0, want at least 1"},
		{window(q, f(1, 10, 2, 7), k, 4), "ops: sliding window: k has dim 7, q has 8"},
		{window(q, f(2, 10, 2, 8), k, 4), "ops: sliding window: k has batch 2, q has 1"},
		{window(q, f(1, 9, 2, 8), k, 4), "ops: sliding window: k has 9 rows, want 10 for 10 queries"},
		{window(q, k, f(1, 9, 2, 8), 4), "ops: sliding window: v has shape (1, 9, 2, 8), want (1, 10, 2, 8)"},
		{window(q, k, f(1, 10, 4, 8), 4), "ops: sliding window: v has shape (1, 10, 4, 8), want (1, 10, 2, 8)"},
		{window(q, k, f(10, 2, 8), 4), "ops: sliding window: v has rank 3 (10, 2, 8), want rank 4"},
		{window(q, k, f32(1, 10, 2, 8), 4), "ops: sliding window: v is float32, the inputs before it are float64"},
		{window(q, k, of(tensor.Int, 1, 10, 2, 8), 4), "ops: sliding window: v is int, want float32 or float64"},
		{window(q, k, nil, 4), "ops: sliding window: v is nil"},
		{func() (node, error) { return ops.CausalAttention(q, k, f(1, 10, 3, 8)) }, "ops: sliding window: v has shape"},
		{compressed(kc, kc, 4, 3), "ops: compressed attention: stride d = 3 does not divide the block length l = 4"},
		{compressed(kc, kc, 0, 3), "ops: compressed attention: block length l is 0, want at least 1"},
		{compressed(kc, kc, 2, 2), "ops: compressed attention: kc has 4 rows, want 5 for 10 queries"},
		{compressed(kc, kc, 16, 2), "ops: compressed attention: kc has 4 rows, want 1 for 10 queries"},
		{compressed(kc, k, 4, 2), "ops: compressed attention: vc has shape (1, 10, 2, 8), want (1, 4, 2, 8)"},
		{selected(idx, 0), "ops: selected attention: selection block l' is 0, want at least 1"},
		{selected(f(1, 10, 2, 3), 4), "ops: selected attention: idx is float64, want int32"},
		{selected(ids(1, 10, 4, 3), 4), "ops: selected attention: idx has shape (1, 10, 4, 3), want (1, 10, 2, 3)"},
		{selectOp(kc, lses, 4, 2), "ops: select blocks: top n = 2 is smaller than the 3 forced blocks"},
		{selectOp(kc, lses, 5, 3), "ops: select blocks: stride d = 2 does not divide the selection block l' = 5"},
		{selectOp(k, lses, 4, 3), "ops: select blocks: kc has 10 rows, want 4 for 10 queries"},
		{selectOp(kc, f(1, 10, 4), 4, 3), "ops: select blocks: lse has shape (1, 10, 4), want (1, 4, 10)"},
		{apply(pointwise.SiLU{}, f(3, 0)), "ops: silu: input 0 has a zero size: float64 (3, 0)"},
		{apply(pointwise.SiLU{}, f(1<<31, 1<<31, 1, 1)),
			"ops: silu: input 0 is too large: float64 (2147483648, 2147483648, 1, 1)"},
		// (2^62 + 1)*4 = 4 in an int: such sizes are refused before anything is computed from them.
		{mlp(1<<62+1, 1, f(1, 9, 2, 4), f(1<<62+1, 4), f(3, 4), f(4, 3)),
			"ops: compress mlp: input 1 is too large: float64 (4611686018427387905, 4)"},
		{selectOp(kc, lses, 4, math.MaxInt), "ops: select blocks: output 0 is too large: int32 (1, 10, 2, 9223372036854775807)"},
		{losses(nil), "ops: losses: not a result"},
		{losses(q), "ops: losses: not a result"},
		{lse(nil), "ops: LSE of a nil node"},
		{lse(q), "not an attention op"},
		{lse(G.Must(ops.SiLU(q))), "not an attention op"},
		{lse(G.Must(selectOp(kc, lses, 4, 3)())), "not an attention op"},
		{apply(attention.SlidingWindowGrad{Forward: attention.SlidingWindow{Window: 4}}, q, k, k, q, lses),
			"5 inputs, want those of sliding window and o, lse, do"},
		{apply(attention.SlidingWindowGrad{Forward: attention.SlidingWindow{Window: 4}}, q, k, k, q, lses, k),
			"ops: gradient of sliding window: do has shape"},
		{apply(attention.SlidingWindowGrad{Forward: attention.SlidingWindow{Window: 4}, Delta: true}, q, k, k, q,
			lses, q), "ops: gradient of sliding window: delta has shape"},
	} {
		n, err := c.build()
		require.ErrorContains(t, err, c.err)
		require.ErrorContains(t, err, "ops: ")
		require.Nil(t, n)
	}
}

// TestTokensOutsideTheVocabulary: such tokens are errors of the run, forward and backward, which name the token, its
// position and the vocabulary.
func TestTokensOutsideTheVocabulary(t *testing.T) {
	w, dy := normal("weight", 1, 5, 3), normal("dy", 2, 2, 3, 3)
	logits, lse, one := normal("logits", 3, 2, 3, 5), normal("lse", 4, 2, 3), normal("one", 5)
	for _, bad := range []int32{5, -1, -2, 1 << 30, -1 << 31} {
		ids := array{Name: "ids", Shape: []int{2, 3}, Ints: []int32{0, 4, 1, 2, bad, 3}}
		for _, c := range []struct {
			spec   spec.Spec
			inputs []array
			name   string
		}{
			{vocab.Embedding{}, []array{w, ids}, "id"},
			{vocab.EmbeddingGrad{Vocab: 5}, []array{ids, dy}, "id"},
			{vocab.CrossEntropy{}, []array{logits, ids}, "target"},
			{vocab.CrossEntropyGrad{}, []array{logits, ids, lse, one}, "target"},
		} {
			x := bindSpec(t, c.spec, tensor.Float64, 1, c.inputs...)
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
	require.NoError(t, testutil.Err(ops.Embedding(w.Node(g, tensor.Float64), ids.Node(g, tensor.Float64))))
	require.ErrorContains(t, G.NewTapeMachine(g).RunAll(),
		"ops: embedding: id 9 at (0, 1) is outside the vocabulary [0, 5)")
}

// TestSelectedAttentionRefusesBlocks: an invalid block is an error of the run; nothing outside of k and v is read.
func TestSelectedAttentionRefusesBlocks(t *testing.T) {
	c := opcases.NewDims(1, 10, 2, 1, 4, 4) // three blocks of l' = 4
	q, k, v := c.Tokens(1)
	o, lse, do := normal("o", 5, 1, 10, 2, 4), normal("lse", 6, 1, 2, 10), normal("do", 7, 1, 10, 2, 4)
	for _, x := range []struct {
		blocks []int32
		err    string
	}{
		{[]int32{0, 1, 2}, ""},
		{[]int32{1, -1, -1}, ""},
		{[]int32{-1, -1, -1}, ""},
		{[]int32{0, 1, 3}, "idx of batch 0, query 7, group 0: block 3 is not one of the 3 blocks of 10 tokens"},
		{[]int32{0, -2, -1}, "idx of batch 0, query 7, group 0: block -2 is not one of the 3 blocks of 10 tokens"},
		{[]int32{0, 1, 1}, "idx of batch 0, query 7, group 0: block 1 comes after block 1, want ascending blocks"},
		{[]int32{2, 1, -1}, "idx of batch 0, query 7, group 0: block 1 comes after block 2, want ascending blocks"},
		{[]int32{0, -1, 1}, "idx of batch 0, query 7, group 0: block 1 comes after padding"},
	} {
		idx := array{Name: "idx", Shape: []int{1, 10, 1, 3}, Ints: make([]int32, 30)}
		for i := range idx.Ints {
			idx.Ints[i] = int32(i % 3)
		}
		copy(idx.Ints[7*3:], x.blocks)
		team := cpu.NewTeam(1)
		forward := bindSpec(t, attention.Selected{SelectBlock: 4}, tensor.Float32, 1, q, k, v, idx)
		backward := bindSpec(t, attention.SelectedGrad{Forward: attention.Selected{SelectBlock: 4}}, tensor.Float32,
			1, q, k, v, idx, o, lse, do)
		for _, b := range []*bound{forward, backward} {
			if err := team.Run(&b.kernel, b.mem); x.err == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, x.err)
			}
		}
		for vm := range vms {
			g := G.NewGraph()
			in := []*G.Node{q.Node(g, tensor.Float32), k.Node(g, tensor.Float32), v.Node(g, tensor.Float32),
				idx.Node(g, tensor.Float32)}
			G.Must(ops.SelectedAttention(in[0], in[1], in[2], in[3], 4))
			if err := testutil.Closing(vms[vm](g))(t).RunAll(); x.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, "ops: selected attention: "+x.err)
			}
		}
	}
}

// TestHostMemory: a result that does not fit the host's memory is an error of the run, and does not end the process.
func TestHostMemory(t *testing.T) {
	if total, _ := memory.Total(); total == 0 {
		t.Skip("the host's memory is not known")
	}
	g := G.NewGraph()
	q, lse := normal("q", 1, 1, 9, 2, 4).Node(g, tensor.Float32), normal("lse", 2, 1, 2, 9).Node(g, tensor.Float32)
	kc := normal("kc", 3, 1, 2, 2, 4).Node(g, tensor.Float32)
	p := ops.Params{BlockLen: 8, Stride: 1, SelectBlock: 8, TopN: 1 << 44, Window: 1}
	require.NoError(t, testutil.Err(ops.SelectBlocks(q, kc, lse, p)))
	require.ErrorContains(t, G.NewTapeMachine(g).RunAll(), "ops: select blocks: output 0: out of memory: asked for ")
}

// TestInferOfZeroSizes: Infer, called alone, refuses axes of no elements.
func TestInferOfZeroSizes(t *testing.T) {
	at := func(shape ...int) spec.Operand { return spec.Operand{Dtype: tensor.Float64, Shape: shape} }
	q, k, o, lse := at(1, 9, 4, 8), at(1, 9, 0, 8), at(1, 9, 4, 8), at(1, 4, 9)
	window := attention.SlidingWindow{Window: 2}
	for _, c := range []struct {
		spec spec.Spec
		in   []spec.Operand
	}{
		{window, []spec.Operand{q, k, k}},
		{attention.SlidingWindowGrad{Forward: window}, []spec.Operand{q, k, k, o, lse, o}},
		{attention.Compressed{BlockLen: 2, Stride: 2}, []spec.Operand{q, k, k}},
		{attention.SelectBlocks{Params: ops.Params{BlockLen: 2, Stride: 2, SelectBlock: 2, TopN: 3, Window: 2}},
			[]spec.Operand{q, k, lse}},
	} {
		_, err := c.spec.Infer(c.in)
		require.ErrorContains(t, err, "input 1 has a zero size: float64 (1, 9, 0, 8)", c.spec.Name())
	}
	_, err := window.Infer(make([]spec.Operand, 3))
	require.ErrorContains(t, err, "q has rank 0")
}
