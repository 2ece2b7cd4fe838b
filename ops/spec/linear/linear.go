package linear

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

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

// Linear is the Spec of Linear: x, w and optionally a bias -> y.
type Linear struct {
	Heads int // number of heads that the last axis of y is split into; 0: no split
	// Dots computes each element of the output as a dot product of a row of x and a row of w, both in place. It is for
	// a few rows of x, as in decoding. The bits of a row do not depend on the other rows, but differ from those without
	// it. Only the CPU uses it.
	Dots bool
}

func (Linear) Name() string       { return "linear" }
func (Linear) InputNames() string { return "x w bias" }

func (Linear) FLOPs(in []spec.Operand) float64 {
	return 2 * float64(in[0].Elements()) * float64(in[1].Shape[0])
}

func (op Linear) Infer(in []spec.Operand) ([]spec.Operand, error) {
	want := []spec.InputRule{spec.FloatInput("x", 2).OrMore(), spec.FloatInput("w", 2)}
	if len(in) == 3 {
		want = append(want, spec.FloatInput("bias", 1))
	}
	if err := spec.WantInputs(in, want...); err != nil {
		return nil, err
	}
	x, w := in[0], in[1]
	lead, err := leading(x.Shape, w.Shape[1])
	if err != nil {
		return nil, err
	}
	out := w.Shape[0]
	if len(in) == 3 {
		if err := spec.WantShape("bias", in[2].Shape, out); err != nil {
			return nil, err
		}
	}
	y := append(tensor.Shape{}, x.Shape[:lead]...)
	if op.Heads == 0 {
		return []spec.Operand{{Dtype: x.Dtype, Shape: append(y, out)}}, nil
	}
	if op.Heads < 0 || out%op.Heads != 0 {
		return nil, fmt.Errorf("heads %d do not divide the %d outputs of w %v", op.Heads, out, w.Shape)
	}
	return []spec.Operand{{Dtype: x.Dtype, Shape: append(y, op.Heads, out/op.Heads)}}, nil
}

// leading returns the number of axes of x before the contracted ones, whose product is in.
func leading(x tensor.Shape, in int) (int, error) {
	lead, product := 0, 1
	// The first axis that may be contracted here: Axes bounds the contracted ones, and two axes lead if x has more than
	// two.
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

func (op Linear) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.BindProducts(k, in[0], op.product(in, out[0]))
}

func (Linear) TakesBF16(in, _ []spec.Arg) bool { return spec.AllBF16(in...) }

// product returns the product of a linear layer with the inputs x, w and optionally a bias.
func (op Linear) product(in []spec.Arg, y spec.Arg) cpu.Product {
	w := in[1].Shape
	p := cpu.Product{M: in[0].Elements() / w[1], N: w[0], TransB: true, Dots: op.Dots,
		Terms: []cpu.Term{{K: w[1], A: in[0].Buf, B: in[1].Buf}}, C: y.Buf, HalfC: y.Dtype == spec.BFloat16}
	if len(in) == 3 {
		p.Bias = in[2].Buf
	}
	return p
}

func (op Linear) Grad(wanted []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	x, w := in[0].Shape(), in[1].Shape()
	lead, err := leading(x, w[1])
	if err != nil {
		return nil, spec.ErrorIn(op, err)
	}
	grads := make(gorgonia.Nodes, len(in))
	if wanted[1] {
		if grads[1], err = spec.Apply(WeightGrad{w[0], w[1]}, in[0], dy); err != nil {
			return nil, err
		}
	}
	if wanted[0] {
		if grads[0], err = spec.Apply(InputGrad{op.Heads, axesOf(x[lead:])}, dy, in[1]); err != nil {
			return nil, err
		}
	}
	if len(in) == 3 && wanted[2] {
		if grads[2], err = spec.Apply(BiasGrad{w[0]}, dy); err != nil {
			return nil, err
		}
	}
	return grads, nil
}

// InputGrad is the Spec of the gradient of Linear with respect to x: dy, w [out,in] -> dx = dy·W, in x's shape. dy ends
// in [out], or in [h,out/h] with heads.
type InputGrad struct {
	Heads int  // as in Linear
	Axes  Axes // contracted axes of x, whose product is in
}

func (InputGrad) Name() string { return "input gradient of linear" }

func (InputGrad) FLOPs(in []spec.Operand) float64 {
	return 2 * float64(in[0].Elements()) * float64(in[1].Shape[1])
}

