package ref

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/floats"
)

// Tensor is a dense row-major array of float64.
type Tensor struct {
	Shape []int     // axes, outermost first; an axis may be 0
	Data  []float64 // elements, as many as the product of Shape
}

// New returns a tensor of zeros.
func New(shape ...int) *Tensor {
	return &Tensor{Shape: append([]int(nil), shape...), Data: make([]float64, size(shape))}
}

// From returns a tensor over data, which it shares. It panics when the lengths differ.
func From(data []float64, shape ...int) *Tensor {
	if len(data) != size(shape) {
		panic(fmt.Sprintf("ref: %d elements for shape %v", len(data), shape))
	}
	return &Tensor{Shape: append([]int(nil), shape...), Data: data}
}

func size(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// Row returns the elements below the leading indices idx, as a slice of the tensor's own memory: for x [B,S,H,D],
// x.Row(b, t, h) has D elements.
func (x *Tensor) Row(idx ...int) []float64 {
	off := 0
	for i, v := range idx {
		off = off*x.Shape[i] + v
	}
	n := size(x.Shape[len(idx):])
	return x.Data[off*n : (off+1)*n]
}

// Last returns the size of the last axis.
func (x *Tensor) Last() int { return x.Shape[len(x.Shape)-1] }

// Reshape returns a tensor of another shape over the same memory.
func (x *Tensor) Reshape(shape ...int) *Tensor { return From(x.Data, shape...) }

// Clone returns a copy.
func (x *Tensor) Clone() *Tensor { return From(append([]float64(nil), x.Data...), x.Shape...) }

// Add returns the sum of tensors of one shape.
func Add(x *Tensor, others ...*Tensor) *Tensor {
	sum := x.Clone()
	for _, y := range others {
		axpy(1, y.Data, sum.Data)
	}
	return sum
}

// like returns zeros in the shape of x.
func like(x *Tensor) *Tensor { return New(x.Shape...) }

// rows calls f for each row along the last axis of tensors of one shape.
func rows(x, y *Tensor, f func(x, y []float64)) {
	n := x.Last()
	for i := 0; i < len(x.Data); i += n {
		f(x.Data[i:i+n], y.Data[i:i+n])
	}
}

// zip returns f of each pair of elements of tensors of one shape.
func zip(x, y *Tensor, f func(x, y float64) float64) *Tensor {
	z := like(x)
	for i := range z.Data {
		z.Data[i] = f(x.Data[i], y.Data[i])
	}
	return z
}

func dot(x, y []float64) float64 { return floats.Dot(x, y) }

// axpy adds a*x to y.
func axpy(a float64, x, y []float64) { floats.AddScaled(y, a, x) }

// softmax replaces x by the softmax of scale*x and returns log(sum(exp(scale*x))), for a positive scale. If no element
// is above -Inf, the softmax is 0 and the logarithm -Inf. The largest element is subtracted before the scaling, since
// the scaling rounds.
func softmax(x []float64, scale float64) (lse float64) {
	m := math.Inf(-1)
	for _, v := range x {
		m = max(m, v)
	}
	if math.IsInf(m, -1) {
		clear(x)
		return m
	}
	var sum float64
	for i, v := range x {
		x[i] = math.Exp((v - m) * scale)
		sum += x[i]
	}
	for i := range x {
		x[i] /= sum
	}
	return m*scale + math.Log(sum)
}
