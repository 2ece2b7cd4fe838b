package graph

import (
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// restore undoes what an op has done to the header of its operand.
func restore(d *tensor.Dense, shape tensor.Shape) error {
	d.UT() // first: Reshape moves the elements of a transposed tensor
	if len(shape) == 0 || slices.Equal(d.Shape(), shape) {
		return nil
	}
	return d.Reshape(shape...)
}

// conform returns v in the shape of its node. An op may return the same elements in another shape: Gorgonia's ops
// return one element as a scalar. If v cannot be reshaped, conform returns v itself. A node without axes gets a
// G.Scalar: the next op may refuse a tensor.
func conform(v G.Value, want spec.Operand) G.Value {
	if len(want.Shape) == 0 {
		return scalar(v)
	}
	if slices.Equal(v.Shape(), want.Shape) { // Shape.Eq takes a row or a column for a vector
		return v
	}
	var d *tensor.Dense
	switch v := v.(type) {
	case *tensor.Dense:
		d = v.ShallowClone()
	case G.Scalar:
		d = tensor.New(tensor.FromScalar(v.Data()))
	default:
		return v
	}
	if err := d.Reshape(want.Shape...); err != nil {
		return v
	}
	return d
}

// scalar returns the element of a tensor of one element as a scalar of Gorgonia, and any other v itself.
func scalar(v G.Value) G.Value {
	d, ok := v.(*tensor.Dense)
	if !ok || d.Shape().TotalSize() != 1 {
		return v
	}
	switch x := d.Get(0).(type) {
	case float64:
		return G.NewF64(x)
	case float32:
		return G.NewF32(x)
	case int:
		return G.NewI(x)
	case int32:
		return G.NewI32(x)
	case int64:
		return G.NewI64(x)
	case byte:
		return G.NewU8(x)
	case bool:
		return G.NewB(x)
	}
	return v
}

// allRowMajor reports whether all values are row-major tensors without gaps.
func allRowMajor(values []G.Value) bool {
	for _, v := range values {
		if d, ok := v.(*tensor.Dense); !ok || !spec.IsRowMajor(d) {
			return false
		}
	}
	return true
}

// isPlainRowMajor reports whether Gorgonia's ops read v right: a scalar, or a tensor whose elements are contiguous and
// row-major. The memory of a transposed row or column is row-major too, but its transpose is still pending.
func isPlainRowMajor(v G.Value) bool {
	d, ok := v.(*tensor.Dense)
	return !ok || spec.IsRowMajor(d) && d.DataOrder() == 0
}

// toRowMajor returns v in row-major order: v itself, a copy of a view, or a tensor over the memory of a column-major
// row or column. It returns any other column-major tensor as it is.
func toRowMajor(v G.Value) G.Value {
	d, ok := v.(*tensor.Dense)
	switch {
	case !ok || isPlainRowMajor(v):
	case d.IsMaterializable():
		return d.Materialize()
	case spec.IsRowMajor(d): // a column-major row or column
		return tensor.New(tensor.WithShape(d.Shape()...), tensor.WithBacking(d.Data()))
	case d.DataOrder().IsColMajor(): // the transpose of a row-major tensor with the axes in reverse
		shape, axes := d.Shape().Clone(), make([]int, d.Dims())
		slices.Reverse(shape)
		for i := range axes {
			axes[i] = len(axes) - 1 - i
		}
		transpose := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(d.Data()))
		if transpose.T(axes...) == nil {
			return transpose.Materialize()
		}
	}
	return v
}
