package ops

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Operand describes an input or output of an op: element type and shape. The memory is contiguous and row-major. A scalar
// has no axes.
type Operand struct {
	Dtype tensor.Dtype
	Shape tensor.Shape
}

// String returns the operand as in "float32 (2, 100, 4, 8)".
func (o Operand) String() string { return fmt.Sprintf("%v %v", o.Dtype, o.Shape) }

// Elements returns the number of elements, 1 for a scalar.
func (o Operand) Elements() int {
	n := 1
	for _, s := range o.Shape {
		n *= s
	}
	return n
}

// Bytes returns the size in memory.
func (o Operand) Bytes() int { return o.Elements() * int(o.Dtype.Size()) }

// Arg is an operand with the cell that holds its memory when the op runs.
type Arg struct {
	Operand
	*cpu.Buf
}

// Spec is an op without Gorgonia's interfaces: parameters, shape rule and CPU kernel. Specs are small structs of numbers and
// strings: they are compared, printed and hashed, and a backend chooses its kernel by their type and fields. A Spec may also
// be Differentiable or Checked.
type Spec interface {
	// Name is the op's name in errors and plans, such as "sliding window".
	Name() string
	// Infer checks the inputs and returns the outputs, the main one first. Its errors need not name the op.
	Infer(in []Operand) (out []Operand, err error)
	// Bind builds the CPU kernel for operands that Infer has accepted. What only a run can tell is for k.Check.
	Bind(k *cpu.Kernel, in, out []Arg)
}

// Differentiable is a Spec with a gradient by each input of floats.
type Differentiable interface {
	Spec
	// Grad returns the gradient node of each wanted input, nil for one of integers: node is the op's main output, grad the
	// gradient with respect to it. The gradients of the other inputs may be nil, which saves their ops.
	Grad(wanted []bool, inputs gorgonia.Nodes, node, grad *gorgonia.Node) (gorgonia.Nodes, error)
}

// Checked is a Spec that checks the numbers of an int32 input, such as tokens. Its CPU kernel does so before it runs. The
// kernels of a device cannot report a wrong number, so a machine calls Check for inputs that come from the host.
type Checked interface {
	Spec
	// CheckedInput returns the index of the input.
	CheckedInput() int
	// Check returns an error that names the first wrong number of the input, whose memory is b. Infer has accepted the
	// shapes of in.
	Check(in []Operand, b *cpu.Buf) error
}

// Updating is a Spec that writes to some of its inputs, as to a cache that lasts over many runs. Such an input is a value of
// its own, row-major and where the op runs; no other op of the graph may write to it.
type Updating interface {
	Spec
	// UpdatedInputs returns the indices of these inputs.
	UpdatedInputs() []int
}

// SpecOf returns the Spec behind an op of this package, and whether op is one.
func SpecOf(op gorgonia.Op) (Spec, bool) {
	if k, ok := op.(*kernelOp); ok {
		return k.spec, true
	}
	return nil, false
}

// OutputsOf returns the outputs of an op of this package that has a Spec, the main one first.
func OutputsOf(op gorgonia.Op) []Operand {
	if k, ok := op.(*kernelOp); ok {
		return k.out
	}
	return nil
}

// OutputIndex reports whether op, made by Output, returns a further output of the op behind its only input, and the index of
// that output in OutputsOf: at least 1.
func OutputIndex(op gorgonia.Op) (index int, ok bool) {
	if a, ok := op.(*outputOp); ok {
		return a.index, true
	}
	return 0, false
}

// counted is a Spec of matrix products or of attention.
type counted interface{ flops(in []Operand) float64 }

// FLOPs returns the floating-point operations of the products in an op with these inputs, a multiplication and an addition
// being two; of attention, those of the pairs of a query and a key that are seen, as if each row were one document. It is 0 for
// an op without products.
func FLOPs(s Spec, in []Operand) float64 {
	if c, ok := s.(counted); ok {
		return c.flops(in)
	}
	return 0
}

// attentionFLOPs counts perKey operations for each element of a key and perValue for each of a value, for each pair of a
// query and a key in each head of q [B,S,Hq,D]. Forward these are 2 and 2, in the gradient 6 and 4.
func attentionFLOPs(a AttentionSpec, in []Operand, perKey, perValue float64) float64 {
	q, v := in[0].Shape, in[2].Shape
	return float64(q[0]*q[2]) * a.pairs(in) * (perKey*float64(q[3]) + perValue*float64(v[3]))
}
