package kernels_test

import (
	"fmt"
	"slices"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/stock"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// stockInput is an input of a case: standard normal values, or positive ones.
type stockInput struct {
	shape    tensor.Shape
	positive bool
}

func normal(shape ...int) stockInput   { return stockInput{shape, false} }
func positive(shape ...int) stockInput { return stockInput{shape, true} }

// node adds the input to g. Its values are exact in float32.
func (s stockInput) node(g *G.ExprGraph, dt tensor.Dtype, name string, seed uint64) *G.Node {
	a := opcases.Normal(name, seed, s.shape...)
	if s.positive {
		a.Floats = f32.roundAll(testutil.Uniform(seed, len(a.Floats), 0.5, 2))
	}
	return a.Node(g, dt)
}

// stockCase is a graph of Gorgonia's own ops. root is what the op of its output is recognised as.
type stockCase struct {
	root  any
	in    []stockInput
	build func(in []*G.Node) (*G.Node, error)
	// noGrad is set if upstream has no gradient, or one that cannot be run.
	noGrad bool
}

func (c stockCase) String() string {
	shapes := make([]string, len(c.in))
	for i, s := range c.in {
		shapes[i] = fmt.Sprint(s.shape)
	}
	return fmt.Sprintf("%T%+v of %s", c.root, c.root, strings.Join(shapes, " and "))
}

func (c stockCase) withoutGrad() stockCase { c.noGrad = true; return c }

func one(root any, f func(*G.Node) (*G.Node, error), in stockInput) stockCase {
	return stockCase{root: root, in: []stockInput{in}, build: func(n []*G.Node) (*G.Node, error) { return f(n[0]) }}
}

func two(root any, f func(a, b *G.Node) (*G.Node, error), a, b stockInput) stockCase {
	build := func(n []*G.Node) (*G.Node, error) { return f(n[0], n[1]) }
	return stockCase{root: root, in: []stockInput{a, b}, build: build}
}

func unaryOp(name string, f func(*G.Node) (*G.Node, error), in stockInput) stockCase {
	return one(stock.Unary{Function: name}, f, in)
}

func binaryOp(name string, f func(a, b *G.Node) (*G.Node, error), a, b stockInput) stockCase {
	return two(stock.Binary{Function: name}, f, a, b)
}

// ends is a graph of one input whose last op is a binary one.
func ends(name string, f func(*G.Node) (*G.Node, error), in stockInput) stockCase {
	return one(stock.Binary{Function: name}, f, in)
}

func spread(name string, f func(a, b *G.Node, l, r []byte) (*G.Node, error), a, b stockInput, l, r []byte) stockCase {
	return binaryOp(name, func(a, b *G.Node) (*G.Node, error) { return f(a, b, l, r) }, a, b)
}

func along(root any, f func(*G.Node, ...int) (*G.Node, error), in stockInput, axes ...int) stockCase {
	return one(root, func(x *G.Node) (*G.Node, error) { return f(x, axes...) }, in)
}

func sum(in stockInput, axes ...int) stockCase {
	return along(stock.Reduce{Axes: axes}, G.Sum, in, axes...)
}

func maximum(in stockInput, axes ...int) stockCase {
	return along(stock.Reduce{Max: true, Axes: axes}, G.Max, in, axes...)
}

func softmaxes(in stockInput, axis int) []stockCase {
	return []stockCase{
		along(stock.Softmax{Axis: axis}, G.SoftMax, in, axis),
		along(stock.Softmax{Axis: axis, Log: true}, G.LogSoftMax, in, axis),
	}
}

func transposed(in stockInput, axes ...int) stockCase {
	return along(stock.Transpose{Axes: axes}, G.Transpose, in, axes...)
}

// sliced is a case whose last op takes one slice of an axis; step 0 is the whole axis.
func sliced(in stockInput, axis, start, end, step int, slices ...tensor.Slice) stockCase {
	root := stock.Slice{Axis: axis, Whole: step == 0, Start: start, End: end, Step: step}
	return one(root, func(x *G.Node) (*G.Node, error) { return G.Slice(x, slices...) }, in)
}

func shaped(in stockInput, to ...int) stockCase {
	return one(stock.Reshape{}, func(x *G.Node) (*G.Node, error) { return G.Reshape(x, to) }, in)
}

func joined(axis int, in ...stockInput) stockCase {
	build := func(n []*G.Node) (*G.Node, error) { return G.Concat(axis, n...) }
	return stockCase{root: stock.Concat{Axis: axis}, in: in, build: build}
}

func multiplied(kind stock.ProductKind, a, b stockInput) stockCase {
	return two(stock.Product{Kind: kind}, G.Mul, a, b)
}

func outer(a, b stockInput) stockCase {
	return two(stock.Product{Kind: stock.OuterProduct}, G.OuterProd, a, b).withoutGrad()
}

func batched(a, b stockInput, transA, transB bool) stockCase {
	return two(stock.Product{Kind: stock.Batched, TransA: transA, TransB: transB},
		func(a, b *G.Node) (*G.Node, error) { return G.BatchedMatMul(a, b, transA, transB) }, a, b)
}

func dotted(aAxes, bAxes []int, a, b stockInput) stockCase {
	return two(stock.Tensordot{A: aAxes, B: bAxes},
		func(x, y *G.Node) (*G.Node, error) { return G.Tensordot(aAxes, bAxes, x, y) }, a, b)
}

func toThePower3(x *G.Node) (*G.Node, error) {
	if x.Dtype() == tensor.Float32 {
		return G.Pow(x, G.NewConstant(float32(3)))
	}
	return G.Pow(x, G.NewConstant(3.0))
}

// smallStockCases returns the cases that also run without a GPU.
func smallStockCases() []stockCase {
	return slices.Concat(elementwiseCases(), productCases(), moveCases(), reductionCases())
}

// elementwiseCases have functions of one and of two operands, some of which are broadcast.
func elementwiseCases() []stockCase {
	cases := []stockCase{
		unaryOp("sign", G.Sign, normal(3, 5)).withoutGrad(),
		unaryOp("sign", G.Sign, normal()).withoutGrad(),
		unaryOp("ceil", G.Ceil, normal(7)).withoutGrad(),
		unaryOp("floor", G.Floor, normal(2, 2, 2)).withoutGrad(),

		binaryOp("+", G.Add, normal(2, 3), normal(2, 3)), binaryOp("+", G.Add, normal(), normal()),
		binaryOp("+", G.Add, normal(1, 1), normal(1, 1)), binaryOp("+", G.Add, normal(1), normal(1)),
		binaryOp("+", G.Add, normal(), normal(1)), binaryOp("+", G.Add, normal(3, 1), normal(3)),
		binaryOp("-", G.Sub, normal(5), normal()), binaryOp("-", G.Sub, normal(), normal(2, 1, 3)),
		binaryOp("⊙", G.HadamardProd, normal(4, 4), normal(4, 4)), binaryOp("⊙", G.HadamardProd, normal(), normal(2, 3)),
		binaryOp("⊙", G.Mul, normal(), normal(2, 3)), binaryOp("⊙", G.HadamardProd, normal(), normal()),
		binaryOp("÷", G.HadamardDiv, normal(2, 3, 4, 5), positive(2, 3, 4, 5)),
		binaryOp("÷", G.HadamardDiv, normal(7), positive()),
		binaryOp("÷", G.HadamardDiv, normal(), positive(7)), binaryOp("÷", G.Div, normal(), positive()),
		binaryOp("^", G.Pow, positive(3, 3), normal(3, 3)), binaryOp("^", G.Pow, positive(5), normal()),
		binaryOp("^", G.Pow, positive(), normal(5)), binaryOp("^", G.Pow, positive(), normal()),
		ends("^", toThePower3, positive(6)),
		binaryOp("MinBetween", G.MinBetween, normal(3, 5), normal(3, 5)),
		binaryOp("MaxBetween", G.MaxBetween, normal(7), normal(7)),

		ends("⊙", G.Rectify, normal(3, 7)), ends("+", func(x *G.Node) (*G.Node, error) { return G.LeakyRelu(x, 0.1) },
			normal(5)),
		ends("⊙", G.Mish, normal(5)),
		unaryOp("sqrt", func(x *G.Node) (*G.Node, error) { return G.Norm(x, 1, 2) }, normal(3, 4)),
		ends("^", func(x *G.Node) (*G.Node, error) { return G.Norm(x, 0, 3) }, positive(3, 4)),
		ends("÷", func(x *G.Node) (*G.Node, error) { return G.Mean(x) }, normal(3, 4)),
		along(stock.Binary{Function: "÷"}, G.Mean, normal(3, 4, 2), 0, 2),
		along(stock.Binary{Function: "÷"}, G.Mean, normal(1, 1), 0),

		spread("+", G.BroadcastAdd, normal(3, 4), normal(4), nil, []byte{0}),
		spread("+", G.BroadcastAdd, normal(3), normal(3, 4), []byte{1}, nil),
		spread("-", G.BroadcastSub, normal(2, 3, 4), normal(2, 1, 4), nil, []byte{1}),
		spread("⊙", G.BroadcastHadamardProd, normal(3, 4), normal(1, 4), nil, []byte{0}),
		spread("⊙", G.BroadcastHadamardProd, normal(1, 3, 1, 2), normal(5, 3, 2, 2), []byte{0, 2}, nil),
		spread("÷", G.BroadcastHadamardDiv, normal(3, 4), positive(3, 1), nil, []byte{1}),
		spread("^", G.BroadcastPow, positive(3, 4), normal(1, 4), nil, []byte{0}),
		spread("+", G.BroadcastAdd, normal(1, 4), normal(3, 1), []byte{0}, []byte{1}),
	}
	for _, f := range []struct {
		name  string
		build func(*G.Node) (*G.Node, error)
	}{
		{"abs", G.Abs}, {"sin", G.Sin}, {"cos", G.Cos}, {"exp", G.Exp}, {"ln", G.Log}, {"log2", G.Log2}, {"neg", G.Neg},
		{"square", G.Square}, {"sqrt", G.Sqrt}, {"inv", G.Inverse}, {"invSqrt", G.InverseSqrt}, {"cube", G.Cube},
		{"tanh", G.Tanh},
		{"sigmoid", G.Sigmoid}, {"log1p", G.Log1p}, {"expm1", G.Expm1}, {"softplus", G.Softplus},
	} {
		in := normal
		if strings.Contains("ln log2 sqrt inv invSqrt log1p", f.name) {
			in = positive
		}
		cases = append(cases, unaryOp(f.name, f.build, in(3, 7)), unaryOp(f.name, f.build, in()))
	}
	for _, f := range []struct {
		symbol string
		build  func(a, b *G.Node, retSame bool) (*G.Node, error)
	}{{"<", G.Lt}, {">", G.Gt}, {"<=", G.Lte}, {">=", G.Gte}, {"==", G.Eq}, {"!=", G.Ne}} {
		for _, s := range [][2]stockInput{{normal(3, 5), normal(3, 5)}, {normal(6), normal()}, {normal(), normal(6)},
			{normal(), normal()}} {
			build := func(a, b *G.Node) (*G.Node, error) { return f.build(a, b, true) }
			cases = append(cases, binaryOp(f.symbol, build, s[0], s[1]).withoutGrad())
		}
	}
	return cases
}

func productCases() []stockCase {
	return []stockCase{
		multiplied(stock.MatrixMatrix, normal(2, 3), normal(3, 4)),
		multiplied(stock.MatrixMatrix, normal(65, 17), normal(17, 70)),
		multiplied(stock.MatrixMatrix, normal(3, 5), normal(5, 7)), multiplied(stock.MatrixVector, normal(2, 3), normal(3)),
		two(stock.Product{Kind: stock.MatrixVector, TransA: true}, G.Mul, normal(3), normal(3, 2)),
		multiplied(stock.VectorVector, normal(5), normal(5)),
		multiplied(stock.MatrixMatrix, normal(1, 1), normal(1, 1)), multiplied(stock.VectorVector, normal(1), normal(1)),
		multiplied(stock.MatrixVector, normal(1, 3), normal(3)),
		outer(normal(3), normal(4)), outer(normal(1), normal(4)),
		batched(normal(2, 3, 4), normal(2, 4, 2), false, false),
		batched(normal(2, 3, 4, 5), normal(2, 3, 5, 2), false, false),
		batched(normal(2, 4, 3), normal(2, 4, 2), true, false), batched(normal(2, 3, 4), normal(2, 2, 4), false, true),
		batched(normal(2, 4, 3), normal(2, 2, 4), true, true), batched(normal(1, 1, 4), normal(1, 4, 1), false, false),
		dotted([]int{1}, []int{0}, normal(2, 3), normal(3, 4)), dotted([]int{0}, []int{1}, normal(3, 2), normal(4, 3)),
		dotted([]int{1, 2}, []int{0, 1}, normal(2, 3, 4), normal(3, 4, 5)),
		dotted([]int{2, 0}, []int{0, 2}, normal(2, 3, 4), normal(4, 5, 2)),
		dotted([]int{1}, []int{1}, normal(2, 3, 4), normal(5, 3, 2)), dotted([]int{0}, []int{0}, normal(4), normal(4)),
	}
}

// moveCases have ops that only move elements.
func moveCases() []stockCase {
	return []stockCase{
		shaped(normal(2, 6), 3, 4), shaped(normal(2, 3, 4), 24), shaped(normal(1), 1, 1), shaped(normal(6), 6, 1),
		one(stock.Reshape{}, G.Ravel, normal(2, 3, 2)), one(stock.Reshape{}, func(x *G.Node) (*G.Node, error) {
			return G.KeepDims(x, false, func(x *G.Node) (*G.Node, error) { return G.Sum(x, 1) })
		}, normal(3, 4)),
		transposed(normal(2, 3), 1, 0), transposed(normal(2, 3, 4), 2, 0, 1),
		along(stock.Transpose{Axes: []int{1, 0}}, G.Transpose, normal(33, 41)),
		along(stock.Transpose{Axes: []int{3, 2, 1, 0}}, G.Transpose, normal(2, 3, 4, 5)),
		transposed(normal(3, 20, 9), 0, 2, 1), transposed(normal(2, 3, 4, 8), 0, 2, 1, 3),
		transposed(normal(2, 3, 17, 40), 1, 0, 3, 2), transposed(normal(1, 5), 1, 0),
		sliced(normal(4, 3), 0, 1, 3, 1, G.S(1, 3)), sliced(normal(4, 3), 0, 2, 3, 1, G.S(2)),
		sliced(normal(4), 0, 2, 3, 1, G.S(2)),
		sliced(normal(4), 0, 2, 3, 1, G.S(2, 3)), sliced(normal(4, 3), 1, 1, 2, 1, nil, G.S(1)),
		sliced(normal(3, 5, 2), 1, 1, 4, 1, nil, G.S(1, 4)),
		sliced(normal(9), 0, 0, 7, 2, G.S(0, 7, 2)), sliced(normal(2, 4, 8), 1, 2, 4, 1, G.S(0, 2), G.S(2, 4)),
		sliced(normal(2, 3, 6), 2, 1, 5, 1, nil, nil, G.S(1, 5)), sliced(normal(3, 4), 0, 0, 0, 0, nil),
		sliced(normal(4, 3), 0, 1, 9, 1, G.S(1, 9)),
		sliced(normal(7, 3), 0, 1, 6, 2, G.S(1, 6, 2)), sliced(normal(2, 8, 3), 1, 1, 7, 3, nil, G.S(1, 7, 3)),
		joined(0, normal(2, 3), normal(4, 3)), joined(1, normal(2, 3), normal(2, 1), normal(2, 4)),
		joined(0, normal(3), normal(5)),
		joined(2, normal(2, 3, 4), normal(2, 3, 8)), joined(1, normal(2, 1, 3), normal(2, 5, 3)), joined(0, normal(3, 2)),
		one(stock.Element{At: []int{1, 2}}, func(x *G.Node) (*G.Node, error) { return G.At(x, 1, 2) },
			normal(2, 3)).withoutGrad(),
		one(stock.Size{Axis: 1}, func(x *G.Node) (*G.Node, error) { return G.SizeOf(1, x) }, normal(2, 3)).withoutGrad(),
	}
}

// reductionCases have sums, maxima and softmaxes along all sets of axes.
func reductionCases() []stockCase {
	cases := []stockCase{
		one(stock.Softmax{Axis: -1}, func(x *G.Node) (*G.Node, error) { return G.SoftMax(x) }, normal(7)),
		one(stock.Softmax{Axis: -1}, func(x *G.Node) (*G.Node, error) { return G.SoftMax(x) }, normal(5, 1)),
		one(stock.Softmax{Axis: -1}, func(x *G.Node) (*G.Node, error) { return G.SoftMax(x) }, normal(1, 5)),
	}
	for _, shape := range [][]int{{1}, {7}, {1, 4}, {3, 1}, {3, 5}, {2, 3, 4}, {2, 3, 2, 5}} {
		for mask := 1; mask < 1<<len(shape); mask++ {
			var axes []int
			for a := range shape {
				if mask>>a&1 == 1 {
					axes = append(axes, a)
				}
			}
			max := maximum(normal(shape...), axes...)
			if len(shape) == 4 || len(axes) == len(shape) && len(shape) > 1 {
				max = max.withoutGrad() // upstream broadcasts 4 axes at most, and no scalar
			}
			cases = append(cases, sum(normal(shape...), axes...), max)
		}
		for axis := range shape {
			cases = append(cases, softmaxes(normal(shape...), axis)...)
		}
	}
	return cases
}

// largeStockCases returns the cases that only run on a GPU. At their sizes kernels take other paths: packs, several
// blocks, splits, tiles.
func largeStockCases() []stockCase {
	cases := []stockCase{
		unaryOp("exp", G.Exp, normal(1000, 1003)), binaryOp("+", G.Add, normal(64, 1000), normal(64, 1000)),
		binaryOp("÷", G.HadamardDiv, normal(), positive(70001)),
		transposed(normal(513, 1031), 1, 0), transposed(normal(4, 100, 6, 64), 0, 2, 1, 3),
		transposed(normal(40, 50, 60), 2, 0, 1),
		multiplied(stock.MatrixMatrix, normal(300, 200), normal(200, 260)),
		multiplied(stock.MatrixMatrix, normal(130, 5000), normal(5000, 140)),
		multiplied(stock.MatrixVector, normal(500, 3001), normal(3001)),
		two(stock.Product{Kind: stock.MatrixVector, TransA: true}, G.Mul, normal(3001), normal(3001, 500)),
		multiplied(stock.VectorVector, normal(300001), normal(300001)), outer(normal(700), normal(501)),
		batched(normal(30, 64, 65), normal(30, 65, 33), false, false),
		batched(normal(5, 64, 65), normal(5, 64, 33), true, false),
		multiplied(stock.MatrixMatrix, normal(700, 900), normal(900, 1)),
		multiplied(stock.MatrixMatrix, normal(1, 900), normal(900, 700)),
		joined(1, normal(100, 128), normal(100, 64)), joined(1, normal(100, 127), normal(100, 64)),
		sliced(normal(100, 256), 1, 64, 192, 1, nil, G.S(64, 192)),
		spread("+", G.BroadcastAdd, normal(300, 512), normal(512), nil, []byte{0}),
		spread("+", G.BroadcastAdd, normal(300, 511), normal(300, 1), nil, []byte{1}),
	}
	for _, shape := range [][]int{{1 << 20}, {1000003}, {3, 100000}, {100000, 3}, {2000, 40}, {40, 2000},
		{5, 3000, 7}, {7, 50, 300}, {300, 4, 500}} {
		for axis := range shape {
			cases = append(cases, sum(normal(shape...), axis).withoutGrad(), maximum(normal(shape...), axis).withoutGrad())
			cases = append(cases, softmaxes(normal(shape...), axis)...)
		}
	}
	return append(cases, sum(normal(60, 70, 80), 0, 2), sum(normal(9, 7, 8, 501), 0, 2).withoutGrad(),
		maximum(normal(60, 70, 80), 0, 1).withoutGrad())
}
