// Package stock holds the kernels of Gorgonia's own ops. Recognise turns an op into one of the descriptions below. The description
// selects the entry, whose guard and launches it goes to.
//
// Operands and results are float32. A result is that of the op's own Do, in the shape of the node, except at the edges of float32:
// a quotient by zero and a softmax with infinities follow IEEE here, which package tensor does not, and a maximum keeps a NaN.
package stock

import (
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
)

// The ops of Gorgonia as data.
type (
	// Unary is y = Function(x), elementwise. Function is one of unaryNames.
	Unary struct{ Function string }
	// Binary is y = Function(a, b), elementwise; an operand of one element meets every element of the other. Function is one of
	// binaryNames.
	Binary struct{ Function string }
	// Product is one of the products of vectors and matrices.
	Product struct {
		Kind           ProductKind
		TransA, TransB bool
	}
	// Tensordot is the sum over axes A of the first operand with axes B of the second.
	Tensordot struct{ A, B []int }
	// Reduce is the sum, or the maximum, along axes.
	Reduce struct {
		Max  bool
		Axes []int
	}
	// Softmax is the softmax, or its logarithm, along an axis; -1 is the one that the op chooses.
	Softmax struct {
		Axis int
		Log  bool
	}
	// SoftmaxGrad is the gradient of Softmax from its argument, its result and the gradient of that.
	SoftmaxGrad Softmax
	// Reshape keeps the elements in their order.
	Reshape struct{}
	// Transpose makes axis i of the result from axis Axes[i].
	Transpose struct{ Axes []int }
	// Slice takes every Step-th index of an axis from Start to before End, or the whole axis.
	Slice struct {
		Axis             int
		Whole            bool
		Start, End, Step int
	}
	// SliceGrad is zeros with the second operand in a slice.
	SliceGrad Slice
	// Concat joins its operands along an axis.
	Concat struct{ Axis int }
	// Repeat repeats each index of an axis, as often as the shape of the result says.
	Repeat struct{ Axis int }
	// Size is the length of an axis.
	Size struct{ Axis int }
	// Element is the element at an index.
	Element struct{ At []int }
)

// Entries returns the entries of the ops.
func Entries() []kernels.Entry {
	one, two, three := ofInputs("x"), ofInputs("a", "b"), ofInputs("x", "y", "dy")
	return kernels.Entries(
		kernels.EntryFor[Unary]{Types: one, Guard: guardUnary, Launches: unary},
		kernels.EntryFor[Binary]{Types: two, Guard: guardBinary, Launches: binary},
		kernels.EntryFor[Product]{Types: two, Products: products, Guard: guardProduct, Launches: product},
		kernels.EntryFor[Tensordot]{Types: two, Products: tensordotProducts, Guard: guardTensordot, Launches: tensordot},
		kernels.EntryFor[Reduce]{Types: one, Guard: guardReduce, Launches: reduce},
		kernels.EntryFor[Size]{Types: one, Guard: guardSize, Launches: size},
		kernels.EntryFor[Softmax]{Types: one, Guard: guardSoftmax[Softmax], Launches: softmax},
		kernels.EntryFor[SoftmaxGrad]{Types: three, Guard: guardSoftmax[SoftmaxGrad], Launches: softmaxGrad},
		copying(one, reshape), copying(one, transpose), copying(one, slice), copying(ofInputs("x", "part"), sliceGrad),
		copying(kernels.In(kernels.Float32("x", "xs").Repeated()).Out(kernels.Float32("y")), concat),
		copying(ofInputs("x", "repeats"), repeat), copying(one, element),
	)
}

// ofInputs are the types of an op with these inputs and one output.
func ofInputs(names ...string) kernels.Types {
	return kernels.In(kernels.Float32(names...)).Out(kernels.Float32("y"))
}

func refuseShapes(c *kernels.Call) error {
	in := make([]tensor.Shape, len(c.In))
	for i, o := range c.In {
		in[i] = o.Shape
	}
	return graph.Refuse(graph.ReasonShape, "no kernel for %v to %v", in, c.Out[0].Shape)
}

// distinct reports whether axes are in [0,rank), each one at most once.
func distinct(axes []int, rank int) bool {
	for i, a := range axes {
		if a < 0 || a >= rank || slices.Contains(axes[:i], a) {
			return false
		}
	}
	return true
}

// extent returns the sizes of shape as [outer,along,inner] around an axis.
func extent(shape tensor.Shape, axis int) (outer, along, inner int64) {
	outer, along, inner = 1, int64(shape[axis]), 1
	for i, n := range shape {
		switch {
		case i < axis:
			outer *= int64(n)
		case i > axis:
			inner *= int64(n)
		}
	}
	return outer, along, inner
}
