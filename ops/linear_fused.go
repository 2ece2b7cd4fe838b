package ops

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// LinearAddOp is the Spec of a Linear layer whose result is added to a residual: x, w, a bias or none, residual -> y =
// x·Wᵀ + bias + residual, where residual has the shape of y. The bits are those of LinearOp and AddOp. A machine puts it where
// a plan has the two; it has no constructor and no gradient.
type LinearAddOp struct {
	Heads int // as in LinearOp
}

// Name implements Spec.
func (LinearAddOp) Name() string { return "linear with add" }

func (op LinearAddOp) flops(in []Operand) float64 { return LinearOp(op).flops(in) }

// Infer implements Spec.
func (op LinearAddOp) Infer(in []Operand) ([]Operand, error) {
	want := []input{float("x", -1), float("w", 2), float("residual", -1)}
	if len(in) == 4 {
		want = slices.Insert(want, 2, float("bias", 1))
	}
	if err := wantInputs(in, want...); err != nil {
		return nil, err
	}
	last := len(in) - 1
	y, err := LinearOp(op).Infer(in[:last])
	if err != nil {
		return nil, err
	}
	return y, wantShape("residual", in[last].Shape, y[0].Shape...)
}

// Bind implements Spec.
func (LinearAddOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	last := len(in) - 1
	p := linearProduct(in[:last], out[0])
	p.Residual = in[last].Buf
	bindProducts(k, in[0], p)
	return nil
}

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
