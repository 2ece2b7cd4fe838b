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

// CrossEntropy returns the mean of -log softmax(logits)[target] in nats over the targets that are not negative. Negative
// targets (-1) are ignored. The result is 0 if all are negative. logits [...,V] has one row for each target.
func CrossEntropy(logits *Tensor, targets []int32) float64 {
	var sum float64
	lse := LogSumExp(logits)
	for i, y := range targets {
		if y >= 0 {
			sum += lse.Data[i] - logits.Data[i*logits.Last()+int(y)]
		}
	}
	return sum / float64(max(1, count(targets)))
}

// CrossEntropyGrad returns the gradient of CrossEntropy with respect to logits: (softmax - onehot(target)) / count in the rows of
// targets that are not negative, 0 in the others.
func CrossEntropyGrad(logits *Tensor, targets []int32) *Tensor {
	p, d, V, n := Softmax(logits), like(logits), logits.Last(), count(targets)
	for i, y := range targets {
		if y >= 0 {
			p.Data[i*V+int(y)]--
			axpy(1/float64(n), p.Data[i*V:(i+1)*V], d.Data[i*V:(i+1)*V])
		}
	}
	return d
}

// count returns the number of targets that are not negative.
func count(targets []int32) (n int) {
	for _, y := range targets {
		if y >= 0 {
			n++
		}
	}
	return n
}
