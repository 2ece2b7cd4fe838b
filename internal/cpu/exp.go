package cpu

import "math"

// ExpSum sets dst[i] = exp(x[i]*scale - shift) and returns the sum of dst, added in a fixed order. An x[i] of -Inf
// gives 0 if scale is positive and shift is finite. A result that overflows is +Inf, and NaN gives NaN. A float32
// result below the smallest normal number is 0; the others are within 2 units in the last place. dst may be x.
func ExpSum[T Float](dst, x []T, scale, shift T) T {
	dst = dst[:len(x)]
	if hasVectorAsm[T]() {
		return T(expSum32(useAVX512(), len(x), ptr32(dst), ptr32(x), float32(scale), float32(shift)))
	}
	var sum T
	for i, v := range x {
		e := exp(v*scale - shift)
		dst[i] = e
		sum += e
	}
	return sum
}

// Sigmoid sets dst[i] = 1/(1+exp(-x[i])). dst may be x.
func Sigmoid[T Float](dst, x []T) {
	dst = dst[:len(x)]
	if hasVectorAsm[T]() {
		sigmoid32(useAVX512(), len(x), ptr32(dst), ptr32(x))
		return
	}
	for i, v := range x {
		dst[i] = 1 / (1 + exp(-v))
	}
}

// SiLU sets dst[i] = x[i]*sigmoid(x[i]). dst may be x.
func SiLU[T Float](dst, x []T) {
	dst = dst[:len(x)]
	if hasVectorAsm[T]() {
		silu32(useAVX512(), len(x), ptr32(dst), ptr32(x))
		return
	}
	for i, v := range x {
		dst[i] = v * (1 / (1 + exp(-v)))
	}
}

// SiLUGrad sets dst[i] = dy[i]*s*(1 + x[i]*(1-s)) with s = sigmoid(x[i]). dst may be x or dy.
func SiLUGrad[T Float](dst, x, dy []T) {
	dst, dy = dst[:len(x)], dy[:len(x)]
	if hasVectorAsm[T]() {
		siluGrad32(useAVX512(), len(x), ptr32(dst), ptr32(x), ptr32(dy))
		return
	}
	for i, v := range x {
		s := 1 / (1 + exp(-v))
		dst[i] = dy[i] * s * (1 + v*(1-s))
	}
}

// exp returns exp(x), in float32 with the bits of exp32.
func exp[T Float](x T) T {
	if isFloat32[T]() {
		return T(exp32(float32(x)))
	}
	return T(math.Exp(float64(x)))
}

// exp32 returns exp(x) by the method of the assembly: x = n ln 2 + r with |r| <= ln(2)/2, exp(r) by the polynomial of
// Cephes' expf, times 2^n. A result below the smallest normal number is 0.
func exp32(x float32) float32 {
	const (
		low     = -87.33654 // about ln(2^-126): below it the result is no normal number
		high    = 89        // above ln of the largest float32: the result is +Inf
		log2e   = 1.44269504088896341
		ln2High = 0.693359375 // has 9 bits, so that n*ln2High is exact
		ln2Low  = -2.12194440e-4
		round   = 3 << 22 // adding and subtracting it rounds to an integer: a float32 this large has no fraction
	)
	switch {
	case x != x:
		return x
	case x < low:
		return 0
	case x > high:
		x = high
	}
	n := float32(x*log2e+round) - round
	r := float32(x-float32(n*ln2High)) - float32(n*ln2Low)
	p := float32(1.9875691500e-4)
	p = p*r + 1.3981999507e-3
	p = p*r + 8.3334519073e-3
	p = p*r + 4.1665795894e-2
	p = p*r + 1.6666665459e-1
	p = p*r + 5.0000001201e-1
	p = p*(r*r) + (r + 1)
	// 2^n is multiplied in two factors: n may be 128, and 2^128 is no float32.
	h := int32(n) >> 1
	return p * pow2(h) * pow2(int32(n)-h)
}

// pow2 returns 2^n for n in [-126, 127].
func pow2(n int32) float32 { return math.Float32frombits(uint32(n+127) << 23) }
