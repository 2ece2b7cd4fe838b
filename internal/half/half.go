// Package half converts between float32 and IEEE half precision (binary16).
package half

import "math"

// Overflow is the least magnitude that Round rounds to infinity: half an ulp above the largest number, 65504.
const Overflow = 65520

// Float32 returns the number with these bits, which float32 holds exactly.
func Float32(bits uint16) float32 {
	sign, magnitude := uint32(bits)>>15<<31, uint32(bits)&(1<<15-1)<<13
	b := math.Float32bits(math.Float32frombits(magnitude) * 0x1p112) // the exponents' biases are 15 and 127
	if magnitude >= 31<<23 {                                         // infinities and NaN
		b = 255<<23 | magnitude
	}
	return math.Float32frombits(sign | b)
}

// Round returns the bits of x rounded to nearest even. NaN stays NaN.
func Round(x float32) uint16 {
	b := math.Float32bits(x)
	sign, b := uint16(b>>16&(1<<15)), b&(1<<31-1)
	switch magnitude := math.Float32frombits(b); {
	case x != x:
		return sign | 0x7e00
	case magnitude >= Overflow:
		return sign | 0x7c00
	case magnitude < 0x1p-14: // subnormal: the ulp of numbers in [0.5,1) is 2^-24, like that of the result
		return sign | uint16(math.Float32bits(magnitude+0.5)-math.Float32bits(0.5))
	}
	b -= (127 - 15) << 23
	return sign | uint16((b+0xfff+b>>13&1)>>13)
}
