package stock

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// The arguments of stock_softmax.cu.
type (
	softmaxParams struct {
		x, y                kernels.Ref
		outer, along, inner int64
		log, share          int32
	}
	softmaxGradParams struct {
		y, dy, dx           kernels.Ref
		outer, along, inner int64
		log, share          int32
	}
)

func softmax(b *kernels.Builder, op Softmax) error {
	if op.Axis == -1 && b.In[0].Shape.IsColVec() {
		op.Axis = 0
	}
	return alongLines(b, "nsa_stock_softmax_f32", op.Axis, func(outer, along, inner int64, share int32) any {
		return &softmaxParams{b.In[0].Ref, b.Out[0].Ref, outer, along, inner, kernels.Flag(op.Log), share}
	})
}

func softmaxGrad(b *kernels.Builder, op SoftmaxGrad) error {
	return alongLines(b, "nsa_stock_softmax_grad_f32", op.Axis, func(outer, along, inner int64, share int32) any {
		return &softmaxGradParams{b.In[1].Ref, b.In[2].Ref, b.Out[0].Ref, outer, along, inner, kernels.Flag(op.Log), share}
	})
}

// alongLines adds a launch over the lines along an axis. All operands have one size. params makes the argument from the extent
// around the axis and its shareOf. The axis is chosen as the op and package tensor do: it is taken modulo the number of axes, so -1
// is the last one. The softmax of a column is the exception: see softmax.
func alongLines(b *kernels.Builder, kernel string, axis int, params func(outer, along, inner int64, share int32) any) error {
	shape, n := b.In[0].Shape, b.Out[0].N()
	if shape.IsScalar() || slices.ContainsFunc(b.In, func(o kernels.Operand) bool { return o.N() != n }) {
		return refuseShapes(b)
	}
	outer, along, inner := extent(shape, (axis%len(shape)+len(shape))%len(shape))
	share := shareOf(outer, along, inner, false)
	b.Launch(kernel, kernels.GridStride(blocksOf(outer, inner, share)), kernels.Threads(), 0, params(outer, along, inner, int32(share)))
	return nil
}