func (op InputGrad) Infer(in []spec.Operand) ([]spec.Operand, error) {
	minRank := 2
	if op.Heads > 0 {
		minRank = 3
	}
	if err := spec.WantInputs(in, spec.FloatInput("dy", minRank).OrMore(), spec.FloatInput("w", 2)); err != nil {
		return nil, err
	}
	dy, w := in[0].Shape, in[1].Shape
	tail := tensor.Shape{w[0]}
	if op.Heads > 0 {
		tail = tensor.Shape{op.Heads, w[0] / op.Heads}
	}
	lead := dy.Dims() - tail.Dims()
	if err := spec.WantShape("end of dy", dy[lead:], tail...); err != nil {
		return nil, err
	}
	axes := op.Axes.shape()
	if axes.Dims() == 0 || axes.TotalSize() != w[1] {
		return nil, fmt.Errorf("axes %v of x do not have the product %d, the inputs of w", axes, w[1])
	}
	return []spec.Operand{{Dtype: in[0].Dtype, Shape: append(append(tensor.Shape{}, dy[:lead]...), axes...)}}, nil
}

func (InputGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.BindProducts(k, in[0], inputProduct(in, out[0]))
}

// inputProduct returns the product dx = dy·W.
func inputProduct(in []spec.Arg, dx spec.Arg) cpu.Product {
	dy, w := in[0], in[1]
	return cpu.Product{M: dy.Elements() / w.Shape[0], N: w.Shape[1], Terms: []cpu.Term{{K: w.Shape[0], A: dy.Buf, B: w.Buf}},
		C: dx.Buf, HalfC: dx.Dtype == spec.BFloat16}
}

func (InputGrad) TakesBF16(in, _ []spec.Arg) bool { return spec.AllBF16(in...) }

// InputGradSiLU is the Spec of InputGrad followed by the gradient of a SiLU: dy, w [out,in], h -> dh = dx·silu'(h), dx =
// dy·W, where h is the argument of the SiLU whose result is the layer's input, in its shape. Shapes are those of
// InputGrad and pointwise.SiLUGrad, and in the graph's types so are the bits; in half precision dx is not rounded. A
// machine uses it where a plan has these two ops. It has no constructor and no gradient.
type InputGradSiLU InputGrad

func (InputGradSiLU) Name() string { return "input gradient of linear with gradient of silu" }

func (op InputGradSiLU) FLOPs(in []spec.Operand) float64 { return InputGrad(op).FLOPs(in) }

func (op InputGradSiLU) Infer(in []spec.Operand) ([]spec.Operand, error) {
	if _, err := spec.InferWithMore(InputGrad(op), 2, in, spec.LikeOutput{Name: "h", Output: 0}); err != nil {
		return nil, err
	}
	return InputGrad(op).Infer(in[:2])
}

func (InputGradSiLU) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	p := inputProduct(in, out[0])
	p.SiLUGrad = in[2].Buf
	spec.BindProducts(k, in[0], p)
}

func (InputGradSiLU) TakesBF16(in, out []spec.Arg) bool {
	return spec.AllBF16(in...) && spec.AllBF16(out...)
}

// WeightGrad is the Spec of the gradient of Linear with respect to w: x, dy -> dw [out,in] = dyᵀ·x, where x and dy are
// taken as [rows,in] and [rows,out].
type WeightGrad struct {
	Out, In int // sizes of w
}

func (WeightGrad) Name() string { return "weight gradient of linear" }

func (op WeightGrad) FLOPs(in []spec.Operand) float64 {
	return 2 * float64(in[0].Elements()) * float64(op.Out)
}

func (op WeightGrad) Infer(in []spec.Operand) ([]spec.Operand, error) {
	if err := spec.WantInputs(in, spec.FloatInput("x", 0).OrMore(), spec.FloatInput("dy", 0).OrMore()); err != nil {
		return nil, err
	}
	x, dy := in[0], in[1]
	if op.In < 1 || op.Out < 1 || x.Elements()%op.In != 0 || dy.Elements() != x.Elements()/op.In*op.Out {
		return nil, fmt.Errorf("x %v and dy %v are not rows of %d inputs and %d outputs", x.Shape, dy.Shape, op.In, op.Out)
	}
	return []spec.Operand{{Dtype: x.Dtype, Shape: tensor.Shape{op.Out, op.In}}}, nil
}

