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

// guardSoftmax refuses operands of several sizes, and scalars.
func guardSoftmax[S Softmax | SoftmaxGrad](c *kernels.Call, _ S) error {
	n := c.Out[0].N()
	if c.In[0].Shape.IsScalar() || slices.ContainsFunc(c.In, func(o kernels.Operand) bool { return o.N() != n }) {
		return refuseShapes(c)
	}
	return nil
}

func softmax(b *kernels.Builder, op Softmax) {
	if op.Axis == -1 && b.In[0].Shape.IsColVec() {
		op.Axis = 0
	}
	addLines(b, "nsa_stock_softmax_f32", op.Axis, func(outer, along, inner int64, share int32) any {
		return &softmaxParams{b.In[0].Ref, b.Out[0].Ref, outer, along, inner, kernels.Flag(op.Log), share}
	})
}

func softmaxGrad(b *kernels.Builder, op SoftmaxGrad) {
	addLines(b, "nsa_stock_softmax_grad_f32", op.Axis, func(outer, along, inner int64, share int32) any {
		return &softmaxGradParams{b.In[1].Ref, b.In[2].Ref, b.Out[0].Ref, outer, along, inner, kernels.Flag(op.Log), share}
	})
}

// addLines adds a launch over the lines along an axis. params makes the argument from the extent around the axis and
// its shareOf. The axis is chosen as the op and package tensor do: it is taken modulo the number of axes, so -1 is the
// last one. The softmax of a column is the exception: see softmax.
func addLines(b *kernels.Builder, kernel string, axis int, params func(outer, along, inner int64, share int32) any) {
	shape := b.In[0].Shape
	outer, along, inner := extent(shape, (axis%len(shape)+len(shape))%len(shape))
	share := shareOf(outer, along, inner, false)
	grid := kernels.GridStride(blocksOf(outer, inner, share))
	b.AddLaunch(kernel, grid, kernels.Threads(), 0, params(outer, along, inner, int32(share)))
}
