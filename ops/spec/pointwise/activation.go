package pointwise

import (
	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// SiLU is the Spec of SiLU: x -> y of the same shape.
type SiLU struct{}

func (SiLU) Name() string       { return "silu" }
func (SiLU) InputNames() string { return "x" }

func (SiLU) Infer(in []spec.Operand) ([]spec.Operand, error) { return spec.InferElementwise(in, "x") }

func (SiLU) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, spec.Unary(cpu.SiLU[float32]), spec.Unary(cpu.SiLU[float64]))(k, in, out)
}

func (SiLU) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return spec.ApplyOutputs(SiLUGrad{}, 1, in[0], dy)
}

// SiLUGrad is the Spec of the gradient of SiLU: x, dy -> dx = dy*s*(1 + x*(1-s)) with s = sigmoid(x). It needs x:
// y does not determine it.
type SiLUGrad struct{}

func (SiLUGrad) Name() string { return "gradient of silu" }

func (SiLUGrad) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return spec.InferElementwise(in, "x", "dy")
}

func (SiLUGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, spec.Binary(cpu.SiLUGrad[float32]), spec.Binary(cpu.SiLUGrad[float64]))(k, in, out)
}

// Sigmoid is the Spec of Sigmoid: x -> y of the same shape.
type Sigmoid struct{}

func (Sigmoid) Name() string       { return "sigmoid" }
func (Sigmoid) InputNames() string { return "x" }

func (Sigmoid) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return spec.InferElementwise(in, "x")
}

func (Sigmoid) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, spec.Unary(cpu.Sigmoid[float32]), spec.Unary(cpu.Sigmoid[float64]))(k, in, out)
}

func (Sigmoid) Grad(_ []bool, _ gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return spec.ApplyOutputs(SigmoidGrad{}, 1, y, dy)
}

// SigmoidGrad is the Spec of the gradient of Sigmoid: y, dy -> dx = dy*y*(1-y). It reads the result y, not x.
type SigmoidGrad struct{}

func (SigmoidGrad) Name() string { return "gradient of sigmoid" }

func (SigmoidGrad) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return spec.InferElementwise(in, "y", "dy")
}

func (SigmoidGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, spec.Binary(sigmoidGrad[float32]), spec.Binary(sigmoidGrad[float64]))(k, in, out)
}

func sigmoidGrad[T cpu.Float](dst, y, dy []T) {
	dst, dy = dst[:len(y)], dy[:len(y)]
	for i, v := range y {
		dst[i] = dy[i] * v * (1 - v)
	}
}
