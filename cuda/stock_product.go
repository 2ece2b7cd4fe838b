package cuda

import (
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// stockProduct is op(a) [m,k] times op(b) [k,n], of a batch or one. A transposed a lies as [k,m], a transposed b as [n,k].
type stockProduct struct {
	m, n, k        int64
	transA, transB bool
	batch          int64
}

// add adds what runs the product: a reduction where one of the two is a vector, which reads the other once, else a product that
// a library may run.
func (p stockProduct) add(list *composite, a, b, c address) {
	if p.batch > 1 || p.n > 1 && p.m > 1 {
		list.multiply(kernels.Matmul{
			Type: kernels.F32, Out: kernels.F32, M: p.m, N: p.n, K: p.k, TransA: p.transA, TransB: p.transB,
			Batch: p.batch, StrideA: p.m * p.k, StrideB: p.k * p.n, StrideC: p.m * p.n,
		}, a, b, address{}, c)
		return
	}
	rows, across := p.m, p.transA // across: the sum goes over the rows of the matrix as it lies
	if p.n > 1 {                  // the matrix is b
		a, b, rows, across = b, a, p.n, !p.transB
	}
	op := kernels.Reduce{Outer: rows, Along: p.k, Inner: 1}
	if across {
		op.Outer, op.Inner = 1, rows
	}
	partial := list.take(op.WorkBytes())
	list.launches(func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return op.Product(to, a.at(work), b.at(work), c.at(work), partial.at(work))
	})
}

func (s *stockSite) compileProduct() (compiled, error) {
	if s.kind == stockTensordot {
		return s.compileTensordot()
	}
	p, ok := s.productSizes()
	if !ok || p.batch*p.m*p.n != int64(s.out.Elements()) {
		return compiled{}, s.shapes()
	}
	var list composite
	p.add(&list, cellOf(s.in[0]), cellOf(s.in[1]), cellOf(s.out))
	return list.compiled, nil
}

// productSizes returns the sizes of the op; ok is false where they do not fit.
func (s *stockSite) productSizes() (p stockProduct, ok bool) {
	a, b := s.in[0], s.in[1]
	p = stockProduct{transA: s.transA, transB: s.transB, batch: 1}
	switch s.kind {
	case stockDot:
		p.m, p.k, p.n = 1, int64(a.Elements()), 1
		p.transA, p.transB = false, false
		return p, a.Elements() == b.Elements()
	case stockOuter:
		p.m, p.k, p.n = int64(a.Elements()), 1, int64(b.Elements())
		p.transA, p.transB = false, false
		return p, true
	case stockMatVec:
		if len(a.Shape) != 2 || s.transB {
			return p, false
		}
		p.m, p.k = stockMatrix(a.Shape, s.transA)
		p.n = 1
		return p, int64(b.Elements()) == p.k
	}
	outerA, outerB := len(a.Shape)-2, len(b.Shape)-2
	if outerA < 0 || outerA != outerB || s.kind == stockMatMul && outerA != 0 || !slices.Equal(a.Shape[:outerA], b.Shape[:outerB]) {
		return p, false
	}
	for _, n := range a.Shape[:outerA] {
		p.batch *= int64(n)
	}
	p.m, p.k = stockMatrix(a.Shape[outerA:], s.transA)
	k, n := stockMatrix(b.Shape[outerB:], s.transB)
	p.n = n
	return p, k == p.k
}

// stockMatrix returns the sizes of a matrix, after its transposition.
func stockMatrix(shape tensor.Shape, trans bool) (rows, cols int64) {
	if trans {
		return int64(shape[1]), int64(shape[0])
	}
	return int64(shape[0]), int64(shape[1])
}

// compileTensordot brings the axes of the sum together, in work memory where they do not lie so, and multiplies matrices.
func (s *stockSite) compileTensordot() (compiled, error) {
	a, okA := newStockSide(s.in[0], s.axes)
	b, okB := newStockSide(s.in[1], s.otherAxes)
	if !okA || !okB || len(s.axes) != len(s.otherAxes) || a.free*b.free != int64(s.out.Elements()) {
		return compiled{}, s.shapes()
	}
	for i := range s.axes {
		if s.in[0].Shape[s.axes[i]] != s.in[1].Shape[s.otherAxes[i]] {
			return compiled{}, s.shapes()
		}
	}
	var list composite
	matrixA, err := a.add(&list)
	if err != nil {
		return compiled{}, err
	}
	matrixB, err := b.add(&list)
	if err != nil {
		return compiled{}, err
	}
	p := stockProduct{m: a.free, n: b.free, k: a.along, transA: a.alongFirst, transB: !b.alongFirst, batch: 1}
	p.add(&list, matrixA, matrixB, cellOf(s.out))
	return list.compiled, nil
}

// stockSide is an operand of a tensordot as a matrix.
type stockSide struct {
	x           ops.Arg
	free, along int64
	alongFirst  bool  // [along,free], not [free,along]
	order       []int // of the axes, in a copy; nil where x lies as it should
}

// newStockSide arranges x around the axes of the sum, in the order given.
func newStockSide(x ops.Arg, axes []int) (stockSide, bool) {
	s := stockSide{x: x, free: 1, along: 1}
	if !distinctAxes(axes, len(x.Shape)) {
		return s, false
	}
	var free []int
	for i, n := range x.Shape {
		if slices.Contains(axes, i) {
			s.along *= int64(n)
		} else {
			s.free *= int64(n)
			free = append(free, i)
		}
	}
	s.alongFirst = slices.IsSorted(slices.Concat(axes, free))
	if order := slices.Concat(free, axes); !s.alongFirst && !slices.IsSorted(order) {
		s.order = order
	}
	return s, true
}

// add adds the copy, if there is one, and returns where the matrix lies.
func (s *stockSide) add(list *composite) (address, error) {
	if s.order == nil {
		return cellOf(s.x), nil
	}
	from := stockSizes(s.x.Shape)
	strides, sizes, xs := stockStrides(from), make([]int64, len(from)), make([]int64, len(from))
	for i, axis := range s.order {
		sizes[i], xs[i] = from[axis], strides[axis]
	}
	ordered, err := kernels.NewStridedCopy(sizes, xs, stockStrides(sizes))
	if err != nil {
		return address{}, asUnsupported(err)
	}
	x, y := cellOf(s.x), list.take(4*s.free*s.along)
	list.launches(func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return ordered.Forward(to, x.at(work), y.at(work))
	})
	return y, nil
}
