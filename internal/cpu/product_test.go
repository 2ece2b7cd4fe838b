package cpu

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProducts compares the products of one phase with loops in float64, and those of one term also with the same
// product alone. It covers many sizes, all layouts, and products with and without bias, residual and SiLU.
func TestProducts(t *testing.T) {
	type size struct {
		m, n int
		ks   []int
	}
	for _, sizes := range [][]size{
		{},
		{{0, 3, []int{4}}, {3, 0, []int{4}}},
		{{1, 1, []int{1}}, {5, 9, []int{0}}, {3, 17, []int{0, 2, 0}}},
		{{65, 3, []int{17}}, {65, 70, []int{17}}, {65, 129, []int{17}}, {65, 1, []int{17}}},
		{{130, 65, []int{600}}, {7, 65, []int{600}}, {100, 65, []int{33}}},
		{{67, 65, []int{33, 1, 520, 64}}, {515, 3, []int{3, 70}}},
		{{1, 100, []int{40}}, {1, 100, []int{40}}, {16, 3, []int{2}}, {16, 3, []int{2}}, {5, 70, []int{600}},
			{5, 70, []int{600}}},
		{{63, 65, []int{33}}, {63, 65, []int{33}}, {130, 129, []int{50}}, {130, 129, []int{50}}},
		{{100, 300, []int{520}}, {100, 300, []int{520}}, {515, 258, []int{7}}, {515, 258, []int{7}}},
	} {
		for trans := range 4 {
			transA, transB := trans&1 != 0, trans&2 != 0
			var list32, list64 []wantedProduct
			for i, s := range sizes {
				p := Product{M: s.m, N: s.n, TransA: transA, TransB: transB}
				p.Dots = transB && !transA && len(s.ks) == 1 && i%2 == 1
				list32 = append(list32, withOperands[float32](p, s.ks, i%2 == 0, i%4 < 2, i%3 == 0))
				list64 = append(list64, withOperands[float64](p, s.ks, i%2 == 1, i%4 > 1, i%3 == 1))
			}
			for l := range levels {
				t.Run(fmt.Sprintf("%v/%v/transA=%v/transB=%v", sizes, l, transA, transB), func(t *testing.T) {
					testProducts[float32](t, list32)
					testProducts[float64](t, list64)
				})
			}
		}
	}
}

// wantedProduct is a product without outputs, its expected result, and the error that is allowed.
type wantedProduct struct {
	Product
	want []float64
	tol  float64
}

// withOperands returns p with a term for each K in ks, and with a bias, a residual and a SiLU if the arguments say so.
func withOperands[T Float](p Product, ks []int, bias, residual, silu bool) wantedProduct {
	for _, k := range ks {
		p.Terms = append(p.Terms, Term{k, NewBuf(random[T](p.M * k)), NewBuf(random[T](k * p.N))})
	}
	if bias {
		p.Bias = NewBuf(random[T](p.N))
	}
	if residual {
		p.Residual = NewBuf(random[T](p.M * p.N))
	}
	if silu {
		p.SiLU = new(Buf)
	}
	want, tol := sumOfTerms[T](p)
	return wantedProduct{p, want, tol}
}

func testProducts[T Float](t *testing.T, wanted []wantedProduct) {
	var list []Product
	for _, w := range wanted {
		list = append(list, w.Product)
	}
	var first [][]T
	for _, workers := range []int{1, 2, 3, 7} {
		var outputs []guarded[T]
		output := func(p Product) *Buf {
			outputs = append(outputs, newGuarded[T](p.M*p.N))
			return NewBuf(outputs[len(outputs)-1].s)
		}
		list := slices.Clone(list)
		for i := range list {
			p := &list[i]
			if p.C = output(*p); p.SiLU != nil {
				p.SiLU = output(*p)
			}
		}
		var k Kernel
		Products[T](&k, list...)
		run(t, &k, workers)
		var got [][]T
		for _, o := range outputs {
			require.True(t, o.intact(), "written outside of an output")
			got = append(got, o.s)
		}
		if first == nil {
			first = got
		}
		require.True(t, slices.EqualFunc(first, got, slices.Equal[[]T]), "not the same bits with %d workers", workers)
	}
	for i, p := range list {
		got := first[0]
		first = first[1:]
		if len(p.Terms) == 1 {
			c := make([]T, p.M*p.N)
			var k Kernel
			alone := p
			alone.C, alone.Residual, alone.SiLU = NewBuf(c), nil, nil
			Products[T](&k, alone)
			run(t, &k, 1)
			if p.Residual != nil {
				Add(c, c, Slice[T](p.Residual))
			}
			require.True(t, slices.Equal(got, c), "product %d: not the bits that it has alone", i)
		}
		for j, want := range wanted[i].want {
			if !near(got[j], want, wanted[i].tol) {
				t.Fatalf("product %d: element %d is %v, want %v", i, j, got[j], want)
			}
		}
		if p.SiLU != nil {
			want := make([]T, len(got))
			SiLU(want, got)
			require.True(t, slices.Equal(first[0], want), "product %d: SiLU has not the bits of one of its own", i)
			first = first[1:]
		}
	}
}

