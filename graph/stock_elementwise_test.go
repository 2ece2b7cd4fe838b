package graph_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// function is an op of one number, with its derivative in float64.
type function struct {
	name     string
	op       func(*G.Node) (*G.Node, error)
	f, slope func(x float64) float64 // a nil slope: no gradient
}

func functions() []function {
	sigmoid := func(x float64) float64 {
		if x >= 0 {
			return 1 / (1 + math.Exp(-x))
		}
		return math.Exp(x) / (1 + math.Exp(x))
	}
	softplus := func(x float64) float64 { return math.Max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }
	sign := func(x float64) float64 {
		switch {
		case x > 0:
			return 1
		case x < 0:
			return -1
		}
		return x // zeros and NaN
	}
	return []function{
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
		{"Softplus", G.Softplus, softplus, sigmoid},
	}
}

// edges are numbers at the ends of the types and of the functions' formulas.
func edges(dt tensor.Dtype) []float64 {
	list := []float64{0, math.Copysign(0, -1), 1, -1, 0.5, -0.5, 1e-3, -1e-3, 1e-9, -1e-9, 1e-30, -1e-30, 2.5, -2.5, 5,
		-5, 13.9, 14.5, -14.5, 15.5, -15.5, 16.5, -16.5,
		17.3, -17.3, 19.5, -19.5, 25, -25, 36.9, -36.9, 45, -45, 80, -80, 86.5, -86.5, 88.5, -88.5, 100, -100, 104, -104,
		3e5, -3e5, 1e15, 1e30, -1e30, 2.0000001,
		math.Inf(1), math.Inf(-1), math.NaN()}
	if dt == tensor.Float64 {
		return append(list, 700, -700, 708.5, -708.5, 709.5, -709.5, 745, -745, 1e300, -1e300, math.MaxFloat64, 5e-324,
			1e-300, 1e-160)
	}
	return append(list, math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32, 1.2e-38)
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

// TestStockFunctionsAtEdges holds each function of one number to math's, in tensors of several shapes and as scalars.
func TestStockFunctionsAtEdges(t *testing.T) {
	for _, c := range functions() {
		for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
			list := edges(dt)
			if dt == tensor.Float32 {
				list = testutil.Convert[float64](testutil.Convert[float32](list))
			}
			shapes := [][]int{{len(list)}, {1, len(list)}, {len(list), 1}, {2, len(list) / 2}, {1}, {1, 1}, {}}
			for _, shape := range shapes {
				n := tensor.Shape(shape).TotalSize()
				if len(shape) == 0 {
					n = 1
				}
				g := G.NewGraph()
				x := G.NewTensor(g, dt, len(shape), G.WithShape(shape...), G.WithName("x"))
				y := G.Must(c.op(x))
				if c.slope != nil {
					cost := y
					if len(shape) > 0 {
						cost = G.Must(G.Sum(y))
					}
					testutil.Must(graph.Grad(cost, x))(t)
				}
				m := newMachine(t, g, graph.WithKeep(y))
				for from := 0; from+n <= len(list); from += n {
					in := list[from : from+n]
					require.NoError(t, G.Let(x, operand{shape: shape}.value(dt, in)))
					require.NoError(t, m.RunAll(), "%s of %v", c.name, dt)
					got := numbers(t, y.Value())
					var slopes []float64
					if c.slope != nil {
						slopes = gradient(t, x)
					}
					for i, v := range in {
						what := fmt.Sprintf("%s of %v in %v at %v", c.name, dt, shape, v)
						if want := c.f(v); !near(dt, got[i], want, 0) {
							t.Errorf("%s: %v, want %v", what, got[i], want)
						}
						if c.slope == nil {
							continue
						}
						if want := c.slope(v); !near(dt, slopes[i], want, 1) {
							t.Errorf("%s: gradient %v, want %v", what, slopes[i], want)
						}
					}
				}
			}
		}
	}
}

// function2 is an op of two numbers, with its derivatives in float64.
type function2 struct {
	name           string
	op             func(a, b *G.Node) (*G.Node, error)
	f              func(a, b float64) float64
	slopeA, slopeB func(a, b float64) float64 // nil: no gradient
}

func functions2() (list []function2) {
	one := func(a, b float64) float64 { return 1 }
	list = []function2{
		{"Add", G.Add, func(a, b float64) float64 { return a + b }, one, one},
		{"Sub", G.Sub, func(a, b float64) float64 { return a - b }, one, func(a, b float64) float64 { return -1 }},
		{"HadamardProd", G.HadamardProd, func(a, b float64) float64 { return a * b },
			func(a, b float64) float64 { return b }, func(a, b float64) float64 { return a }},
		{"HadamardDiv", G.HadamardDiv, func(a, b float64) float64 { return a / b },
			func(a, b float64) float64 { return 1 / b }, func(a, b float64) float64 { return -a / (b * b) }},
		{"Pow", G.Pow, math.Pow, func(a, b float64) float64 { return b * math.Pow(a, b-1) }, func(a, b float64) float64 {
			return math.Pow(a, b) * math.Log(a)
		}},
	}
	for _, c := range []struct {
		name string
		op   func(a, b *G.Node, same bool) (*G.Node, error)
		f    func(a, b float64) bool
	}{
		{"Lt", G.Lt, func(a, b float64) bool { return a < b }}, {"Lte", G.Lte, func(a, b float64) bool { return a <= b }},
		{"Gt", G.Gt, func(a, b float64) bool { return a > b }},
		{"Gte", G.Gte, func(a, b float64) bool { return a >= b }}, {"Eq", G.Eq, func(a, b float64) bool { return a == b }},
		{"Ne", G.Ne, func(a, b float64) bool { return a != b }},
	} {
		for _, same := range []bool{true, false} {
			list = append(list, function2{fmt.Sprint(c.name, " ", same),
				func(a, b *G.Node) (*G.Node, error) { return c.op(a, b, same) }, truth(c.f), nil, nil})
		}
	}
	return append(list, function2{"MinBetween", G.MinBetween, func(a, b float64) float64 { return min(a, b) }, nil, nil},
		function2{"MaxBetween", G.MaxBetween, func(a, b float64) float64 { return max(a, b) }, nil, nil})
}

