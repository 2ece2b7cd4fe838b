package ops

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Linear returns x·Wᵀ + bias. w is [out,in], as PyTorch stores it. The trailing axes of x with the product in are
// contracted, so the output [B,S,Hq,Dv] of an attention op can be the input of a projection:
//
//	x [...,in] or [...,a,b] with a*b = in (up to four such axes)  ->  [...,out], or [...,h,out/h] with WithHeads(h)
//
// At least two leading axes ([B,S]) are kept, or one if only that gives the product in. If axes of size 1 allow several choices, as
// many axes as possible are contracted. x, w and the bias have gradients.
func Linear(x, w *gorgonia.Node, opts ...LinearOption) (*gorgonia.Node, error) {
	l := linearCall{inputs: gorgonia.Nodes{x, w}}
	for i, opt := range opts {
		if opt == nil {
			return nil, opError(l.op, fmt.Errorf("option %d is nil", i))
		}
		if err := opt(&l); err != nil {
			return nil, opError(l.op, err)
		}
	}
	return Apply(l.op, l.inputs...)
}

// LinearOption is an option of Linear.
type LinearOption func(*linearCall) error

// linear holds what the options of Linear set.
type linearCall struct {
	op     LinearOp
	inputs gorgonia.Nodes
}

// WithBias adds bias [out] to every row of the product.
func WithBias(bias *gorgonia.Node) LinearOption {
	return func(l *linearCall) error {
		l.inputs = append(l.inputs[:2], bias)
		return nil
	}
}

// WithHeads splits the last axis of the output into [h, out/h]. h must divide out.
func WithHeads(h int) LinearOption {
	return func(l *linearCall) error {
		l.op.Heads = h
		return wantPositive("heads", h)
	}
}

// WithDots computes each element of the output as a dot product of a row of x and a row of w, both in place. It is for a few rows
// of x, as in decoding. The bits of a row do not depend on the other rows, but differ from those without the option. Only the CPU
// uses it.
func WithDots() LinearOption {
	return func(l *linearCall) error {
		l.op.Dots = true
		return nil
	}
}

// Axes are the sizes of up to four axes, with zeros after the last one.
type Axes [4]int

func axesOf(s tensor.Shape) (a Axes) {
	copy(a[:], s)
	return a
}

// shape returns the axes without the zeros.
func (a Axes) shape() tensor.Shape {
	n := 0
	for n < len(a) && a[n] > 0 {
		n++
	}
	return tensor.Shape(a[:n:n])
}

// LinearOp is the Spec of Linear: x, w and optionally a bias -> y.
type LinearOp struct {
	Heads int  // number of heads that the last axis of y is split into; 0: no split
	Dots  bool // see WithDots
}

func (LinearOp) Name() string { return "linear" }

func (LinearOp) flops(in []Operand) float64 {
	return 2 * float64(in[0].Elements()) * float64(in[1].Shape[0])
}

func (op LinearOp) Infer(in []Operand) ([]Operand, error) {
	want := []inputRule{floatInput("x", 2).orMore(), floatInput("w", 2)}
	if len(in) == 3 {
		want = append(want, floatInput("bias", 1))
	}
	if err := wantInputs(in, want...); err != nil {
		return nil, err
	}
	x, w := in[0], in[1]
	lead, err := leading(x.Shape, w.Shape[1])
	if err != nil {
		return nil, err
	}
	out := w.Shape[0]
	if len(in) == 3 {
		if err := wantShape("bias", in[2].Shape, out); err != nil {
			return nil, err
		}
	}
	y := append(tensor.Shape{}, x.Shape[:lead]...)
	if op.Heads == 0 {
		return []Operand{{x.Dtype, append(y, out)}}, nil
	}
	if op.Heads < 0 || out%op.Heads != 0 {
		return nil, fmt.Errorf("heads %d do not divide the %d outputs of w %v", op.Heads, out, w.Shape)
	}
	return []Operand{{x.Dtype, append(y, op.Heads, out/op.Heads)}}, nil
}

// leading returns the number of axes of x before the contracted ones, whose product is in.
func leading(x tensor.Shape, in int) (int, error) {
	lead, product := 0, 1
	// The first axis that may be contracted here: Axes bounds the contracted ones, and two axes lead if x has more than two.
	first := max(min(2, x.Dims()-1), x.Dims()-len(Axes{}))
	for i := x.Dims() - 1; i >= first; i-- {
		if product *= x[i]; product == in {
			lead = i
		}
	}
	if lead > 0 {
		return lead, nil
	}
	if x.Dims() > 2 && x.Dims()-1 <= len(Axes{}) && x[1]*product == in {
		return 1, nil
	}
	return 0, fmt.Errorf("x %v has no trailing axes of product %d, the inputs of w", x, in)
}

