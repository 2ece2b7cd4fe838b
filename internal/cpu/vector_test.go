package cpu

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A vectorCase is one vector function. call calls it with some of four slices and two numbers. want computes the same
// in float64, for one element of each slice. call returns the sum of what want returns for the elements, or 0. If the
// function has a dst, it is in[0]; the operands are the other slices, in order.
type vectorCase[T Float] struct {
	name string
	call func(in [4][]T, a, b T) T
	want func(d, x, y, z *float64, a, b float64) float64 // changes elements as call does
	// ulps is the tolerance, in units of the last place of 1 + |result|; for a sum |result| is the sum of magnitudes.
	ulps float64
}

func vectorCases[T Float]() []vectorCase[T] {
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	return []vectorCase[T]{
		{"Max", func(in [4][]T, a, b T) T { return Max(in[1]) },
			func(d, x, y, z *float64, a, b float64) float64 { return *x }, 0},
		{"ExpSum", func(in [4][]T, a, b T) T { return ExpSum(in[0], in[1], a, b) },
			func(d, x, y, z *float64, a, b float64) float64 { *d = math.Exp(*x*a - b); return *d }, 16},
		{"Scale", func(in [4][]T, a, b T) T { Scale(in[1], a); return 0 },
			func(d, x, y, z *float64, a, b float64) float64 { *x *= a; return 0 }, 1},
		{"Dot", func(in [4][]T, a, b T) T { return Dot(in[1], in[2]) },
			func(d, x, y, z *float64, a, b float64) float64 { return *x * *y }, 4},
		{"Axpy", func(in [4][]T, a, b T) T { Axpy(a, in[1], in[2]); return 0 },
			func(d, x, y, z *float64, a, b float64) float64 { *y += a * *x; return 0 }, 4},
		{"Add", func(in [4][]T, a, b T) T { Add(in[0], in[1], in[2]); return 0 },
			func(d, x, y, z *float64, a, b float64) float64 { *d = *x + *y; return 0 }, 1},
		{"SoftmaxGrad", func(in [4][]T, a, b T) T { SoftmaxGrad(in[0], in[1], in[2], b, a); return 0 },
			func(d, x, y, z *float64, a, b float64) float64 { *d = *x * (*y - b) * a; return 0 }, 8},
		{"Sigmoid", func(in [4][]T, a, b T) T { Sigmoid(in[0], in[1]); return 0 },
			func(d, x, y, z *float64, a, b float64) float64 { *d = sigmoid(*x); return 0 }, 2},
		{"SiLU", func(in [4][]T, a, b T) T { SiLU(in[0], in[1]); return 0 },
			func(d, x, y, z *float64, a, b float64) float64 { *d = *x * sigmoid(*x); return 0 }, 4},
		{"SiLUGrad", func(in [4][]T, a, b T) T { SiLUGrad(in[0], in[1], in[2]); return 0 },
			func(d, x, y, z *float64, a, b float64) float64 {
				s := sigmoid(*x)
				*d = *y * s * (1 + *x*(1-s))
				return 0
			}, 16},
		{"SumSquares", func(in [4][]T, a, b T) T { return T(SumSquares(in[1])) },
			func(d, x, y, z *float64, a, b float64) float64 { return *x * *x }, 1},
		{"AdamW", func(in [4][]T, a, b T) T {
			for i, v := range in[3] {
				in[3][i] = v * v // a second moment is not negative
			}
			AdamW(in[1], in[0], in[2], in[3], AdamWStep[T]{LR: 0.25, Beta1: 0.875, Beta2: 0.75, Eps: 1e-2,
				Decay: 0.125, Clip: a, C1: 2, C2: 3})
			return 0
		},
			func(g, w, m, v *float64, a, b float64) float64 {
				*v *= *v
				d := *g * a
				*m = 0.875**m + 0.125*d
				*v = 0.75**v + 0.25*d*d
				*w -= 0.25 * (*m*2/(math.Sqrt(*v*3)+1e-2) + 0.125**w)
				return 0
			}, 64},
	}
}

func TestVectorsMatchLoops(t *testing.T) {
	onLevels(t, testVectors[float32], testVectors[float64])
}

func testVectors[T Float](t *testing.T) {
	for _, c := range vectorCases[T]() {
		t.Run(c.name, func(t *testing.T) {
			for n := range 200 {
				testVector(t, c, n)
			}
			testVector(t, c, 257)
			testVector(t, c, 1000)
		})
	}
}

func testVector[T Float](t *testing.T, c vectorCase[T], n int) {
	var slots [4]guarded[T]
	var in [4][]T
	var want [4][]float64
	all := random[T](4 * n)
	for i := range slots {
		slots[i] = newGuarded[T](n)
		in[i], want[i] = slots[i].s, make([]float64, n)
		for j := range n {
			in[i][j] = all[i*n+j] * 4
			if i == 0 && c.name != "AdamW" { // only AdamW reads in[0]
				in[i][j] = T(math.NaN())
			}
			want[i][j] = float64(in[i][j])
		}
	}
	got, sum, magnitude := c.call(in, 1.5, 0.75), 0.0, 0.0
	if c.name == "Max" {
		sum = math.Inf(-1)
	}
	for j := range n {
		if v := c.want(&want[0][j], &want[1][j], &want[2][j], &want[3][j], 1.5, 0.75); c.name == "Max" {
			sum = max(sum, v)
		} else {
			sum, magnitude = sum+v, magnitude+math.Abs(v)
		}
	}
	tol := c.ulps * eps[T]()
	require.True(t, near(got, sum, tol*(1+magnitude)), "n %d: got %v, want %v", n, got, sum)
	for i, g := range slots {
		require.True(t, g.intact(), "n %d: written outside of operand %d", n, i)
		for j, w := range want[i] {
			if !near(in[i][j], w, tol*(1+math.Abs(w))) {
				t.Fatalf("n %d: operand %d at %d: got %v, want %v", n, i, j, in[i][j], w)
			}
		}
	}
}

