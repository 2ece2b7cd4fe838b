package testutil

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// source returns a generator whose numbers depend only on seed.
func source(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)) }

// Normal returns n samples of the standard normal distribution, which depend only on seed and n.
func Normal(seed uint64, n int) []float64 {
	r, out := source(seed), make([]float64, n)
	for i := range out {
		out[i] = r.NormFloat64()
	}
	return out
}

// Uniform returns n samples of the uniform distribution over [lo, hi), which depend only on the arguments.
func Uniform(seed uint64, n int, lo, hi float64) []float64 {
	r, out := source(seed), make([]float64, n)
	for i := range out {
		out[i] = lo + (hi-lo)*r.Float64()
	}
	return out
}

// Tokens returns n token ids, uniform over [0, vocab), which depend only on the arguments.
func Tokens(seed uint64, n, vocab int) []int32 {
	r, out := source(seed), make([]int32, n)
	for i := range out {
		out[i] = r.Int32N(int32(vocab))
	}
	return out
}

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

// Floats returns a copy, in float64, of the numbers in data, which the method Data of a Gorgonia value has returned.
// The test fails if data does not hold numbers.
func Floats(t testing.TB, data any) []float64 {
	t.Helper()
	switch d := data.(type) {
	case float32:
		return []float64{float64(d)}
	case float64:
		return []float64{d}
	case []float32:
		return Convert[float64](d)
	case []float64:
		return slices.Clone(d)
	case []int32:
		return Convert[float64](d)
	case int:
		return []float64{float64(d)}
	case bool:
		return Floats(t, []bool{d})
	case []bool:
		out := make([]float64, len(d))
		for i, v := range d {
			if v {
				out[i] = 1
			}
		}
		return out
	case error:
		t.Fatal(d)
	}
	t.Fatalf("testutil: no numbers but a %T", data)
	return nil
}

// Convert returns x rounded to a floating-point type.
func Convert[To float32 | float64, From float32 | float64 | int32](x []From) []To {
	out := make([]To, len(x))
	for i, v := range x {
		out[i] = To(v)
	}
	return out
}
