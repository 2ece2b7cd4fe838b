package graph_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// function is an op of one or two numbers, with its derivatives in float64.
type function struct {
	name   string
	op     build
	f      func(x ...float64) float64
	slopes []func(x ...float64) float64 // by operand; nil: not compared at edges
	values bool                         // Gorgonia has no gradient
	f2     bool                         // of two numbers
}

// functions returns the ops of one number, or those of two.
func functions(arity int) []function {
	type (
		unary  = func(x float64) float64
		binary = func(a, b float64) float64
	)
	sigmoid := func(x float64) float64 {
		if x >= 0 {
			return 1 / (1 + math.Exp(-x))
		}
		return math.Exp(x) / (1 + math.Exp(x))
	}
	sign := func(x float64) float64 {
		switch {
		case x > 0:
			return 1
		case x < 0:
			return -1
		}
		return x // zeros and NaN
	}
	var list []function
	if arity == 1 {
		for _, c := range []struct {
			name     string
			op       func(*G.Node) (*G.Node, error)
			f, slope unary
		}{
			{"Abs", G.Abs, math.Abs, sign},
			{"Sign", G.Sign, sign, nil},
			{"Ceil", G.Ceil, math.Ceil, nil},
			{"Floor", G.Floor, math.Floor, nil},
			{"Sin", G.Sin, math.Sin, math.Cos},
			{"Cos", G.Cos, math.Cos, func(x float64) float64 { return -math.Sin(x) }},
			{"Exp", G.Exp, math.Exp, math.Exp},
			{"Log", G.Log, math.Log, func(x float64) float64 { return 1 / x }},
			{"Log2", G.Log2, math.Log2, func(x float64) float64 { return 1 / (x * math.Ln2) }},
			{"Neg", G.Neg, func(x float64) float64 { return -x }, func(x float64) float64 { return -1 }},
			{"Square", G.Square, func(x float64) float64 { return x * x }, func(x float64) float64 { return 2 * x }},
			{"Sqrt", G.Sqrt, math.Sqrt, func(x float64) float64 { return 0.5 / math.Sqrt(x) }},
			{"Inverse", G.Inverse, func(x float64) float64 { return 1 / x }, func(x float64) float64 { return -1 / (x * x) }},
			{"InverseSqrt", G.InverseSqrt, func(x float64) float64 { return 1 / math.Sqrt(x) },
				func(x float64) float64 { return -0.5 * math.Pow(1/math.Sqrt(x), 3) }},
			{"Cube", G.Cube, func(x float64) float64 { return x * x * x }, func(x float64) float64 { return 3 * x * x }},
			{"Tanh", G.Tanh, math.Tanh, func(x float64) float64 { return 1 / math.Pow(math.Cosh(x), 2) }},
			{"Sigmoid", G.Sigmoid, sigmoid, func(x float64) float64 { return sigmoid(x) * sigmoid(-x) }},
			{"Log1p", G.Log1p, math.Log1p, func(x float64) float64 { return 1 / (1 + x) }},
			{"Expm1", G.Expm1, math.Expm1, math.Exp},
			{"Softplus", G.Softplus, func(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }, sigmoid},
		} {
			row := function{name: c.name, op: one(c.op), f: func(x ...float64) float64 { return c.f(x[0]) },
				values: c.slope == nil}
			if c.slope != nil {
				row.slopes = append(row.slopes, func(x ...float64) float64 { return c.slope(x[0]) })
			}
			list = append(list, row)
		}
		return list
	}
	for _, c := range []struct {
		name           string
		op             func(a, b *G.Node) (*G.Node, error)
		f, left, right binary // the derivatives
	}{
		{"Add", G.Add, func(a, b float64) float64 { return a + b }, func(_, _ float64) float64 { return 1 },
			func(_, _ float64) float64 { return 1 }},
		{"Sub", G.Sub, func(a, b float64) float64 { return a - b }, func(_, _ float64) float64 { return 1 },
			func(_, _ float64) float64 { return -1 }},
		{"HadamardProd", G.HadamardProd, func(a, b float64) float64 { return a * b }, func(_, b float64) float64 { return b },
			func(a, _ float64) float64 { return a }},
		{"HadamardDiv", G.HadamardDiv, func(a, b float64) float64 { return a / b },
			func(_, b float64) float64 { return 1 / b },
			func(a, b float64) float64 { return -a / (b * b) }},
		{"Pow", G.Pow, math.Pow, func(a, b float64) float64 { return b * math.Pow(a, b-1) },
			func(a, b float64) float64 { return math.Pow(a, b) * math.Log(a) }},
		{"MinBetween", G.MinBetween, func(a, b float64) float64 { return min(a, b) }, nil, nil},
		{"MaxBetween", G.MaxBetween, func(a, b float64) float64 { return max(a, b) }, nil, nil},
	} {
		row := function{name: c.name, f2: true, op: two(c.op), f: func(x ...float64) float64 { return c.f(x[0], x[1]) }}
		for _, slope := range []binary{c.left, c.right} {
			if slope != nil {
				row.slopes = append(row.slopes, func(x ...float64) float64 { return slope(x[0], x[1]) })
			}
		}
		list = append(list, row)
	}
	for _, c := range comparisons {
		for _, same := range []bool{true, false} {
			list = append(list, function{name: fmt.Sprint(c.name, " ", same), f2: true, f: c.truth, values: true,
				op: two(func(a, b *G.Node) (*G.Node, error) { return c.op(a, b, same) })})
		}
	}
	return list
}

