package stock

import (
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/rows"
)

func reshape(b *kernels.Builder, _ Reshape) error { return whole(b, b.In[0]) }

// whole fills the result with x in order, or with its one element.
func whole(b *kernels.Builder, x kernels.Operand) error {
	y, stride := b.Out[0], int64(1)
	if x.N() != y.N() {
		if stride = 0; x.N() != 1 {
			return misfit(b)
		}
	}
	return copyElements(b, []int64{y.N()}, place{x.Ref, 0, []int64{stride}}, place{y.Ref, 0, []int64{1}})
}

func transpose(b *kernels.Builder, op Transpose) error {
	x, y := b.In[0], b.Out[0]
	if len(op.Axes) != len(x.Shape) || !distinct(op.Axes, len(x.Shape)) || x.N() != y.N() {
		return misfit(b)
	}
	return copyOrdered(b, x, op.Axes, y.Ref)
}

// copyOrdered copies x with its axes in another order.
func copyOrdered(b *kernels.Builder, x kernels.Operand, order []int, to kernels.Ref) error {
	from := sizesOf(x.Shape)
	lie := strides(from)
	sizes, xs := make([]int64, len(from)), make([]int64, len(from))
	for i, axis := range order {
		sizes[i], xs[i] = from[axis], lie[axis]
	}
	return copyElements(b, sizes, place{x.Ref, 0, xs}, place{to, 0, strides(sizes)})
}

// slice copies out of a slice.
func slice(b *kernels.Builder, op Slice) error {
	x, y := b.In[0], b.Out[0]
	if op.Whole {
		return whole(b, x)
	}
	sizes, in, ok := op.within(x)
	if !ok || sizes[0]*sizes[1]*sizes[2] != y.N() {
		return misfit(b)
	}
	return copyElements(b, sizes, in, place{y.Ref, 0, strides(sizes)})
}

// sliceGrad copies into a slice of zeros.
func sliceGrad(b *kernels.Builder, op SliceGrad) error {
	x, part, y := b.In[0], b.In[1], b.Out[0]
	if op.Whole {
		return whole(b, part)
	}
	sizes, in, ok := Slice(op).within(y)
	if !ok || x.N() != y.N() {
		return misfit(b)
	}
	from := place{part.Ref, 0, strides(sizes)}
	if part.N() != sizes[0]*sizes[1]*sizes[2] {
		if part.N() != 1 {
			return misfit(b)
		}
		from.strides = make([]int64, 3) // one number, at each place
	}
	rows.Fill32(b, y.Ref, y.N(), 0)
	return copyElements(b, sizes, from, in)
}

// within returns the sizes of a slice of an operand, as [outer,along,inner], and where its elements lie.
func (op Slice) within(of kernels.Operand) ([]int64, place, bool) {
	if op.Axis < 0 || op.Axis >= len(of.Shape) || op.Start >= of.Shape[op.Axis] {
		return nil, place{}, false
	}
	end := min(op.End, of.Shape[op.Axis])
	// Gorgonia leaves out what is left of the range behind the last whole step; but package tensor, on inner axes, does not.
	if op.Axis > 0 && (end-op.Start)%op.Step != 0 {
		return nil, place{}, false
	}
	outer, along, inner := extent(of.Shape, op.Axis)
	sizes := []int64{outer, int64(max(1, (end-op.Start)/op.Step)), inner}
	return sizes, place{of.Ref, int64(op.Start) * inner, []int64{along * inner, int64(op.Step) * inner, 1}}, true
}

func concat(b *kernels.Builder, op Concat) error {
	y := b.Out[0]
	if op.Axis < 0 || op.Axis >= len(y.Shape) {
		return misfit(b)
	}
	outer, along, inner := extent(y.Shape, op.Axis)
	at := int64(0)
	for _, x := range b.In {
		if len(x.Shape) != len(y.Shape) {
			return misfit(b)
		}
		o, n, i := extent(x.Shape, op.Axis)
		if o != outer || i != inner {
			return misfit(b)
		}
		from, to := place{x.Ref, 0, []int64{n * inner, 1}}, place{y.Ref, at * inner, []int64{along * inner, 1}}
		if err := copyElements(b, []int64{outer, n * inner}, from, to); err != nil {
			return err
		}
		at += n
	}
	if at != along {
		return misfit(b)
	}
	return nil
}

// repeat takes the number of times from the shapes: the second operand is that number.
func repeat(b *kernels.Builder, op Repeat) error {
	x, y, shape := b.In[0], b.Out[0], b.In[0].Shape
	if x.N() == 1 {
		return whole(b, x)
	}
	if len(shape) == 1 && op.Axis == 1 {
		shape = tensor.Shape{shape[0], 1} // a vector is repeated as a column
	}
	if op.Axis < 0 || op.Axis >= len(shape) || y.N()%x.N() != 0 {
		return misfit(b)
	}
	outer, along, inner := extent(shape, op.Axis)
	sizes := []int64{outer, along, y.N() / x.N(), inner}
	return copyElements(b, sizes, place{x.Ref, 0, []int64{along * inner, inner, 0, 1}}, place{y.Ref, 0, strides(sizes)})
}

func element(b *kernels.Builder, op Element) error {
	x, y := b.In[0], b.Out[0]
	if len(op.At) != len(x.Shape) || y.N() != 1 {
		return misfit(b)
	}
	lie, offset := strides(sizesOf(x.Shape)), int64(0)
	for i, c := range op.At {
		if c < 0 || c >= x.Shape[i] {
			return misfit(b)
		}
		offset += int64(c) * lie[i]
	}
	return copyElements(b, []int64{1}, place{x.Ref, offset, []int64{1}}, place{y.Ref, 0, []int64{1}})
}
