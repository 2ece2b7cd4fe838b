package spec

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/value"
)

// Operand describes an input or output of an op: element type and shape. The memory is contiguous and row-major. A
// scalar has no axes.
type Operand struct {
	Dtype tensor.Dtype
	Shape tensor.Shape
}

// String returns the operand as in "float32 (2, 100, 4, 8)".
func (o Operand) String() string { return value.TypeName(o.Dtype) + " " + fmt.Sprint(o.Shape) }

// Elements returns the number of elements, 1 for a scalar.
func (o Operand) Elements() int {
	n := 1
	for _, s := range o.Shape {
		n *= s
	}
	return n
}

// Bytes returns the size in memory, 0 for the zero Operand.
func (o Operand) Bytes() int {
	if o.Dtype.Type == nil {
		return 0
	}
	return o.Elements() * int(o.Dtype.Size())
}

// Last returns the size of the last axis.
func (o Operand) Last() int { return o.Shape[len(o.Shape)-1] }

// Coordinates returns the indices of element i.
func (o Operand) Coordinates(i int) tensor.Shape {
	at, _ := tensor.Itol(i, o.Shape, o.Shape.CalcStrides()) // no element is outside the shape
	return at
}

// Arg is an operand and the cell that holds its memory when the op runs.
type Arg struct {
	Operand
	*cpu.Buf
}

// Spec is an op without Gorgonia's interfaces: parameters, shape rule and CPU kernel. Specs are small structs of
// numbers and strings: they are compared, printed and hashed, and a backend chooses its kernel by their type and
// fields. A Spec may also be Differentiable, Checked or Updating.
type Spec interface {
	// Name is the op's name in errors and plans, such as "sliding window".
	Name() string
	// Infer checks the inputs and returns the outputs, the main one first. Its errors need not name the op.
	Infer(in []Operand) (out []Operand, err error)
	// Bind builds the CPU kernel for operands that Infer has accepted. It sets k.Check for errors that only a run can
	// find.
	Bind(k *cpu.Kernel, in, out []Arg)
}

// Differentiable is a Spec with a gradient with respect to each input of floats.
type Differentiable interface {
	Spec
	// Grad returns the gradient node of each wanted input. node is the op's main output, and grad is the gradient with
	// respect to node. The gradients of unwanted inputs may be nil, which saves their ops. Grad may return fewer nodes;
	// the remaining inputs have no gradient.
	Grad(wanted []bool, inputs gorgonia.Nodes, node, grad *gorgonia.Node) (gorgonia.Nodes, error)
}

// Checked is a Spec that checks the values of an int32 input, such as tokens. Its CPU kernel checks them before it
// runs. The kernels of a device cannot report a wrong value, so a machine calls Check for inputs that come from the
// host.
type Checked interface {
	Spec
	// CheckedInput returns the index of the input that Check reads.
	CheckedInput() int
	// Check returns an error that names the first wrong value of that input. b holds the input's memory. Infer has
	// accepted the shapes of in.
	Check(in []Operand, b *cpu.Buf) error
}

// BindCheck makes k check the values of op's input before each run.
func BindCheck(k *cpu.Kernel, op Checked, in []Arg) {
	operands := make([]Operand, len(in))
	for i, a := range in {
		operands[i] = a.Operand
	}
	k.Check = func() error { return op.Check(operands, in[op.CheckedInput()].Buf) }
}

// ValueError is the error of an op that refuses the values of an int32 input: tokens outside the vocabulary, selected
// blocks, boundaries of documents, rows of a cache. errors.As finds it in the error of a graph.Machine's run. Errors of
// Gorgonia's machines do not wrap, so it cannot be found there. The op has written nothing.
type ValueError struct{ Err error }

func (e *ValueError) Error() string { return e.Err.Error() }

func (e *ValueError) Unwrap() error { return e.Err }

// AsValueError makes an error a ValueError.
func AsValueError(err *error) {
	if *err != nil {
		*err = &ValueError{*err}
	}
}

// Updating is a Spec that writes to some of its inputs, such as a cache that is kept over many runs. Each of these is
// an input of the graph, whose value is row-major and in the memory of the device that runs the op. No other op may use
// that input.
type Updating interface {
	Spec
	// UpdatedInputs returns the indices of these inputs.
	UpdatedInputs() []int
}

// Inserted is a Spec that is no op of a graph, such as a cast: what plans a run inserts it.
type Inserted interface {
	Spec
	// InsertedBy says who does, for the error of Apply.
	InsertedBy() string
}

// SpecOf returns the Spec of an op of this package, and whether op has one. The ops that Output makes have none.
func SpecOf(op gorgonia.Op) (Spec, bool) {
	if k, ok := op.(*kernelOp); ok {
		return k.spec, true
	}
	return nil, false
}

// OutputsOf returns the outputs of an op of this package that has a Spec, the main one first. It is nil for any other
// op.
func OutputsOf(op gorgonia.Op) []Operand {
	if k, ok := op.(*kernelOp); ok {
		return k.out
	}
	return nil
}

// OutputIndex reports whether op was made by Output. If so, op returns a further output of the op that computes its
// only input, and index is the index of that output in OutputsOf: at least 1.
func OutputIndex(op gorgonia.Op) (index int, ok bool) {
	if a, ok := op.(*outputOp); ok {
		return a.index, true
	}
	return 0, false
}

// counted is a Spec with products whose operations it counts itself.
type counted interface{ FLOPs(in []Operand) float64 }

// FLOPs returns the floating-point operations of the products in an op with inputs that Infer takes. A multiplication
// and an addition count as two. Attention counts only the keys that each query sees, as if each row were one document.
// An op without products has 0, and so have the ops of decode, whose products depend on the lengths of sequences, and
// optimizer.Muon.
func FLOPs(s Spec, in []Operand) float64 {
	if c, ok := s.(counted); ok {
		return c.FLOPs(in)
	}
	return 0
}
