package ref

import "math"

// RoPE returns the rotary embedding of x [B,S,H,D], D even: the pair (2i, 2i+1) of the token at position start + t
// turns by the angle (start + t) base^(-2i/D), in every head.
func RoPE(x *Tensor, base float64, start int) *Tensor { return rotate(x, base, start, 1) }

// RoPEGrad returns dx from dy: the rotation by the opposite angle.
func RoPEGrad(dy *Tensor, base float64, start int) *Tensor { return rotate(dy, base, start, -1) }

func rotate(x *Tensor, base float64, start int, sign float64) *Tensor {
	D := x.Shape[3]
	y := like(x)
	for t := range x.Shape[1] {
		for i := 0; i < D; i += 2 {
			angle := float64(start+t) * math.Pow(base, -float64(i)/float64(D))
			c, s := math.Cos(angle), sign*math.Sin(angle)
			for b := range x.Shape[0] {
				for h := range x.Shape[2] {
					in, out := x.Row(b, t, h), y.Row(b, t, h)
					out[i] = in[i]*c - in[i+1]*s
					out[i+1] = in[i]*s + in[i+1]*c
				}
			}
		}
	}
	return y
}

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
