package stock

import (
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
)

// copies is what an op copies to its result. If zeros is set, the result gets zeros first.
type copies struct {
	list  []elementCopy
	zeros bool
}

// copying returns the entry of an op that copies elements. copiesOf returns the copies; ok is false for shapes that do
// not fit.
func copying[S any](types kernels.Types, copiesOf func(c *kernels.Call, op S) (x copies, ok bool)) kernels.EntryFor[S] {
	return kernels.EntryFor[S]{
		Types: types,
		Guard: func(c *kernels.Call, op S) error {
			x, ok := copiesOf(c, op)
			if !ok {
				return refuseShapes(c)
			}
			for _, one := range x.list {
				if err := one.guard(); err != nil {
					return err
				}
			}
			return nil
		},
		Launches: func(b *kernels.Builder, op S) {
			x, _ := copiesOf(&b.Call, op)
			if y := b.Out[0]; x.zeros {
				memory.AddFill(b, y.Ref, y.N(), 32, 0)
			}
			for _, one := range x.list {
				one.add(b)
			}
		},
	}
}

// toResult returns the copy of a view that has the elements in the order of the result.
func toResult(c *kernels.Call, from view) (x copies, ok bool) {
	y := c.Out[0]
	return copies{list: []elementCopy{{from, rowMajor(y.Ref, from.sizes...)}}}, from.elements() == y.N()
}

// inOrder returns the copy of x to the result, element by element in order. If x is one element, that fills the result.
func inOrder(c *kernels.Call, x kernels.Operand) (copies, bool) {
	if x.N() == 1 {
		return toResult(c, view{x.Ref, []int64{c.Out[0].N()}, []int64{0}})
	}
	return toResult(c, rowMajor(x.Ref, x.N()))
}

func reshape(c *kernels.Call, _ Reshape) (copies, bool) { return inOrder(c, c.In[0]) }

func transpose(c *kernels.Call, op Transpose) (x copies, ok bool) {
	if x := c.In[0]; len(op.Axes) == len(x.Shape) && distinct(op.Axes, len(x.Shape)) {
		return toResult(c, ordered(x, op.Axes))
	}
	return x, false
}

// slice copies out of a slice.
func slice(c *kernels.Call, op Slice) (x copies, ok bool) {
	if op.Whole {
		return inOrder(c, c.In[0])
	}
	from, ok := op.viewOf(c.In[0])
	if !ok {
		return x, false
	}
	return toResult(c, from)
}

// sliceGrad copies into a slice of zeros.
func sliceGrad(c *kernels.Call, op SliceGrad) (copies, bool) {
	x, part, y := c.In[0], c.In[1], c.Out[0]
	if op.Whole {
		return inOrder(c, part)
	}
	to, ok := Slice(op).viewOf(y)
	if !ok || x.N() != y.N() || part.N() != to.elements() && part.N() != 1 {
		return copies{}, false
	}
	from := rowMajor(part.Ref, to.sizes...)
	if part.N() == 1 {
		clear(from.strides) // one number, at each place
	}
	return copies{[]elementCopy{{from, to}}, true}, true
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

func concat(c *kernels.Call, op Concat) (all copies, ok bool) {
	y := c.Out[0]
	if op.Axis < 0 || op.Axis >= len(y.Shape) {
		return all, false
	}
	offset := 0 // along the axis of y
	for _, x := range c.In {
		if len(x.Shape) != len(y.Shape) {
			return all, false
		}
		from, n := around(x.Ref, x.Shape, op.Axis), x.Shape[op.Axis]
		to := around(y.Ref, y.Shape, op.Axis).part(offset, n, 1)
		if !slices.Equal(from.sizes, to.sizes) {
			return all, false
		}
		all.list = append(all.list, elementCopy{from, to})
		offset += n
	}
	return all, offset == y.Shape[op.Axis]
}

// repeat takes the number of repeats from the shapes. It does not read the second operand, which holds that number.
func repeat(c *kernels.Call, op Repeat) (copies, bool) {
	x, shape := c.In[0], c.In[0].Shape
	if x.N() == 1 {
		return inOrder(c, x)
	}
	if len(shape) == 1 && op.Axis == 1 {
		shape = tensor.Shape{shape[0], 1} // a vector is repeated as a column
	}
	if op.Axis < 0 || op.Axis >= len(shape) {
		return copies{}, false
	}
	from := around(x.Ref, shape, op.Axis)
	from.sizes = slices.Insert(from.sizes, 2, c.Out[0].N()/x.N())
	from.strides = slices.Insert(from.strides, 2, 0)
	return toResult(c, from)
}

func element(c *kernels.Call, op Element) (copies, bool) {
	x, offset := c.In[0], 0
	if len(op.At) != len(x.Shape) {
		return copies{}, false
	}
	for i, at := range op.At {
		if at < 0 || at >= x.Shape[i] {
			return copies{}, false
		}
		offset = offset*x.Shape[i] + at
	}
	return toResult(c, rowMajor(x.Ref.Plus(4*int64(offset)), 1))
}