// truth returns f with 1 for true.
func truth(f func(a, b float64) bool) func(a, b float64) float64 {
	return func(a, b float64) float64 {
		if f(a, b) {
			return 1
		}
		return 0
	}
}

// TestStockFunctionsOfTwoAtEdges holds each op of two numbers to float64, for tensors of one shape, scalars and both.
func TestStockFunctionsOfTwoAtEdges(t *testing.T) {
	for _, c := range functions2() {
		for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
			list := []float64{0, math.Copysign(0, -1), 1, -1, 0.5, -0.5, 2, -2, 3, 1e-3, 1e-30, -1e30, 1e30, 17.5, math.Inf(1),
				math.Inf(-1), math.NaN(), math.MaxFloat32, 1e-20}
			if dt == tensor.Float32 {
				list = testutil.Convert[float64](testutil.Convert[float32](list))
			}
			n := len(list)
			var as, bs []float64
			for _, a := range list {
				for _, b := range list {
					as, bs = append(as, a), append(bs, b)
				}
			}
			for _, form := range []struct{ a, b []int }{{[]int{n * n}, []int{n * n}}, {[]int{n, n}, []int{n, n}},
				{[]int{1}, []int{1}}, {[]int{1, 1}, []int{1, 1}}, {nil, nil}, {nil, []int{n}}, {[]int{n}, nil},
				{nil, []int{1, n}}, {[]int{n, 1}, nil}, {nil, []int{1}}, {[]int{1}, nil}} {
				g := G.NewGraph()
				a := G.NewTensor(g, dt, len(form.a), G.WithShape(form.a...), G.WithName("a"))
				b := G.NewTensor(g, dt, len(form.b), G.WithShape(form.b...), G.WithName("b"))
				y, err := c.op(a, b)
				if err != nil {
					t.Logf("%s %v: %v", c.name, form, err)
					continue
				}
				if c.slopeA != nil {
					cost := y
					if !y.IsScalar() {
						cost = G.Must(G.Sum(y))
					}
					testutil.Must(graph.Grad(cost, a, b))(t)
				}
				m := newMachine(t, g, graph.WithKeep(y))
				size := func(s []int) int {
					if len(s) == 0 {
						return 1
					}
					return tensor.Shape(s).TotalSize()
				}
				na, nb := size(form.a), size(form.b)
				for from := 0; from+max(na, nb) <= n*n; from += max(na, nb) {
					inA, inB := as[from:from+na], bs[from:from+nb]
					if na < nb {
						inB = list
					} else if nb < na {
						inA, inB = list, as[from:from+1]
					}
					require.NoError(t, G.Let(a, operand{shape: form.a}.value(dt, inA)))
					require.NoError(t, G.Let(b, operand{shape: form.b}.value(dt, inB)))
					if err := m.RunAll(); err != nil {
						t.Errorf("%s of %v %v: %v", c.name, dt, form, err)
						break
					}
					got := truths(t, y.Value())
					var sumA, sumB float64
					for i := range got {
						va, vb := inA[min(i, na-1)], inB[min(i, nb-1)]
						what := fmt.Sprintf("%s of %v in %v at %v, %v", c.name, dt, form, va, vb)
						if want := c.f(va, vb); !near(dt, got[i], want, 0) {
							t.Errorf("%s: %v, want %v", what, got[i], want)
						}
						if c.slopeA == nil {
							continue
						}
						wantA, wantB := c.slopeA(va, vb), c.slopeB(va, vb)
						sumA, sumB = sumA+wantA, sumB+wantB
						if na == len(got) {
							if got := gradient(t, a)[i]; !near(dt, got, wantA, 1) {
								t.Errorf("%s: gradient of a %v, want %v", what, got, wantA)
							}
						}
						if nb == len(got) {
							if got := gradient(t, b)[i]; !near(dt, got, wantB, 1) {
								t.Errorf("%s: gradient of b %v, want %v", what, got, wantB)
							}
						}
					}
				}
			}
		}
	}
}

// truths returns the numbers of a value; true is 1.
func truths(t testing.TB, v G.Value) []float64 {
	var list []bool
	switch x := v.Data().(type) {
	case bool:
		list = []bool{x}
	case []bool:
		list = x
	default:
		return numbers(t, v)
	}
	numbers := make([]float64, len(list))
	for i, b := range list {
		numbers[i] = truth(func(float64, float64) bool { return b })(0, 0)
	}
	return numbers
}
