package ops_test

import (
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// layerCases are the ops beside attention at sizes of one, odd ones and those around the ends of blocks, and once each at
// a size that several workers share.
func layerCases() []layerCase {
	var list []layerCase
	for _, cases := range [][]layerCase{
		activationCases(), addCases(), linearCases(), ropeCases(), normCases(), embeddingCases(), lossCases(), compressCases(), gateCases(),
	} {
		list = append(list, cases...)
	}
	return list
}

func named(name string, a any) string { return fmt.Sprintf("%s %v", name, a) }

func activationCases() (list []layerCase) {
	for _, shape := range [][]int{{1}, {7}, {3, 5, 2}, {1, 1, 17}, {3*16384 + 5}} {
		x := normal("x", 1, shape...)
		large := len(x.floats) > 1000
		list = append(list,
			layerCase{named("silu", shape), func(in []*G.Node) (*G.Node, error) { return ops.SiLU(in[0]) },
				[]array{x}, ref.SiLU(tensorOf(x)),
				func(dy *ref.Tensor) []*ref.Tensor { return []*ref.Tensor{ref.SiLUGrad(tensorOf(x), dy)} }, large},
			layerCase{named("sigmoid", shape), func(in []*G.Node) (*G.Node, error) { return ops.Sigmoid(in[0]) },
				[]array{x}, ref.Sigmoid(tensorOf(x)),
				func(dy *ref.Tensor) []*ref.Tensor {
					return []*ref.Tensor{ref.SigmoidGrad(ref.Sigmoid(tensorOf(x)), dy)}
				}, large})
	}
	for _, shape := range [][]int{{1}, {5}, {2, 3, 4, 3}, {4, 1}, {5, 67}, {19000, 3}, {2, 17000}} {
		x := normal("x", 2, shape...)
		for i := range x.floats {
			x.floats[i] *= 4
		}
		y := ref.Softmax(tensorOf(x))
		list = append(list, layerCase{named("softmax", shape), func(in []*G.Node) (*G.Node, error) { return ops.Softmax(in[0]) },
			[]array{x}, y,
			func(dy *ref.Tensor) []*ref.Tensor { return []*ref.Tensor{ref.SoftmaxGrad(y, dy)} }, len(x.floats) > 1000})
	}
	return list
}

func addCases() (list []layerCase) {
	for _, c := range []struct {
		n     int
		shape []int
	}{{1, []int{3, 5}}, {2, []int{1}}, {2, []int{2, 3, 5}}, {5, []int{2, 7}}, {3, []int{2, 20001}}} {
		var in []array
		var xs []*ref.Tensor
		for i := range c.n {
			in = append(in, normal(fmt.Sprint("x", i), uint64(i), c.shape...))
			xs = append(xs, tensorOf(in[i]))
		}
		list = append(list, layerCase{named("add", c), func(in []*G.Node) (*G.Node, error) { return ops.Add(in...) },
			in, ref.Add(xs[0], xs[1:]...),
			func(dy *ref.Tensor) []*ref.Tensor { return slices.Repeat([]*ref.Tensor{dy}, c.n) }, len(in[0].floats) > 1000})
	}
	return list
}

func linearCases() (list []layerCase) {
	for _, c := range []struct {
		x       []int
		out, in int
		heads   int
		want    []int
		bias    bool
	}{
		{x: []int{1, 1}, out: 1, in: 1, want: []int{1, 1}},
		{x: []int{7, 13}, out: 3, in: 13, want: []int{7, 3}, bias: true},
		{x: []int{2, 3, 5}, out: 4, in: 5, want: []int{2, 3, 4}},
		{x: []int{2, 3, 5}, out: 6, in: 5, heads: 2, want: []int{2, 3, 2, 3}, bias: true},
		{x: []int{2, 3, 5}, out: 6, in: 5, heads: 1, want: []int{2, 3, 1, 6}},
		{x: []int{2, 3, 4, 6}, out: 10, in: 24, heads: 5, want: []int{2, 3, 5, 2}, bias: true},
		{x: []int{2, 3, 4, 6}, out: 5, in: 6, want: []int{2, 3, 4, 5}},             // each head by itself
		{x: []int{2, 3, 1, 6}, out: 5, in: 6, want: []int{2, 3, 5}},                // a single head
		{x: []int{2, 1, 6}, out: 5, in: 6, want: []int{2, 1, 5}},                   // a single token
		{x: []int{1, 1, 1}, out: 2, in: 1, want: []int{1, 1, 2}},                   //
		{x: []int{3, 2, 5}, out: 2, in: 10, want: []int{3, 2}},                     // no axis to spare
		{x: []int{2, 3, 2, 2, 2, 2}, out: 3, in: 16, want: []int{2, 3, 3}},         // four axes
		{x: []int{1, 97, 65}, out: 67, in: 65, want: []int{1, 97, 67}},             // around a tile
		{x: []int{2, 129, 7}, out: 36, in: 7, want: []int{2, 129, 36}, bias: true}, // several blocks of rows
		{x: []int{2, 300, 5, 31}, out: 130, in: 155, heads: 10, want: []int{2, 300, 10, 13}, bias: true},
	} {
		x, w := normal("x", 1, c.x...), normal("w", 2, c.out, c.in)
		inputs := []array{x, w}
		var bias *ref.Tensor
		if c.bias {
			b := normal("bias", 3, c.out)
			inputs, bias = append(inputs, b), tensorOf(b)
		}
		opts := func(in []*G.Node) (o []ops.LinearOption) {
			if c.bias {
				o = append(o, ops.WithBias(in[2]))
			}
			if c.heads > 0 {
				o = append(o, ops.WithHeads(c.heads))
			}
			return o
		}
		rows := tensorOf(x).Reshape(len(x.floats)/c.in, c.in)
		list = append(list, layerCase{fmt.Sprintf("linear %v [%d,%d] heads %d bias %v", c.x, c.out, c.in, c.heads, c.bias),
			func(in []*G.Node) (*G.Node, error) { return ops.Linear(in[0], in[1], opts(in)...) },
			inputs, ref.Linear(rows, tensorOf(w), bias).Reshape(c.want...),
			func(dy *ref.Tensor) []*ref.Tensor {
				dx, dw, db := ref.LinearGrad(rows, tensorOf(w), dy.Reshape(len(rows.Data)/c.in, c.out))
				return []*ref.Tensor{dx, dw, db}[:len(inputs)]
			}, len(x.floats) > 10000})
	}
	return list
}

func ropeCases() (list []layerCase) {
	for _, c := range []struct {
		shape []int
		base  float64
		start int
	}{
		{[]int{1, 1, 1, 2}, 10000, 0}, {[]int{2, 5, 3, 4}, 10000, 0}, {[]int{1, 97, 2, 6}, 100, 7}, {[]int{1, 3, 1, 14}, 0.5, 100000},
		{[]int{2, 300, 4, 18}, 10000, 3},
	} {
		x := normal("x", 1, c.shape...)
		list = append(list, layerCase{named("rope", c),
			func(in []*G.Node) (*G.Node, error) { return ops.RoPE(in[0], c.base, c.start) },
			[]array{x}, ref.RoPE(tensorOf(x), c.base, c.start),
			func(dy *ref.Tensor) []*ref.Tensor { return []*ref.Tensor{ref.RoPEGrad(dy, c.base, c.start)} }, len(x.floats) > 10000})
	}
	return list
}

func normCases() (list []layerCase) {
	for _, shape := range [][]int{{1, 1}, {2, 3, 7}, {63, 2}, {64, 2}, {65, 2}, {1, 130, 33}, {3, 2, 2, 5}, {200, 301}, {2, 17000}} {
		x, w := normal("x", 1, shape...), normal("weight", 2, shape[len(shape)-1])
		list = append(list, layerCase{named("rms norm", shape),
			func(in []*G.Node) (*G.Node, error) { return ops.RMSNorm(in[0], in[1], 0.3) },
			[]array{x, w}, ref.RMSNorm(tensorOf(x), tensorOf(w), 0.3),
			func(dy *ref.Tensor) []*ref.Tensor {
				dx, dw := ref.RMSNormGrad(tensorOf(x), tensorOf(w), dy, 0.3)
				return []*ref.Tensor{dx, dw}
			}, len(x.floats) > 10000})
	}
	return list
}

func embeddingCases() (list []layerCase) {
	for _, c := range []struct{ V, dim, B, S int }{{1, 1, 1, 1}, {5, 3, 2, 7}, {300, 7, 3, 101}, {31, 17, 1, 5}, {700, 130, 2, 150}} {
		w := normal("weight", 1, c.V, c.dim)
		ids := array{name: "ids", shape: []int{c.B, c.S}, ints: testutil.Tokens(2, c.B*c.S, c.V)}
		list = append(list, layerCase{named("embedding", c),
			func(in []*G.Node) (*G.Node, error) { return ops.Embedding(in[0], in[1]) },
			[]array{w, ids}, ref.Embedding(tensorOf(w), ids.ints).Reshape(c.B, c.S, c.dim),
			func(dy *ref.Tensor) []*ref.Tensor { return []*ref.Tensor{ref.EmbeddingGrad(dy, ids.ints, c.V), nil} },
			len(w.floats) > 10000})
	}
	return list
}

func lossCases() (list []layerCase) {
	for _, c := range []struct{ B, S, V, ignore int }{
		{1, 1, 1, 0}, {2, 5, 7, 3}, {1, 33, 61, 5}, {2, 3, 5, 1}, {1, 2, 300, 0}, {2, 300, 97, 4}, {1, 5, 5000, 0},
	} {
		x := normal("logits", 1, c.B, c.S, c.V)
		for i := range x.floats {
			x.floats[i] *= 8
		}
		targets := array{name: "targets", shape: []int{c.B, c.S}, ints: testutil.Tokens(2, c.B*c.S, c.V)}
		for i := range targets.ints {
			if c.ignore > 0 && i%c.ignore == 0 {
				targets.ints[i] = -1
			}
		}
		loss := ref.From([]float64{ref.CrossEntropy(tensorOf(x), targets.ints)})
		loss.Shape = []int{}
		list = append(list, layerCase{named("cross entropy", c),
			func(in []*G.Node) (*G.Node, error) { return ops.CrossEntropy(in[0], in[1]) },
			[]array{x, targets}, loss,
			func(dy *ref.Tensor) []*ref.Tensor {
				d := ref.CrossEntropyGrad(tensorOf(x), targets.ints)
				for i := range d.Data {
					d.Data[i] *= dy.Data[0]
				}
				return []*ref.Tensor{d, nil}
			}, len(x.floats) > 10000})
	}
	return list
}

func compressCases() (list []layerCase) {
	for _, c := range []struct{ B, S, H, D, l, d, hidden int }{
		{1, 1, 1, 1, 1, 1, 1}, {2, 13, 3, 5, 4, 2, 3}, {1, 9, 2, 3, 3, 3, 7},
		{1, 31, 2, 3, 32, 16, 5}, {1, 32, 2, 3, 32, 16, 5}, {2, 33, 1, 3, 32, 16, 5}, {1, 47, 2, 3, 32, 16, 5}, {1, 48, 2, 3, 32, 16, 5},
		{2, 7, 1, 2, 6, 1, 4}, {2, 5, 2, 3, 6, 3, 4}, // blocks of many neighbours; no block at all
		{2, 500, 3, 11, 8, 4, 9},
		{1, 2300, 1, 32, 64, 1, 3}, // rows gathered in two parts
	} {
		x, pe := normal("x", 1, c.B, c.S, c.H, c.D), normal("pe", 2, c.l, c.D)
		w1, w2 := normal("w1", 3, c.hidden, c.l*c.D), normal("w2", 4, c.D, c.hidden)
		large := len(x.floats) > 10000
		X, PE, W1, W2 := tensorOf(x), tensorOf(pe), tensorOf(w1), tensorOf(w2)
		rows := func(y *ref.Tensor) *ref.Tensor { // at least one, of zeros
			if y.Shape[1] == 0 {
				return ref.New(c.B, 1, c.H, c.D)
			}
			return y
		}
		blocks := func(dy *ref.Tensor) *ref.Tensor {
			if c.S < c.l {
				return ref.New(c.B, 0, c.H, c.D)
			}
			return dy
		}
		list = append(list,
			layerCase{named("compress mean", c),
				func(in []*G.Node) (*G.Node, error) { return ops.CompressMean(in[0], c.l, c.d) },
				[]array{x}, rows(ref.CompressMean(X, c.l, c.d)),
				func(dy *ref.Tensor) []*ref.Tensor {
					return []*ref.Tensor{ref.CompressMeanGrad(blocks(dy), c.S, c.l, c.d)}
				}, large},
			layerCase{named("compress mlp", c),
				func(in []*G.Node) (*G.Node, error) {
					return ops.CompressMLP(in[0], in[1], in[2], in[3], c.l, c.d)
				},
				[]array{x, pe, w1, w2}, rows(ref.CompressMLP(X, c.l, c.d, PE, W1, W2)),
				func(dy *ref.Tensor) []*ref.Tensor {
					dx, dpe, dw1, dw2 := ref.CompressMLPGrad(X, c.l, c.d, PE, W1, W2, blocks(dy))
					return []*ref.Tensor{dx, dpe, dw1, dw2}
				}, large})
	}
	return list
}

func gateCases() (list []layerCase) {
	for _, c := range []struct{ B, S, H, n, dv int }{{1, 1, 1, 1, 1}, {2, 5, 3, 2, 7}, {1, 7, 4, 3, 17}, {2, 3, 2, 5, 4}, {2, 200, 3, 3, 33}} {
		in := []array{normal("gates", 1, c.B, c.S, c.H, c.n)}
		var xs []*ref.Tensor
		for i := range c.n {
			in = append(in, normal(fmt.Sprint("branch", i), uint64(2+i), c.B, c.S, c.H, c.dv))
			xs = append(xs, tensorOf(in[1+i]))
		}
		gates := tensorOf(in[0])
		list = append(list, layerCase{named("gated sum", c),
			func(in []*G.Node) (*G.Node, error) { return ops.GatedSum(in[0], in[1:]...) },
			in, ref.GatedSum(gates, xs...),
			func(dy *ref.Tensor) []*ref.Tensor {
				dgates, doutputs := ref.GatedSumGrad(gates, dy, xs...)
				return append([]*ref.Tensor{dgates}, doutputs...)
			}, len(in[1].floats) > 10000})
	}
	return list
}
