package stock

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// softmaxRows are the softmax along an axis, and its gradient.
func softmaxRows() []kernels.Row {
	return kernels.Rows(
		kernels.Op[Softmax]{Name: name, Storage: "f>f", Build: softmax},
		kernels.Op[SoftmaxGrad]{Name: name, Storage: "fff>f", Build: softmaxGrad},
	)
}

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
	x, y := b.In[0], b.Out[0]
	axis := op.Axis
	if axis == -1 && x.Shape.IsColVec() {
		axis = 0
	}
	p := &softmaxParams{x: x.Ref, y: y.Ref, log: kernels.Flag(op.Log)}
	var err error
	if p.outer, p.along, p.inner, err = around(b, axis); err != nil {
		return err
	}
	share := shareOf(p.outer, p.along, p.inner, false)
	p.share = int32(share)
	b.Launch("nsa_stock_softmax_f32", kernels.Looped(blocksOf(p.outer, p.inner, share)), kernels.Threads(), 0, p)
	return nil
}

func softmaxGrad(b *kernels.Builder, op SoftmaxGrad) error {
	result, dy, dx := b.In[1], b.In[2], b.Out[0]
	p := &softmaxGradParams{y: result.Ref, dy: dy.Ref, dx: dx.Ref, log: kernels.Flag(op.Log)}
	var err error
	if p.outer, p.along, p.inner, err = around(b, op.Axis); err != nil {
		return err
	}
	share := shareOf(p.outer, p.along, p.inner, false)
	p.share = int32(share)
	b.Launch("nsa_stock_softmax_grad_f32", kernels.Looped(blocksOf(p.outer, p.inner, share)), kernels.Threads(), 0, p)
	return nil
}

// around returns the extent of the operands, all of one size, around an axis. It is chosen as the op and package tensor do: -1 is
// the last one but for a column in the softmax itself, and any number is taken modulo the number of axes.
func around(b *kernels.Builder, axis int) (outer, along, inner int64, err error) {
	shape, n := b.In[0].Shape, b.Out[0].N()
	if shape.IsScalar() {
		return 0, 0, 0, misfit(b)
	}
	for _, o := range b.In {
		if o.N() != n {
			return 0, 0, 0, misfit(b)
		}
	}
	if axis %= len(shape); axis < 0 {
		axis += len(shape)
	}
	outer, along, inner = extent(shape, axis)
	return outer, along, inner, nil
}
