package ops

import (
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// SiLU returns x*sigmoid(x), elementwise, of any shape (arXiv 1702.03118).
func SiLU(x *gorgonia.Node) (*gorgonia.Node, error) { return Apply(SiLUOp{}, x) }

// Sigmoid returns 1/(1+exp(-x)), elementwise, of any shape.
func Sigmoid(x *gorgonia.Node) (*gorgonia.Node, error) { return Apply(SigmoidOp{}, x) }

// SiLUOp is the Spec of SiLU.
type SiLUOp struct{}

// Name implements Spec.
func (SiLUOp) Name() string { return "silu" }

// Infer implements Spec: x -> y of x's shape.
func (SiLUOp) Infer(in []Operand) ([]Operand, error) { return inferElementwise(in, "x") }

// Bind implements Spec.
func (SiLUOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	if in[0].Dtype == tensor.Float32 {
		bindUnary(k, in[0], out[0], cpu.SiLU[float32])
	} else {
		bindUnary(k, in[0], out[0], cpu.SiLU[float64])
	}
	return nil
}

// DiffWRT implements Differentiable.
func (SiLUOp) DiffWRT(int) []bool { return []bool{true} }

// Grad implements Differentiable.
func (SiLUOp) Grad(in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	dx, err := Apply(SiLUGradOp{}, in[0], dy)
	return gorgonia.Nodes{dx}, err
}

// SiLUGradOp is the Spec of the gradient of SiLU: x, dy -> dx = dy*s*(1 + x*(1-s)) with s = sigmoid(x). It needs x:
// y does not determine it.
type SiLUGradOp struct{}

// Name implements Spec.
func (SiLUGradOp) Name() string { return "gradient of silu" }

// Infer implements Spec.
func (SiLUGradOp) Infer(in []Operand) ([]Operand, error) { return inferElementwise(in, "x", "dy") }

// Bind implements Spec.
func (SiLUGradOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	if in[0].Dtype == tensor.Float32 {
		bindBinary(k, in[0], in[1], out[0], cpu.SiLUGrad[float32])
	} else {
		bindBinary(k, in[0], in[1], out[0], cpu.SiLUGrad[float64])
	}
	return nil
}

// SigmoidOp is the Spec of Sigmoid.
type SigmoidOp struct{}

// Name implements Spec.
func (SigmoidOp) Name() string { return "sigmoid" }

// Infer implements Spec: x -> y of x's shape.
func (SigmoidOp) Infer(in []Operand) ([]Operand, error) { return inferElementwise(in, "x") }

// Bind implements Spec.
func (SigmoidOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	if in[0].Dtype == tensor.Float32 {
		bindUnary(k, in[0], out[0], cpu.Sigmoid[float32])
	} else {
		bindUnary(k, in[0], out[0], cpu.Sigmoid[float64])
	}
	return nil
}

// DiffWRT implements Differentiable.
func (SigmoidOp) DiffWRT(int) []bool { return []bool{true} }

// Grad implements Differentiable.
func (SigmoidOp) Grad(_ gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	dx, err := Apply(SigmoidGradOp{}, y, dy)
	return gorgonia.Nodes{dx}, err
}

// SigmoidGradOp is the Spec of the gradient of Sigmoid: y, dy -> dx = dy*y*(1-y), from the result.
type SigmoidGradOp struct{}

// Name implements Spec.
func (SigmoidGradOp) Name() string { return "gradient of sigmoid" }

// Infer implements Spec.
func (SigmoidGradOp) Infer(in []Operand) ([]Operand, error) { return inferElementwise(in, "y", "dy") }

// Bind implements Spec.
func (SigmoidGradOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	if in[0].Dtype == tensor.Float32 {
		bindBinary(k, in[0], in[1], out[0], sigmoidGrad[float32])
	} else {
		bindBinary(k, in[0], in[1], out[0], sigmoidGrad[float64])
	}
	return nil
}

func sigmoidGrad[T cpu.Float](dst, y, dy []T) {
	dst, dy = dst[:len(y)], dy[:len(y)]
	for i, v := range y {
		dst[i] = dy[i] * v * (1 - v)
	}
}

// inferElementwise is the shape rule of ops whose inputs and output have one shape.
func inferElementwise(in []Operand, names ...string) ([]Operand, error) {
	want := make([]input, len(names))
	for i, name := range names {
		want[i] = float(name, -1)
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

// bindUnary cuts an elementwise kernel into fixed chunks.
func bindUnary[T cpu.Float](k *cpu.Kernel, x, y Arg, f func(dst, x []T)) {
	n := x.Elements()
	k.Phase(pieces(n, chunk), func(piece int, _ *cpu.Worker) {
		lo, hi := part(piece, chunk, n)
		f(cpu.Slice[T](y.Buf)[lo:hi], cpu.Slice[T](x.Buf)[lo:hi])
	})
}

// bindBinary is bindUnary for two operands.
func bindBinary[T cpu.Float](k *cpu.Kernel, a, b, y Arg, f func(dst, a, b []T)) {
	n := a.Elements()
	k.Phase(pieces(n, chunk), func(piece int, _ *cpu.Worker) {
		lo, hi := part(piece, chunk, n)
		f(cpu.Slice[T](y.Buf)[lo:hi], cpu.Slice[T](a.Buf)[lo:hi], cpu.Slice[T](b.Buf)[lo:hi])
	})
}
