package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// nearestBF16 is the meaning of RoundBF16: the nearer one of the two neighbours, of a tie the even one.
func nearestBF16(v float32) BFloat16 {
	low := BFloat16(math.Float32bits(v) >> 16)
	if v != v || math.IsInf(float64(v), 0) {
		return low | BFloat16(map[bool]uint16{true: 0x40}[v != v])
	}
	value := func(b BFloat16) float64 {
		if b&0x7f80 == 0x7f80 { // the number after the largest one
			return math.Copysign(0x1p128, float64(v))
		}
		return float64(b.float32())
	}
	down, up := math.Abs(float64(v)-value(low)), math.Abs(float64(v)-value(low+1))
	if down < up || down == up && low%2 == 0 {
		return low
	}
	return low + 1
}

func TestRoundBF16(t *testing.T) {
	var x []float32
	for b := range 1 << 16 { // each bf16, its neighbours in float32, and the tie after it with its neighbours
		for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			x = append(x, math.Float32frombits(uint32(b)<<16|low))
		}
	}
	want := make([]BFloat16, len(x))
	for i, v := range x {
		want[i] = nearestBF16(v)
	}
	for l := range levels {
		got, wide := make([]BFloat16, len(x)), make([]float32, len(x))
		RoundBF16(got, x)
		require.Equal(t, want, got, "%v", l)
		WidenBF16(wide, got)
		for i, v := range got {
			require.Equal(t, uint32(v)<<16, math.Float32bits(wide[i]), "%v", l)
		}
		for n := range 70 {
			short := slices.Repeat([]BFloat16{0x7fff}, n+2)
			RoundBF16(short[1:n+1], x[77:][:n])
			require.Equal(t, slices.Concat([]BFloat16{0x7fff}, want[77:][:n], []BFloat16{0x7fff}), short, "%v: %d", l, n)
		}
	}
}

// randomBF16 returns n numbers of bf16 in [-1,1), which depend only on n.
func randomBF16(n int) []BFloat16 {
	x := make([]BFloat16, n)
	for i, v := range random[float32](n) {
		x[i] = nearestBF16(v)
	}
	return x
}

func widened(x []BFloat16) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v.float32())
	}
	return y
}

// caseBF16 is a product of bf16, with its expected results in float64. Each layout and each combination of types and
// additions occurs.
type caseBF16 struct {
	Product
	a, b, bias, residual []float64
}

func (c caseBF16) want(i, j int) (sum, silu float64) {
	before := 0 // the sum of K of the terms before
	for _, t := range c.Terms {
		a, b := c.a[before*c.M:], c.b[before*c.N:]
		for p := range t.K {
			at, bt := i*t.K+p, p*c.N+j
			if c.TransA {
				at = p*c.M + i
			}
			if c.TransB {
				bt = j*t.K + p
			}
			sum += a[at] * b[bt]
		}
		before += t.K
	}
	if c.bias != nil {
		sum += c.bias[j]
	}
	if c.residual != nil {
		sum += c.residual[i*c.N+j]
	}
	return sum, sum / (1 + math.Exp(-sum))
}

func randomCaseBF16(r *rand.Rand) (c caseBF16) {
	yes := func() bool { return r.IntN(2) == 0 }
	size := func() int { return 1 + r.IntN([]int{4, 30, 140}[r.IntN(3)]) }
	c.Product = Product{M: size(), N: size(), TransA: yes(), TransB: yes(), HalfC: yes(), HalfResidual: yes()}
	c.Dots = c.TransB && !c.TransA && yes()
	terms := 1 + r.IntN(3)
	if c.Dots {
		terms = 1
	}
	for range terms {
		k := size()
		if r.IntN(8) == 0 {
			k = 1000 + r.IntN(100)
		}
		a, b := randomBF16(c.M*k), randomBF16(k*c.N + 8)[8:] // not the same numbers, of which products would be squares
		c.a, c.b = append(c.a, widened(a)...), append(c.b, widened(b)...)
		c.Terms = append(c.Terms, Term{k, NewBuf(a), NewBuf(b)})
	}
	if yes() {
		bias := randomBF16(c.N)
		c.Bias, c.bias = NewBuf(bias), widened(bias)
	}
	if yes() {
		x := randomBF16(c.M * c.N)
		c.residual = widened(x)
		if c.Residual = NewBuf(x); !c.HalfResidual {
			wide := make([]float32, len(x))
			WidenBF16(wide, x)
			c.Residual = NewBuf(wide)
		}
	}
	if yes() {
		c.SiLU = new(Buf)
	}
	return c
}