func (op LinearOp) Bind(k *cpu.Kernel, in, out []Arg) {
	bindProducts(k, in[0], op.product(in, out[0]))
}

// product returns the product of a linear layer with the inputs x, w and optionally a bias.
func (op LinearOp) product(in []Arg, y Arg) cpu.Product {
	w := in[1].Shape
	p := cpu.Product{M: in[0].Elements() / w[1], N: w[0], TransB: true, Dots: op.Dots, Terms: []cpu.Term{{K: w[1], A: in[0].Buf, B: in[1].Buf}}, C: y.Buf}
	if len(in) == 3 {
		p.Bias = in[2].Buf
	}
	return p
}

// bindProducts adds matrix products to k, in the type of like.
func bindProducts(k *cpu.Kernel, like Arg, products ...cpu.Product) {
	byType(like.Dtype, cpu.Products[float32], cpu.Products[float64])(k, products...)
}

func (op LinearOp) Grad(wanted []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	x, w := in[0].Shape(), in[1].Shape()
	lead, err := leading(x, w[1])
	if err != nil {
		return nil, opError(op, err)
	}
	grads := make(gorgonia.Nodes, len(in))
	if wanted[1] {
		if grads[1], err = Apply(LinearWeightGradOp{w[0], w[1]}, in[0], dy); err != nil {
			return nil, err
		}
	}
	if wanted[0] {
		if grads[0], err = Apply(LinearInputGradOp{op.Heads, axesOf(x[lead:])}, dy, in[1]); err != nil {
			return nil, err
		}
	}
	if len(in) == 3 && wanted[2] {
		if grads[2], err = Apply(LinearBiasGradOp{w[0]}, dy); err != nil {
			return nil, err
		}
	}
	return grads, nil
}

// LinearInputGradOp is the Spec of the gradient of Linear with respect to x: dy, w [out,in] -> dx = dy·W, in x's shape. dy ends in
// [out], or in [h,out/h] with heads.
type LinearInputGradOp struct {
	Heads int  // as in LinearOp
	Axes  Axes // contracted axes of x, whose product is in
}

func (LinearInputGradOp) Name() string { return "input gradient of linear" }

func (LinearInputGradOp) flops(in []Operand) float64 {
	return 2 * float64(in[0].Elements()) * float64(in[1].Shape[1])
}

func (op LinearInputGradOp) Infer(in []Operand) ([]Operand, error) {
	minRank := 2
	if op.Heads > 0 {
		minRank = 3
	}
	if err := wantInputs(in, floatInput("dy", minRank).orMore(), floatInput("w", 2)); err != nil {
		return nil, err
	}
	dy, w := in[0].Shape, in[1].Shape
	tail := tensor.Shape{w[0]}
	if op.Heads > 0 {
		tail = tensor.Shape{op.Heads, w[0] / op.Heads}
	}
	lead := dy.Dims() - tail.Dims()
	if err := wantShape("end of dy", dy[lead:], tail...); err != nil {
		return nil, err
	}
	axes := op.Axes.shape()
	if axes.Dims() == 0 || axes.TotalSize() != w[1] {
		return nil, fmt.Errorf("axes %v of x do not have the product %d, the inputs of w", axes, w[1])
	}
	return []Operand{{in[0].Dtype, append(append(tensor.Shape{}, dy[:lead]...), axes...)}}, nil
}

func (LinearInputGradOp) Bind(k *cpu.Kernel, in, out []Arg) {
	dy, w := in[0], in[1]
	rows, size := dy.Elements()/w.Shape[0], w.Shape[0]
	bindProducts(k, dy, cpu.Product{M: rows, N: w.Shape[1], Terms: []cpu.Term{{K: size, A: dy.Buf, B: w.Buf}}, C: out[0].Buf})
}

// LinearWeightGradOp is the Spec of the gradient of Linear with respect to w: x, dy -> dw [out,in] = dyᵀ·x, where x and dy are
// taken as [rows,in] and [rows,out].
type LinearWeightGradOp struct {
	Out, In int // sizes of w
}

func (LinearWeightGradOp) Name() string { return "weight gradient of linear" }

