package cuda

import (
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// stockMove is a copy of elements from one operand into another, which begin some elements into them.
type stockMove struct {
	copy             kernels.StridedCopy
	x, y             ops.Arg
	xOffset, yOffset int64
}

func (m *stockMove) append(to []kernels.Launch) ([]kernels.Launch, error) {
	return m.copy.Forward(to, ptr(m.x)+kernels.Ptr(4*m.xOffset), ptr(m.y)+kernels.Ptr(4*m.yOffset))
}

// stockStrides returns the strides of a row-major array.
func stockStrides(sizes []int64) []int64 {
	strides, next := make([]int64, len(sizes)), int64(1)
	for i := len(sizes) - 1; i >= 0; i-- {
		strides[i] = next
		next *= sizes[i]
	}
	return strides
}

func stockSizes(shape tensor.Shape) []int64 {
	sizes := make([]int64, len(shape))
	for i, n := range shape {
		sizes[i] = int64(n)
	}
	return sizes
}

// compileMove is for the ops that move elements and compute nothing.
func (s *stockSite) compileMove() (compiled, error) {
	var moves []stockMove
	var err error
	fill := false // with zeros first
	switch s.kind {
	case stockReshape:
		moves, err = s.whole(s.in[0])
	case stockTranspose:
		moves, err = s.transpose()
	case stockSlice, stockSliceIncr:
		moves, err = s.slice()
		fill = s.kind == stockSliceIncr && !s.all
	case stockConcat:
		moves, err = s.concat()
	case stockRepeat:
		moves, err = s.repeat()
	case stockAt:
		moves, err = s.at()
	}
	if err == nil && len(moves) == 0 {
		err = s.shapes()
	}
	if err != nil {
		return compiled{}, err
	}
	y := s.out
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		var err error
		if fill {
			if to, err = kernels.Fill(to, ptr(y), int64(y.Elements()), 0, 32); err != nil {
				return to, err
			}
		}
		for i := range moves {
			if to, err = moves[i].append(to); err != nil {
				return to, err
			}
		}
		return to, nil
	}}, nil
}

// place returns the moves that consist of one copy.
func (s *stockSite) place(x ops.Arg, sizes, xs, ys []int64, xOffset, yOffset int64) ([]stockMove, error) {
	c, err := kernels.NewStridedCopy(sizes, xs, ys)
	if err != nil {
		return nil, asUnsupported(err)
	}
	return []stockMove{{c, x, s.out, xOffset, yOffset}}, nil
}

// whole fills the result with x in order, or with its one element.
func (s *stockSite) whole(x ops.Arg) ([]stockMove, error) {
	n, stride := int64(s.out.Elements()), int64(1)
	if x.Elements() != s.out.Elements() {
		if stride = 0; x.Elements() != 1 {
			return nil, s.shapes()
		}
	}
	return s.place(x, []int64{n}, []int64{stride}, []int64{1}, 0, 0)
}

func (s *stockSite) transpose() ([]stockMove, error) {
	x := s.in[0]
	if len(s.axes) != len(x.Shape) || !distinctAxes(s.axes, len(x.Shape)) || x.Elements() != s.out.Elements() {
		return nil, s.shapes()
	}
	from, strides := stockSizes(x.Shape), stockStrides(stockSizes(x.Shape))
	sizes, xs := make([]int64, len(from)), make([]int64, len(from))
	for i, a := range s.axes {
		sizes[i], xs[i] = from[a], strides[a]
	}
	return s.place(x, sizes, xs, stockStrides(sizes), 0, 0)
}

// slice copies out of a slice, or into it.
func (s *stockSite) slice() ([]stockMove, error) {
	whole, part := s.in[0], s.out
	into := s.kind == stockSliceIncr
	if into {
		whole, part = s.out, s.in[1]
	}
	if s.all {
		return s.whole(s.in[len(s.in)-1])
	}
	axis := s.axes[0]
	if axis < 0 || axis >= len(whole.Shape) || s.start >= whole.Shape[axis] || s.in[0].Elements() != whole.Elements() {
		return nil, s.shapes()
	}
	end := min(s.end, whole.Shape[axis])
	// Gorgonia leaves out what is left of the range behind the last whole step; but package tensor, on inner axes, does not.
	if axis > 0 && (end-s.start)%s.gap != 0 {
		return nil, s.shapes()
	}
	outer, along, inner := stockExtent(whole.Shape, axis)
	sizes := []int64{outer, int64(max(1, (end-s.start)/s.gap)), inner}
	xs, ys := []int64{along * inner, int64(s.gap) * inner, 1}, stockStrides(sizes)
	at := int64(s.start) * inner
	if n := sizes[0] * sizes[1] * sizes[2]; int64(part.Elements()) != n {
		if !into || part.Elements() != 1 {
			return nil, s.shapes()
		}
		ys = make([]int64, 3) // one number, at each place
	}
	if into {
		return s.place(part, sizes, ys, xs, 0, at)
	}
	return s.place(whole, sizes, xs, ys, at, 0)
}

func (s *stockSite) concat() ([]stockMove, error) {
	axis := s.axes[0]
	if axis < 0 || axis >= len(s.out.Shape) {
		return nil, s.shapes()
	}
	outer, along, inner := stockExtent(s.out.Shape, axis)
	var all []stockMove
	at := int64(0)
	for _, x := range s.in {
		if len(x.Shape) != len(s.out.Shape) {
			return nil, s.shapes()
		}
		o, n, i := stockExtent(x.Shape, axis)
		if o != outer || i != inner {
			return nil, s.shapes()
		}
		m, err := s.place(x, []int64{outer, n * inner}, []int64{n * inner, 1}, []int64{along * inner, 1}, 0, at*inner)
		if err != nil {
			return nil, err
		}
		all, at = append(all, m...), at+n
	}
	if at != along {
		return nil, s.shapes()
	}
	return all, nil
}

// repeat takes the number of times from the shapes: the second operand is that number.
func (s *stockSite) repeat() ([]stockMove, error) {
	x, axis := s.in[0], s.axes[0]
	shape := x.Shape
	if x.Elements() == 1 {
		return s.whole(x)
	}
	if len(shape) == 1 && axis == 1 {
		shape = tensor.Shape{shape[0], 1} // a vector is repeated as a column
	}
	if axis < 0 || axis >= len(shape) || s.out.Elements()%x.Elements() != 0 {
		return nil, s.shapes()
	}
	outer, along, inner := stockExtent(shape, axis)
	sizes := []int64{outer, along, int64(s.out.Elements() / x.Elements()), inner}
	return s.place(x, sizes, []int64{along * inner, inner, 0, 1}, stockStrides(sizes), 0, 0)
}

func (s *stockSite) at() ([]stockMove, error) {
	x := s.in[0]
	if len(s.axes) != len(x.Shape) || s.out.Elements() != 1 {
		return nil, s.shapes()
	}
	strides, offset := stockStrides(stockSizes(x.Shape)), int64(0)
	for i, c := range s.axes {
		if c < 0 || c >= x.Shape[i] {
			return nil, s.shapes()
		}
		offset += int64(c) * strides[i]
	}
	return s.place(x, []int64{1}, []int64{1}, []int64{1}, offset, 0)
}
