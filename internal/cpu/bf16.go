package cpu

import (
	"math"
	"unsafe"
)

// BFloat16 holds the bits of a bf16 number: the upper half of a float32.
type BFloat16 uint16

func ptrBF16(s []BFloat16) *uint16 { return (*uint16)(unsafe.SliceData(s)) }

// RoundBF16 sets dst[i] = x[i], rounded to nearest even. NaN stays NaN. All levels give the same bits.
func RoundBF16(dst []BFloat16, x []float32) {
	dst = dst[:len(x)]
	if HasBF16() && len(x) > 0 {
		roundBF16(len(x), ptrBF16(dst), ptr32(x))
		return
	}
	for i, v := range x {
		b := math.Float32bits(v)
		if v != v {
			dst[i] = BFloat16(b>>16 | 0x40)
		} else {
			dst[i] = BFloat16((b + 0x7fff + b>>16&1) >> 16)
		}
	}
}

// WidenBF16 sets dst[i] = x[i].
func WidenBF16(dst []float32, x []BFloat16) {
	dst = dst[:len(x)]
	if HasBF16() && len(x) > 0 {
		widenBF16(len(x), ptr32(dst), ptrBF16(x))
		return
	}
	for i, v := range x {
		dst[i] = v.float32()
	}
}

func (v BFloat16) float32() float32 { return math.Float32frombits(uint32(v) << 16) }

// A pair is two bf16 numbers in the memory of one float32, the first one in its lower half. Products of bf16 take their
// operands as pairs of consecutive p, so that a pair moves like a float32. If K is odd, the last pair ends with 0.

// TilePairs is Tile for A and B of pairs: k counts pairs, and the product of two pairs is the sum of their two
// products.
func TilePairs(m, n, k int, a []float32, ars, acs int, b []float32, brs int, c []float32, crs int) {
	tilePairs(m, n, k, a, ars, acs, b, brs, c, crs, nil, 0)
}

// TileAddPairs is TilePairs, but adds the product to C.
func TileAddPairs(m, n, k int, a []float32, ars, acs int, b []float32, brs int, c []float32, crs int) {
	tilePairs(m, n, k, a, ars, acs, b, brs, c, crs, c, crs)
}

// RoundPairs sets dst [ceil(len(x)/2)] to the pairs of the elements of x, rounded to nearest even. dst may begin where
// x does.
func RoundPairs(dst, x []float32) {
	n := len(x) / 2
	RoundBF16(unsafe.Slice((*BFloat16)(unsafe.Pointer(unsafe.SliceData(dst[:n]))), 2*n), x[:2*n])
	if len(x)%2 != 0 {
		var last [1]BFloat16
		RoundBF16(last[:], x[2*n:])
		dst[n] = pairOf(last[0], 0)
	}
}

// InterleavePairs sets dst[i] to the pair of x[i] and y[i], or of x[i] and 0 if y is nil.
func InterleavePairs(dst []float32, x, y []BFloat16) { interleave(dst, x, y) }

// pairs returns x as pairs. len(x) is even.
func pairs(x []BFloat16) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(x))), len(x)/2)
}

func pairOf(x, y BFloat16) float32 { return math.Float32frombits(uint32(x) | uint32(y)<<16) }

// dotPair adds the two products of a pair and a pair to sum.
func dotPair(x, y, sum float32) float32 {
	a, b := math.Float32bits(x), math.Float32bits(y)
	sum += math.Float32frombits(a<<16) * math.Float32frombits(b<<16)
	return sum + math.Float32frombits(a&^0xffff)*math.Float32frombits(b&^0xffff)
}

// interleave sets dst[i] to the pair of x[i] and y[i], or of x[i] and 0 if y is nil.
func interleave(dst []float32, x, y []BFloat16) {
	dst = dst[:len(x)]
	if y == nil {
		for i, v := range x {
			dst[i] = pairOf(v, 0)
		}
		return
	}
	y = y[:len(x)]
	if HasBF16() && len(x) > 0 {
		interleaveBF16(len(x), ptr32(dst), ptrBF16(x), ptrBF16(y))
		return
	}
	for i, v := range x {
		dst[i] = pairOf(v, y[i])
	}
}

// tilePairs is tile for A and B of pairs: k counts pairs. The assembly rounds the sum of a pair's products in its own
// way and takes denormal factors and sums as 0; so levels differ by rounding.
func tilePairs(m, n, k int, a []float32, ars, acs int, b []float32, brs int, c []float32, crs int, s []float32,
	srs int) {
	if m <= 0 || n <= 0 {
		return
	}
	_ = c[(m-1)*crs+n-1]
	if s != nil {
		_ = s[(m-1)*srs+n-1]
	}
	if k > 0 && HasBF16() {
		_, _ = a[(m-1)*ars+(k-1)*acs], b[(k-1)*brs+n-1]
		tileBF16(m, n, k, ptr32(a), ars, acs, ptr32(b), brs, ptr32(c), crs, ptr32(s), srs)
		return
	}
	for i := range m {
		for j := range n {
			sum := float32(0)
			for p := range k {
				sum = dotPair(a[i*ars+p*acs], b[p*brs+j], sum)
			}
			if s != nil {
				sum += s[i*srs+j]
			}
			c[i*crs+j] = sum
		}
	}
}

// dotRowsPairs is dotRows for x and rows of bf16.
func dotRowsPairs(x, rows []BFloat16, y []float32) {
	k, j := len(x), 0
	rows = rows[:len(y)*k]
	if n := len(y) &^ 3; n > 0 && k > 0 && HasBF16() {
		dotRowsBF16(k, n, ptrBF16(x), ptrBF16(rows), ptr32(y))
		j = n
	}
	for ; j < len(y); j++ {
		y[j] = 0
		for i, v := range rows[j*k:][:k] {
			y[j] += x[i].float32() * v.float32()
		}
	}
}