// comparison is an op whose results are truths, or numbers of the operands' type.
type comparison struct {
	name      string
	op        func(a, b *G.Node, same bool) (*G.Node, error)
	broadcast func(a, b *G.Node, same bool, left, right []byte) (*G.Node, error)
	f         func(a, b float64) bool
}

var comparisons = []comparison{
	{"Lt", G.Lt, G.BroadcastLt, func(a, b float64) bool { return a < b }},
	{"Lte", G.Lte, G.BroadcastLte, func(a, b float64) bool { return a <= b }},
	{"Gt", G.Gt, G.BroadcastGt, func(a, b float64) bool { return a > b }},
	{"Gte", G.Gte, G.BroadcastGte, func(a, b float64) bool { return a >= b }},
	{"Eq", G.Eq, G.BroadcastEq, func(a, b float64) bool { return a == b }},
	{"Ne", G.Ne, G.BroadcastNe, func(a, b float64) bool { return a != b }},
}

// truth is 1 for true.
func (c comparison) truth(x ...float64) float64 {
	if c.f(x[0], x[1]) {
		return 1
	}
	return 0
}

// broadcasts are the other ops with a broadcast, by the index of their function.
var broadcasts = []func(a, b *G.Node, left, right []byte) (*G.Node, error){
	G.BroadcastAdd, G.BroadcastSub, G.BroadcastHadamardProd, G.BroadcastHadamardDiv, G.BroadcastPow,
}

// near reports whether got is the number want of type dt but for a few roundings. Both may be NaN, or the same
// infinity.
func near(dt tensor.Dtype, got, want, scale float64) bool {
	relative, tiny := 1e-14, 1e-323
	if dt == tensor.Float32 {
		relative, tiny = 1e-6, 1e-44
		if w := float64(float32(want)); math.IsInf(w, 0) || w == 0 { // beyond the type
			want = w
		}
	}
	switch {
	case math.IsNaN(want) || math.IsNaN(got):
		return math.IsNaN(want) && math.IsNaN(got)
	case math.IsInf(want, 0) || math.IsInf(got, 0):
		return got == want
	}
	return math.Abs(got-want) <= relative*math.Max(math.Abs(want), scale)+tiny
}

