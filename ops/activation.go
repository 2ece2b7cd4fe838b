package ops

import (
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// chunk is the number of elements in one piece of an elementwise kernel.
const chunk = 1 << 14

// SiLU returns x*sigmoid(x), elementwise, of any shape.
func SiLU(x *gorgonia.Node) (*gorgonia.Node, error) { return Apply(SiLUOp{}, x) }

// Sigmoid returns 1/(1+exp(-x)), elementwise, of any shape.
func Sigmoid(x *gorgonia.Node) (*gorgonia.Node, error) { return Apply(SigmoidOp{}, x) }

// SiLUOp is the Spec of SiLU.
type SiLUOp struct{}

// Name implements Spec.
func (SiLUOp) Name() string { return "silu" }

// Infer implements Spec: x -> y of x's shape.
func (SiLUOp) Infer(in []Operand) ([]Operand, error) {
	if err := wantInputs(in, float("x", -1)); err != nil {
		return nil, err
	}
	return in[:1], nil
}

// Bind implements Spec.
func (SiLUOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	if in[0].Dtype == tensor.Float32 {
		bindUnary(k, in[0], out[0], cpu.SiLU[float32])
	} else {
		bindUnary(k, in[0], out[0], cpu.SiLU[float64])
	}
	return nil
}

// bindUnary cuts an elementwise kernel into fixed chunks.
func bindUnary[T cpu.Float](k *cpu.Kernel, x, y Arg, f func(dst, x []T)) {
	n := x.Elements()
	k.Phase((n+chunk-1)/chunk, func(piece int, _ *cpu.Worker) {
		lo, hi := piece*chunk, min(n, (piece+1)*chunk)
		f(cpu.Slice[T](y.Buf)[lo:hi], cpu.Slice[T](x.Buf)[lo:hi])
	})
}

// SigmoidOp is the Spec of Sigmoid.
type SigmoidOp struct{}

// Name implements Spec.
func (SigmoidOp) Name() string { return "sigmoid" }

// Infer implements Spec: x -> y of x's shape.
func (SigmoidOp) Infer(in []Operand) ([]Operand, error) {
	if err := wantInputs(in, float("x", -1)); err != nil {
		return nil, err
	}
	return in[:1], nil
}

// Bind implements Spec.
func (SigmoidOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	if in[0].Dtype == tensor.Float32 {
		bindUnary(k, in[0], out[0], cpu.Sigmoid[float32])
	} else {
		bindUnary(k, in[0], out[0], cpu.Sigmoid[float64])
	}
	return nil
}
