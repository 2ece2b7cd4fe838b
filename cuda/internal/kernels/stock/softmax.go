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
	outer, along, inner, share, err := softmaxLines(b, op.Axis)
	if err != nil {
		return err
	}
	b.Launch("nsa_stock_softmax_f32", kernels.Looped(blocksOf(outer, inner, share)), kernels.Threads(), 0,
		&softmaxParams{b.In[0].Ref, b.Out[0].Ref, outer, along, inner, kernels.Flag(op.Log), int32(share)})
	return nil
}

func softmaxGrad(b *kernels.Builder, op SoftmaxGrad) error {
	outer, along, inner, share, err := softmaxLines(b, op.Axis)
	if err != nil {
		return err
	}
	b.Launch("nsa_stock_softmax_grad_f32", kernels.Looped(blocksOf(outer, inner, share)), kernels.Threads(), 0,
		&softmaxGradParams{b.In[1].Ref, b.In[2].Ref, b.Out[0].Ref, outer, along, inner, kernels.Flag(op.Log), int32(share)})
	return nil
}

// softmaxLines returns the extent of the operands, all of one size, around an axis, and its shareOf. The axis is chosen as the op
// and package tensor do: -1 is the last one but for a column in the softmax itself, and any number is taken modulo the number of
// axes.
func softmaxLines(b *kernels.Builder, axis int) (outer, along, inner, share int64, err error) {
	shape, n := b.In[0].Shape, b.Out[0].N()
	if shape.IsScalar() || slices.ContainsFunc(b.In, func(o kernels.Operand) bool { return o.N() != n }) {
		return 0, 0, 0, 0, misfit(b)
	}
	outer, along, inner = extent(shape, (axis%len(shape)+len(shape))%len(shape))
	return outer, along, inner, shareOf(outer, along, inner, false), nil
}
