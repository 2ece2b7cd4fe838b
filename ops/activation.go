package ops

import (
	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// SiLU returns x*sigmoid(x), elementwise, of any shape (arXiv 1702.03118).
func SiLU(x *gorgonia.Node) (*gorgonia.Node, error) { return Apply(SiLUOp{}, x) }

// Sigmoid returns 1/(1+exp(-x)), elementwise, of any shape.
func Sigmoid(x *gorgonia.Node) (*gorgonia.Node, error) { return Apply(SigmoidOp{}, x) }

// SiLUOp is the Spec of SiLU: x -> y of the same shape.
type SiLUOp struct{}

func (SiLUOp) Name() string                          { return "silu" }
func (SiLUOp) Infer(in []Operand) ([]Operand, error) { return inferElementwise(in, "x") }

func (SiLUOp) Bind(k *cpu.Kernel, in, out []Arg) {
	byType(in[0].Dtype, unary(cpu.SiLU[float32]), unary(cpu.SiLU[float64]))(k, in, out)
}

func (SiLUOp) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return outputs(SiLUGradOp{}, 1, in[0], dy)
}

// SiLUGradOp is the Spec of the gradient of SiLU: x, dy -> dx = dy*s*(1 + x*(1-s)) with s = sigmoid(x). It needs x:
// y does not determine it.
type SiLUGradOp struct{}

func (SiLUGradOp) Name() string                          { return "gradient of silu" }
func (SiLUGradOp) Infer(in []Operand) ([]Operand, error) { return inferElementwise(in, "x", "dy") }

func (SiLUGradOp) Bind(k *cpu.Kernel, in, out []Arg) {
	byType(in[0].Dtype, binary(cpu.SiLUGrad[float32]), binary(cpu.SiLUGrad[float64]))(k, in, out)
}

// SigmoidOp is the Spec of Sigmoid: x -> y of the same shape.
type SigmoidOp struct{}

func (SigmoidOp) Name() string                          { return "sigmoid" }
func (SigmoidOp) Infer(in []Operand) ([]Operand, error) { return inferElementwise(in, "x") }

func (SigmoidOp) Bind(k *cpu.Kernel, in, out []Arg) {
	byType(in[0].Dtype, unary(cpu.Sigmoid[float32]), unary(cpu.Sigmoid[float64]))(k, in, out)
}

func (SigmoidOp) Grad(_ []bool, _ gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return outputs(SigmoidGradOp{}, 1, y, dy)
}

// SigmoidGradOp is the Spec of the gradient of Sigmoid: y, dy -> dx = dy*y*(1-y). It reads the result y, not x.
type SigmoidGradOp struct{}

func (SigmoidGradOp) Name() string                          { return "gradient of sigmoid" }
func (SigmoidGradOp) Infer(in []Operand) ([]Operand, error) { return inferElementwise(in, "y", "dy") }

func (SigmoidGradOp) Bind(k *cpu.Kernel, in, out []Arg) {
	byType(in[0].Dtype, binary(sigmoidGrad[float32]), binary(sigmoidGrad[float64]))(k, in, out)
}

func sigmoidGrad[T cpu.Float](dst, y, dy []T) {
	dst, dy = dst[:len(y)], dy[:len(y)]
	for i, v := range y {
		dst[i] = dy[i] * v * (1 - v)
	}
}

// inferElementwise is the shape rule of ops whose inputs and output have the same shape.
func inferElementwise(in []Operand, names ...string) ([]Operand, error) {
	want := make([]input, len(names))
	for i, name := range names {
		want[i] = floats(name, 0)
	}
	if err := wantInputs(in, want...); err != nil {
		return nil, err
	}
	for i, name := range names {
		if err := wantShape(name, in[i].Shape, in[0].Shape...); err != nil {
			return nil, err
		}
	}
	return in[:1], nil
}

// unary returns the Bind of an elementwise op of one input.
func unary[T cpu.Float](f func(dst, x []T)) func(k *cpu.Kernel, in, out []Arg) {
	return func(k *cpu.Kernel, in, out []Arg) {
		bindRows(k, out[0].Elements(), 1, func(lo, hi int) {
			f(cpu.Slice[T](out[0].Buf)[lo:hi], cpu.Slice[T](in[0].Buf)[lo:hi])
		})
	}
}

// binary is unary for two inputs.
func binary[T cpu.Float](f func(dst, x, y []T)) func(k *cpu.Kernel, in, out []Arg) {
	return func(k *cpu.Kernel, in, out []Arg) {
		bindRows(k, out[0].Elements(), 1, func(lo, hi int) {
			f(cpu.Slice[T](out[0].Buf)[lo:hi], cpu.Slice[T](in[0].Buf)[lo:hi], cpu.Slice[T](in[1].Buf)[lo:hi])
		})
	}
}
