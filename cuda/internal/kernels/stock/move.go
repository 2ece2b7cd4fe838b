package stock

import (
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
)

// copyToResult adds the copy of a view to the result. The view has the elements in the order of the result.
func copyToResult(b *kernels.Builder, from view) error {
	y := b.Out[0]
	if from.elements() != y.N() {
		return refuseShapes(b)
	}
	return copyElements(b, from, rowMajor(y.Ref, from.sizes...))
}

// copyInOrder adds the copy of x to the result, element by element in order. If x is one element, that fills the result.
func copyInOrder(b *kernels.Builder, x kernels.Operand) error {
	from := rowMajor(x.Ref, x.N())
	if x.N() == 1 {
		from = view{x.Ref, []int64{b.Out[0].N()}, []int64{0}}
	}
	return copyToResult(b, from)
}

func reshape(b *kernels.Builder, _ Reshape) error { return copyInOrder(b, b.In[0]) }

func transpose(b *kernels.Builder, op Transpose) error {
	if x := b.In[0]; len(op.Axes) == len(x.Shape) && distinct(op.Axes, len(x.Shape)) {
		return copyToResult(b, ordered(x, op.Axes))
	}
	return refuseShapes(b)
}

// slice copies out of a slice.
func slice(b *kernels.Builder, op Slice) error {
	if op.Whole {
		return copyInOrder(b, b.In[0])
	}
	from, ok := op.viewOf(b.In[0])
	if !ok {
		return refuseShapes(b)
	}
	return copyToResult(b, from)
}

// sliceGrad copies into a slice of zeros.
func sliceGrad(b *kernels.Builder, op SliceGrad) error {
	x, part, y := b.In[0], b.In[1], b.Out[0]
	if op.Whole {
		return copyInOrder(b, part)
	}
	to, ok := Slice(op).viewOf(y)
	if !ok || x.N() != y.N() || part.N() != to.elements() && part.N() != 1 {
		return refuseShapes(b)
	}
	from := rowMajor(part.Ref, to.sizes...)
	if part.N() == 1 {
		clear(from.strides) // one number, at each place
	}
	memory.Fill(b, y.Ref, y.N(), 32, 0)
	return copyElements(b, from, to)
}

// viewOf returns the slice of an operand; ok is false if the kernels do not take it.
func (op Slice) viewOf(x kernels.Operand) (v view, ok bool) {
	if op.Axis < 0 || op.Axis >= len(x.Shape) || op.Start >= x.Shape[op.Axis] {
		return view{}, false
	}
	length := min(op.End, x.Shape[op.Axis]) - op.Start
	// Gorgonia drops the rest of the range after the last whole step. Package tensor, on inner axes, does not: such slices are
	// refused.
	if op.Axis > 0 && length%op.Step != 0 {
		return view{}, false
	}
	return around(x.Ref, x.Shape, op.Axis).part(op.Start, max(1, length/op.Step), op.Step), true
}

func concat(b *kernels.Builder, op Concat) error {
	y := b.Out[0]
	if op.Axis < 0 || op.Axis >= len(y.Shape) {
		return refuseShapes(b)
	}
	offset := 0 // along the axis of y
	for _, x := range b.In {
		if len(x.Shape) != len(y.Shape) {
			return refuseShapes(b)
		}
		from, n := around(x.Ref, x.Shape, op.Axis), x.Shape[op.Axis]
		to := around(y.Ref, y.Shape, op.Axis).part(offset, n, 1)
		if !slices.Equal(from.sizes, to.sizes) {
			return refuseShapes(b)
		}
		if err := copyElements(b, from, to); err != nil {
			return err
		}
		offset += n
	}
	if offset != y.Shape[op.Axis] {
		return refuseShapes(b)
	}
	return nil
}

// repeat takes the number of repeats from the shapes. It does not read the second operand, which holds that number.
func repeat(b *kernels.Builder, op Repeat) error {
	x, shape := b.In[0], b.In[0].Shape
	if x.N() == 1 {
		return copyInOrder(b, x)
	}
	if len(shape) == 1 && op.Axis == 1 {
		shape = tensor.Shape{shape[0], 1} // a vector is repeated as a column
	}
	if op.Axis < 0 || op.Axis >= len(shape) {
		return refuseShapes(b)
	}
	from := around(x.Ref, shape, op.Axis)
	from.sizes = slices.Insert(from.sizes, 2, b.Out[0].N()/x.N())
	from.strides = slices.Insert(from.strides, 2, 0)
	return copyToResult(b, from)
}

func element(b *kernels.Builder, op Element) error {
	x, offset := b.In[0], 0
	if len(op.At) != len(x.Shape) {
		return refuseShapes(b)
	}
	for i, at := range op.At {
		if at < 0 || at >= x.Shape[i] {
			return refuseShapes(b)
		}
		offset = offset*x.Shape[i] + at
	}
	return copyToResult(b, rowMajor(x.Ref.Plus(4*int64(offset)), 1))
}