// sumOfTerms computes p in float64. tol is the error that is allowed in T.
func sumOfTerms[T Float](p Product) (want []float64, tol float64) {
	want, tol = make([]float64, p.M*p.N), 2
	for _, term := range p.Terms {
		tol += float64(term.K)
	}
	for x := range want {
		i, j := x/p.N, x%p.N
		if p.Bias != nil {
			want[x] = float64(Slice[T](p.Bias)[j])
		}
		if p.Residual != nil {
			want[x] += float64(Slice[T](p.Residual)[x])
		}
		for _, term := range p.Terms {
			a, b := Slice[T](term.A), Slice[T](term.B)
			at, aStep, bt, bStep := i*term.K, 1, j, p.N
			if p.TransA {
				at, aStep = i, p.M
			}
			if p.TransB {
				bt, bStep = j*term.K, 1
			}
			for k := range term.K {
				want[x] += float64(a[at+k*aStep]) * float64(b[bt+k*bStep])
			}
		}
	}
	return want, tol * eps[T]()
}

// A row of C has the same bits in a product of any number of rows: in joined batches and for one token at a time.
func TestProductBitsOfRow(t *testing.T) {
	const m, n, k = 301, 130, 1100
	for l := range levels {
		for _, layout := range []Product{{}, {TransB: true}, {TransB: true, Dots: true}} {
			a, b := random[float32](m*k), random[float32](k*n)
			product := func(a []float32) []float32 {
				c := make([]float32, len(a)/k*n)
				var kern Kernel
				p := layout
				p.M, p.N, p.Terms, p.C = len(a)/k, n, []Term{{k, NewBuf(a), NewBuf(b)}}, NewBuf(c)
				Products[float32](&kern, p)
				run(t, &kern, 2)
				return c
			}
			all := product(a)
			for _, i := range []int{0, 7, 299, 300} {
				require.Equal(t, product(a[i*k:i*k+k]), all[i*n:i*n+n], "%v: row %d of %d is not what it is alone", l, i, m)
			}
		}
	}
}

func TestTranspose(t *testing.T) {
	onLevels(t, testTranspose[float32], testTranspose[float64])
}

// testTranspose transposes matrices whose rows lie apart. Source and destination end with their last element.
func testTranspose[T Float](t *testing.T) {
	for _, rows := range []int{0, 1, 7, 8, 15, 16, 17, 40, 64} {
		for _, cols := range []int{0, 1, 3, 4, 5, 32, 67} {
			srs, drs := cols+3, rows+5
			src := newGuarded[T](max(0, (rows-1)*srs+cols))
			dst := newGuarded[T](max(0, (cols-1)*drs+rows))
			copy(src.s, random[T](len(src.s)))
			Transpose(rows, cols, dst.s, drs, src.s, srs)
			what := fmt.Sprintf("%dx%d", rows, cols)
			require.True(t, dst.intact(), "%s: written outside of the destination", what)
			for i, v := range dst.s {
				if p, j := i/drs, i%drs; j < rows {
					require.Equal(t, src.s[j*srs+p], v, "%s at %d,%d", what, p, j)
				} else {
					require.True(t, v != v, "%s: written between rows of the destination", what)
				}
			}
		}
	}
}
