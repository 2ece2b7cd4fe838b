package opcases

import (
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Array is an operand with its values: Floats, or Ints for indices.
type Array struct {
	Name   string
	Shape  []int // no axes for a scalar
	Floats []float64
	Ints   []int32
}

// Normal returns an array of the standard normal distribution, the same for the same seed. Its values are exact in float32.
func Normal(name string, seed uint64, shape ...int) Array {
	return normalTimes(1, name, seed, shape...)
}

func normalTimes(scale float64, name string, seed uint64, shape ...int) Array {
	x := testutil.Normal(seed, tensor.Shape(shape).TotalSize())
	for i, v := range x {
		x[i] = float64(float32(v * scale))
	}
	return Array{Name: name, Shape: shape, Floats: x}
}

// Operand returns the type and shape of a: int32 for indices, dt otherwise.
func (a Array) Operand(dt tensor.Dtype) ops.Operand {
	if a.Ints != nil {
		dt = tensor.Int32
	}
	return ops.Operand{Dtype: dt, Shape: a.Shape}
}

// Tensor returns the floats as the oracle takes them, in the array's own memory.
func (a Array) Tensor() *ref.Tensor { return ref.From(a.Floats, a.Shape...) }

// tensors are the inputs of an op, or its results.
type tensors = []*ref.Tensor

// Tensors returns the tensor of each array, nil for indices.
func Tensors(arrays []Array) tensors {
	list := make(tensors, len(arrays))
	for i, a := range arrays {
		if a.Ints == nil {
			list[i] = a.Tensor()
		}
	}
	return list
}

// Node adds a copy of a to g as an input of type dt, int32 for indices.
func (a Array) Node(g *G.ExprGraph, dt tensor.Dtype) *G.Node {
	var backing any = slices.Clone(a.Floats)
	switch {
	case a.Ints != nil:
		dt, backing = tensor.Int32, slices.Clone(a.Ints)
	case dt == tensor.Float32:
		backing = testutil.Convert[float32](a.Floats)
	}
	v := tensor.New(tensor.WithShape(a.Shape...), tensor.WithBacking(backing))
	if len(a.Shape) == 0 {
		return G.NewScalar(g, dt, G.WithName(a.Name), G.WithValue(v.ScalarValue()))
	}
	return G.NewTensor(g, dt, len(a.Shape), G.WithShape(a.Shape...), G.WithName(a.Name), G.WithValue(v))
}
