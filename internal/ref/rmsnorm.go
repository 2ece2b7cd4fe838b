package ref

import (
	"math"
)

// RMSNorm returns x / sqrt(mean(x²) + eps) * w over the last axis: x [...,dim], w [dim].
func RMSNorm(x, w *Tensor, eps float64) *Tensor {
	y := like(x)
	rows(x, y, func(x, y []float64) {
		r := rms(x, eps)
		for i := range y {
			y[i] = x[i] / r * w.Data[i]
		}
	})
	return y
}

// RMSNormGrad returns the gradients of RMSNorm with respect to x and w from dy. If r is the root and u = w dy:
// dx = u/r - x (u·x) / (dim r³), dw = sum over the rows of dy x / r.
func RMSNormGrad(x, w, dy *Tensor, eps float64) (dx, dw *Tensor) {
	dx, dw = dy.Clone(), like(w)
	rows(x, dx, func(x, dx []float64) {
		r := rms(x, eps)
		for i := range dx {
			dw.Data[i] += dx[i] * x[i] / r
			dx[i] *= w.Data[i]
		}
		mean := dot(dx, x) / (float64(len(x)) * r * r)
		for i := range dx {
			dx[i] = (dx[i] - x[i]*mean) / r
		}
	})
	return dx, dw
}

// rms returns sqrt(mean(x²) + eps).
func rms(x []float64, eps float64) float64 { return math.Sqrt(dot(x, x)/float64(len(x)) + eps) }
