package ops

import "github.com/gorgonia-nsa/nsa/internal/cpu"

// LinearSiLUOp is the Spec of a Linear layer and the SiLU behind it: x, w, and a bias or none -> y = silu(h), h = x·Wᵀ +
// bias. The gradient of SiLU reads h. Shapes and bits are those of LinearOp and SiLUOp. A machine puts it where a plan
// has the two; it has no constructor and no gradient.
type LinearSiLUOp struct {
	Heads int // as in LinearOp
}

// Name implements Spec.
func (LinearSiLUOp) Name() string { return "linear with silu" }

func (op LinearSiLUOp) flops(in []Operand) float64 { return LinearOp(op).flops(in) }

// Infer implements Spec.
func (op LinearSiLUOp) Infer(in []Operand) ([]Operand, error) {
	h, err := LinearOp(op).Infer(in)
	if err != nil {
		return nil, err
	}
	return []Operand{h[0], h[0]}, nil
}

// Bind implements Spec.
func (LinearSiLUOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	p := linearProduct(in, out[1])
	p.SiLU = out[0].Buf
	bindProducts(k, in[0], p)
	return nil
}
