package cpu

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTileMatchesLoops(t *testing.T) {
	onLevels(t, testTile[float32], testTile[float64])
}

func testTile[T Float](t *testing.T) {
	sizes := [][3]int{{0, 5, 3}, {5, 0, 3}, {3, 70, 0}, {96, 64, 128}, {31, 200, 17}}
	for m := 1; m <= 26; m++ {
		sizes = append(sizes, [3]int{m, 64, 5}, [3]int{m, 33, 2})
	}
	for n := 1; n <= 131; n++ {
		sizes = append(sizes, [3]int{7, n, 3}, [3]int{13, n, 1})
	}
	for _, size := range sizes {
		for mode := range 8 {
			testTileCase[T](t, size[0], size[1], size[2], mode&1 != 0, mode&2 != 0, mode&4 != 0)
		}
	}
}

// testTileCase tests one size: with A in transposed memory (transA), with TileAdd (add), with elements between the rows
// of the operands and between the elements of A that do not belong to them (gaps).
func testTileCase[T Float](t *testing.T, m, n, k int, transA, add, gaps bool) {
	step, brs, crs := 1, n, n
	if gaps {
		step, brs, crs = 3, n+5, n+9
	}
	ars, acs := step*k+1, step
	if transA {
		ars, acs = step, step*m+1
	}
	// A and B end with their last element. The elements between their rows are NaN and must not be read into the result.
	a, b := newGuarded[T](max(0, (m-1)*ars+(k-1)*acs+1)), newGuarded[T](max(0, (k-1)*brs+n))
	c := newGuarded[T](max(0, (m-1)*crs+n))
	x, y, z := random[T](m*k), random[T](k*n), random[T](m*n)
	for i := range m {
		for p := range k {
			a.s[i*ars+p*acs] = x[i*k+p]
		}
		if add {
			copy(c.s[i*crs:], z[i*n:i*n+n])
		}
	}
	for p := range k {
		copy(b.s[p*brs:], y[p*n:p*n+n])
	}
	multiply := Tile[T]
	if add {
		multiply = TileAdd[T]
	}
	multiply(m, n, k, a.s, ars, acs, b.s, brs, c.s, crs)
	what := fmt.Sprintf("%dx%dx%d transA %v add %v gaps %v", m, n, k, transA, add, gaps)
	require.True(t, c.intact(), "%s: written outside of C", what)
	written := 0
	for i := range m {
		for j := range n {
			want := 0.0
			if add {
				want = float64(z[i*n+j])
			}
			for p := range k {
				want += float64(x[i*k+p]) * float64(y[p*n+j])
			}
			if got := c.s[i*crs+j]; !near(got, want, float64(k+2)*eps[T]()) {
				t.Fatalf("%s at %d,%d: got %v, want %v", what, i, j, got, want)
			}
			written++
		}
	}
	for _, v := range c.s {
		if !math.IsNaN(float64(v)) {
			written--
		}
	}
	require.Zero(t, written, "%s: written between the rows of C", what)
}

// The bits of an element of C do not depend on the number of rows and columns that are computed with it.
func TestTileBitsOfElement(t *testing.T) {
	const k, n = 37, 150
	a, b := random[float32](k), random[float32](k*n)
	for l := range levels {
		all := make([]float32, n)
		Tile(1, n, k, a, k, 1, b, n, all, n)
		for j := range n {
			var one [1]float32
			Tile(1, 1, k, a, k, 1, b[j:], n, one[:], 1)
			require.Equal(t, one[0], all[j], "%v: column %d of %d", l, j, n)
		}
	}
}

func BenchmarkTile(b *testing.B) {
	for _, size := range [][3]int{{6, 64, 64}, {6, 64, 128}, {12, 64, 64}, {96, 64, 64}, {96, 64, 128}, {64, 64, 64},
		{6, 32, 64}, {24, 32, 128}, {96, 16, 64}, {6, 16, 128}, {6, 40, 64}, {1, 64, 64}, {6, 16, 6}, {1, 1, 1}} {
		m, n, k := size[0], size[1], size[2]
		x, y, c := random[float32](m*k), random[float32](k*n), make([]float32, m*n)
		for layout, stride := range map[string][2]int{"": {k, 1}, "tA": {1, m}} {
			for l := range levels {
				b.Run(fmt.Sprintf("%dx%dx%d%s/%v", m, n, k, layout, l), func(b *testing.B) {
					for b.Loop() {
						Tile(m, n, k, x, stride[0], stride[1], y, n, c, n)
					}
					b.ReportMetric(2*float64(m)*float64(n)*float64(k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
				})
			}
		}
	}
}
