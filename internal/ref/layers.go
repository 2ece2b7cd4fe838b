package ref

import "math"

// Linear returns x Wᵀ + bias: x [...,in], w [out,in], bias [out] or nil -> [...,out].
func Linear(x, w, bias *Tensor) *Tensor {
	in, out := w.Shape[1], w.Shape[0]
	shape := append([]int(nil), x.Shape...)
	shape[len(shape)-1] = out
	y := New(shape...)
	for i := range size(shape) / out {
		row, dst := x.Data[i*in:(i+1)*in], y.Data[i*out:(i+1)*out]
		for j := range dst {
			dst[j] = dot(row, w.Row(j))
		}
		if bias != nil {
			axpy(1, bias.Data, dst)
		}
	}
	return y
}

// LinearGrad returns the gradients of Linear with respect to x, w and bias from dy [...,out].
func LinearGrad(x, w, dy *Tensor) (dx, dw, dbias *Tensor) {
	in, out := w.Shape[1], w.Shape[0]
	dx, dw, dbias = like(x), like(w), New(out)
	for i := range len(dy.Data) / out {
		row, drow, dst := x.Data[i*in:(i+1)*in], dx.Data[i*in:(i+1)*in], dy.Data[i*out:(i+1)*out]
		for j, g := range dst {
			axpy(g, w.Row(j), drow)
			axpy(g, row, dw.Row(j))
		}
		axpy(1, dst, dbias.Data)
	}
	return dx, dw, dbias
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

// SwiGLU returns SiLU(gate)*up, elementwise.
func SwiGLU(gate, up *Tensor) *Tensor {
	return zip(SiLU(gate), up, func(a, b float64) float64 { return a * b })
}

// SwiGLUGrad returns dgate and dup from dy.
func SwiGLUGrad(gate, up, dy *Tensor) (dgate, dup *Tensor) {
	product := func(a, b float64) float64 { return a * b }
	return SiLUGrad(gate, zip(up, dy, product)), zip(SiLU(gate), dy, product)
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

// GatedSum returns the sum of gate*output over the branches: gates [B,S,Hq,n], each of the n outputs
// [B,S,Hq,Dv] -> [B,S,Hq,Dv]. NSA has three branches, in the order compressed, selected, window.
func GatedSum(gates *Tensor, outputs ...*Tensor) *Tensor {
	y := like(outputs[0])
	n, dv := gates.Last(), y.Last()
	for i := range len(gates.Data) / n {
		for j, o := range outputs {
			axpy(gates.Data[i*n+j], o.Data[i*dv:(i+1)*dv], y.Data[i*dv:(i+1)*dv])
		}
	}
	return y
}

// GatedSumGrad returns the gradients of GatedSum with respect to the gates and each output from dy [B,S,Hq,Dv].
func GatedSumGrad(gates, dy *Tensor, outputs ...*Tensor) (dgates *Tensor, doutputs []*Tensor) {
	dgates = like(gates)
	n, dv := gates.Last(), dy.Last()
	for j, o := range outputs {
		do := like(o)
		for i := range len(gates.Data) / n {
			row := dy.Data[i*dv : (i+1)*dv]
			axpy(gates.Data[i*n+j], row, do.Data[i*dv:(i+1)*dv])
			dgates.Data[i*n+j] = dot(row, o.Data[i*dv:(i+1)*dv])
		}
		doutputs = append(doutputs, do)
	}
	return dgates, doutputs
}

// Embedding returns the rows of w [V,dim] that ids names: [len(ids),dim].
func Embedding(w *Tensor, ids []int32) *Tensor {
	y := New(len(ids), w.Shape[1])
	for i, id := range ids {
		copy(y.Row(i), w.Row(int(id)))
	}
	return y
}

// EmbeddingGrad returns dw [V,dim] from dy [len(ids),dim]: each row is the sum of dy over the places of its id.
func EmbeddingGrad(dy *Tensor, ids []int32, V int) *Tensor {
	dw := New(V, dy.Last())
	for i, id := range ids {
		axpy(1, dy.Data[i*dy.Last():(i+1)*dy.Last()], dw.Row(int(id)))
	}
	return dw
}

// CrossEntropy returns the mean of -log softmax(logits)[target] in nats over the targets that are not negative.
// Negative targets (-1) are ignored. The result is 0 if all are negative. logits [...,V] has one row for each target.
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

// Losses returns -log softmax(logits)[target] in nats for each target, 0 for a negative one.
func Losses(logits *Tensor, targets []int32) *Tensor {
	lse := LogSumExp(logits)
	width := len(logits.Data) / len(targets)
	for i, t := range targets {
		if t < 0 {
			lse.Data[i] = 0
		} else {
			lse.Data[i] -= logits.Data[i*width+int(t)]
		}
	}
	return lse
}

// CrossEntropyGrad returns the gradient of CrossEntropy with respect to logits: (softmax - onehot(target)) / count in
// the rows of targets that are not negative, 0 in the others.
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