func (WeightGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.BindProducts(k, in[0], weightProduct(in[0], in[1], out[0]))
}

// weightProduct returns the product dw = dyᵀ·x.
func weightProduct(x, dy, dw spec.Arg) cpu.Product {
	out, in := dw.Shape[0], dw.Shape[1]
	return cpu.Product{M: out, N: in, TransA: true, Terms: []cpu.Term{{K: x.Elements() / in, A: dy.Buf, B: x.Buf}},
		C: dw.Buf, HalfC: dw.Dtype == spec.BFloat16}
}

func (WeightGrad) TakesBF16(in, _ []spec.Arg) bool { return spec.AllBF16(in...) }

// BiasGrad is the Spec of the gradient of Linear with respect to the bias: dy -> db [out], the sum of dy's rows.
type BiasGrad struct {
	Out int // size of the bias
}

func (BiasGrad) Name() string { return "bias gradient of linear" }

func (op BiasGrad) Infer(in []spec.Operand) ([]spec.Operand, error) {
	if err := spec.WantInputs(in, spec.FloatInput("dy", 0).OrMore()); err != nil {
		return nil, err
	}
	if op.Out < 1 || in[0].Elements()%op.Out != 0 {
		return nil, fmt.Errorf("dy %v is not rows of %d outputs", in[0].Shape, op.Out)
	}
	return []spec.Operand{{Dtype: in[0].Dtype, Shape: tensor.Shape{op.Out}}}, nil
}

func (op BiasGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	rows := in[0].Elements() / op.Out
	spec.ByType(in[0].Dtype, spec.BindColumnSums[float32], spec.BindColumnSums[float64])(k, in[0].Buf, rows, op.Out,
		out[0].Buf)
}

// LinearAdd is the Spec of a Linear layer without a bias whose result is added to a residual: x, w, residual -> y =
// x·Wᵀ + residual, where residual has the shape of y. The bits are those of Linear and pointwise.Add. A machine uses it
// where a plan has these two ops. It has no constructor and no gradient.
type LinearAdd struct {
	Heads int  // as in Linear
	Dots  bool // as in Linear
}

func (LinearAdd) Name() string { return "linear with add" }

func (op LinearAdd) FLOPs(in []spec.Operand) float64 { return Linear(op).FLOPs(in) }

func (op LinearAdd) Infer(in []spec.Operand) ([]spec.Operand, error) {
	if _, err := spec.InferWithMore(Linear(op), 2, in, spec.LikeOutput{Name: "residual", Output: 0}); err != nil {
		return nil, err
	}
	return Linear(op).Infer(in[:2])
}

func (op LinearAdd) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	p := Linear(op).product(in[:2], out[0])
	p.Residual, p.HalfResidual = in[2].Buf, in[2].Dtype == spec.BFloat16
	spec.BindProducts(k, in[0], p)
}

func (LinearAdd) TakesBF16(in, _ []spec.Arg) bool { return spec.AllBF16(in[:2]...) }

// LinearSiLU is the Spec of a Linear layer followed by SiLU: x, w and optionally a bias -> y = silu(h), h = x·Wᵀ +
// bias. The gradient of SiLU reads h. Shapes and bits are those of Linear and pointwise.SiLU. It has no constructor and
// no gradient.
//
// A machine uses it (rule linear-silu of package graph) where a plan has these two ops and the rule linear-activation
// does not apply: in a plan with derivatives, or where h is kept or read elsewhere. Otherwise it uses Fused with
// ActivationSiLU, which does not output h.
type LinearSiLU struct {
	Heads int  // as in Linear
	Dots  bool // as in Linear
}

func (LinearSiLU) Name() string { return "linear with silu" }

func (op LinearSiLU) FLOPs(in []spec.Operand) float64 { return Linear(op).FLOPs(in) }

func (op LinearSiLU) Infer(in []spec.Operand) ([]spec.Operand, error) {
	h, err := Linear(op).Infer(in)
	if err != nil {
		return nil, err
	}
	return []spec.Operand{h[0], h[0]}, nil
}

func (op LinearSiLU) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	p := Linear(op).product(in, out[1])
	p.SiLU = out[0].Buf
	spec.BindProducts(k, in[0], p)
}

func (LinearSiLU) TakesBF16(in, out []spec.Arg) bool {
	return spec.AllBF16(in...) && out[0].Dtype == out[1].Dtype
}