// dst may be any operand that the function's doc comment names.
func TestVectorsInPlace(t *testing.T) {
	const n = 77
	// how many dst may be
	operands := map[string]int{"ExpSum": 1, "Add": 2, "SoftmaxGrad": 2, "Sigmoid": 1, "SiLU": 1, "SiLUGrad": 2}
	for l := range levels {
		for _, c := range vectorCases[float32]() {
			for operand := 1; operand <= operands[c.name]; operand++ {
				var apart, same [4][]float32
				for i, all := range slices.Collect(slices.Chunk(random[float32](4*n), n)) {
					apart[i], same[i] = all, slices.Clone(all)
				}
				same[0] = same[operand]
				x, y := c.call(apart, 1.5, 0.75), c.call(same, 1.5, 0.75)
				require.Equal(t, x, y, "%v: %s over operand %d", l, c.name, operand)
				require.Equal(t, apart[0], same[0], "%v: %s over operand %d", l, c.name, operand)
			}
		}
	}
}

// exp32 is within 2 units in the last place over its whole range, edges included.
func TestExpEdges(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for l := range levels {
		x := []float32{-inf, inf, nan, -1e30, 1e30, -104, -88, -87.3, 0, float32(math.Copysign(0, -1)), 88, 88.7,
			88.73, 89, 100, 1e-30, -math.MaxFloat32, math.MaxFloat32}
		for v := float32(-87.3); v < 88.7; v += 0.00617 {
			x = append(x, v)
		}
		y := make([]float32, len(x))
		ExpSum(y, x, 1, 0)
		worst := 0.0
		for i, v := range x {
			want := math.Exp(float64(v))
			switch {
			case v != v:
				require.True(t, y[i] != y[i], "%v: exp(NaN) = %v", l, y[i])
			case want > math.MaxFloat32:
				require.Equal(t, inf, y[i], "%v: exp(%v)", l, v)
			case want < 0x1p-126:
				require.Zero(t, y[i], "%v: exp(%v)", l, v)
			default:
				ulp := float64(math.Nextafter32(float32(want), inf) - float32(want))
				worst = max(worst, math.Abs(float64(y[i])-want)/ulp)
			}
		}
		t.Logf("%v: at most %.2f units in the last place", l, worst)
		require.LessOrEqual(t, worst, 2.0)
		require.Zero(t, ExpSum(y[:2], []float32{-inf, -inf}, 0.125, 3), "%v: sum of a row of -Inf", l)
		require.Equal(t, []float32{0, 0}, y[:2], "%v: a row of -Inf", l)
		for _, v := range []float32{-200, -90, 0, 90, 200} {
			var s [1]float32
			Sigmoid(s[:], []float32{v})
			require.True(t, near(s[0], 1/(1+math.Exp(-float64(v))), 1e-7), "%v: sigmoid(%v) is %v", l, v, s[0])
		}
	}
}

func TestMaxNaN(t *testing.T) {
	for l := range levels {
		for n := 1; n < 140; n++ {
			for at := 0; at < n; at += 1 + n/7 {
				x := random[float32](n)
				x[at] = float32(math.NaN())
				m := Max(x)
				require.True(t, m != m, "%v: NaN at %d of %d: Max %v", l, at, n, m)
			}
		}
		require.Equal(t, float32(math.Inf(-1)), Max[float32](nil), "%v: Max of none", l)
	}
}

// The bits of an element do not depend on its place in a row. Zeros at the end of a row do not change its sum.
func TestVectorsBitsOfElement(t *testing.T) {
	x := random[float32](150)
	for l := range levels {
		all := make([]float32, len(x))
		ExpSum(all, x, 2, 0.5)
		for i := range x {
			var one [1]float32
			ExpSum(one[:], x[i:i+1], 2, 0.5)
			require.Equal(t, one[0], all[i], "%v: exp at %d", l, i)
		}
		for n := range x {
			row := append(slices.Clone(x[:n]), slices.Repeat([]float32{float32(math.Inf(-1))}, len(x)-n)...)
			y := make([]float32, len(row))
			short, long := ExpSum(y[:n], row[:n], 2, 0.5), ExpSum(y, row, 2, 0.5)
			require.Equal(t, short, long, "%v: the sum of %d, with masked ones after it", l, n)
		}
	}
}

func BenchmarkVectors(b *testing.B) {
	for _, c := range vectorCases[float32]() {
		for _, n := range []int{16, 64, 768, 1 << 20} {
			if n == 1<<20 && c.name != "AdamW" && c.name != "Axpy" && c.name != "SumSquares" {
				continue
			}
			for l := range levels {
				b.Run(fmt.Sprintf("%s/%d/%v", c.name, n, l), func(b *testing.B) {
					var in [4][]float32
					for i := range in {
						in[i] = random[float32](n)
					}
					for b.Loop() {
						c.call(in, 1, 0)
					}
					b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gelem/s")
				})
			}
		}
	}
}
