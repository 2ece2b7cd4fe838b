package graph_test

import (
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// noGradient is the reason for comparing values only: Gorgonia has no gradient of the op.
const noGradient = "no gradient"

type build = func(n []*G.Node) (*G.Node, error)

// on returns the test graph of an op whose inputs are named a, b and so on.
func on(name string, f build, in ...operand) stock {
	for i := range in {
		in[i].name = string(rune('a' + i))
	}
	return stock{name: name, in: in, build: f}
}

// one and two build graphs of functions of one and two nodes.
func one(f func(*G.Node) (*G.Node, error)) build {
	return func(n []*G.Node) (*G.Node, error) { return f(n[0]) }
}

func two(f func(a, b *G.Node) (*G.Node, error)) build {
	return func(n []*G.Node) (*G.Node, error) { return f(n[0], n[1]) }
}

// along builds the graph of a reduction.
func along(f func(*G.Node, ...int) (*G.Node, error), axes ...int) build {
	return func(n []*G.Node) (*G.Node, error) { return f(n[0], axes...) }
}

// onlyValues marks c: why says what is wrong with upstream's gradients. Grad refuses them. Those of noGradient are not asked for.
func onlyValues(why string, c stock) stock {
	c.wrong = why
	return c
}

// corrected marks c: why says what is wrong with upstream's gradients, if it is not empty. Those of Grad are right.
func corrected(why string, c stock) stock {
	c.wrong, c.corrected = why, why != ""
	return c
}

// without marks c: why says what is wrong with TapeMachine on c. Only central differences are compared.
func without(why string, c stock) stock {
	c.tape = why
	return c
}

// inEval makes c run in evaluation mode.
func inEval(c stock) stock {
	c.eval = true
	return c
}

// fixed is an input of the graph of n with fixed values. No gradient is taken by it.
func fixed(n *G.Node, name string, backing any, shape ...int) *G.Node {
	return G.NodeFromAny(n.Graph(), tensor.New(tensor.WithShape(shape...), tensor.WithBacking(backing)), G.WithName(name))
}

// weighted is an input of random numbers in the shape and the type of n.
func weighted(n *G.Node, name string, seed uint64) *G.Node {
	o := operand{shape: n.Shape()}
	return G.NodeFromAny(n.Graph(), o.value(n.Dtype(), o.values(seed)), G.WithName(name))
}

// number is a constant of the type of n.
func number(n *G.Node, v float64) *G.Node {
	if n.Dtype() == tensor.Float32 {
		return G.NewConstant(float32(v))
	}
	return G.NewConstant(v)
}

// gorgonias are the graphs of Gorgonia v0.9.18's own tests. The name of a row begins with the name of the test.
func gorgonias() (rows []stock) {
	x := func(shape ...int) operand { return normal("", shape...) }
	p := func(shape ...int) operand { return positive("", shape...) }
	add := func(c ...stock) { rows = append(rows, c...) }

	// operatorPointwise_unary_test.go
	wrong := map[string]string{"Log2": "times ln 2, not over it", "InverseSqrt": "of another power"}
	unary := append(functions(1), function{name: "Mish", op: one(G.Mish)}, function{name: "Rectify", op: one(G.Rectify)})
	for _, c := range unary {
		in := x
		if slices.Contains(ofPositive, c.name) {
			in = p
		}
		for _, s := range [][]int{{}, {1}, {2, 3}} {
			if row := on(fmt.Sprintf("Unary %s %v", c.name, s), c.op, in(s...)); c.values {
				add(onlyValues(noGradient, row))
			} else {
				add(corrected(wrong[c.name], row))
			}
		}
	}
	// operations_test.go: TestGt and its like; operatorPointwise_binary_test.go
	for _, c := range functions(2) {
		itself := func(n []*G.Node) (*G.Node, error) {
			y := G.Must(G.Exp(n[0]))
			return c.op(G.Nodes{y, y})
		}
		switch {
		case c.values:
			for _, s := range [][2][]int{{{}, {}}, {{}, {2}}, {{2}, {}}, {{2, 3}, {2, 3}}} {
				add(onlyValues(noGradient, on(fmt.Sprintf("%s %v", c.name, s), c.op, x(s[0]...), x(s[1]...))))
			}
			continue
		case c.slopes != nil: // not MinBetween and MaxBetween
			add(on("BinOp scalars "+c.name, c.op, p(), p()))
		}
		add(on("BinOp "+c.name, c.op, p(2, 3), p(2, 3)), on("BinOp of itself "+c.name, itself, p(3)))
	}
	add(on("Div", two(func(a, b *G.Node) (*G.Node, error) { return G.Div(a, b) }), p(2, 3), p(2, 3)))
	// operations_broadcast_test.go
	for _, c := range []struct {
		a, b        []int
		left, right []byte
	}{
		{[]int{2}, []int{2, 2}, []byte{1}, nil}, {[]int{2, 2}, []int{2}, nil, []byte{1}}, {[]int{2, 1}, []int{2, 2}, []byte{1}, nil},
		{[]int{2, 2}, []int{1, 2}, nil, []byte{0}}, {[]int{1, 1, 2}, []int{2, 2, 2}, []byte{0, 1}, nil}, {[]int{2, 1, 1}, []int{2, 2, 2}, []byte{1, 2}, nil},
		{[]int{2, 2, 2}, []int{1, 2, 2}, nil, []byte{0}}, {[]int{2, 2, 1}, []int{2, 2, 2}, []byte{2}, nil}, {[]int{2}, []int{2, 2, 2}, []byte{1, 2}, nil},
		{[]int{3, 1}, []int{1, 4}, []byte{1}, []byte{0}}, {[]int{2, 3, 4, 2}, []int{1, 3, 1, 1}, nil, []byte{0, 2, 3}},
	} {
		for i, f := range broadcasts {
			add(on(fmt.Sprintf("Broadcast %d %v %v", i, c.a, c.b),
				two(func(a, b *G.Node) (*G.Node, error) { return f(a, b, c.left, c.right) }), p(c.a...), p(c.b...)))
		}
		for _, f := range comparisons {
			add(onlyValues(noGradient, on(fmt.Sprintf("Broadcast %s %v %v", f.name, c.a, c.b),
				two(func(a, b *G.Node) (*G.Node, error) { return f.broadcast(a, b, true, c.left, c.right) }), x(c.a...), x(c.b...))))
		}
	}
	add(on("Broadcast of nothing", two(func(a, b *G.Node) (*G.Node, error) {
		a, b, err := G.Broadcast(a, b, G.NewBroadcastPattern(nil, nil))
		if err != nil {
			return nil, err
		}
		return G.Add(a, b)
	}), x(2, 3), x(2, 3)))
	// TestAuto
	for _, s := range [][2][]int{{{12, 1}, {12, 3}}, {{1, 12}, {3, 12}}, {{2, 3, 5}, {2, 3, 1}}, {{2, 1, 5}, {2, 3, 5}}, {{2, 1, 1}, {2, 5, 3}}} {
		add(on(fmt.Sprintf("Auto %v", s), two(func(a, b *G.Node) (*G.Node, error) { return G.Auto(G.BroadcastHadamardProd, a, b) }), x(s[0]...), x(s[1]...)))
	}
	// op_reduction_test.go
	for _, c := range []struct {
		shape []int
		axes  [][]int
	}{
		{[]int{1}, [][]int{{}}}, {[]int{3, 1}, [][]int{{0}}}, {[]int{1, 1}, [][]int{{0}}}, {[]int{1, 4}, [][]int{{0}}},
		{[]int{5}, [][]int{{}, {0}}}, {[]int{3, 4}, [][]int{{}, {0}, {1}, {0, 1}}}, {[]int{2, 3, 2}, append(subsets(3), nil)},
		{[]int{2, 3, 2, 2}, [][]int{{0}, {3}, {1, 2}, {0, 3}, {2, 3}, {1, 2, 3}}},
	} {
		for _, axes := range c.axes {
			for name, f := range reductions {
				add(on(fmt.Sprintf("Reduction %s %v %v", name, c.shape, axes), along(f, axes...), x(c.shape...)))
			}
		}
	}
	// TestSlice, TestSliceBNConcat, op_tensor_test.go
	for _, c := range []struct {
		shape []int
		by    []tensor.Slice
	}{
		{[]int{2}, []tensor.Slice{G.S(0)}}, {[]int{3}, []tensor.Slice{G.S(0, 2)}}, {[]int{2, 3}, []tensor.Slice{G.S(0)}}, {[]int{2, 3}, []tensor.Slice{nil, G.S(0)}},
		{[]int{2, 3, 4}, []tensor.Slice{G.S(0)}}, {[]int{2, 3, 4}, []tensor.Slice{G.S(0, 2)}}, {[]int{2, 3, 4}, []tensor.Slice{nil, G.S(0)}},
		{[]int{2, 3, 4}, []tensor.Slice{G.S(0), nil, G.S(0)}}, {[]int{4, 3}, []tensor.Slice{G.S(1, 3), G.S(0, 2)}}, {[]int{4, 3}, []tensor.Slice{G.S(1, 3)}},
		{[]int{4, 3}, []tensor.Slice{G.S(2)}}, {[]int{4, 3}, []tensor.Slice{nil, G.S(1)}}, {[]int{4}, []tensor.Slice{G.S(2)}}, {[]int{4}, []tensor.Slice{G.S(2, 3)}}, {[]int{2, 3}, []tensor.Slice{G.S(1), G.S(2)}},
	} {
		slice := one(func(x *G.Node) (*G.Node, error) { return G.Slice(x, c.by...) })
		add(on(fmt.Sprintf("Slice %v %v", c.shape, c.by), slice, x(c.shape...)), on(fmt.Sprintf("Slice of a result %v %v", c.shape, c.by),
			one(func(x *G.Node) (*G.Node, error) {
				return chain(x, G.Tanh, func(x *G.Node) (*G.Node, error) { return G.Slice(x, c.by...) }, G.Exp)
			}), x(c.shape...)))
	}
	for _, to := range []tensor.Shape{{4}, {2, 2}, {1, 4}, {4, 1}, {-1, 2}, {2, 1, 2}} {
		add(on(fmt.Sprintf("Reshape %v", to), one(func(x *G.Node) (*G.Node, error) { return G.Reshape(x, to.Clone()) }), x(2, 2)))
	}
	for _, shape := range [][]int{{3, 3}, {2, 3}, {2, 1, 3}, {1, 1, 1}} {
		add(on(fmt.Sprintf("Ravel %v", shape), one(G.Ravel), x(shape...)))
	}
	for _, axes := range [][]int{{1, 0}, {1, 0, 2}, {2, 1, 0}, {0, 2, 1}, {1, 2, 0}, {2, 0, 1}} {
		add(on(fmt.Sprintf("Transpose %v", axes), along(G.Transpose, axes...), x([]int{2, 3, 4}[:len(axes)]...)))
	}
	for axis := range 3 {
		concat := func(a, b *G.Node) (*G.Node, error) { return G.Concat(axis, a, b, a) }
		add(on(fmt.Sprintf("Concat %d", axis), two(concat), x(2, 3, 2), x(2, 3, 2)), on(fmt.Sprintf("Unconcat %d", axis), two(func(a, b *G.Node) (*G.Node, error) {
			parts, err := G.Unconcat(G.Must(G.Concat(axis, a, b)), axis, 2)
			if err != nil {
				return nil, err
			}
			return G.HadamardProd(parts[0], parts[1])
		}), x(2, 3, 2), x(2, 3, 2)), on(fmt.Sprintf("KeepDims %d", axis), one(func(x *G.Node) (*G.Node, error) {
			return G.KeepDims(x, axis == 0, func(x *G.Node) (*G.Node, error) { return G.Mean(x, axis) })
		}), x(2, 3, 2)))
	}
	add(
		on("Concat of vectors", two(func(a, b *G.Node) (*G.Node, error) { return G.Concat(0, a, b) }), x(2), x(3)),
		onlyValues(noGradient, on("SizeOf", one(func(x *G.Node) (*G.Node, error) { return G.SizeOf(1, x) }), x(2, 3))),
		without("another value", onlyValues(noGradient, on("At", one(func(x *G.Node) (*G.Node, error) { return G.At(x, 1, 2) }), x(2, 3)))),
		onlyValues(noGradient, on("DiagFlat", one(G.DiagFlat), x(2, 2))), onlyValues(noGradient, on("DiagFlat rank 3", one(G.DiagFlat), x(2, 3, 2))),
		on("SliceBNConcat", func(n []*G.Node) (*G.Node, error) {
			var parts G.Nodes
			for i, w := range n[1:3] {
				y, _, _, _, err := G.BatchNorm(G.Must(G.Slice(n[0], G.S(2-2*i, 4-2*i))), n[3], n[4], 0.1, 1e-5)
				if err != nil {
					return nil, err
				}
				parts = append(parts, G.Must(G.Mul(G.Must(G.Reshape(y, tensor.Shape{2, 8})), G.Must(G.Transpose(w, 1, 0)))))
			}
			return G.Concat(0, parts...)
		}, x(4, 2, 2, 2), x(2, 8), x(2, 8), x(1, 2, 1, 1), x(1, 2, 1, 1)),
	)
	for _, shape := range [][]int{{1}, {1, 1}, {1, 1, 1}} { // TapeMachine's ops return one element as a scalar, which the next op refuses
		add(without("an error", on(fmt.Sprintf("One element %v", shape), one(func(x *G.Node) (*G.Node, error) {
			y := G.Must(G.Exp(G.Must(G.HadamardProd(x, x))))
			part, pair := G.Must(G.Slice(y, G.S(0, 1))), G.Must(G.Concat(0, y, x))
			return G.Add(G.Must(G.Sum(part)), G.Must(G.Add(G.Must(G.Sum(y)), G.Must(G.Sum(pair)))))
		}), x(shape...))))
	}
	// op_math_test.go, TestMul, TestTensordot, example_linalg_test.go
	for _, s := range [][2][]int{{{2}, {2, 3}}, {{3, 2}, {2, 3}}, {{6}, {6}}, {{2, 3}, {3}}, {{1, 3}, {3, 1}}, {{1}, {1, 3}}, {{2, 2}, {2, 1}}, {{1, 2}, {2, 2}},
		{{1, 1}, {1, 1}}, {{1}, {1}}, {{1, 3}, {3}}} {
		add(on(fmt.Sprintf("Mul %v", s), two(G.Mul), x(s[0]...), x(s[1]...)))
	}
	add(on("Mul scalars", two(G.Mul), x(), x()), on("Mul vector and scalar", two(G.Mul), x(4), x()), on("Scalar times matrix", two(G.HadamardProd), x(), x(2, 3)),
		on("Matrix minus scalar", two(G.Sub), x(2, 3), x()), on("Vector over scalar", two(G.HadamardDiv), x(4), p()), on("Sum of one element", two(G.Add), x(1, 1), x(1, 1)),
		corrected("one for the other", on("OuterProd", two(func(a, b *G.Node) (*G.Node, error) { return G.OuterProd(a, b) }), x(3), x(4))), on("Issue182", two(func(a, b *G.Node) (*G.Node, error) {
			return G.Mul(G.Must(G.Mul(a, fixed(a, "twos", tensor.Ones(a.Dtype(), 3).Data(), 3))), b)
		}), x(3), x()))
	for _, c := range []struct {
		a, b         []int
		axesA, axesB []int
	}{
		{[]int{1}, []int{1}, []int{0}, []int{0}}, {[]int{2}, []int{2}, []int{0}, []int{0}}, {[]int{2, 2}, []int{2}, []int{1}, []int{0}},
		{[]int{2, 2}, []int{2, 2}, []int{1}, []int{1}}, {[]int{2, 2}, []int{2, 2}, []int{0, 1}, []int{0, 1}}, {[]int{2, 3, 2}, []int{3, 2}, []int{1}, []int{0}},
	} {
		add(on(fmt.Sprintf("Tensordot %v %v %v", c.a, c.b, c.axesA), two(func(a, b *G.Node) (*G.Node, error) { return G.Tensordot(c.axesA, c.axesB, a, b) }), x(c.a...), x(c.b...)))
	}
	for _, c := range []struct {
		a, b  []int
		trans []bool
	}{
		{[]int{2, 2, 3}, []int{2, 3, 2}, nil}, {[]int{3, 1, 1}, []int{3, 1, 4}, nil}, {[]int{3, 1, 4}, []int{3, 1, 1}, []bool{true, true}},
		{[]int{1, 3, 2, 4}, []int{1, 3, 4, 2}, nil}, {[]int{3, 2, 2, 3}, []int{3, 2, 3, 2}, nil}, {[]int{2, 2, 3, 4}, []int{2, 2, 3, 4}, []bool{false, true}},
	} {
		add(on(fmt.Sprintf("BatchedMatMul %v %v %v", c.a, c.b, c.trans), two(func(a, b *G.Node) (*G.Node, error) { return G.BatchedMatMul(a, b, c.trans...) }), x(c.a...), x(c.b...)))
	}
	// nn_test.go, op_avg_pool_test.go, op_upsample_test.go, known_issues_test.go
	for _, c := range []struct{ kernel, pad, stride, dilation []int }{
		{[]int{3, 3}, []int{1, 1}, []int{1, 1}, []int{1, 1}}, {[]int{2, 2}, []int{0, 0}, []int{2, 2}, []int{1, 1}}, {[]int{3, 3}, []int{1, 1}, []int{3, 3}, []int{1, 1}},
		{[]int{2, 2}, []int{1, 1}, []int{1, 1}, []int{2, 2}},
	} {
		add(on(fmt.Sprintf("Im2Col %v", c), one(func(x *G.Node) (*G.Node, error) { return G.Im2Col(x, c.kernel, c.pad, c.stride, c.dilation) }), x(2, 1, 6, 6)),
			on(fmt.Sprintf("Conv2d %v", c), two(func(a, w *G.Node) (*G.Node, error) { return G.Conv2d(a, w, c.kernel, c.pad, c.stride, c.dilation) }),
				x(1, 2, 5, 5), x(2, 2, c.kernel[0], c.kernel[1])))
	}
	for _, c := range []struct{ kernel, pad, stride []int }{
		{[]int{2, 2}, []int{0, 0}, []int{1, 1}}, {[]int{2, 2}, []int{0, 0}, []int{2, 2}}, {[]int{3, 3}, []int{1, 1}, []int{1, 1}}, {[]int{2, 2}, []int{1, 1, 0, 0}, []int{2, 2}},
	} {
		add(on(fmt.Sprintf("MaxPool2D %v", c), one(func(x *G.Node) (*G.Node, error) { return G.MaxPool2D(x, c.kernel, c.pad, c.stride) }), x(1, 2, 4, 4)))
		average := on(fmt.Sprintf("AveragePool2D %v", c), one(func(x *G.Node) (*G.Node, error) { return G.AveragePool2D(x, c.kernel, c.pad, c.stride) }), x(1, 2, 4, 4))
		if average = corrected("wrong", average); len(c.pad) > 2 {
			average = onlyValues("wrong", average)
			average.corrected = false
		}
		add(average)
	}
	add(
		on("Conv1d", two(func(a, w *G.Node) (*G.Node, error) { return G.Conv1d(a, w, 3, 1, 1, 1) }), x(1, 2, 1, 6), x(3, 2, 1, 3)),
		on("MaxPool1D", one(func(x *G.Node) (*G.Node, error) { return G.MaxPool1D(x, 2, 0, 2) }), x(1, 2, 1, 6)),
		on("AveragePool1D", one(func(x *G.Node) (*G.Node, error) { return G.AveragePool1D(x, 2, 0, 2) }), x(1, 2, 1, 6)),
		onlyValues(noGradient, on("GlobalAveragePool2D", one(G.GlobalAveragePool2D), x(1, 3, 3, 3))),
		on("Upsample2D", one(func(x *G.Node) (*G.Node, error) { return G.Upsample2D(x, 1) }), x(1, 2, 2, 3)),
		on("LeakyRelu", one(func(x *G.Node) (*G.Node, error) { return G.LeakyRelu(x, 0.1) }), x(3, 4)),
		corrected("divided by p", inEval(on("Dropout", one(func(x *G.Node) (*G.Node, error) { return G.Dropout(x, 0.3) }), x(3, 4)))),
	)
	for _, shape := range [][]int{{3, 2, 2, 2}, {4, 3}} {
		channels := []int{1, shape[1], 1, 1}[:len(shape)]
		bn := func(n []*G.Node) (*G.Node, error) {
			y, _, _, _, err := G.BatchNorm(n[0], n[1], n[2], 0.9, 1e-5)
			return y, err
		}
		add(on(fmt.Sprintf("BatchNorm %v", shape), bn, x(shape...), x(channels...), x(channels...)),
			inEval(on(fmt.Sprintf("BatchNorm in evaluation %v", shape), bn, x(shape...), x(channels...), x(channels...))),
			on(fmt.Sprintf("BatchNormStacked %v", shape), func(n []*G.Node) (*G.Node, error) {
				y := G.Must(bn(n))
				return bn(append([]*G.Node{y}, n[3:]...))
			}, x(shape...), x(channels...), x(channels...), x(channels...), x(channels...)))
	}
	for _, groups := range []int{1, 2, 4} {
		add(on(fmt.Sprintf("GroupNorm %d", groups), func(n []*G.Node) (*G.Node, error) { return G.GroupNorm(n[0], n[1], n[2], groups, 4, 1e-5) },
			x(2, 4, 2, 2), x(1, 4, 1, 1), x(1, 4, 1, 1)))
	}
	// op_softmax_test.go, op_sparsemax_test.go, gorgonia_test.go, stabilization_test.go
	for _, c := range []struct {
		shape []int
		axes  []int
	}{{[]int{5}, nil}, {[]int{2, 3}, nil}, {[]int{2, 3}, []int{0}}, {[]int{2, 3}, []int{1}}, {[]int{2, 2, 3}, nil}, {[]int{2, 2, 3}, []int{1}}} {
		add(on(fmt.Sprintf("SoftMax %v %v", c.shape, c.axes), along(G.SoftMax, c.axes...), x(c.shape...)),
			on(fmt.Sprintf("LogSoftMax %v %v", c.shape, c.axes), along(G.LogSoftMax, c.axes...), x(c.shape...)))
	}
	add(
		on("Sparsemax", along(G.Sparsemax), x(2, 3)), on("Sparsemax 1", along(G.Sparsemax, 1), x(2, 3)),
		without("NaN", corrected("of another axis", on("Sparsemax 0", along(G.Sparsemax, 0), x(3, 2)))), on("Sparsemax of a vector", along(G.Sparsemax), x(4)),
		on("Sparsemax of a row", along(G.Sparsemax), x(1, 4)), on("Sparsemax of a column", along(G.Sparsemax), x(4, 1)),
		on("SoftMax of a class", one(func(x *G.Node) (*G.Node, error) {
			return G.Slice(G.Must(G.Neg(G.Must(G.Log(G.Must(G.SoftMax(x)))))), G.S(2))
		}), x(5)),
		on("BinaryXent", two(func(p, y *G.Node) (*G.Node, error) { return G.BinaryXent(G.Must(G.Sigmoid(p)), G.Must(G.Sigmoid(y))) }), x(4), x(4)),
		on("Log of a sigmoid", one(func(x *G.Node) (*G.Node, error) { return G.Log(G.Must(G.Sigmoid(x))) }), x(4)),
		on("Exp minus one", one(func(x *G.Node) (*G.Node, error) { return G.Sub(G.Must(G.Exp(x)), number(x, 1)) }), x(4)),
		on("Neg of Neg", one(func(x *G.Node) (*G.Node, error) { return G.Neg(G.Must(G.Neg(G.Must(G.Sin(x))))) }), x(4)),
		on("Issue363", two(func(a, b *G.Node) (*G.Node, error) { return G.Neg(G.Must(G.Add(a, b))) }), x(), x()),
		on("Misha", func(n []*G.Node) (*G.Node, error) { return G.Add(G.Must(G.Mish(n[0])), G.Must(G.Mish(n[1]))) }, x(), x()),
		on("Norm 1", one(func(x *G.Node) (*G.Node, error) { return G.Norm(x, 1, 1) }), p(2, 3)), on("Norm 2", one(func(x *G.Node) (*G.Node, error) { return G.Norm(x, 0, 2) }), x(2, 3)),
		on("ReduceAdd", func(n []*G.Node) (*G.Node, error) { return G.ReduceAdd(G.Nodes(n)) }, x(2, 3), x(2, 3), x(2, 3), x(2, 3)),
		on("ReduceMul", func(n []*G.Node) (*G.Node, error) { return G.ReduceMul(G.Nodes(n)) }, x(2, 2), x(2, 2), x(2, 2)),
		corrected("it turns the softmax into its log", on("Pow of a SoftMax", two(func(a, b *G.Node) (*G.Node, error) { return G.Pow(G.Must(G.SoftMax(a)), b) }), x(2, 3), p(2, 3))),
		on("Sum is no root", one(func(x *G.Node) (*G.Node, error) { return G.Add(G.Must(G.Sum(x)), number(x, 2)) }), x(4, 3)),
		// Not Gorgonia's: x + reshape(reshape(x) w). TapeMachine's gradient is wrong, since Reshape aliases and Add works in place.
		without("wrong gradients", on("Residual", two(func(a, w *G.Node) (*G.Node, error) {
			y := G.Must(G.Mul(G.Must(G.Reshape(a, tensor.Shape{6, 4})), w))
			return G.Add(a, G.Must(G.Reshape(y, tensor.Shape{2, 3, 4})))
		}), x(2, 3, 4), x(4, 4))),
		on("MLP with cross entropy", func(n []*G.Node) (*G.Node, error) {
			h := G.Must(G.Rectify(G.Must(G.BroadcastAdd(G.Must(G.Mul(n[0], n[1])), n[2], nil, []byte{0}))))
			return G.Neg(G.Must(G.Mean(G.Must(G.HadamardProd(n[4], G.Must(G.LogSoftMax(G.Must(G.Mul(h, n[3])))))))))
		}, x(3, 4), x(4, 5), x(5), x(5, 3), p(3, 3)),
		on("GRU cell", gru, x(3), x(4), x(4, 3), x(4, 4), x(4, 3), x(4, 4), x(4, 3), x(4, 4)),
		on("Linear regression", func(n []*G.Node) (*G.Node, error) {
			return G.Mean(G.Must(G.Square(G.Must(G.Sub(G.Must(G.Add(G.Must(G.Mul(n[0], n[1])), n[2])), n[3])))))
		}, x(6), x(), x(), x(6)),
	)
	// op_by_indices_test.go, op_ctc_loss_test.go, op_yolo_test.go
	for axis, shape := range [][]int{{8, 2}, {2, 5}} {
		add(on(fmt.Sprintf("ByIndices %d", axis), one(func(x *G.Node) (*G.Node, error) {
			return G.ByIndices(x, fixed(x, "indices", []int{3, 0, 2, 0}, 4), axis)
		}), x(shape...)))
	}
	for why, reduction := range map[string]G.Reduction{"wrong for the mean": G.ReductionMean, "": G.ReductionSum} {
		add(onlyValues(why, on(fmt.Sprint("CTCLoss ", reduction), one(func(x *G.Node) (*G.Node, error) {
			return G.CTCLoss(G.Must(G.LogSoftMax(x, 2)), fixed(x, "targets", []int{1, 2, 2, 1}, 2, 2), fixed(x, "lengths", []int{4, 4}, 2), fixed(x, "sizes", []int{2, 1}, 2), reduction)
		}), x(4, 2, 3))))
	}
	add(onlyValues(noGradient, on("YOLOv3", one(func(x *G.Node) (*G.Node, error) { // YOLOv3 overwrites its input
		x = fixed(x, "image", testutil.Convert[float32](testutil.Normal(1, 84)), 1, 21, 2, 2)
		return G.YOLOv3(G.Must(G.Tanh(x)), []float32{10, 13, 16, 30, 33, 23}, []int{0, 1, 2}, 32, 2, 0.7)
	}), x())))
	return rows
}

// gru returns the next state of a gated recurrent unit.
func gru(n []*G.Node) (*G.Node, error) {
	x, h := n[0], n[1]
	gate := func(w, u, h *G.Node) *G.Node { return G.Must(G.Add(G.Must(G.Mul(w, x)), G.Must(G.Mul(u, h)))) }
	z := G.Must(G.Sigmoid(gate(n[2], n[3], h)))
	r := G.Must(G.Sigmoid(gate(n[4], n[5], h)))
	c := G.Must(G.Tanh(gate(n[6], n[7], G.Must(G.HadamardProd(r, h)))))
	return G.Add(h, G.Must(G.HadamardProd(z, G.Must(G.Sub(c, h)))))
}

// TestGorgonia runs the graphs of Gorgonia's own tests and compares them with TapeMachine and with central differences.
func TestGorgonia(t *testing.T) {
	log.SetOutput(io.Discard) // GroupNorm prints its gradients
	defer log.SetOutput(os.Stderr)
	rows := gorgonias()
	require.GreaterOrEqual(t, len(rows), 100)
	for _, c := range rows {
		t.Run(c.name, c.test)
	}
}
