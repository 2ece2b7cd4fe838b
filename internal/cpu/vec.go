package cpu

import "math"

// Max returns the largest element of x, -Inf for none.
func Max[T Float](x []T) T {
	m := T(math.Inf(-1))
	for _, v := range x {
		m = max(m, v)
	}
	return m
}

// ExpSum sets dst[i] = exp(x[i]*scale - shift) and returns the sum of dst, added in a fixed order. An x of -Inf gives 0.
// dst may be x.
func ExpSum[T Float](dst, x []T, scale, shift T) T {
	var sum T
	for i, v := range x {
		dst[i] = T(math.Exp(float64(v*scale - shift)))
		sum += dst[i]
	}
	return sum
}

// Scale sets x[i] *= a.
func Scale[T Float](x []T, a T) {
	for i := range x {
		x[i] *= a
	}
}

// Dot returns the sum of x[i]*y[i], added in a fixed order.
func Dot[T Float](x, y []T) T {
	var sum T
	for i, v := range x {
		sum += v * y[i]
	}
	return sum
}

// Axpy sets y[i] += a*x[i].
func Axpy[T Float](a T, x, y []T) {
	for i, v := range x {
		y[i] += a * v
	}
}

// Add sets dst[i] = x[i] + y[i]. dst may be x or y.
func Add[T Float](dst, x, y []T) {
	for i, v := range x {
		dst[i] = v + y[i]
	}
}

// MulScale sets dst[i] = x[i]*w[i]*a. dst may be x.
func MulScale[T Float](dst, x, w []T, a T) {
	for i, v := range x {
		dst[i] = v * w[i] * a
	}
}

// SoftmaxGrad sets dst[i] = p[i]*(dp[i]-delta)*scale: the gradient of the logits of one row. dst may be p or dp.
func SoftmaxGrad[T Float](dst, p, dp []T, delta, scale T) {
	for i, v := range p {
		dst[i] = v * (dp[i] - delta) * scale
	}
}

// Sigmoid sets dst[i] = 1/(1+exp(-x[i])). dst may be x.
func Sigmoid[T Float](dst, x []T) {
	for i, v := range x {
		dst[i] = T(1 / (1 + math.Exp(-float64(v))))
	}
}

// SiLU sets dst[i] = x[i]*sigmoid(x[i]). dst may be x.
func SiLU[T Float](dst, x []T) {
	for i, v := range x {
		dst[i] = v * T(1/(1+math.Exp(-float64(v))))
	}
}

// SiLUGrad sets dst[i] = dy[i]*s*(1 + x[i]*(1-s)) with s = sigmoid(x[i]). dst may be x or dy.
func SiLUGrad[T Float](dst, x, dy []T) {
	for i, v := range x {
		s := T(1 / (1 + math.Exp(-float64(v))))
		dst[i] = dy[i] * s * (1 + v*(1-s))
	}
}

// AdamW updates one run of parameters w in place with gradient g and moments m and v:
//
//	g' = g*clip; m = beta1*m + (1-beta1)*g'; v = beta2*v + (1-beta2)*g'²
//	w -= lr*(m*c1/(sqrt(v*c2)+eps) + decay*w)
//
// c1 and c2 are the bias corrections 1/(1-beta1^t) and 1/(1-beta2^t).
func AdamW[T Float](w, g, m, v []T, p AdamWStep[T]) {
	for i := range w {
		d := g[i] * p.Clip
		m[i] = p.Beta1*m[i] + (1-p.Beta1)*d
		v[i] = p.Beta2*v[i] + (1-p.Beta2)*d*d
		w[i] -= p.LR * (m[i]*p.C1/(T(math.Sqrt(float64(v[i]*p.C2)))+p.Eps) + p.Decay*w[i])
	}
}

// AdamWStep holds the numbers of one step of AdamW.
type AdamWStep[T Float] struct{ LR, Beta1, Beta2, Eps, Decay, Clip, C1, C2 T }
