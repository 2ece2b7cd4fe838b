package ops

import (
	"fmt"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// MaxLinears is the most linear layers that one LinearsOp computes.
const MaxLinears = 12

// LinearsOp is the Spec of several Linear layers of one input: x, w_0, ..., w_n-1, and the biases of the layers that have
// one, in their order -> y_0, ..., y_n-1. Each output has the shape and the bits that LinearOp gives it, or LinearOp and a
// RoPEOp behind it. A machine puts it where a plan has the layers one by one; it has no constructor and no gradient.
type LinearsOp struct {
	Heads  [MaxLinears]int  // of each layer as in LinearOp
	Bias   [MaxLinears]bool // which layers have a bias
	Turned [MaxLinears]bool // which outputs RoPE turns; their heads are of one size
	RoPE   RoPEOp
}

// Name implements Spec.
func (LinearsOp) Name() string { return "linears" }

func (op LinearsOp) flops(in []Operand) (sum float64) {
	for i := range op.layers(len(in)) {
		sum += LinearOp{}.flops([]Operand{in[0], in[1+i]})
	}
	return sum
}

// layers returns the number of layers that this many inputs are for.
func (op LinearsOp) layers(inputs int) int {
	for _, b := range op.Bias {
		if b {
			inputs--
		}
	}
	return inputs - 1
}

// layer returns what layer i of n has of the inputs: x, w_i and its bias or none.
func layer[A any](op LinearsOp, in []A, n, i int) []A {
	one := []A{in[0], in[1+i]}
	if !op.Bias[i] {
		return one
	}
	at := 1 + n
	for _, b := range op.Bias[:i] {
		if b {
			at++
		}
	}
	return append(one, in[at])
}

// Infer implements Spec.
func (op LinearsOp) Infer(in []Operand) ([]Operand, error) {
	n := op.layers(len(in))
	if err := wantLayers(n); err != nil {
		return nil, err
	}
	if slices.Contains(op.Bias[n:], true) || slices.Contains(op.Turned[n:], true) || anyPositive(op.Heads[n:]) {
		return nil, fmt.Errorf("%d inputs are those of %d layers, want heads %v, biases %v and turned outputs %v of no others",
			len(in), n, op.Heads, op.Bias, op.Turned)
	}
	var out []Operand
	for i := range n {
		y, err := LinearOp{op.Heads[i]}.Infer(layer(op, in, n, i))
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		if in[1+i].Shape[1] != in[1].Shape[1] {
			return nil, fmt.Errorf("w %d has shape %v, want the %d inputs of w 0", i, in[1+i].Shape, in[1].Shape[1])
		}
		out = append(out, y...)
	}
	return out, wantTurns(op.RoPE, op.Turned, out)
}

// wantTurns checks that rope takes the arrays [B,S,H,D] that it turns, of one D.
func wantTurns(rope RoPEOp, turned [MaxLinears]bool, list []Operand) error {
	dim := 0
	for i, x := range list {
		if !turned[i] {
			continue
		}
		if _, err := rope.Infer([]Operand{x}); err != nil {
			return fmt.Errorf("layer %d: rope: %w", i, err)
		}
		if d := x.last(); dim == 0 {
			dim = d
		} else if d != dim {
			return fmt.Errorf("layer %d: heads of %d are turned, those of another layer have %d", i, d, dim)
		}
	}
	return nil
}

// wantLayers checks a number of layers.
func wantLayers(n int) error {
	if n < 1 || n > MaxLinears {
		return fmt.Errorf("%d layers, want 1 to %d", n, MaxLinears)
	}
	return nil
}

func anyPositive(x []int) bool { return slices.ContainsFunc(x, func(v int) bool { return v != 0 }) }

// Bind implements Spec.
func (op LinearsOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	var products []cpu.Product
	for i := range out {
		products = append(products, linearProduct(layer(op, in, len(out), i), out[i]))
	}
	bindProducts(k, in[0], products...)
	for i, y := range out {
		if op.Turned[i] {
			if err := op.RoPE.Bind(k, []Arg{y}, []Arg{y}); err != nil {
				return err
			}
		}
	}
	return nil
}

// linearProduct returns the product of a linear layer: x, w, and a bias or none.
func linearProduct(in []Arg, y Arg) cpu.Product {
	w := in[1].Shape
	p := cpu.Product{M: in[0].Elements() / w[1], N: w[0], TransB: true, Terms: []cpu.Term{{K: w[1], A: in[0].Buf, B: in[1].Buf}}, C: y.Buf}
	if len(in) == 3 {
		p.Bias = in[2].Buf
	}
	return p
}

// bindProducts adds matrix products of the type of like to k.
func bindProducts(k *cpu.Kernel, like Arg, products ...cpu.Product) {
	if like.Dtype == tensor.Float32 {
		cpu.Products[float32](k, products...)
	} else {
		cpu.Products[float64](k, products...)
	}
}

// LinearsGradOp is the Spec of the gradients of several Linear layers of one input: x, dy_0, ..., dy_n-1, w_0, ..., w_n-1 ->
// dx = dy_0·W_0 + ... + dy_n-1·W_n-1, dw_0, ..., dw_n-1 with dw_i [out_i,in] = dy_iᵀ·x, where x and dy_i are seen as [rows,in]
// and [rows,out_i]. It stands for a LinearWeightGradOp and a LinearInputGradOp of each layer, the AddOp of what the latter
// give, and a RoPEOp before them where dy_i is turned. Each dw has the bits that LinearWeightGradOp gives it. The terms of dx
// are added up in their order, element by element of K, so that its last bits may differ from those of the sum. It has no
// constructor and no gradient.
type LinearsGradOp struct {
	In          int              // inputs of all layers
	WeightsOnly bool             // there are no inputs w_i and no dx
	Turned      [MaxLinears]bool // which dy_i RoPE turns first; their heads are of one size
	RoPE        RoPEOp
}

// Name implements Spec.
func (LinearsGradOp) Name() string { return "gradient of linears" }

func (op LinearsGradOp) flops(in []Operand) (sum float64) {
	_, dys, _ := op.split(in)
	for _, dy := range dys {
		sum += 2 * float64(op.In) * float64(dy.Elements())
	}
	if !op.WeightsOnly {
		sum *= 2
	}
	return sum
}

// split returns x, the dy_i and the w_i of the inputs, which are at least one.
func (op LinearsGradOp) split(in []Operand) (x Operand, dys, ws []Operand) {
	if op.WeightsOnly {
		return in[0], in[1:], nil
	}
	n := (len(in) - 1) / 2
	return in[0], in[1 : 1+n], in[1+n:]
}

// Infer implements Spec.
func (op LinearsGradOp) Infer(in []Operand) ([]Operand, error) {
	if len(in) == 0 || !op.WeightsOnly && len(in)%2 == 0 {
		return nil, fmt.Errorf("%d inputs, want x and as many w as dy", len(in))
	}
	x, dys, ws := op.split(in)
	if err := wantLayers(len(dys)); err != nil {
		return nil, err
	}
	if slices.Contains(op.Turned[len(dys):], true) {
		return nil, fmt.Errorf("turned %v are those of more than %d layers", op.Turned, len(dys))
	}
	want := []input{float("x", -1)}
	for i := range dys {
		want = append(want, float(numbered("dy", i), -1))
	}
	for i := range ws {
		want = append(want, float(numbered("w", i), 2))
	}
	if err := wantInputs(in, want...); err != nil {
		return nil, err
	}
	if op.In < 1 || x.Elements()%op.In != 0 {
		return nil, fmt.Errorf("x %v is not rows of %d inputs", x.Shape, op.In)
	}
	var out []Operand
	if !op.WeightsOnly {
		out = append(out, x)
	}
	for i, dy := range dys {
		size := dy.Elements() / (x.Elements() / op.In)
		dw, err := LinearWeightGradOp{size, op.In}.Infer([]Operand{x, dy})
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		if !op.WeightsOnly {
			if err := wantShape(numbered("w", i), ws[i].Shape, size, op.In); err != nil {
				return nil, err
			}
		}
		out = append(out, dw...)
	}
	return out, wantTurns(op.RoPE, op.Turned, dys)
}

// Bind implements Spec.
func (op LinearsGradOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	var products []cpu.Product
	dws := out
	rows, dx := in[0].Elements()/op.In, cpu.Product{N: op.In}
	if !op.WeightsOnly {
		dx.M, dx.C, dws = rows, out[0].Buf, out[1:]
	}
	for i, dw := range dws {
		dy := in[1+i]
		if op.Turned[i] {
			turned := Arg{Operand: dy.Operand}
			if dy.Dtype == tensor.Float32 {
				turned.Buf = cpu.Work[float32](k, dy.Elements())
			} else {
				turned.Buf = cpu.Work[float64](k, dy.Elements())
			}
			if err := op.RoPE.Bind(k, []Arg{dy}, []Arg{turned}); err != nil {
				return err
			}
			dy = turned
		}
		if !op.WeightsOnly {
			dx.Terms = append(dx.Terms, cpu.Term{K: dw.Shape[0], A: dy.Buf, B: in[1+len(dws)+i].Buf})
		}
		products = append(products, weightProduct(in[0], dy, dw))
	}
	if !op.WeightsOnly {
		products = append(products, dx)
	}
	bindProducts(k, in[0], products...)
	return nil
}

// weightProduct returns the product dw = dyᵀ·x.
func weightProduct(x, dy, dw Arg) cpu.Product {
	out, in := dw.Shape[0], dw.Shape[1]
	return cpu.Product{M: out, N: in, TransA: true, Terms: []cpu.Term{{K: x.Elements() / in, A: dy.Buf, B: x.Buf}}, C: dw.Buf}
}