func (op LinearWeightGradOp) flops(in []Operand) float64 {
	return 2 * float64(in[0].Elements()) * float64(op.Out)
}

func (op LinearWeightGradOp) Infer(in []Operand) ([]Operand, error) {
	if err := wantInputs(in, floatInput("x", 0).orMore(), floatInput("dy", 0).orMore()); err != nil {
		return nil, err
	}
	x, dy := in[0], in[1]
	if op.In < 1 || op.Out < 1 || x.Elements()%op.In != 0 || dy.Elements() != x.Elements()/op.In*op.Out {
		return nil, fmt.Errorf("x %v and dy %v are not rows of %d inputs and %d outputs", x.Shape, dy.Shape, op.In, op.Out)
	}
	return []Operand{{x.Dtype, tensor.Shape{op.Out, op.In}}}, nil
}

func (LinearWeightGradOp) Bind(k *cpu.Kernel, in, out []Arg) {
	bindProducts(k, in[0], weightProduct(in[0], in[1], out[0]))
}

// weightProduct returns the product dw = dyᵀ·x.
func weightProduct(x, dy, dw Arg) cpu.Product {
	out, in := dw.Shape[0], dw.Shape[1]
	return cpu.Product{M: out, N: in, TransA: true, Terms: []cpu.Term{{K: x.Elements() / in, A: dy.Buf, B: x.Buf}}, C: dw.Buf}
}

// LinearBiasGradOp is the Spec of the gradient of Linear with respect to the bias: dy -> db [out], the sum of dy's rows.
type LinearBiasGradOp struct {
	Out int // size of the bias
}

func (LinearBiasGradOp) Name() string { return "bias gradient of linear" }

func (op LinearBiasGradOp) Infer(in []Operand) ([]Operand, error) {
	if err := wantInputs(in, floatInput("dy", 0).orMore()); err != nil {
		return nil, err
	}
	if op.Out < 1 || in[0].Elements()%op.Out != 0 {
		return nil, fmt.Errorf("dy %v is not rows of %d outputs", in[0].Shape, op.Out)
	}
	return []Operand{{in[0].Dtype, tensor.Shape{op.Out}}}, nil
}

func (op LinearBiasGradOp) Bind(k *cpu.Kernel, in, out []Arg) {
	rows := in[0].Elements() / op.Out
	byType(in[0].Dtype, bindColumnSums[float32], bindColumnSums[float64])(k, in[0].Buf, rows, op.Out, out[0].Buf)
}

// LinearAddOp is the Spec of a Linear layer without a bias whose result is added to a residual: x, w, residual -> y = x·Wᵀ +
// residual, where residual has the shape of y. The bits are those of LinearOp and AddOp. A machine uses it where a plan has
// these two ops. It has no constructor and no gradient.
type LinearAddOp struct {
	Heads int  // as in LinearOp
	Dots  bool // as in LinearOp
}

func (LinearAddOp) Name() string { return "linear with add" }

func (op LinearAddOp) flops(in []Operand) float64 { return LinearOp(op).flops(in) }

func (op LinearAddOp) Infer(in []Operand) ([]Operand, error) {
	if _, err := inferWithMore(LinearOp(op), 2, in, likeOutput{"residual", 0}); err != nil {
		return nil, err
	}
	return LinearOp(op).Infer(in[:2])
}

func (op LinearAddOp) Bind(k *cpu.Kernel, in, out []Arg) {
	p := LinearOp(op).product(in[:2], out[0])
	p.Residual = in[2].Buf
	bindProducts(k, in[0], p)
}

// LinearSiLUOp is the Spec of a Linear layer followed by SiLU: x, w and optionally a bias -> y = silu(h), h = x·Wᵀ + bias. The
// gradient of SiLU reads h. Shapes and bits are those of LinearOp and SiLUOp. It has no constructor and no gradient.
//
// A machine uses it (rule linear-silu of package graph) where a plan has these two ops and the rule linear-activation does not apply:
// in a plan with derivatives, or where h is kept or read elsewhere. Otherwise it uses LinearsOp with ActivationSiLU, which does not
// output h.
type LinearSiLUOp struct {
	Heads int  // as in LinearOp
	Dots  bool // as in LinearOp
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

func (op LinearSiLUOp) Bind(k *cpu.Kernel, in, out []Arg) {
	p := LinearOp(op).product(in, out[1])
	p.SiLU = out[0].Buf
	bindProducts(k, in[0], p)
}
