package testutil

import "math"

// BFloat16 returns the bits of v as bfloat16, rounded to float32 and then to nearest even.
func BFloat16(v float64) uint16 {
	b := math.Float32bits(float32(v))
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// FromBFloat16 returns the number whose bfloat16 bits are b.
func FromBFloat16(b uint16) float64 { return float64(math.Float32frombits(uint32(b) << 16)) }

// Float16 returns the bits of v as IEEE half precision, rounded to nearest even.
func Float16(v float64) uint16 {
	sign := uint16(math.Float64bits(v) >> 48 & 0x8000)
	switch v = math.Abs(v); {
	case math.IsNaN(v):
		return 0x7e00
	case v >= 65520:
		return sign | 0x7c00
	case v < 0x1p-14:
		return sign | uint16(math.RoundToEven(v*0x1p24))
	}
	frac, exp := math.Frexp(v) // v = frac 2^exp, frac in [0.5,1)
	return sign | (uint16(exp+14)<<10 + uint16(math.RoundToEven(frac*2048)) - 1024)
}

// FromFloat16 returns the number whose IEEE half-precision bits are b.
func FromFloat16(b uint16) float64 {
	v := float64(math.Float32frombits(uint32(b&0x7fff)<<13)) * 0x1p112 // the exponent's bias is 15, that of float32 is 127
	switch {
	case b&0x7fff > 0x7c00:
		return math.NaN()
	case b&0x7fff == 0x7c00:
		v = math.Inf(1)
	}
	return math.Copysign(v, float64(int16(b)))
}