// run returns C and the SiLU, which is nil without one.
func (c caseBF16) run(t *testing.T, workers int) (out [2][]float32) {
	var guards [2]func() []float32
	output := func(i int) *Buf {
		if c.HalfC {
			const guard = BFloat16(0x7fc1)
			all := slices.Repeat([]BFloat16{guard}, c.M*c.N+2*guardLen)
			guards[i] = func() []float32 {
				for _, v := range append(slices.Clone(all[:guardLen]), all[guardLen+c.M*c.N:]...) {
					require.Equal(t, guard, v, "written outside of an output")
				}
				wide := make([]float32, c.M*c.N)
				WidenBF16(wide, all[guardLen:][:c.M*c.N])
				return wide
			}
			return NewBuf(all[guardLen:][:c.M*c.N])
		}
		g := newGuarded[float32](c.M * c.N)
		guards[i] = func() []float32 {
			require.True(t, g.intact(), "written outside of an output")
			return g.s
		}
		return NewBuf(g.s)
	}
	if c.C = output(0); c.SiLU != nil {
		c.SiLU = output(1)
	}
	var k Kernel
	ProductsBF16(&k, c.Product)
	run(t, &k, workers)
	for i, read := range guards {
		if read != nil {
			out[i] = read()
		}
	}
	return out
}

// TestProductsBF16 compares random products with loops in float64. Any number of workers gives the same bits.
func TestProductsBF16(t *testing.T) {
	for l := range levels {
		if l != levelGeneric && l != levelBF16 { // the levels between them run the code of generic
			continue
		}
		t.Run(l.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(48, 0))
			for range 150 {
				c := randomCaseBF16(r)
				what := fmt.Sprintf("%dx%d of %d terms, first k %d, transA %v, transB %v, dots %v", c.M, c.N, len(c.Terms),
					c.Terms[0].K, c.TransA, c.TransB, c.Dots)
				got := c.run(t, 1)
				require.Equal(t, got, c.run(t, 3), what)
				tol := 3.0
				for _, term := range c.Terms {
					tol += float64(term.K)
				}
				for x := range c.M * c.N {
					sum, silu := c.want(x/c.N, x%c.N)
					for i, want := range []float64{sum, silu} {
						bound := tol * eps[float32]()
						if c.HalfC {
							bound += math.Abs(want) * 0x1p-8
						}
						if got[i] != nil && !near(got[i][x], want, bound) {
							t.Fatalf("%s: output %d at %d is %v, want %v", what, i, x, got[i][x], want)
						}
					}
				}
			}
		})
	}
}

// A row of C has the same bits in a product of any number of rows.
func TestProductBF16BitsOfRow(t *testing.T) {
	const m, n = 301, 130
	for l := range levels {
		if l != levelGeneric && l != levelBF16 {
			continue
		}
		for _, k := range []int{1100, 33} {
			for _, layout := range []Product{{}, {TransB: true}, {TransB: true, Dots: true}} {
				a, b := randomBF16(m*k), randomBF16(k*n)
				product := func(a []BFloat16) []float32 {
					c := make([]float32, len(a)/k*n)
					var kern Kernel
					p := layout
					p.M, p.N, p.Terms, p.C = len(a)/k, n, []Term{{k, NewBuf(a), NewBuf(b)}}, NewBuf(c)
					ProductsBF16(&kern, p)
					run(t, &kern, 2)
					return c
				}
				all := product(a)
				for _, i := range []int{0, 7, 299, 300} {
					require.Equal(t, product(a[i*k:i*k+k]), all[i*n:i*n+n], "%v: row %d is not what it is alone", l, i)
				}
			}
		}
	}
}

// Special values take part in sums as IEEE 754 says.
func TestProductBF16Specials(t *testing.T) {
	inf, nan := BFloat16(0x7f80), BFloat16(0x7fc0)
	for l := range levels {
		for _, c := range []struct {
			x, y BFloat16
			want float64
		}{{inf, 0x3f80, math.Inf(1)}, {inf, 0xbf80, math.Inf(-1)}, {inf, 0, math.NaN()}, {nan, 0, math.NaN()},
			{0x7f7f, 0x7f7f, math.Inf(1)}, {0, 0xbf80, 0}} {
			for _, dots := range []bool{false, true} {
				a, b, y := []BFloat16{0, 0, c.x}, slices.Repeat([]BFloat16{0, 0, c.y}, 4), make([]float32, 4)
				var k Kernel
				ProductsBF16(&k, Product{M: 1, N: 4, TransB: true, Dots: dots, Terms: []Term{{3, NewBuf(a), NewBuf(b)}},
					C: NewBuf(y)})
				run(t, &k, 1)
				for _, v := range y {
					require.True(t, near(v, c.want, 0), "%v: %x*%x is %v, want %v", l, c.x, c.y, v, c.want)
				}
			}
		}
	}
}