// atEdges holds results and derivatives to float64. The values of the operands are taken in turns, as many as fit into
// the shapes.
func (c function) atEdges(t *testing.T, dt tensor.Dtype, shapes [][]int, values [][]float64) {
	g, in := G.NewGraph(), G.Nodes{}
	for i, s := range shapes {
		in = append(in, G.NewTensor(g, dt, len(s), G.WithShape(s...), G.WithName(fmt.Sprint("operand ", i))))
	}
	y, err := c.op(in)
	if err != nil {
		t.Logf("%s %v: %v", c.name, shapes, err)
		return
	}
	if c.slopes != nil {
		testutil.Must(graph.Grad(total(y), in...))(t)
	}
	m := newMachine(t, g, graph.WithKeep(y))
	size := tensor.ProdInts(y.Shape())
	for from := 0; from+size <= len(values[0]); from += size {
		v := make([][]float64, len(in))
		for i, s := range shapes {
			v[i] = values[i][from : from+tensor.ProdInts(s)]
			require.NoError(t, G.Let(in[i], operand{shape: s}.value(dt, v[i])))
		}
		if err := m.RunAll(); err != nil {
			t.Errorf("%s of %v %v: %v", c.name, dt, shapes, err)
			return
		}
		for i, got := range numbers(t, y.Value()) {
			var x []float64
			for _, v := range v {
				x = append(x, v[min(i, len(v)-1)])
			}
			what := fmt.Sprintf("%s of %v in %v at %v", c.name, dt, shapes, x)
			if want := c.f(x...); !near(dt, got, want, 0) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
			for k, slope := range c.slopes {
				if len(v[k]) < size { // a sum over all elements
					continue
				}
				if got, want := gradient(t, in[k])[i], slope(x...); !near(dt, got, want, 1) {
					t.Errorf("%s: gradient of operand %d is %v, want %v", what, k, got, want)
				}
			}
		}
	}
}

// TestStockFunctionsAtEdges holds each function of one number to math's, in tensors of several shapes and as scalars.
// The numbers are at the ends of the types and of the functions' formulas.
func TestStockFunctionsAtEdges(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	list := []float64{0, 1, 0.5, 1e-3, 1e-9, 1e-30, 2.5, 5, 14.5, 15.5, 16.5, 17.3, 19.5, 25, 36.9, 45, 80, 86.5, 88.5,
		100, 104, 3e5, 1e30}
	for _, x := range list {
		list = append(list, -x)
	}
	list = append(list, 13.9, 1e15, 2.0000001, inf, -inf, nan)
	for dt, list := range map[tensor.Dtype][]float64{
		tensor.Float64: append(list, 700, -700, 708.5, -708.5, 709.5, -709.5, 745, -745, 1e300, -1e300, math.MaxFloat64,
			5e-324, 1e-300, 1e-160),
		tensor.Float32: rounded(tensor.Float32, append(slices.Clone(list), math.MaxFloat32, -math.MaxFloat32,
			math.SmallestNonzeroFloat32, 1.2e-38)),
	} {
		n := len(list)
		for _, shape := range [][]int{{n}, {1, n}, {n, 1}, {2, n / 2}, {1}, {1, 1}, {}} {
			for _, c := range functions(1) {
				c.atEdges(t, dt, [][]int{shape}, [][]float64{list})
			}
		}
	}
}

// TestStockFunctionsOfTwoAtEdges holds each op of two numbers to float64, for tensors of one shape, scalars and both.
func TestStockFunctionsOfTwoAtEdges(t *testing.T) {
	list := []float64{0, math.Copysign(0, -1), 1, -1, 0.5, -0.5, 2, -2, 3, 1e-3, 1e-30, -1e30, 1e30, 17.5, math.Inf(1),
		math.Inf(-1), math.NaN(), math.MaxFloat32, 1e-20}
	n := len(list)
	for _, dt := range []tensor.Dtype{tensor.Float64, tensor.Float32} {
		list = rounded(dt, list)
		var pairs [2][]float64 // all of them; n after one another have the same first number
		for _, a := range list {
			pairs[0], pairs[1] = append(pairs[0], slices.Repeat([]float64{a}, n)...), append(pairs[1], list...)
		}
		for _, shapes := range [][][]int{{{n * n}, {n * n}}, {{n, n}, {n, n}}, {{1}, {1}}, {{1, 1}, {1, 1}}, {nil, nil},
			{nil, {n}}, {{n}, nil}, {nil, {1, n}}, {{n, 1}, nil}, {nil, {1}}, {{1}, nil}} {
			values := [][]float64{pairs[0], pairs[1]}
			if len(shapes[0]) > len(shapes[1]) {
				slices.Reverse(values)
			}
			for _, c := range functions(2) {
				c.atEdges(t, dt, shapes, values)
			}
		}
	}
}

