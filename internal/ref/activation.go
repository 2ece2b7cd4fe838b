package ref

import "math"

func sigmoid(x float64) float64 {
	if x < 0 { // keep the exponential below 1
		e := math.Exp(x)
		return e / (1 + e)
	}
	return 1 / (1 + math.Exp(-x))
}

// Sigmoid returns 1 / (1 + exp(-x)), elementwise.
func Sigmoid(x *Tensor) *Tensor {
	return zip(x, x, func(x, _ float64) float64 { return sigmoid(x) })
}

// SigmoidGrad returns dx from dy and from the result y: y (1 - y) dy.
func SigmoidGrad(y, dy *Tensor) *Tensor {
	return zip(y, dy, func(y, dy float64) float64 { return y * (1 - y) * dy })
}

// SiLU returns x sigmoid(x), elementwise.
func SiLU(x *Tensor) *Tensor {
	return zip(x, x, func(x, _ float64) float64 { return x * sigmoid(x) })
}

// SiLUGrad returns dx from dy and from the argument x: s (1 + x (1 - s)) dy with s = sigmoid(x).
func SiLUGrad(x, dy *Tensor) *Tensor {
	return zip(x, dy, func(x, dy float64) float64 {
		s := sigmoid(x)
		return s * (1 + x*(1-s)) * dy
	})
}
