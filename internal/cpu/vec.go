package cpu

import (
	"math"
	"unsafe"
)

// All functions of this package that take several slices take their length from the first of them named x or p (w for
// AdamW); the others must be at least as long. A result may be written over an operand, element by element; partial
// overlap is not allowed. float32 runs in assembly where the processor has it.

// Max returns the largest element of x, -Inf for none, NaN if there is one.
func Max[T Float](x []T) T { return maxAt(active, x) }

func maxAt[T Float](l level, x []T) T {
	if fast[T](l) {
		return T(max32(l, len(x), ptr[float32](x)))
	}
	m := T(math.Inf(-1))
	for _, v := range x {
		m = max(m, v)
	}
	return m
}

// Scale sets x[i] *= a.
func Scale[T Float](x []T, a T) { scaleAt(active, x, a) }

func scaleAt[T Float](l level, x []T, a T) {
	if fast[T](l) {
		scale32(l, len(x), ptr[float32](x), float32(a))
		return
	}
	for i := range x {
		x[i] *= a
	}
}

// Dot returns the sum of x[i]*y[i], added in a fixed order.
func Dot[T Float](x, y []T) T { return dotAt(active, x, y) }

func dotAt[T Float](l level, x, y []T) T {
	y = y[:len(x)]
	if fast[T](l) {
		return T(dot32(l, len(x), ptr[float32](x), ptr[float32](y)))
	}
	var sum T
	for i, v := range x {
		sum += v * y[i]
	}
	return sum
}

// Axpy sets y[i] += a*x[i].
func Axpy[T Float](a T, x, y []T) { axpyAt(active, a, x, y) }

func axpyAt[T Float](l level, a T, x, y []T) {
	y = y[:len(x)]
	if fast[T](l) {
		axpy32(l, len(x), ptr[float32](x), ptr[float32](y), float32(a))
		return
	}
	for i, v := range x {
		y[i] += a * v
	}
}

// Add sets dst[i] = x[i] + y[i]. dst may be x or y.
func Add[T Float](dst, x, y []T) { addAt(active, dst, x, y) }

func addAt[T Float](l level, dst, x, y []T) {
	dst, y = dst[:len(x)], y[:len(x)]
	if fast[T](l) {
		add32(l, len(x), ptr[float32](dst), ptr[float32](x), ptr[float32](y))
		return
	}
	for i, v := range x {
		dst[i] = v + y[i]
	}
}

// MulScale sets dst[i] = x[i]*w[i]*a. dst may be x.
func MulScale[T Float](dst, x, w []T, a T) { mulScaleAt(active, dst, x, w, a) }

func mulScaleAt[T Float](l level, dst, x, w []T, a T) {
	dst, w = dst[:len(x)], w[:len(x)]
	if fast[T](l) {
		mulScale32(l, len(x), ptr[float32](dst), ptr[float32](x), ptr[float32](w), float32(a))
		return
	}
	for i, v := range x {
		dst[i] = v * w[i] * a
	}
}

// SoftmaxGrad sets dst[i] = p[i]*(dp[i]-delta)*scale: the gradient of the logits of one row. dst may be p or dp.
func SoftmaxGrad[T Float](dst, p, dp []T, delta, scale T) {
	softmaxGradAt(active, dst, p, dp, delta, scale)
}

func softmaxGradAt[T Float](l level, dst, p, dp []T, delta, scale T) {
	dst, dp = dst[:len(p)], dp[:len(p)]
	if fast[T](l) {
		softmaxGrad32(l, len(p), ptr[float32](dst), ptr[float32](p), ptr[float32](dp), float32(delta), float32(scale))
		return
	}
	for i, v := range p {
		dst[i] = v * (dp[i] - delta) * scale
	}
}

// SumSquares returns the sum of x[i]², added in float64 in a fixed order.
func SumSquares[T Float](x []T) float64 { return sumSquaresAt(active, x) }

func sumSquaresAt[T Float](l level, x []T) float64 {
	if fast[T](l) {
		return sumSquares32(l, len(x), ptr[float32](x))
	}
	var sum float64
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return sum
}

// AdamW updates one run of parameters w in place with gradient g and moments m and v:
//
//	g' = g*clip; m = beta1*m + (1-beta1)*g'; v = beta2*v + (1-beta2)*g'²
//	w -= lr*(m*c1/(sqrt(v*c2)+eps) + decay*w)
//
// c1 and c2 are the bias corrections 1/(1-beta1^t) and 1/(1-beta2^t).
func AdamW[T Float](w, g, m, v []T, p AdamWStep[T]) { adamWAt(active, w, g, m, v, p) }

func adamWAt[T Float](l level, w, g, m, v []T, p AdamWStep[T]) {
	g, m, v = g[:len(w)], m[:len(w)], v[:len(w)]
	if fast[T](l) {
		adamW32(l, len(w), ptr[float32](w), ptr[float32](g), ptr[float32](m), ptr[float32](v),
			float32(p.LR), float32(p.Beta1), float32(p.Beta2), float32(p.Eps), float32(p.Decay), float32(p.Clip), float32(p.C1), float32(p.C2))
		return
	}
	for i := range w {
		d := g[i] * p.Clip
		m[i] = p.Beta1*m[i] + (1-p.Beta1)*d
		v[i] = p.Beta2*v[i] + (1-p.Beta2)*d*d
		w[i] -= p.LR * (m[i]*p.C1/(T(math.Sqrt(float64(v[i]*p.C2)))+p.Eps) + p.Decay*w[i])
	}
}

// AdamWStep holds the numbers of one step of AdamW.
type AdamWStep[T Float] struct{ LR, Beta1, Beta2, Eps, Decay, Clip, C1, C2 T }

// fast reports whether there is assembly for vectors of T at level l.
func fast[T Float](l level) bool { return l > generic && single[T]() }

// single reports whether T is float32.
func single[T Float]() bool {
	var z T
	return unsafe.Sizeof(z) == 4
}

// ptr returns the memory of s as that of elements of type To, whose size is that of From.
func ptr[To, From Float](s []From) *To { return (*To)(unsafe.Pointer(unsafe.SliceData(s))) }
