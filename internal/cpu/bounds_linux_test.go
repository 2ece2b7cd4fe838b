package cpu

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// betweenPages returns memory of at least the given bytes between pages that cannot be read or written. Any access
// outside of it ends the test's process, even if the value is not used.
func betweenPages(t *testing.T, bytes int) []byte {
	t.Helper()
	page := syscall.Getpagesize()
	n := roundUp(bytes, page)
	all, err := syscall.Mmap(-1, 0, n+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(all)) })
	for _, guard := range [][]byte{all[:page], all[page+n:]} {
		require.NoError(t, syscall.Mprotect(guard, syscall.PROT_NONE))
	}
	return all[page : page+n]
}

// place copies x to the start or to the end of mem.
func place[T Elem](mem []byte, x []T, end bool) []T {
	if len(x) == 0 {
		return nil
	}
	bytes, at := len(x)*int(unsafe.Sizeof(x[0])), 0
	if end {
		at = len(mem) - bytes
	}
	s := unsafe.Slice((*T)(unsafe.Pointer(&mem[at])), len(x))
	copy(s, x)
	return s
}

// TestNoAccessOutsideOfOperands: kernels touch no byte before or after their operands.
func TestNoAccessOutsideOfOperands(t *testing.T) {
	t.Run("float32", testNoAccessOutside[float32])
	t.Run("float64", testNoAccessOutside[float64])
}

func testNoAccessOutside[T Float](t *testing.T) {
	var pages [4][]byte
	for i := range pages {
		pages[i] = betweenPages(t, 1<<18)
	}
	for l := range levels {
		for _, end := range []bool{false, true} {
			for _, c := range vectorCases[T]() {
				for n := range 140 {
					var in [4][]T
					for i := range in {
						in[i] = place(pages[i], random[T](n), end)
					}
					c.call(in, 1.5, 0.75)
				}
			}
			for k := range 70 {
				for rows := range 10 {
					dotRows(place(pages[0], random[T](k), end), place(pages[1], random[T](rows*k), end),
						place(pages[2], random[T](rows), end))
				}
			}
			for i, size := range [][3]int{{1, 1, 1}, {13, 131, 3}, {7, 64, 5}, {12, 17, 2}, {6, 32, 1}, {11, 49, 4},
				{25, 9, 7}, {4, 8, 16}} {
				m, n, k := size[0], size[1], size[2]
				for _, transA := range []bool{false, true} {
					ars, acs := k, 1
					if transA {
						ars, acs = 1, m
					}
					a, b := place(pages[0], random[T](m*k), end), place(pages[1], random[T](k*n), end)
					multiply := []func(m, n, k int, a []T, ars, acs int, b []T, brs int, c []T, crs int){Tile[T], TileAdd[T]}[i%2]
					multiply(m, n, k, a, ars, acs, b, n, place(pages[2], random[T](m*n), end), n)
				}
			}
			for _, size := range [][3]int{{1, 1, 1}, {17, 65, 33}, {64, 128, 16}, {40, 100, 70}, {131, 70, 5}, {3, 130, 140}} {
				for trans := range 4 {
					m, n, k := size[0], size[1], size[2]
					a, b, bias := random[T](m*k), random[T](k*n), random[T](n)
					product := func(a, b, bias, c []T) []T {
						var kernel Kernel
						Products[T](&kernel, Product{M: m, N: n, TransA: trans&1 != 0, TransB: trans&2 != 0,
							Terms: []Term{{k, NewBuf(a), NewBuf(b)}}, Bias: NewBuf(bias), C: NewBuf(c)})
						run(t, &kernel, 1)
						return c
					}
					want := product(a, b, bias, make([]T, m*n))
					got := product(place(pages[0], a, end), place(pages[1], b, end), place(pages[2], bias, end),
						place(pages[3], make([]T, m*n), end))
					require.Equal(t, want, got, "%v: %v, trans %d: not the bits that it has elsewhere in memory", l, size, trans)
				}
			}
		}
	}
}

// TestNoAccessOutsideOfBF16: kernels of bf16 touch no byte outside of their operands either.
func TestNoAccessOutsideOfBF16(t *testing.T) {
	var pages [4][]byte
	for i := range pages {
		pages[i] = betweenPages(t, 1<<18)
	}
	for range levels {
		for _, end := range []bool{false, true} {
			for n := range 140 {
				x := place(pages[0], random[float32](n), end)
				y := place(pages[1], make([]BFloat16, n), end)
				RoundBF16(y, x)
				WidenBF16(x, y)
			}
			for _, size := range [][3]int{{1, 1, 1}, {17, 65, 33}, {64, 128, 16}, {40, 100, 70}, {131, 70, 5}, {3, 130, 140}} {
				for mode := range 8 {
					m, n, k := size[0], size[1], size[2]
					p := Product{M: m, N: n, TransA: mode&1 != 0, TransB: mode&2 != 0, Dots: mode == 6, HalfC: true,
						HalfResidual: true}
					a, b := place(pages[0], randomBF16(m*k), end), place(pages[1], randomBF16(k*n), end)
					p.Terms, p.C = []Term{{k, NewBuf(a), NewBuf(b)}}, NewBuf(place(pages[2], make([]BFloat16, m*n), end))
					if x := place(pages[3], randomBF16(m*n), end); mode&4 != 0 {
						p.Residual = NewBuf(x)
					} else {
						p.Bias = NewBuf(x[:n])
						if end {
							p.Bias = NewBuf(x[m*n-n:])
						}
					}
					var kernel Kernel
					ProductsBF16(&kernel, p)
					run(t, &kernel, 1)
				}
			}
		}
	}
}
