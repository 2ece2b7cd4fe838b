package stock

import (
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
	"github.com/gorgonia-nsa/nsa/graph"
)

// maxCopyAxes is the most axes of a strided copy after neighbours are merged.
const maxCopyAxes = 6

// copyParams is StockCopyParams of stock_copy.cu, the innermost axis first.
type copyParams struct {
	x, y        kernels.Ref
	n           int64
	sizes       [maxCopyAxes]int64
	xStrides    [maxCopyAxes]int64
	yStrides    [maxCopyAxes]int64
	rank, packs int32
}

// view is an array of float32: where it begins, and its sizes and the strides between its elements, the outermost axis first.
type view struct {
	ref            kernels.Ref
	sizes, strides []int64
}

// rowMajor returns the view of contiguous elements.
func rowMajor(ref kernels.Ref, sizes ...int64) view {
	v := view{ref, slices.Clone(sizes), make([]int64, len(sizes))}
	next := int64(1)
	for i := len(sizes) - 1; i >= 0; i-- {
		v.strides[i] = next
		next *= sizes[i]
	}
	return v
}

// around returns the view of contiguous elements as [outer,along,inner] around an axis of shape.
func around(ref kernels.Ref, shape tensor.Shape, axis int) view {
	outer, along, inner := extent(shape, axis)
	return rowMajor(ref, outer, along, inner)
}

// part returns the view of n indices of the middle one of three axes, step apart.
func (v view) part(start, n, step int) view {
	return view{
		v.ref.Plus(4 * int64(start) * v.strides[1]),
		[]int64{v.sizes[0], int64(n), v.sizes[2]}, []int64{v.strides[0], int64(step) * v.strides[1], v.strides[2]},
	}
}

// ordered returns the view of an operand with its axes in another order.
func ordered(x kernels.Operand, order []int) view {
	v := view{ref: x.Ref}
	for _, axis := range order {
		_, size, stride := extent(x.Shape, axis)
		v.sizes, v.strides = append(v.sizes, size), append(v.strides, stride)
	}
	return v
}

func (v view) elements() int64 {
	n := int64(1)
	for _, size := range v.sizes {
		n *= size
	}
	return n
}

// copyParamsOf returns the copy of an array of the given sizes, the outermost axis first. xs and ys are the strides in x and in y.
// A stride of 0 in x repeats elements. It merges neighbouring axes that are contiguous in both arrays, and refuses more than 6
// remaining axes.
func copyParamsOf(sizes, xs, ys []int64) (p copyParams, err error) {
	p.n = 1
	rank := 0
	for i := len(sizes) - 1; i >= 0; i-- {
		p.n *= sizes[i]
		if sizes[i] == 1 {
			continue
		}
		if l := rank - 1; l >= 0 && xs[i] == p.xStrides[l]*p.sizes[l] && ys[i] == p.yStrides[l]*p.sizes[l] {
			p.sizes[l] *= sizes[i]
			continue
		}
		if rank == maxCopyAxes {
			return p, graph.Refuse(graph.ReasonShape, "more than %d axes after neighbours are merged", maxCopyAxes)
		}
		p.sizes[rank], p.xStrides[rank], p.yStrides[rank] = sizes[i], xs[i], ys[i]
		rank++
	}
	if rank == 0 {
		p.sizes[0], p.xStrides[0], p.yStrides[0], rank = 1, 1, 1, 1
	}
	p.rank = int32(rank)
	return p, nil
}

// toTranspose turns p into the argument of stock_transpose, by moving the axis along which x is contiguous to axis 1. It returns false,
// and changes nothing, if that is also y's axis, or if one of the two is too short for tiles.
func (p *copyParams) toTranspose() bool {
	i := slices.Index(p.xStrides[1:p.rank], 1) + 1
	if i == 0 || p.yStrides[0] != 1 || p.xStrides[0] <= 1 || p.sizes[0] < 8 || p.sizes[i] < 8 {
		return false
	}
	for _, list := range []*[maxCopyAxes]int64{&p.sizes, &p.xStrides, &p.yStrides} {
		list[1], list[i] = list[i], list[1]
	}
	return true
}

// elementCopy is a copy of elements from one view to another of the same sizes. They do not overlap.
type elementCopy struct{ from, to view }

// guard refuses views of too many axes.
func (x elementCopy) guard() error {
	_, err := copyParamsOf(x.from.sizes, x.from.strides, x.to.strides)
	return err
}

// add adds a copy that guard accepts.
func (x elementCopy) add(b *kernels.Builder) {
	p, err := copyParamsOf(x.from.sizes, x.from.strides, x.to.strides)
	b.Fail(err)
	p.x, p.y = x.from.ref, x.to.ref
	switch {
	case p.rank == 1 && p.xStrides[0] == 1 && p.yStrides[0] == 1:
		memory.AddCopies(b, memory.Copy{From: p.x, To: p.y, Bytes: 4 * p.n})
	case p.toTranspose():
		tiles := kernels.CeilDiv(p.sizes[0], 32) * kernels.CeilDiv(p.sizes[1], 32) * (p.n / (p.sizes[0] * p.sizes[1]))
		b.AddLaunch("nsa_stock_transpose_f32", kernels.GridStride(tiles), kernels.Threads(), 0, &p)
	default:
		packs := p.xStrides[0] == 1 && p.yStrides[0] == 1 && p.sizes[0]%4 == 0
		for d := 1; d < int(p.rank); d++ {
			packs = packs && p.xStrides[d]%4 == 0 && p.yStrides[d]%4 == 0
		}
		p.packs = kernels.Flag(packs)
		b.AddElements("nsa_stock_copy_f32", kernels.F32, p.n, &p)
	}
}
