package testutil

import (
	"math"
	"testing"
)

// noise is the magnitude below which a whole wanted array is what rounding leaves of an exact zero (the gradient of a
// softmax over one key): such an array is compared absolutely, on the scale of 1.
const noise = 1e-12

// RelErr returns the largest difference over the largest magnitude, max|got-want| / max|want|: one scale for the whole
// array, since a sum of large terms that cancel has no more relative digits than its terms. -Inf where -Inf is wanted
// is no difference and no part of the scale; an array of zeros, or of what rounding leaves of them, has the scale 1. A NaN in either, any other infinity and unequal lengths give +Inf; two
// empty arrays give 0.
func RelErr(got, want []float64) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	w := newWorst(want)
	for i := range want {
		w.see(i, got[i], want[i])
	}
	return w.err
}

// worst finds the worst element of a comparison.
type worst struct {
	scale float64 // of the wanted array
	err   float64 // largest relative error so far
	at    int     // its index
}

func newWorst(want []float64) worst {
	w := worst{}
	for _, x := range want {
		if a := math.Abs(x); a > w.scale && !math.IsInf(a, 0) {
			w.scale = a
		}
	}
	if w.scale < noise {
		w.scale = 1
	}
	return w
}

func (w *worst) see(i int, got, want float64) {
	if e := difference(got, want) / w.scale; e > w.err {
		w.err, w.at = e, i
	}
}

// difference is |got-want|, with the rules of RelErr for what is not finite.
func difference(got, want float64) float64 {
	switch {
	case math.IsInf(got, -1) && math.IsInf(want, -1):
		return 0
	case math.IsInf(got, 0) || math.IsInf(want, 0) || math.IsNaN(got) || math.IsNaN(want):
		return math.Inf(1)
	}
	return math.Abs(got - want)
}

// Within checks that RelErr of got and want is at most tol, and marks the test as failed if it is not: with the first
// NaN, before any tolerance is looked at, or else with the worst element. what names the array in the message. It
// reports whether the check passed.
func Within[T float32 | float64](t testing.TB, what string, got []T, want []float64, tol float64) bool {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d elements, want %d", what, len(got), len(want))
		return false
	}
	for i := range want {
		if g := float64(got[i]); math.IsNaN(g) || math.IsNaN(want[i]) {
			t.Errorf("%s: NaN at %d of %d: got %v, want %v", what, i, len(want), g, want[i])
			return false
		}
	}
	w := newWorst(want)
	for i := range want {
		w.see(i, float64(got[i]), want[i])
	}
	if !(w.err <= tol) {
		t.Errorf("%s: relative error %.3g > %.3g, worst at %d of %d: got %v, want %v (largest wanted magnitude %.3g)",
			what, w.err, tol, w.at, len(want), got[w.at], want[w.at], w.scale)
		return false
	}
	return true
}

// CentralDifference returns the gradient of f at x by central differences of step h, (f(x+h) - f(x-h)) / 2h for each
// element: two calls of f an element, error O(h²) + O(eps/h); h near 1e-5 suits functions of order 1. x is not changed;
// f sees a copy and must not keep it.
func CentralDifference(f func(x []float64) float64, x []float64, h float64) []float64 {
	at := append([]float64(nil), x...)
	grad := make([]float64, len(x))
	for i, v := range x {
		up, down := v+h, v-h // what is stored, rounding included
		at[i] = up
		fu := f(at)
		at[i] = down
		fd := f(at)
		at[i] = v
		grad[i] = (fu - fd) / (up - down)
	}
	return grad
}
