package cpu

import (
	"math"
)

// The vector functions of this package take their length from the slice named x or p (w for AdamW); their other slices
// must be at least as long. A result may have the same memory as an operand, but may not overlap it in part. float32
// runs in assembly if the processor has the instructions: Max calls max32, and so on.

// Max returns the largest element of x, -Inf if x is empty, NaN if an element is NaN.
func Max[T Float](x []T) T {
	if hasVectorAsm[T]() {
		return T(max32(useAVX512(), len(x), ptr32(x)))
	}
	m := T(math.Inf(-1))
	for _, v := range x {
		m = max(m, v)
	}
	return m
}

// Scale sets x[i] *= a.
func Scale[T Float](x []T, a T) {
	if hasVectorAsm[T]() {
		scale32(useAVX512(), len(x), ptr32(x), float32(a))
		return
	}
	for i := range x {
		x[i] *= a
	}
}

// Dot returns the sum of x[i]*y[i], added in a fixed order.
func Dot[T Float](x, y []T) T {
	y = y[:len(x)]
	if hasVectorAsm[T]() {
		return T(dot32(useAVX512(), len(x), ptr32(x), ptr32(y)))
	}
	var sum T
	for i, v := range x {
		sum += v * y[i]
	}
	return sum
}

// dotRows sets y[j] to the dot product of x and row j of rows, which is [len(y),len(x)]. The bits of y[j] depend on
// len(y) and j, but not on the other rows.
func dotRows[T Float](x, rows, y []T) {
	k, j := len(x), 0
	rows = rows[:len(y)*k]
	if n := len(y) &^ 3; n > 0 && k > 0 && hasVectorAsm[T]() {
		dotRows32(useAVX512(), k, n, ptr32(x), ptr32(rows), ptr32(y))
		j = n
	}
	for ; j < len(y); j++ {
		y[j] = Dot(x, rows[j*k:])
	}
}

// Axpy sets y[i] += a*x[i].
func Axpy[T Float](a T, x, y []T) {
	y = y[:len(x)]
	if hasVectorAsm[T]() {
		axpy32(useAVX512(), len(x), ptr32(x), ptr32(y), float32(a))
		return
	}
	for i, v := range x {
		y[i] += a * v
	}
}

// Add sets dst[i] = x[i] + y[i]. dst may be x or y.
func Add[T Float](dst, x, y []T) {
	dst, y = dst[:len(x)], y[:len(x)]
	if hasVectorAsm[T]() {
		add32(useAVX512(), len(x), ptr32(dst), ptr32(x), ptr32(y))
		return
	}
	for i, v := range x {
		dst[i] = v + y[i]
	}
}

// MulScale sets dst[i] = x[i]*w[i]*a. dst may be x.
func MulScale[T Float](dst, x, w []T, a T) { SoftmaxGrad(dst, x, w, 0, a) }

// SoftmaxGrad sets dst[i] = p[i]*(dp[i]-delta)*scale: the gradient with respect to x of p = softmax(scale*x), if dp is
// the gradient with respect to p and delta the sum of p[i]*dp[i] over the whole row. dst may be p or dp.
func SoftmaxGrad[T Float](dst, p, dp []T, delta, scale T) {
	dst, dp = dst[:len(p)], dp[:len(p)]
	if hasVectorAsm[T]() {
		softmaxGrad32(useAVX512(), len(p), ptr32(dst), ptr32(p), ptr32(dp), float32(delta), float32(scale))
		return
	}
	for i, v := range p {
		dst[i] = v * (dp[i] - delta) * scale
	}
}

// SumSquares returns the sum of x[i]², added in float64 in a fixed order.
func SumSquares[T Float](x []T) float64 {
	if hasVectorAsm[T]() {
		return sumSquares32(useAVX512(), len(x), ptr32(x))
	}
	var sum float64
	for _, v := range x {
		sum += float64(float64(v) * float64(v)) // rounded, so that no processor fuses it with the sum
	}
	return sum
}

// AdamW updates the parameters w and their moments m and v in place, from the gradient g:
//
//	g' = g*clip; m = beta1*m + (1-beta1)*g'; v = beta2*v + (1-beta2)*g'²
//	w -= lr*(m*c1/(sqrt(v*c2)+eps) + decay*w)
//
// c1 and c2 are the bias corrections 1/(1-beta1^t) and 1/(1-beta2^t).
func AdamW[T Float](w, g, m, v []T, p AdamWStep[T]) {
	g, m, v = g[:len(w)], m[:len(w)], v[:len(w)]
	if hasVectorAsm[T]() {
		adamW32(useAVX512(), len(w), ptr32(w), ptr32(g), ptr32(m), ptr32(v),
			float32(p.LR), float32(p.Beta1), float32(p.Beta2), float32(p.Eps), float32(p.Decay), float32(p.Clip),
			float32(p.C1), float32(p.C2))
		return
	}
	for i := range w {
		d := g[i] * p.Clip
		m[i] = p.Beta1*m[i] + (1-p.Beta1)*d
		v[i] = p.Beta2*v[i] + (1-p.Beta2)*d*d
		w[i] -= p.LR * (m[i]*p.C1/(T(math.Sqrt(float64(v[i]*p.C2)))+p.Eps) + p.Decay*w[i])
	}
}

// AdamWStep holds the numbers of one step of AdamW. The doc comment of AdamW has its equations; Clip is the factor for
// the gradient.
type AdamWStep[T Float] struct{ LR, Beta1, Beta2, Eps, Decay, Clip, C1, C2 T }
