package cuda

import (
	"math"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// stockSite is an op at the operands that it is bound to.
type stockSite struct {
	stockOp
	in  []ops.Arg
	out ops.Arg
}

// stockArity is the number of operands of a kind; of those that are not named it is 1.
var stockArity = map[stockKind]int{
	stockBinary: 2, stockMatMul: 2, stockMatVec: 2, stockDot: 2, stockOuter: 2, stockBatched: 2, stockTensordot: 2,
	stockSoftmaxDiff: 3, stockSliceIncr: 2, stockRepeat: 2,
}

// compileStock returns how a stock op of Gorgonia runs on the device, or *graph.Unsupported. Operands and results are float32;
// a result is what the op's own Do gives, in the shape of the node, but at the edges of float32: a quotient by zero and a
// softmax with infinities are IEEE's here, which package tensor's are not, and a maximum keeps a NaN.
func compileStock(site graph.Site, _ kernels.GPU, in, out []ops.Arg) (compiled, error) {
	op, ok := recogniseStock(site.Op)
	if !ok {
		return compiled{}, graph.Refuse(graph.ReasonMissing, "no kernel for %T", site.Op)
	}
	want := max(1, stockArity[op.kind])
	if op.kind == stockConcat {
		want = max(1, len(in))
	}
	if len(in) != want || len(out) != 1 {
		return compiled{}, graph.Refuse(graph.ReasonShape, "%v of %d operands with %d results", op.kind, len(in), len(out))
	}
	for _, a := range append(in[:len(in):len(in)], out...) {
		if a.Dtype != tensor.Float32 {
			return compiled{}, graph.Refuse(graph.ReasonType, "%v of %v, want float32", op.kind, a.Operand)
		}
		if a.Elements() < 1 {
			return compiled{}, graph.Refuse(graph.ReasonShape, "%v of %v, want elements", op.kind, a.Operand)
		}
	}
	c, err := (&stockSite{op, in, out[0]}).compile()
	if err != nil {
		return compiled{}, err
	}
	// Whether kernels take the sizes does not depend on addresses.
	for _, p := range c.all() {
		build := p.launch
		if p.product != nil {
			build = p.product.launcher(0)
		}
		if _, err := build(nil, 0); err != nil {
			return compiled{}, asUnsupported(err)
		}
	}
	return c, nil
}

func (s *stockSite) compile() (compiled, error) {
	switch s.kind {
	case stockUnary:
		return s.compileUnary()
	case stockBinary:
		return s.compileBinary()
	case stockMatMul, stockMatVec, stockDot, stockOuter, stockBatched, stockTensordot:
		return s.compileProduct()
	case stockSum, stockMax:
		return s.compileReduction()
	case stockSoftmax, stockSoftmaxDiff:
		return s.compileSoftmax()
	case stockSize:
		return s.compileSize()
	}
	return s.compileMove()
}

// shapes refuses the shapes of the op.
func (s *stockSite) shapes() error {
	in := make([]tensor.Shape, len(s.in))
	for i, a := range s.in {
		in[i] = a.Shape
	}
	return graph.Refuse(graph.ReasonShape, "%v of %v to %v", s.kind, in, s.out.Shape)
}

// stockExtent returns the sizes of shape as [outer,along,inner] around an axis.
func stockExtent(shape tensor.Shape, axis int) (outer, along, inner int64) {
	outer, inner = 1, 1
	for i, n := range shape {
		switch {
		case i < axis:
			outer *= int64(n)
		case i > axis:
			inner *= int64(n)
		}
	}
	return outer, int64(shape[axis]), inner
}

func (s *stockSite) compileUnary() (compiled, error) {
	x, y := s.in[0], s.out
	if x.Elements() != y.Elements() {
		return compiled{}, s.shapes()
	}
	op := kernels.Unary{Function: s.unary, N: int64(y.Elements())}
	if op.Function == kernels.Sign && x.Shape.IsScalar() {
		op.Function = kernels.SignBit // Gorgonia has two functions of this name
	}
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return op.Forward(to, ptr(x), ptr(y))
	}}, nil
}

func (s *stockSite) compileBinary() (compiled, error) {
	a, b, y := s.in[0], s.in[1], s.out
	op := kernels.Binary{Function: s.binary, N: int64(y.Elements())}
	op.ScalarA, op.ScalarB = a.Elements() == 1, b.Elements() == 1
	if !op.ScalarA && a.Elements() != y.Elements() || !op.ScalarB && b.Elements() != y.Elements() {
		return compiled{}, s.shapes()
	}
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return op.Forward(to, ptr(a), ptr(b), ptr(y))
	}}, nil
}

