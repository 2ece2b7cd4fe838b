package pointwise

import (
	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// SwiGLU is the Spec of SwiGLU: gate, up -> y = SiLU(gate)*up of the same shape.
type SwiGLU struct{}

func (SwiGLU) Name() string { return "swiglu" }

func (SwiGLU) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return spec.InferElementwise(in, "gate", "up")
}

func (SwiGLU) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, bindSwiGLU[float32], bindSwiGLU[float64])(k, in, out)
}

// bindSwiGLU adds a phase with y = SiLU(gate)*up. y may be gate.
func bindSwiGLU[T cpu.Float](k *cpu.Kernel, in, out []spec.Arg) {
	spec.BindRows(k, out[0].Elements(), 1, func(lo, hi int) {
		y, up := cpu.Slice[T](out[0].Buf)[lo:hi], cpu.Slice[T](in[1].Buf)[lo:hi]
		cpu.SiLU(y, cpu.Slice[T](in[0].Buf)[lo:hi])
		cpu.MulScale(y, y, up, 1)
	})
}

func (SwiGLU) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return spec.ApplyOutputs(SwiGLUGrad{}, 2, in[0], in[1], dy)
}

// SwiGLUGrad is the Spec of the gradient of SwiGLU: gate, up, dy -> dgate, dup.
type SwiGLUGrad struct{}

func (SwiGLUGrad) Name() string { return "gradient of swiglu" }

func (SwiGLUGrad) Infer(in []spec.Operand) ([]spec.Operand, error) {
	out, err := spec.InferElementwise(in, "gate", "up", "dy")
	if err != nil {
		return nil, err
	}
	return []spec.Operand{out[0], out[0]}, nil
}

func (SwiGLUGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, bindSwiGLUGrad[float32], bindSwiGLUGrad[float64])(k, in, out)
}

func bindSwiGLUGrad[T cpu.Float](k *cpu.Kernel, in, out []spec.Arg) {
	spec.BindRows(k, out[0].Elements(), 1, func(lo, hi int) {
		part := func(a spec.Arg) []T { return cpu.Slice[T](a.Buf)[lo:hi] }
		gate, up, dy, dgate, dup := part(in[0]), part(in[1]), part(in[2]), part(out[0]), part(out[1])
		cpu.MulScale(dup, dy, up, 1)
		cpu.SiLUGrad(dgate, gate, dup)
		cpu.SiLU(dup, gate)
		cpu.MulScale(dup, dup, dy, 1)
	})
}
