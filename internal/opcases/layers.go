package opcases

import (
	"cmp"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

// Layers returns the cases of all ops except attention. Dims are one, odd, and around the boundaries of blocks and
// vectors. At least one case of each op is so large that several workers share it.
func Layers() []Case {
	return slices.Concat(activations(), adds(), repeats(), linears(), linearGroups(), linearsWithNeighbours(), ropes(), norms(),
		embeddings(), losses(), largestLogits(), compressions(), gatedSums())
}

func named(name string, a any) string { return fmt.Sprintf("%s %v", name, a) }

// costOf returns the cost of a case whose largest input has the given number of elements.
func costOf(elements int) Cost {
	switch {
	case elements > 1<<20:
		return Huge
	case elements > 10000:
		return Large
	}
	return Small
}

func total(shape []int) int { return tensor.Shape(shape).TotalSize() }

// apply returns the Build of a Spec without a constructor, such as a fused one.
func apply(s spec.Spec) func(in []*G.Node) (*G.Node, error) {
	return func(in []*G.Node) (*G.Node, error) { return spec.Apply(s, in...) }
}

// results turns the results of a function of the oracle into a list.
func results(list ...*ref.Tensor) tensors { return list }

// unary returns a case of an op with one input: y = f(x), dx = grad(x, dy).
func unary(name string, x Array, build func(x *G.Node) (*G.Node, error), f func(x *ref.Tensor) *ref.Tensor,
	grad func(x, dy *ref.Tensor) *ref.Tensor) Case {
	return Case{Name: name, Inputs: []Array{x}, Cost: costOf(len(x.Floats)),
		Build:     func(in []*G.Node) (*G.Node, error) { return build(in[0]) },
		Outputs:   func(in tensors) tensors { return results(f(in[0])) },
		Gradients: func(in tensors, dy *ref.Tensor) tensors { return results(grad(in[0], dy)) }}
}

func activations() (list []Case) {
	ofResult := func(f func(x *ref.Tensor) *ref.Tensor, grad func(y, dy *ref.Tensor) *ref.Tensor) func(x,
		dy *ref.Tensor) *ref.Tensor {
		return func(x, dy *ref.Tensor) *ref.Tensor { return grad(f(x), dy) }
	}
	for _, shape := range [][]int{{1}, {7}, {8}, {255}, {3, 5, 2}, {1, 1, 17}, {4099}, {3*16384 + 5}, {100003}} {
		x := normalTimes(3, "x", 1, shape...)
		list = append(list, unary(named("silu", shape), x, ops.SiLU, ref.SiLU, ref.SiLUGrad),
			unary(named("sigmoid", shape), x, ops.Sigmoid, ref.Sigmoid, ofResult(ref.Sigmoid, ref.SigmoidGrad)),
			Case{Name: named("swiglu", shape), Inputs: []Array{x, normalTimes(5, "up", 1, shape...)}, Cost: costOf(total(shape)),
				Build:     func(in []*G.Node) (*G.Node, error) { return ops.SwiGLU(in[0], in[1]) },
				Outputs:   func(in tensors) tensors { return results(ref.SwiGLU(in[0], in[1])) },
				Gradients: func(in tensors, dy *ref.Tensor) tensors { return results(ref.SwiGLUGrad(in[0], in[1], dy)) }})
	}
	for _, shape := range [][]int{
		{1}, {5}, {2, 3, 4, 3}, {4, 1}, {3, 1}, {33, 31}, {5, 67}, {257, 64}, {7, 1024}, {3, 1025}, {19000, 3},
		{2, 17000}, {2, 20001}, {2, 32768},
	} {
		x := normalTimes(4, "x", 2, shape...)
		list = append(list, unary(named("softmax", shape), x, ops.Softmax, ref.Softmax,
			ofResult(ref.Softmax, ref.SoftmaxGrad)))
	}
	return list
}

func adds() (list []Case) {
	for _, c := range []struct {
		n     int
		shape []int
	}{
		{1, []int{3, 5}}, {2, []int{1}}, {2, []int{2, 3, 5}}, {5, []int{2, 7}}, {8, []int{1000}}, {9, []int{1029}},
		{17, []int{29}}, {20, []int{2, 3, 5}},
		{3, []int{2, 20001}},
	} {
		x := Case{Name: named("add", c), Cost: costOf(total(c.shape)),
			Build:     func(in []*G.Node) (*G.Node, error) { return ops.Add(in...) },
			Outputs:   func(in tensors) tensors { return results(ref.Add(in[0], in[1:]...)) },
			Gradients: func(in tensors, dy *ref.Tensor) tensors { return slices.Repeat(results(dy), len(in)) }}
		for i := range c.n {
			x.Inputs = append(x.Inputs, Normal(fmt.Sprint("x", i), uint64(i), c.shape...))
		}
		list = append(list, x)
	}
	return list
}

func repeats() (list []Case) {
	for _, c := range []struct {
		times int
		shape []int
	}{{1, []int{3}}, {2, []int{1, 5}}, {3, []int{2, 7, 3}}, {2, []int{3, 20001}}} {
		n, row := total(c.shape), total(c.shape[1:])
		y := append([]int{c.times * c.shape[0]}, c.shape[1:]...)
		list = append(list, Case{Name: named("repeat", c), Cost: costOf(n), Inputs: []Array{Normal("x", 1, c.shape...)},
			Build: func(in []*G.Node) (*G.Node, error) { return ops.Repeat(in[0], c.times) },
			Outputs: func(in tensors) tensors {
				var data []float64
				for i := range y[0] {
					data = append(data, in[0].Data[i/c.times*row:][:row]...)
				}
				return results(ref.From(data, y...))
			},
			Gradients: func(in tensors, dy *ref.Tensor) tensors {
				dx := ref.New(c.shape...)
				for i, d := range dy.Data {
					dx.Data[i/row/c.times*row+i%row] += d
				}
				return results(dx)
			}})
	}
	return list
}

func ropes() (list []Case) {
	for _, c := range []struct {
		shape []int
		base  float64
		start int
	}{
		{[]int{1, 1, 1, 2}, 10000, 0}, {[]int{2, 5, 3, 4}, 10000, 0}, {[]int{2, 31, 3, 6}, 10000, 0},
		{[]int{1, 97, 2, 6}, 100, 7},
		{[]int{1, 3, 1, 14}, 0.5, 100000}, {[]int{3, 33, 1, 64}, 10000, 0}, {[]int{2, 33, 7, 64}, 10000, 3},
		{[]int{1, 33, 2, 128}, 10000, 65536},
		{[]int{1, 5, 2, 192}, 10000, 1 << 20}, {[]int{2, 300, 4, 18}, 10000, 3}, {[]int{2, 130, 4, 64}, 10000, 1000},
		{[]int{1, 70, 6, 96}, 10000, 65536 - 70},
	} {
		list = append(list, unary(named("rope", c), Normal("x", 1, c.shape...),
			func(x *G.Node) (*G.Node, error) { return ops.RoPE(x, c.base, c.start) },
			func(x *ref.Tensor) *ref.Tensor { return ref.RoPE(x, c.base, c.start) },
			func(_, dy *ref.Tensor) *ref.Tensor { return ref.RoPEGrad(dy, c.base, c.start) }))
	}
	return list
}

func norms() (list []Case) {
	const eps = 0.3
	for _, shape := range [][]int{
		{1, 1}, {2, 3, 7}, {31, 7}, {63, 2}, {64, 2}, {65, 2}, {33, 64}, {1, 130, 33}, {3, 2, 2, 5}, {200, 301},
		{2, 17000}, {300, 512}, {70, 768}, {40, 1000},
		{65, 1024}, {5, 4100}, {3, 12000}, {9000, 96},
	} {
		list = append(list, Case{Name: named("rms norm", shape), Cost: costOf(total(shape)),
			Inputs:    []Array{Normal("x", 1, shape...), Normal("weight", 2, shape[len(shape)-1])},
			Build:     func(in []*G.Node) (*G.Node, error) { return ops.RMSNorm(in[0], in[1], eps) },
			Outputs:   func(in tensors) tensors { return results(ref.RMSNorm(in[0], in[1], eps)) },
			Gradients: func(in tensors, dy *ref.Tensor) tensors { return results(ref.RMSNormGrad(in[0], in[1], dy, eps)) },
		}, Case{Name: named("rms norm gradient with add", shape), Cost: costOf(total(shape)),
			Inputs: []Array{Normal("x", 1, shape...), Normal("weight", 2, shape[len(shape)-1]),
				Normal("dy", 3, shape...), Normal("residual", 4, shape...)},
			Build: apply(norm.RMSNormGradAdd{Eps: eps}),
			Outputs: func(in tensors) tensors {
				dx, dw := ref.RMSNormGrad(in[0], in[1], in[2], eps)
				return results(ref.Add(dx, in[3]), dw)
			}})
	}
	return list
}

func embeddings() (list []Case) {
	for _, c := range []struct {
		V, dim, B, S int
		common       bool // most places hold the same id
	}{
		{V: 1, dim: 1, B: 1, S: 1}, {V: 5, dim: 3, B: 2, S: 7}, {V: 5, dim: 7, B: 1, S: 31},
		{V: 300, dim: 7, B: 3, S: 101}, {V: 31, dim: 17, B: 1, S: 5},
		{V: 1, dim: 33, B: 2, S: 32}, {V: 700, dim: 130, B: 2, S: 150}, {V: 256, dim: 64, B: 1, S: 2049,
			common: true}, {V: 257, dim: 40, B: 4, S: 250},
		{V: 300, dim: 1032, B: 1, S: 128}, {V: 70000, dim: 24, B: 2, S: 2500, common: true},
	} {
		ids := Array{Name: "ids", Shape: []int{c.B, c.S}, Ints: testutil.Tokens(2, c.B*c.S, c.V)}
		for i := range ids.Ints {
			if c.common && i%8 != 0 {
				ids.Ints[i] = int32(c.V / 2)
			}
		}
		list = append(list, Case{Name: named("embedding", c), Inputs: []Array{Normal("weight", 1, c.V, c.dim), ids},
			Cost:      costOf(c.V * c.dim),
			Build:     func(in []*G.Node) (*G.Node, error) { return ops.Embedding(in[0], in[1]) },
			Outputs:   func(in tensors) tensors { return results(ref.Embedding(in[0], ids.Ints).Reshape(c.B, c.S, c.dim)) },
			Gradients: func(_ tensors, dy *ref.Tensor) tensors { return results(ref.EmbeddingGrad(dy, ids.Ints, c.V), nil) }})
	}
	return list
}

func losses() (list []Case) {
	for _, c := range []struct {
		rows      []int
		V, ignore int // every ignore-th target is ignored; 0: none
	}{
		{[]int{1, 1}, 1, 0}, {[]int{2, 5}, 7, 3}, {[]int{10}, 7, 3}, {[]int{1}, 5, 0}, {[]int{1, 33}, 61, 5},
		{[]int{31}, 5, 1}, {[]int{2, 3}, 5, 1},
		{[]int{1, 2}, 300, 0}, {[]int{33}, 256, 3}, {[]int{2, 300}, 97, 4}, {[]int{1, 5}, 5000, 0},
		{[]int{7}, 5000, 3}, {[]int{2049}, 257, 3}, {[]int{3}, 50257, 0},
	} {
		targets := Array{Name: "targets", Shape: c.rows, Ints: testutil.Tokens(2, total(c.rows), c.V)}
		for i := range targets.Ints {
			if c.ignore > 0 && i%c.ignore == 0 {
				targets.Ints[i] = -1
			}
		}
		shape := append(slices.Clone(c.rows), c.V)
		list = append(list, Case{Name: named("cross entropy", c), Inputs: []Array{normalTimes(8, "logits", 1,
			shape...), targets}, Cost: costOf(total(shape)),
			Build: func(in []*G.Node) (*G.Node, error) { return ops.CrossEntropy(in[0], in[1]) },
			Outputs: func(in tensors) tensors {
				return results(ref.From([]float64{ref.CrossEntropy(in[0], targets.Ints)}), ref.LogSumExp(in[0]), ref.Losses(in[0], targets.Ints))
			},
			Gradients: func(in tensors, dy *ref.Tensor) tensors {
				d := ref.CrossEntropyGrad(in[0], targets.Ints)
				for i := range d.Data {
					d.Data[i] *= dy.Data[0]
				}
				return results(d, nil)
			}})
	}
	return list
}

// largestLogits compares the logits that TopK finds. Their tokens are compared by tests of the kernels.
func largestLogits() (list []Case) {
	for _, c := range []struct {
		rows []int
		V, K int
	}{{[]int{1}, 1, 3}, {[]int{2, 1}, 7, 7}, {[]int{5, 3}, 61, 8}, {[]int{2}, 300, 64}, {[]int{3, 1}, 5000, 64}} {
		shape := append(slices.Clone(c.rows), c.V)
		list = append(list, Case{Name: named("top k", c), Inputs: []Array{Normal("logits", 1, shape...)},
			Cost: costOf(total(shape)), Build: apply(vocab.TopK{K: c.K}),
			Outputs: func(in tensors) tensors {
				top := ref.New(append(slices.Clone(c.rows), min(c.K, c.V))...)
				for i := range total(c.rows) {
					row := slices.Clone(in[0].Data[i*c.V:][:c.V])
					slices.SortFunc(row, func(a, b float64) int { return cmp.Compare(b, a) })
					copy(top.Data[i*top.Last():][:top.Last()], row)
				}
				return results(top, nil)
			}})
	}
	return list
}

func compressions() (list []Case) {
	for _, c := range []struct{ B, S, H, D, l, d, hidden int }{
		{1, 1, 1, 1, 1, 1, 1}, {2, 13, 3, 5, 4, 2, 3}, {1, 9, 2, 3, 3, 3, 7}, {1, 50, 1, 5, 12, 3, 4},
		{1, 64, 2, 16, 8, 8, 3}, {2, 33, 1, 8, 32, 16, 5},
		{1, 31, 2, 3, 32, 16, 5}, {1, 32, 2, 3, 32, 16, 5}, {2, 33, 1, 3, 32, 16, 5}, {1, 47, 2, 3, 32, 16, 5},
		{1, 48, 2, 3, 32, 16, 5},
		{3, 100, 2, 7, 32, 16, 5}, {2, 7, 1, 2, 6, 1, 4}, {2, 5, 2, 3, 6, 3, 4}, // blocks of many neighbours; no block at all
		{2, 500, 3, 11, 8, 4, 9}, {1, 257, 4, 64, 32, 16, 8}, {1, 300, 2, 64, 32, 16, 130},
		{1, 2300, 1, 32, 64, 1, 3}, // rows gathered in two parts
	} {
		x := Normal("x", 1, c.B, c.S, c.H, c.D)
		for _, one := range compressionsOf(x, c.hidden, ops.Params{BlockLen: c.l, Stride: c.d}, nil) {
			one.Name, one.Cost = named(one.Name, c), costOf(len(x.Floats))
			list = append(list, one)
		}
	}
	return list
}

func gatedSums() (list []Case) {
	for _, c := range []struct{ B, S, H, n, dv int }{
		{1, 1, 1, 1, 1}, {2, 5, 3, 2, 7}, {1, 7, 4, 3, 17}, {2, 3, 2, 5, 4}, {1, 11, 3, 3, 64}, {1, 31, 1, 8, 192},
		{1, 5, 1, 2, 2000}, {1, 67, 1, 2, 32},
		{2, 200, 3, 3, 33}, {1, 1025, 1, 3, 7},
	} {
		for _, op := range []pointwise.GatedSum{{}, {Sigmoid: true}} {
			name := "gated sum"
			if op.Sigmoid {
				name += " with sigmoid"
			}
			gates := func(in tensors) *ref.Tensor {
				if op.Sigmoid {
					return ref.Sigmoid(in[0])
				}
				return in[0]
			}
			x := Case{Name: named(name, c), Inputs: []Array{Normal("gates", 1, c.B, c.S, c.H, c.n)},
				Cost:    costOf(c.B * c.S * c.H * c.dv),
				Build:   func(in []*G.Node) (*G.Node, error) { return spec.Apply(op, in...) },
				Outputs: func(in tensors) tensors { return results(ref.GatedSum(gates(in), in[1:]...)) },
				Gradients: func(in tensors, dy *ref.Tensor) tensors {
					dgates, dbranches := ref.GatedSumGrad(gates(in), dy, in[1:]...)
					if op.Sigmoid {
						dgates = ref.SigmoidGrad(gates(in), dgates)
					}
					return append(results(dgates), dbranches...)
				}}
			for i := range c.n {
				x.Inputs = append(x.Inputs, Normal(fmt.Sprint("branch", i), uint64(2+i), c.B, c.S, c.H, c.dv))
			}
			list = append(list, x)
		}
	}
	return list
}
