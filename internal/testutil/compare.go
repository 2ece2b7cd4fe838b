package testutil

import (
	"math"
	"testing"

	"gonum.org/v1/gonum/diff/fd"
)

// noise is a magnitude. If all wanted numbers are below it, they are rounding errors of an exact zero, as in the
// gradient of a softmax over one key. Such an array is compared absolutely, on the scale of 1.
const noise = 1e-12

// RelErr returns the largest difference divided by the largest magnitude, max|got-want| / max|want|. The whole array
// has one scale, since rounding errors of large terms stay when the terms cancel. -Inf where -Inf is wanted is no
// difference and does not count for the scale. An array of zeros, or of rounding errors of zeros, has the scale 1. A
// NaN in either array, any other infinity, and unequal lengths give +Inf. Two empty arrays give 0.
func RelErr(got, want []float64) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	err, _, _ := worst(got, want)
	return err
}

// worst returns the largest relative error, its index, and the scale.
func worst[T float32 | float64](got []T, want []float64) (err float64, at int, scale float64) {
	for _, x := range want {
		if a := math.Abs(x); !math.IsInf(a, 0) && a > scale {
			scale = a
		}
	}
	if scale < noise {
		scale = 1
	}
	for i, w := range want {
		g := float64(got[i])
		e := math.Abs(g-w) / scale
		if math.IsInf(g, -1) && math.IsInf(w, -1) {
			e = 0
		} else if math.IsNaN(e) || math.IsInf(g, 0) || math.IsInf(w, 0) {
			e = math.Inf(1)
		}
		if e > err {
			err, at = e, i
		}
	}
	return err, at, scale
}

// Within checks that RelErr of got and want is at most tol, and reports whether it is. If not, it marks the test as
// failed and names the worst element. NaN, an unexpected infinity and unequal lengths fail at any tol. what is the
// array's name in the message.
func Within[T float32 | float64](t testing.TB, what string, got []T, want []float64, tol float64) bool {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d elements, want %d", what, len(got), len(want))
		return false
	}
	err, at, scale := worst(got, want)
	if err <= tol && !math.IsInf(err, 1) {
		return true
	}
	t.Errorf("%s: relative error %.3g > %.3g, worst at %d of %d: got %v, want %v (largest wanted magnitude %.3g)",
		what, err, tol, at, len(want), got[at], want[at], scale)
	return false
}

// CentralDifference returns the gradient of f at x by central differences of step h, (f(x+h) - f(x-h)) / 2h for each
// element. It calls f twice for each element. The error is O(h²) + O(eps/h); h near 1e-5 suits functions of order 1. x
// is not changed. f gets a copy, which it must not keep.
func CentralDifference(f func(x []float64) float64, x []float64, h float64) []float64 {
	return fd.Gradient(nil, f, x, &fd.Settings{Formula: fd.Central, Step: h})
}
