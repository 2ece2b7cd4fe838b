package cuda

import (
	"errors"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// stockRefusal makes an error of package kernels for sizes that it does not take one of a guard.
func stockRefusal(err error) error {
	if u := (*kernels.Unsupported)(nil); errors.As(err, &u) {
		return graph.Refuse(graph.ReasonShape, "%v", err)
	}
	return err
}

// stockProduct is op(a) [m,k] times op(b) [k,n], of a batch or one. A transposed a lies as [k,m], a transposed b as [n,k].
type stockProduct struct {
	m, n, k        int64
	transA, transB bool
	batch          int64
}

// stockMultiply appends the launches that write c = a b.
type stockMultiply = func(to []kernels.Launch, a, b, c, work kernels.Ptr) ([]kernels.Launch, error)

// kernel returns what runs the product: a reduction where one of the two is a vector, which reads the other once, else tiles.
func (p stockProduct) kernel() (work int64, run stockMultiply) {
	if p.batch == 1 && (p.n == 1 || p.m == 1) {
		rows, across, swap := p.m, p.transA, p.n != 1 // across: the sum goes over the rows of the matrix as it lies
		if swap {                                     // the matrix is b
			rows, across = p.n, !p.transB
		}
		op := kernels.Reduce{Outer: rows, Along: p.k, Inner: 1}
		if across {
			op.Outer, op.Inner = 1, rows
		}
		return op.WorkBytes(), func(to []kernels.Launch, a, b, c, work kernels.Ptr) ([]kernels.Launch, error) {
			if swap {
				a, b = b, a
			}
			return op.Product(to, a, b, c, work)
		}
	}
	op := kernels.Matmul{
		Type: kernels.F32, Out: kernels.F32, M: p.m, N: p.n, K: p.k, TransA: p.transA, TransB: p.transB,
		Batch: p.batch, StrideA: p.m * p.k, StrideB: p.k * p.n, StrideC: p.m * p.n,
	}
	return op.WorkBytes(), func(to []kernels.Launch, a, b, c, work kernels.Ptr) ([]kernels.Launch, error) {
		return op.Forward(to, a, b, 0, c, work)
	}
}

func (s *stockSite) compileProduct() (compiled, error) {
	if s.kind == stockTensordot {
		return s.compileTensordot()
	}
	a, b, y := s.in[0], s.in[1], s.out
	p, ok := s.productSizes()
	if !ok || p.batch*p.m*p.n != int64(y.Elements()) {
		return compiled{}, s.shapes()
	}
	bytes, run := p.kernel()
	return compiled{work: bytes, launch: func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return run(to, stockAddress(a), stockAddress(b), stockAddress(y), work)
	}}, nil
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
	y := s.out
	a, okA := newStockSide(s.in[0], s.axes, false)
	b, okB := newStockSide(s.in[1], s.otherAxes, true)
	if !okA || !okB || a.along != b.along || a.free*b.free != int64(y.Elements()) {
		return compiled{}, s.shapes()
	}
	for i := range s.axes {
		if s.in[0].Shape[s.axes[i]] != s.in[1].Shape[s.otherAxes[i]] {
			return compiled{}, s.shapes()
		}
	}
	if err := errors.Join(a.err, b.err); err != nil {
		return compiled{}, stockRefusal(err)
	}
	bytes, run := stockProduct{m: a.free, n: b.free, k: a.along, transA: a.first, transB: !b.first, batch: 1}.kernel()
	return compiled{work: a.work + b.work + bytes, launch: func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		to, pa, err := a.append(to, work)
		if err != nil {
			return to, err
		}
		to, pb, err := b.append(to, work+kernels.Ptr(a.work))
		if err != nil {
			return to, err
		}
		return run(to, pa, pb, stockAddress(y), work+kernels.Ptr(a.work+b.work))
	}}, nil
}

// stockSide is an operand of a tensordot as a matrix [along,free], or [free,along].
type stockSide struct {
	x           ops.Arg
	free, along int64
	first       bool  // along comes first
	work        int64 // bytes of a copy in that order; 0 where x lies so
	copy        kernels.StridedCopy
	err         error
}

// newStockSide arranges x around the axes of the sum, in the order given. first says which order a copy gets.
func newStockSide(x ops.Arg, axes []int, first bool) (stockSide, bool) {
	s := stockSide{x: x, free: 1, along: 1, first: first}
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
	alongFirst, freeFirst := slices.Concat(axes, free), slices.Concat(free, axes)
	if slices.IsSorted(alongFirst) || slices.IsSorted(freeFirst) {
		s.first = slices.IsSorted(alongFirst)
		return s, true
	}
	order := freeFirst
	if first {
		order = alongFirst
	}
	from := stockSizes(x.Shape)
	strides, sizes, xs := stockStrides(from), make([]int64, len(from)), make([]int64, len(from))
	for i, axis := range order {
		sizes[i], xs[i] = from[axis], strides[axis]
	}
	s.copy, s.err = kernels.NewStridedCopy(sizes, xs, stockStrides(sizes))
	s.work = alignStockWork(4 * s.free * s.along)
	return s, true
}

// append appends the copy, if there is one, and returns where the matrix lies.
func (s *stockSide) append(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, kernels.Ptr, error) {
	if s.work == 0 {
		return to, stockAddress(s.x), nil
	}
	to, err := s.copy.Forward(to, stockAddress(s.x), work)
	return to, work, err
}