// compileSize writes the size of an axis: it is known before the op runs.
func (s *stockSite) compileSize() (compiled, error) {
	x, y, axis := s.in[0], s.out, s.axes[0]
	size := 1
	if !x.Shape.IsScalar() {
		if axis < 0 || axis >= len(x.Shape) {
			return compiled{}, s.shapes()
		}
		size = x.Shape[axis]
	}
	if y.Elements() != 1 {
		return compiled{}, s.shapes()
	}
	bits := math.Float32bits(float32(size))
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return kernels.Fill(to, ptr(y), 1, bits, 32)
	}}, nil
}

// compileReduction reduces one group of neighbouring axes after the other, the innermost first. What lies between goes through
// two places of the work memory in turn.
func (s *stockSite) compileReduction() (compiled, error) {
	x, y := s.in[0], s.out
	if len(s.axes) == 0 || !distinctAxes(s.axes, len(x.Shape)) {
		return compiled{}, s.shapes()
	}
	if !tensorReducesRight(x.Shape, s.axes) {
		return compiled{}, graph.Refuse(graph.ReasonShape, "%v along %v of %v is another number on the host", s.kind, s.axes, x.Shape)
	}
	reduced := make([]bool, len(x.Shape))
	for _, a := range s.axes {
		reduced[a] = true
	}
	var passes []kernels.Reduce
	op := kernels.Reduce{Max: s.kind == stockMax, Along: 1, Inner: 1} // of the axes from i on
	for i := len(x.Shape) - 1; i >= 0; i-- {
		if reduced[i] {
			op.Along *= int64(x.Shape[i])
			continue
		}
		if op.Along > 1 {
			passes = append(passes, op)
			op.Along = 1
		}
		op.Inner *= int64(x.Shape[i])
	}
	if op.Along > 1 || len(passes) == 0 {
		passes = append(passes, op)
	}
	if int(op.Inner) != y.Elements() {
		return compiled{}, s.shapes()
	}
	left := int64(x.Elements())
	var between [2]int64 // bytes of the two places
	var partial int64
	for i := range passes {
		p := &passes[i]
		p.Outer = left / (p.Along * p.Inner)
		left /= p.Along
		partial = max(partial, p.WorkBytes())
		if i < len(passes)-1 {
			between[i%2] = max(between[i%2], alignUp(4*left))
		}
	}
	bytes := between[0] + between[1] + partial
	return compiled{work: bytes, launch: func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		places := [2]kernels.Ptr{work, work + kernels.Ptr(between[0])}
		from, err := ptr(x), error(nil)
		for i, p := range passes {
			into := ptr(y)
			if i < len(passes)-1 {
				into = places[i%2]
			}
			if to, err = p.Forward(to, from, into, places[1]+kernels.Ptr(between[1])); err != nil {
				return to, err
			}
			from = into
		}
		return to, nil
	}}, nil
}

// tensorReducesRight reports whether package tensor v0.9.24 reduces the axes as it should. It goes through them in ascending
// order, and for one in the middle it steps wrongly from one block of inner axes to the next within an index of axis 0, unless
// the axis has 2 elements. Such an op is left to the host, so that a graph means the same on each device.
func tensorReducesRight(shape tensor.Shape, axes []int) bool {
	all := len(axes) == len(shape) // in one go, but in ascending order alone
	for i, a := range axes {
		all = all && a == i
	}
	left := slices.Clone(shape)
	for i, a := range slices.Sorted(slices.Values(axes)) {
		a -= i
		if !all && a > 1 && a < len(left)-1 && left[a] != 2 && left[1:a].TotalSize() > 1 {
			return false
		}
		left = slices.Delete(left, a, a+1)
	}
	return true
}

// compileSoftmax chooses the axis as the op and package tensor do: -1 is the last one but for a column in the softmax itself,
// and any number is taken modulo the number of axes.
func (s *stockSite) compileSoftmax() (compiled, error) {
	shape := s.in[0].Shape
	if shape.IsScalar() {
		return compiled{}, s.shapes()
	}
	for _, a := range append(s.in[:len(s.in):len(s.in)], s.out) {
		if a.Elements() != s.out.Elements() {
			return compiled{}, s.shapes()
		}
	}
	axis := s.axes[0]
	if s.kind == stockSoftmax && axis == -1 && shape.IsColVec() {
		axis = 0
	}
	if axis %= len(shape); axis < 0 {
		axis += len(shape)
	}
	op := kernels.AxisSoftmax{Log: s.log}
	op.Outer, op.Along, op.Inner = stockExtent(shape, axis)
	x, y := s.in[0], s.out
	if s.kind == stockSoftmax {
		return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
			return op.Forward(to, ptr(x), ptr(y))
		}}, nil
	}
	result, grad := s.in[1], s.in[2]
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return op.Backward(to, ptr(result), ptr(grad), ptr(y))
	}}, nil
}
