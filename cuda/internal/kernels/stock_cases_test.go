package kernels_test

import (
	"fmt"
	"strings"
	"testing"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// stockInput is an input of a case: standard normal values, or positive ones.
type stockInput struct {
	shape    []int
	positive bool
}

func normal(shape ...int) stockInput   { return stockInput{shape, false} }
func positive(shape ...int) stockInput { return stockInput{shape, true} }

func (s stockInput) values(seed uint64) []float32 {
	n := tensor.Shape(s.shape).TotalSize()
	if len(s.shape) == 0 {
		n = 1
	}
	if s.positive {
		return testutil.Convert[float32](testutil.Uniform(seed, n, 0.5, 2))
	}
	return testutil.Convert[float32](testutil.Normal(seed, n))
}

// stockCase is a graph of Gorgonia's own ops. root is what the op of its output is recognised as.
type stockCase struct {
	root  string
	in    []stockInput
	build func(in []*G.Node) (*G.Node, error)
	// noGrad is set where upstream has no gradient, or one that cannot be run.
	noGrad bool
	// large cases are not for kernels that run on the host.
	large bool
}

func (c stockCase) name() string {
	shapes := make([]string, len(c.in))
	for i, s := range c.in {
		shapes[i] = fmt.Sprint(tensor.Shape(s.shape))
	}
	return c.root + " of " + strings.Join(shapes, " and ")
}

func (c stockCase) withoutGrad() stockCase { c.noGrad = true; return c }
func (c stockCase) onDeviceOnly() stockCase {
	c.large = true
	return c
}

func one(root string, f func(*G.Node) (*G.Node, error), in stockInput) stockCase {
	return stockCase{root: root, in: []stockInput{in}, build: func(n []*G.Node) (*G.Node, error) { return f(n[0]) }}
}

func two(root string, f func(a, b *G.Node) (*G.Node, error), a, b stockInput) stockCase {
	return stockCase{root: root, in: []stockInput{a, b}, build: func(n []*G.Node) (*G.Node, error) { return f(n[0], n[1]) }}
}

func along(root string, f func(*G.Node, ...int) (*G.Node, error), in stockInput, axes ...int) stockCase {
	return one(root, func(x *G.Node) (*G.Node, error) { return f(x, axes...) }, in)
}

func compare(symbol string, f func(a, b *G.Node, retSame bool) (*G.Node, error), a, b stockInput) stockCase {
	return two("binary "+symbol, func(a, b *G.Node) (*G.Node, error) { return f(a, b, true) }, a, b).withoutGrad()
}

func spread(symbol string, f func(a, b *G.Node, l, r []byte) (*G.Node, error), a, b stockInput, l, r []byte) stockCase {
	return two("binary "+symbol, func(a, b *G.Node) (*G.Node, error) { return f(a, b, l, r) }, a, b)
}

func sliced(root string, in stockInput, slices ...tensor.Slice) stockCase {
	return one(root, func(x *G.Node) (*G.Node, error) { return G.Slice(x, slices...) }, in)
}

func shaped(in stockInput, to ...int) stockCase {
	return one("reshape", func(x *G.Node) (*G.Node, error) { return G.Reshape(x, to) }, in)
}

func joined(axis int, in ...stockInput) stockCase {
	return stockCase{root: fmt.Sprintf("concat [%d]", axis), in: in, build: func(n []*G.Node) (*G.Node, error) { return G.Concat(axis, n...) }}
}

func batched(root string, a, b stockInput, trans ...bool) stockCase {
	return two("batched matrix product"+root, func(a, b *G.Node) (*G.Node, error) { return G.BatchedMatMul(a, b, trans...) }, a, b)
}

func dotted(aAxes, bAxes []int, a, b stockInput) stockCase {
	return two(fmt.Sprintf("tensordot %v %v", aAxes, bAxes), func(x, y *G.Node) (*G.Node, error) { return G.Tensordot(aAxes, bAxes, x, y) }, a, b)
}

// stockNumber is a constant of the type of x.
func stockNumber(x *G.Node, v float64) *G.Node {
	if x.Dtype() == tensor.Float32 {
		return G.NewConstant(float32(v))
	}
	return G.NewConstant(v)
}

func matMul(root string, a, b stockInput) stockCase { return two(root, G.Mul, a, b) }

func stockCases() []stockCase {
	cases := []stockCase{
		one("unary sign", G.Sign, normal(3, 5)).withoutGrad(),
		one("unary sign", G.Sign, normal()).withoutGrad(),
		one("unary ceil", G.Ceil, normal(7)).withoutGrad(),
		one("unary floor", G.Floor, normal(2, 2, 2)).withoutGrad(),

		two("binary +", G.Add, normal(2, 3), normal(2, 3)), two("binary +", G.Add, normal(), normal()),
		two("binary +", G.Add, normal(1, 1), normal(1, 1)), two("binary +", G.Add, normal(1), normal(1)),
		two("binary +", G.Add, normal(), normal(1)), two("binary +", G.Add, normal(3, 1), normal(3)),
		two("binary -", G.Sub, normal(5), normal()), two("binary -", G.Sub, normal(), normal(2, 1, 3)),
		two("binary ⊙", G.HadamardProd, normal(4, 4), normal(4, 4)), two("binary ⊙", G.HadamardProd, normal(), normal(2, 3)),
		two("binary ⊙", G.Mul, normal(), normal(2, 3)), two("binary ⊙", G.HadamardProd, normal(), normal()),
		two("binary ÷", G.HadamardDiv, normal(2, 3, 4, 5), positive(2, 3, 4, 5)), two("binary ÷", G.HadamardDiv, normal(7), positive()),
		two("binary ÷", G.HadamardDiv, normal(), positive(7)), two("binary ÷", G.Div, normal(), positive()),
		two("binary ^", G.Pow, positive(3, 3), normal(3, 3)), two("binary ^", G.Pow, positive(5), normal()),
		two("binary ^", G.Pow, positive(), normal(5)), two("binary ^", G.Pow, positive(), normal()),
		one("binary ^", func(x *G.Node) (*G.Node, error) { return G.Pow(x, stockNumber(x, 3)) }, positive(6)),
		two("binary MinBetween", G.MinBetween, normal(3, 5), normal(3, 5)), two("binary MaxBetween", G.MaxBetween, normal(7), normal(7)),

		one("binary ⊙", G.Rectify, normal(3, 7)), one("binary +", func(x *G.Node) (*G.Node, error) { return G.LeakyRelu(x, 0.1) }, normal(5)),
		one("binary ⊙", G.Mish, normal(5)),
		one("unary sqrt", func(x *G.Node) (*G.Node, error) { return G.Norm(x, 1, 2) }, normal(3, 4)),
		one("binary ^", func(x *G.Node) (*G.Node, error) { return G.Norm(x, 0, 3) }, positive(3, 4)),
		one("binary ÷", func(x *G.Node) (*G.Node, error) { return G.Mean(x) }, normal(3, 4)),
		along("binary ÷", G.Mean, normal(3, 4, 2), 0, 2), along("binary ÷", G.Mean, normal(1, 1), 0),

		spread("+", G.BroadcastAdd, normal(3, 4), normal(4), nil, []byte{0}), spread("+", G.BroadcastAdd, normal(3), normal(3, 4), []byte{1}, nil),
		spread("-", G.BroadcastSub, normal(2, 3, 4), normal(2, 1, 4), nil, []byte{1}),
		spread("⊙", G.BroadcastHadamardProd, normal(3, 4), normal(1, 4), nil, []byte{0}),
		spread("⊙", G.BroadcastHadamardProd, normal(1, 3, 1, 2), normal(5, 3, 2, 2), []byte{0, 2}, nil),
		spread("÷", G.BroadcastHadamardDiv, normal(3, 4), positive(3, 1), nil, []byte{1}),
		spread("^", G.BroadcastPow, positive(3, 4), normal(1, 4), nil, []byte{0}),
		spread("+", G.BroadcastAdd, normal(1, 4), normal(3, 1), []byte{0}, []byte{1}),

		matMul("matrix product", normal(2, 3), normal(3, 4)), matMul("matrix product", normal(65, 17), normal(17, 70)),
		matMul("matrix product", normal(3, 5), normal(5, 7)), matMul("matrix times vector", normal(2, 3), normal(3)),
		matMul("matrix times vectorᵀ", normal(3), normal(3, 2)), matMul("dot product", normal(5), normal(5)),
		matMul("matrix product", normal(1, 1), normal(1, 1)), matMul("dot product", normal(1), normal(1)),
		matMul("matrix times vector", normal(1, 3), normal(3)),
		two("outer product", G.OuterProd, normal(3), normal(4)).withoutGrad(), two("outer product", G.OuterProd, normal(1), normal(4)).withoutGrad(),
		batched("", normal(2, 3, 4), normal(2, 4, 2)), batched("", normal(2, 3, 4, 5), normal(2, 3, 5, 2)),
		batched("ᵀ", normal(2, 4, 3), normal(2, 4, 2), true), batched(" bᵀ", normal(2, 3, 4), normal(2, 2, 4), false, true),
		batched("ᵀ bᵀ", normal(2, 4, 3), normal(2, 2, 4), true, true), batched("", normal(1, 1, 4), normal(1, 4, 1)),
		dotted([]int{1}, []int{0}, normal(2, 3), normal(3, 4)), dotted([]int{0}, []int{1}, normal(3, 2), normal(4, 3)),
		dotted([]int{1, 2}, []int{0, 1}, normal(2, 3, 4), normal(3, 4, 5)), dotted([]int{2, 0}, []int{0, 2}, normal(2, 3, 4), normal(4, 5, 2)),
		dotted([]int{1}, []int{1}, normal(2, 3, 4), normal(5, 3, 2)), dotted([]int{0}, []int{0}, normal(4), normal(4)),

		shaped(normal(2, 6), 3, 4), shaped(normal(2, 3, 4), 24), shaped(normal(1), 1, 1), shaped(normal(6), 6, 1),
		one("reshape", G.Ravel, normal(2, 3, 2)), one("reshape", func(x *G.Node) (*G.Node, error) {
			return G.KeepDims(x, false, func(x *G.Node) (*G.Node, error) { return G.Sum(x, 1) })
		}, normal(3, 4)),
		along("transpose [1 0]", G.Transpose, normal(2, 3), 1, 0), along("transpose [2 0 1]", G.Transpose, normal(2, 3, 4), 2, 0, 1),
		along("transpose [1 0]", G.Transpose, normal(33, 41)), along("transpose [3 2 1 0]", G.Transpose, normal(2, 3, 4, 5)),
		along("transpose [0 2 1]", G.Transpose, normal(3, 20, 9), 0, 2, 1), along("transpose [0 2 1 3]", G.Transpose, normal(2, 3, 4, 8), 0, 2, 1, 3),
		along("transpose [1 0 3 2]", G.Transpose, normal(2, 3, 17, 40), 1, 0, 3, 2), along("transpose [1 0]", G.Transpose, normal(1, 5), 1, 0),
		sliced("slice [0] 1:3:1", normal(4, 3), G.S(1, 3)), sliced("slice [0] 2:3:1", normal(4, 3), G.S(2)), sliced("slice [0] 2:3:1", normal(4), G.S(2)),
		sliced("slice [0] 2:3:1", normal(4), G.S(2, 3)), sliced("slice [1] 1:2:1", normal(4, 3), nil, G.S(1)), sliced("slice [1] 1:4:1", normal(3, 5, 2), nil, G.S(1, 4)),
		sliced("slice [0] 0:7:2", normal(9), G.S(0, 7, 2)), sliced("slice [1] 2:4:1", normal(2, 4, 8), G.S(0, 2), G.S(2, 4)),
		sliced("slice [2] 1:5:1", normal(2, 3, 6), nil, nil, G.S(1, 5)), sliced("slice [0]", normal(3, 4), nil), sliced("slice [0] 1:9:1", normal(4, 3), G.S(1, 9)),
		sliced("slice [0] 1:6:2", normal(7, 3), G.S(1, 6, 2)), sliced("slice [1] 1:7:3", normal(2, 8, 3), nil, G.S(1, 7, 3)),
		joined(0, normal(2, 3), normal(4, 3)), joined(1, normal(2, 3), normal(2, 1), normal(2, 4)), joined(0, normal(3), normal(5)),
		joined(2, normal(2, 3, 4), normal(2, 3, 8)), joined(1, normal(2, 1, 3), normal(2, 5, 3)), joined(0, normal(3, 2)),
		one("element [1 2]", func(x *G.Node) (*G.Node, error) { return G.At(x, 1, 2) }, normal(2, 3)).withoutGrad(),
		one("size [1]", func(x *G.Node) (*G.Node, error) { return G.SizeOf(1, x) }, normal(2, 3)).withoutGrad(),

		one("softmax [-1]", func(x *G.Node) (*G.Node, error) { return G.SoftMax(x) }, normal(7)),
		one("softmax [-1]", func(x *G.Node) (*G.Node, error) { return G.SoftMax(x) }, normal(5, 1)),
		one("softmax [-1]", func(x *G.Node) (*G.Node, error) { return G.SoftMax(x) }, normal(1, 5)),
	}
	for _, f := range []struct {
		name  string
		build func(*G.Node) (*G.Node, error)
	}{
		{"abs", G.Abs}, {"sin", G.Sin}, {"cos", G.Cos}, {"exp", G.Exp}, {"ln", G.Log}, {"log2", G.Log2}, {"neg", G.Neg},
		{"square", G.Square}, {"sqrt", G.Sqrt}, {"inv", G.Inverse}, {"invSqrt", G.InverseSqrt}, {"cube", G.Cube}, {"tanh", G.Tanh},
		{"sigmoid", G.Sigmoid}, {"log1p", G.Log1p}, {"expm1", G.Expm1}, {"softplus", G.Softplus},
	} {
		in := normal
		if strings.Contains("ln log2 sqrt inv invSqrt log1p", f.name) {
			in = positive
		}
		cases = append(cases, one("unary "+f.name, f.build, in(3, 7)), one("unary "+f.name, f.build, in()))
	}
	for _, f := range []struct {
		symbol string
		build  func(a, b *G.Node, retSame bool) (*G.Node, error)
	}{{"<", G.Lt}, {">", G.Gt}, {"<=", G.Lte}, {">=", G.Gte}, {"==", G.Eq}, {"!=", G.Ne}} {
		for _, s := range [][2]stockInput{{normal(3, 5), normal(3, 5)}, {normal(6), normal()}, {normal(), normal(6)}, {normal(), normal()}} {
			cases = append(cases, compare(f.symbol, f.build, s[0], s[1]))
		}
	}
	for _, shape := range [][]int{{1}, {7}, {1, 4}, {3, 1}, {3, 5}, {2, 3, 4}, {2, 3, 2, 5}} {
		for mask := 1; mask < 1<<len(shape); mask++ {
			var axes []int
			for a := range shape {
				if mask>>a&1 == 1 {
					axes = append(axes, a)
				}
			}
			max := along(fmt.Sprintf("max %v", axes), G.Max, normal(shape...), axes...)
			if len(shape) == 4 || len(axes) == len(shape) && len(shape) > 1 {
				max = max.withoutGrad() // upstream broadcasts 4 axes at most, and no scalar
			}
			cases = append(cases, along(fmt.Sprintf("sum %v", axes), G.Sum, normal(shape...), axes...), max)
		}
		for axis := range shape {
			axes := []int{axis}
			cases = append(cases, along(fmt.Sprintf("softmax %v", axes), G.SoftMax, normal(shape...), axes...),
				along(fmt.Sprintf("log softmax %v", axes), G.LogSoftMax, normal(shape...), axes...))
		}
	}
	return append(cases, largeStockCases()...)
}

// largeStockCases are sizes at which kernels take other ways: packs, several blocks, splits, tiles.
func largeStockCases() []stockCase {
	cases := []stockCase{
		one("unary exp", G.Exp, normal(1000, 1003)), two("binary +", G.Add, normal(64, 1000), normal(64, 1000)), two("binary ÷", G.HadamardDiv, normal(), positive(70001)),
		along("transpose [1 0]", G.Transpose, normal(513, 1031)), along("transpose [0 2 1 3]", G.Transpose, normal(4, 100, 6, 64), 0, 2, 1, 3),
		along("transpose [2 0 1]", G.Transpose, normal(40, 50, 60), 2, 0, 1),
		matMul("matrix product", normal(300, 200), normal(200, 260)), matMul("matrix product", normal(130, 5000), normal(5000, 140)),
		matMul("matrix times vector", normal(500, 3001), normal(3001)), matMul("matrix times vectorᵀ", normal(3001), normal(3001, 500)),
		matMul("dot product", normal(300001), normal(300001)), two("outer product", G.OuterProd, normal(700), normal(501)).withoutGrad(),
		batched("", normal(30, 64, 65), normal(30, 65, 33)), batched("ᵀ", normal(5, 64, 65), normal(5, 64, 33), true),
		matMul("matrix product", normal(700, 900), normal(900, 1)), matMul("matrix product", normal(1, 900), normal(900, 700)),
		joined(1, normal(100, 128), normal(100, 64)), joined(1, normal(100, 127), normal(100, 64)), sliced("slice [1] 64:192:1", normal(100, 256), nil, G.S(64, 192)),
		spread("+", G.BroadcastAdd, normal(300, 512), normal(512), nil, []byte{0}), spread("+", G.BroadcastAdd, normal(300, 511), normal(300, 1), nil, []byte{1}),
	}
	for _, shape := range [][]int{{1 << 20}, {1000003}, {3, 100000}, {100000, 3}, {2000, 40}, {40, 2000}, {5, 3000, 7}, {7, 50, 300}, {300, 4, 500}} {
		for axis := range shape {
			axes := []int{axis}
			cases = append(cases, along(fmt.Sprintf("sum %v", axes), G.Sum, normal(shape...), axes...).withoutGrad(),
				along(fmt.Sprintf("max %v", axes), G.Max, normal(shape...), axes...).withoutGrad(),
				along(fmt.Sprintf("softmax %v", axes), G.SoftMax, normal(shape...), axes...),
				along(fmt.Sprintf("log softmax %v", axes), G.LogSoftMax, normal(shape...), axes...))
		}
	}
	cases = append(cases, along("sum [0 2]", G.Sum, normal(60, 70, 80), 0, 2), along("sum [0 2]", G.Sum, normal(9, 7, 8, 501), 0, 2).withoutGrad(),
		along("max [0 1]", G.Max, normal(60, 70, 80), 0, 1).withoutGrad())
	for i := range cases {
		cases[i] = cases[i].onDeviceOnly()
	}
	return cases
}

// stockGraph is the graph of a case in one type, with the gradient of sum(out*weights) where there is one.
type stockGraph struct {
	*G.ExprGraph
	in  G.Nodes
	out *G.Node
}

func (c stockCase) graph(t testing.TB, dt tensor.Dtype) stockGraph {
	t.Helper()
	g := stockGraph{ExprGraph: G.NewGraph()}
	input := func(s stockInput, name string, seed uint64) *G.Node {
		return G.NewTensor(g.ExprGraph, dt, len(s.shape), G.WithShape(s.shape...), G.WithName(name), G.WithValue(stockValue(dt, s.shape, s.values(seed))))
	}
	for i, s := range c.in {
		g.in = append(g.in, input(s, fmt.Sprint("input ", i), uint64(i+1)))
	}
	var err error
	if g.out, err = c.build(g.in); err != nil {
		t.Fatal(err)
	}
	if c.noGrad {
		return g
	}
	cost := g.out
	if !cost.IsScalar() {
		w := input(positive(g.out.Shape()...), "weights", 99)
		cost = G.Must(G.Sum(G.Must(G.HadamardProd(g.out, w))))
	}
	if _, err := G.Grad(cost, g.in...); err != nil {
		t.Fatal(err)
	}
	return g
}

// stockValue returns values in a type.
func stockValue(dt tensor.Dtype, shape tensor.Shape, v []float32) G.Value {
	wide := testutil.Convert[float64](v)
	switch {
	case len(shape) == 0 && dt == tensor.Float32:
		return G.NewF32(v[0])
	case len(shape) == 0:
		return G.NewF64(wide[0])
	case dt == tensor.Float32:
		return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(append([]float32(nil), v...)))
	}
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(wide))
}
