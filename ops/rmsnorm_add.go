package ops

import "github.com/gorgonia-nsa/nsa/internal/cpu"

// RMSNormGradAddOp is the Spec of the gradient of a block that begins with RMSNorm and that a residual goes around: x,
// weight, dy, residual -> dx = gradient of rms norm + residual, dweight, where residual [...,dim] is the gradient that
// comes around the block. The bits are those of RMSNormGradOp and an AddOp of its dx and the residual, in either order.
// A machine puts it where a plan has the two; it has no constructor and no gradient.
type RMSNormGradAddOp struct {
	Eps float64 // as in RMSNormOp
}

func (RMSNormGradAddOp) Name() string { return "gradient of rms norm with add" }

func (op RMSNormGradAddOp) Infer(in []Operand) ([]Operand, error) {
	return inferGrad(RMSNormOp(op), 2, in, saved{"dy", 0}, saved{"residual", 0})
}

func (op RMSNormGradAddOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	return RMSNormGradOp(op).Bind(k, in, out)
}
