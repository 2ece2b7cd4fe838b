package graph

import (
	"fmt"
	"unsafe"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// own is an ownOp for elements of type T.
type own[T cpu.Float] struct {
	// compute writes the result to y. x has the elements of each operand in row-major order. y may be the memory of x[0]
	// if the op works element by element.
	compute func(y []T, x [][]T)

	in    []spec.Operand
	cells []cpu.Buf
	x     [][]T
}

func (o *own[T]) do(y *cpu.Buf, args []G.Value) error {
	for i, a := range args {
		if err := spec.PointAtValue(&o.cells[i], a, o.in[i]); err != nil {
			return fmt.Errorf("input %d: %w", i, err)
		}
		o.x[i] = cpu.Slice[T](&o.cells[i])
	}
	o.compute(cpu.Slice[T](y), o.x)
	clear(o.cells)
	clear(o.x)
	return nil
}

// ownOpOf returns the computation of the op of n, nil if Gorgonia's is right.
func ownOpOf(n *G.Node, in []*planValue) ownOp {
	if gorgoniaType(n.Op()) == "" {
		return nil
	}
	for _, v := range in {
		if v.arg.Dtype != n.Dtype() {
			return nil
		}
	}
	switch n.Dtype() {
	case tensor.Float32:
		return newOwn[float32](n.Op(), typesOf(in))
	case tensor.Float64:
		return newOwn[float64](n.Op(), typesOf(in))
	}
	return nil
}

func newOwn[T cpu.Float](op G.Op, in []spec.Operand) ownOp {
	if compute := computeOf[T](op, in); compute != nil {
		return &own[T]{compute, in, make([]cpu.Buf, len(in)), make([][]T, len(in))}
	}
	return nil
}

// computeOf returns the function compute of an own. A test holds the names of ops and fields to v0.9.18.
func computeOf[T cpu.Float](op G.Op, in []spec.Operand) func(y []T, x [][]T) {
	axisOf := func(shape tensor.Shape) int { // -1 stands for the last one
		return (intField(op, "axis") + shape.Dims()) % shape.Dims()
	}
	switch gorgoniaType(op) {
	case "elemUnaryOp":
		return unary[T](op.String())
	case "elemBinOp":
		return binary[T](op.String())
	case "minBetween":
		return pairs(func(a, b T) T { return min(a, b) })
	case "maxBetween":
		return pairs(func(a, b T) T { return max(a, b) })
	case "softmaxOp":
		axis := axisOf(in[0].Shape)
		if intField(op, "axis") == -1 && in[0].Shape.IsColVec() { // Gorgonia takes a column for a vector
			axis = 0
		}
		return softmax[T](lanesOf(in[0].Shape, axis), boolField(op, "isLog"))
	case "softmaxDiffOp":
		return softmaxGrad[T](lanesOf(in[1].Shape, axisOf(in[1].Shape)), boolField(op, "isLog"))
	case "sparsemaxOp":
		return sparsemax[T](lanesOf(in[0].Shape, axisOf(in[0].Shape)))
	case "maxOp":
		return largest[T](in[0].Shape, intsField(op, "along"))
	case "maxPoolOp":
		return maxPool[T](poolingOf(op, in[0].Shape))
	case "maxPoolDiffOp":
		return maxPoolGrad[T](poolingOf(op, in[0].Shape))
	case "batchnormDiffOp":
		return batchNormGrad[T](batchNormOf(op), in[0].Shape)
	case "GroupNormOp":
		return groupNorm[T](groupSize(op, in[0].Shape), fieldOf(op, "epsilon").Float())
	case "groupNormDiffOp":
		return groupNormGrad[T](groupSize(op, in[0].Shape), fieldOf(op, "epsilon").Float())
	}
	return nil
}

func (h *hostMemory) doOwn(st *step, args []G.Value) (G.Value, error) {
	var y cpu.Buf
	if st.node.IsScalar() {
		var v interface {
			G.Scalar
			Pointer() unsafe.Pointer
		} = G.NewF64(0)
		if st.node.Dtype() == tensor.Float32 {
			v = G.NewF32(0)
		}
		y.Set(v.Pointer(), int(v.MemSize()))
		return v, st.host.own.do(&y, args)
	}
	var d *tensor.Dense
	if st.host.elementwise && allRowMajor(args) && h.mayOverwriteFirst(st, args) {
		d = args[0].(*tensor.Dense)
	} else {
		d = h.alloc(st)
	}
	y.Set(unsafe.Pointer(unsafe.SliceData(d.Raw)), int(d.MemSize()))
	return d, st.host.own.do(&y, args)
}

func intsField(op G.Op, name string) []int {
	field := fieldOf(op, name)
	list := make([]int, field.Len())
	for i := range list {
		list[i] = int(field.Index(i).Int())
	}
	return list
}
