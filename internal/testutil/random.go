package testutil

import "math/rand/v2"

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
