package ops

import "github.com/gorgonia-nsa/nsa/internal/cpu"

// LinearAddOp is the Spec of a Linear layer without a bias whose result is added to a residual: x, w, residual -> y = x·Wᵀ +
// residual, where residual has the shape of y. The bits are those of LinearOp and AddOp. A machine puts it where a plan has
// the two; it has no constructor and no gradient.
type LinearAddOp struct {
	Heads int // as in LinearOp
}

func (LinearAddOp) Name() string { return "linear with add" }

func (op LinearAddOp) flops(in []Operand) float64 { return LinearOp(op).flops(in) }

func (op LinearAddOp) Infer(in []Operand) ([]Operand, error) {
	if err := wantInputs(in, float("x", -1), float("w", 2), float("residual", -1)); err != nil {
		return nil, err
	}
	y, err := LinearOp(op).Infer(in[:2])
	if err != nil {
		return nil, err
	}
	return y, wantShape("residual", in[2].Shape, y[0].Shape...)
}

func (LinearAddOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	p := linearProduct(in[:2], out[0])
	p.Residual = in[2].Buf
	bindProducts(k, in[0], p)
	return nil
}

// LinearSiLUOp is the Spec of a Linear layer and the SiLU behind it: x, w, and a bias or none -> y = silu(h), h = x·Wᵀ +
// bias. The gradient of SiLU reads h. Shapes and bits are those of LinearOp and SiLUOp. A machine puts it where a plan
// has the two; it has no constructor and no gradient.
type LinearSiLUOp struct {
	Heads int // as in LinearOp
}

func (LinearSiLUOp) Name() string { return "linear with silu" }

func (op LinearSiLUOp) flops(in []Operand) float64 { return LinearOp(op).flops(in) }

func (op LinearSiLUOp) Infer(in []Operand) ([]Operand, error) {
	h, err := LinearOp(op).Infer(in)
	if err != nil {
		return nil, err
	}
	return []Operand{h[0], h[0]}, nil
}

func (LinearSiLUOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	p := linearProduct(in, out[1])
	p.SiLU = out[0].Buf
	bindProducts(k, in[0], p)
	return nil
}
