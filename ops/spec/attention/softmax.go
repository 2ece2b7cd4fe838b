package attention

import (
	"math"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
)

// OnlineSoftmax is the state of an online softmax (arXiv 1805.02867) for the rows of a tile, which see their keys part
// by part.
type OnlineSoftmax[T cpu.Float] struct {
	Max, Sum []T // of each row: the largest score so far, unscaled, and the sum of exp((score - max)*scale)
	Scale    T
}

// Start resets the state: no row has seen a key.
func (s OnlineSoftmax[T]) Start() {
	for r := range s.Max {
		s.Max[r], s.Sum[r] = T(math.Inf(-1)), 0
	}
}

// Add adds the scores x[lo:hi] to the state of row r. It replaces these scores by their exponentials and the rest of x
// by zeros. acc is what the row has accumulated so far; add scales it to the new maximum. A score of -Inf counts as not
// seen.
func (s OnlineSoftmax[T]) Add(r int, x []T, lo, hi int, acc []T) {
	clear(x[:lo])
	clear(x[hi:])
	if x = x[lo:hi]; len(x) == 0 {
		return
	}
	m := cpu.Max(x)
	if math.IsInf(float64(m), -1) { // -Inf - -Inf is NaN
		clear(x)
		return
	}
	if m > s.Max[r] {
		if s.Sum[r] != 0 {
			a := T(math.Exp(float64((s.Max[r] - m) * s.Scale)))
			s.Sum[r] *= a
			cpu.Scale(acc, a)
		}
		s.Max[r] = m
	}
	s.Sum[r] += ExpScores(x, s.Max[r], s.Scale, 0)
}

// Finish divides acc, what row r has accumulated, by the row's sum, and returns the row's LSE. A row that sees no key
// gets zeros and an LSE of -Inf.
func (s OnlineSoftmax[T]) Finish(r int, acc []T) T {
	if s.Sum[r] == 0 {
		clear(acc)
		return T(math.Inf(-1))
	}
	cpu.Scale(acc, 1/s.Sum[r])
	return s.Max[r]*s.Scale + T(math.Log(float64(s.Sum[r])))
}

// ExpScores replaces the scores x by exp((x - top)*scale - logSum) and returns the sum of the results. It subtracts a
// large top before the scaling.
func ExpScores[T cpu.Float](x []T, top, scale, logSum T) T {
	if norm.IsLarge(top * scale) {
		for i := range x {
			x[i] -= top
		}
		top = 0
	}
	return cpu.ExpSum(x, x, scale, top*scale+logSum)
}

// softmaxGrad replaces the scores s[lo:hi] of one row by the probabilities p, and dp[lo:hi] = do·v by the gradients of
// the unscaled scores, p*(dp - delta)*scale. It sets the rest of s and dp to zero. row holds the row's numbers in
// rowStats.
func softmaxGrad[T cpu.Float](s, dp []T, lo, hi int, row []T, scale T) {
	clear(s[:lo])
	clear(s[hi:])
	clear(dp[:lo])
	clear(dp[hi:])
	if s, dp = s[lo:hi], dp[lo:hi]; len(s) > 0 {
		ExpScores(s, row[rowMax], scale, row[rowLogSum])
		cpu.SoftmaxGrad(dp, s, dp, row[rowDelta], scale)
	}
}
