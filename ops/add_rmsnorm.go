package ops

import (
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// AddRMSNormOp is the Spec of a residual add and the RMSNorm behind it: x, y, weight -> sum = x + y, norm =
// rmsnorm(sum)*weight, with x and y [...,dim] of rank 2 or more and weight [dim]. The bits are those of AddOp and
// RMSNormOp. A machine puts it where a plan has the two; it has no constructor and no gradient.
type AddRMSNormOp struct {
	Eps float64 // as in RMSNormOp
}

// Name implements Spec.
func (AddRMSNormOp) Name() string { return "add with rms norm" }

// Infer implements Spec.
func (op AddRMSNormOp) Infer(in []Operand) ([]Operand, error) {
	if err := wantInputs(in, float("x", -1), float("y", -1), float("weight", 1)); err != nil {
		return nil, err
	}
	if err := wantShape("y", in[1].Shape, in[0].Shape...); err != nil {
		return nil, err
	}
	if _, err := RMSNormOp(op).Infer(in[1:]); err != nil {
		return nil, err
	}
	return in[:2], nil
}

// Bind implements Spec.
func (op AddRMSNormOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	if in[0].Dtype == tensor.Float32 {
		bindAddRMSNorm[float32](k, op.Eps, in, out)
	} else {
		bindAddRMSNorm[float64](k, op.Eps, in, out)
	}
	return nil
}

func bindAddRMSNorm[T cpu.Float](k *cpu.Kernel, eps float64, in, out []Arg) {
	dim := in[0].last()
	n, size := in[0].Elements(), rowsPerPiece(dim)*dim
	k.Phase(pieces(n, size), func(piece int, _ *cpu.Worker) {
		lo, hi := part(piece, size, n)
		x, y, weight := cpu.Slice[T](in[0].Buf), cpu.Slice[T](in[1].Buf), cpu.Slice[T](in[2].Buf)
		sum, norm := cpu.Slice[T](out[0].Buf), cpu.Slice[T](out[1].Buf)
		for ; lo < hi; lo += dim {
			row := sum[lo : lo+dim]
			cpu.Add(row, x[lo:lo+dim], y[lo:lo+dim])
			cpu.MulScale(norm[lo:lo+dim], row, weight, inverseRMS(row, eps))
		}
	})
}

// RMSNormGradAddOp is the Spec of the gradient of a block that begins with RMSNorm and that a residual goes around: x,
// weight, dy, residual -> dx = gradient of rms norm + residual, dweight, where residual [...,dim] is the gradient that
// comes around the block. The bits are those of RMSNormGradOp and an AddOp of its dx and the residual, in either order.
// A machine puts it where a plan has the two; it has no constructor and no gradient.
type RMSNormGradAddOp struct {
	Eps float64 // as in RMSNormOp
}

// Name implements Spec.
func (RMSNormGradAddOp) Name() string { return "gradient of rms norm with add" }

// Infer implements Spec.
func (op RMSNormGradAddOp) Infer(in []Operand) ([]Operand, error) {
	if err := wantInputs(in, float("x", -1), float("weight", 1), float("dy", -1), float("residual", -1)); err != nil {
		return nil, err
	}
	if err := wantShape("residual", in[3].Shape, in[0].Shape...); err != nil {
		return nil, err
	}
	return RMSNormGradOp(op).Infer(in[:3])
}

// Bind implements Spec.
func (op RMSNormGradAddOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	return RMSNormGradOp(op).Bind(k, in, out)
}