func total(y *G.Node) *G.Node {
	if y.IsScalar() {
		return y
	}
	return G.Must(G.Sum(y))
}

// atEdges holds the output of a graph of one input to its reference, as near does. It returns the gradient of the
// output's sum.
func atEdges(t *testing.T, dt tensor.Dtype, name string, f build, want reference, x *ref.Tensor) []float64 {
	t.Helper()
	in := G.NodeFromAny(G.NewGraph(), operand{shape: x.Shape}.value(dt, x.Data), G.WithName("x"))
	out := G.Must(f(G.Nodes{in}))
	testutil.Must(graph.Grad(total(out), in))(t)
	run(t, in.Graph(), graph.WithKeep(out))
	got := numbers(t, out.Value())
	for i, w := range want([]*ref.Tensor{x}).Data {
		// float32 may flush subnormal numbers
		flushed := dt == tensor.Float32 && math.Abs(w) < 1.2e-38 && math.Abs(got[i]) < 1.2e-38
		if !flushed && !near(dt, got[i], w, 0) {
			t.Errorf("%s of %v %v: got %v at %d, want %v", name, dt, x.Shape, got[i], i, w)
			break
		}
	}
	return gradient(t, in)
}

// TestSoftmaxOfFarRows: each row's softmax and its logarithm are right, along every axis, whatever the other rows hold.
// Rows differ by up to the largest numbers; a row of NaN or infinities changes no other one.
func TestSoftmaxOfFarRows(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	rows := [][]float64{{0, 0, 0}, {100, 0, 0}, {0, 0, 88}, {88, 0, 1}, {-1e30, -1e30, -1e30}, {1e30, -1e30, 0},
		{710, 0, -710}, {5, -inf, 5}, {-3, -2, -1}, {math.MaxFloat32, -math.MaxFloat32, 1}, {nan, 0, 0}, {0, inf, 0},
		{1e-30, 0, -1e-30}, {-inf, -inf, -inf}, {-inf, 0, -inf}, {-90, -90, -90.5}}
	for axis := range 3 {
		shape := []int{4, 4, 4}
		shape[axis] = 3
		x := made(shape, func(n []int) float64 { return float64(float32(rows[n[(axis+1)%3]*4+n[(axis+2)%3]][n[axis]])) })
		for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
			atEdges(t, dt, "SoftMax", along(G.SoftMax, axis), rowwise(axis, softmax(false)), x)
			atEdges(t, dt, "LogSoftMax", along(G.LogSoftMax, axis), rowwise(axis, softmax(true)), x)
		}
	}
}

// TestMaximaAtEdges: maxima of -Inf and of NaN, over axes and in windows, and windows that lie in the padding.
func TestMaximaAtEdges(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	numbers := []float64{-inf, -inf, nan, 1, inf, -1, 0, math.MaxFloat64, -math.MaxFloat64, -inf, nan, -inf}
	largest := func(v []float64) float64 { return slices.Max(append([]float64{-inf}, v...)) }
	w := window{[]int{2, 2}, []int{2, 2}, []int{1, 2}, []int{1, 1}}
	pool := one(func(x *G.Node) (*G.Node, error) { return G.MaxPool2D(x, w.kernel, w.pad, w.stride) })
	for at := range numbers {
		x := slices.Concat(numbers[at:], numbers[:at])
		for _, shape := range [][]int{{12}, {3, 4}, {4, 3}, {2, 3, 2}, {1, 12}, {2, 1, 3, 2}} {
			for _, axes := range subsets(len(shape)) {
				atEdges(t, tensor.Float64, fmt.Sprint("Max ", axes, at), along(G.Max, axes...), reduced(axes, largest),
					ref.From(x, shape...))
			}
		}
		dx := atEdges(t, tensor.Float64, fmt.Sprint("MaxPool2D ", at), pool, w.pool(largest), ref.From(x, 1, 1, 3, 4))
		require.EqualValues(t, 4*2, sum(dx), "each window in the image has one largest element")
	}
}
