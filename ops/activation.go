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
	return applyOutputs(SiLUGradOp{}, 1, in[0], dy)
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
	return applyOutputs(SigmoidGradOp{}, 1, y, dy)
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
