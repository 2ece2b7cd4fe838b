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
