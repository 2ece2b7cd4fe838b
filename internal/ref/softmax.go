package ref

// Softmax returns the softmax over the last axis.
func Softmax(x *Tensor) *Tensor {
	y := x.Clone()
	rows(y, y, func(row, _ []float64) { softmax(row, 1) })
	return y
}

// SoftmaxGrad returns dx from dy and from the result y: y (dy - sum(y dy)).
func SoftmaxGrad(y, dy *Tensor) *Tensor {
	dx := dy.Clone()
	rows(y, dx, func(y, dx []float64) {
		sum := dot(y, dx)
		for i := range dx {
			dx[i] = y[i] * (dx[i] - sum)
		}
	})
	return dx
}

// LogSumExp returns the log of the sum of the exponentials of each row: x [...,V] -> [...].
func LogSumExp(x *Tensor) *Tensor {
	y, lse := x.Clone(), New(x.Shape[:len(x.Shape)-1]...)
	for i := range lse.Data {
		lse.Data[i] = softmax(y.Data[i*x.Last():(i+1)*x.Last()], 1)
	}
	return lse
}
