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
// one, in their order -> y_0, ..., y_n-1. Each output has the shape and the bits that LinearOp gives it. A machine puts it
// where a plan has the layers one by one; it has no constructor and no gradient.
type LinearsOp struct {
	Heads [MaxLinears]int  // of each layer as in LinearOp
	Bias  [MaxLinears]bool // which layers have a bias
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
	if slices.Contains(op.Bias[n:], true) || anyPositive(op.Heads[n:]) {
		return nil, fmt.Errorf("%d inputs are those of %d layers, want heads %v and biases %v of no others", len(in), n, op.Heads, op.Bias)
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
	return out, nil
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

// LinearsInputGradOp is the Spec of the gradient of several Linear layers by the input that they share: dy_0, ...,
// dy_n-1, w_0, ..., w_n-1 -> dx = dy_0·W_0 + ... + dy_n-1·W_n-1, in x's shape. It stands for a LinearInputGradOp of each
// layer and the AddOp of their results; the terms are added up in their order, element by element of K, so that the last
// bits may differ from theirs. It has no constructor and no gradient.
type LinearsInputGradOp struct {
	Heads [MaxLinears]int // of each layer as in LinearOp
	Axes  Axes            // trailing axes of x, of product in
}

// Name implements Spec.
func (LinearsInputGradOp) Name() string { return "input gradient of linears" }

func (LinearsInputGradOp) flops(in []Operand) (sum float64) {
	n := len(in) / 2
	for i := range n {
		sum += LinearInputGradOp{}.flops([]Operand{in[i], in[n+i]})
	}
	return sum
}

// Infer implements Spec.
func (op LinearsInputGradOp) Infer(in []Operand) ([]Operand, error) {
	n := len(in) / 2
	if len(in)%2 != 0 {
		return nil, fmt.Errorf("%d inputs, want two for each layer", len(in))
	}
	if err := wantLayers(n); err != nil {
		return nil, err
	}
	if anyPositive(op.Heads[n:]) {
		return nil, fmt.Errorf("heads %v are those of more than %d layers", op.Heads, n)
	}
	var first Operand
	for i := range n {
		dx, err := LinearInputGradOp{op.Heads[i], op.Axes}.Infer([]Operand{in[i], in[n+i]})
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		if i == 0 {
			first = dx[0]
		}
		if dx[0].Dtype != first.Dtype || !slices.Equal(dx[0].Shape, first.Shape) {
			return nil, fmt.Errorf("layer %d: dx would be %v, that of layer 0 is %v", i, dx[0], first)
		}
	}
	return []Operand{first}, nil
}

// Bind implements Spec.
func (LinearsInputGradOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	n := len(in) / 2
	cols := in[n].Shape[1]
	p := cpu.Product{M: out[0].Elements() / cols, N: cols, C: out[0].Buf}
	for i := range n {
		p.Terms = append(p.Terms, cpu.Term{K: in[n+i].Shape[0], A: in[i].Buf, B: in[n+i].Buf})
	}
	bindProducts(k, in[0], p)
	return nil
}

// LinearsWeightGradOp is the Spec of the gradients of several Linear layers by their weights: x, dy_0, ..., dy_n-1 ->
// dw_0, ..., dw_n-1 with dw_i [out_i,in] = dy_iᵀ·x, with x and dy_i seen as [rows,in] and [rows,out_i]. Each has the bits
// that LinearWeightGradOp gives it. It has no constructor and no gradient.
type LinearsWeightGradOp struct {
	Out [MaxLinears]int // outputs of each layer
	In  int             // inputs of all
}

// Name implements Spec.
func (LinearsWeightGradOp) Name() string { return "weight gradient of linears" }

func (op LinearsWeightGradOp) flops(in []Operand) (sum float64) {
	for _, out := range op.Out {
		sum += LinearWeightGradOp{Out: out}.flops(in)
	}
	return sum
}

// Infer implements Spec.
func (op LinearsWeightGradOp) Infer(in []Operand) ([]Operand, error) {
	n := len(in) - 1
	if err := wantLayers(n); err != nil {
		return nil, err
	}
	if anyPositive(op.Out[n:]) {
		return nil, fmt.Errorf("outputs %v are those of more than %d layers", op.Out, n)
	}
	var out []Operand
	for i := range n {
		dw, err := LinearWeightGradOp{op.Out[i], op.In}.Infer([]Operand{in[0], in[1+i]})
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		out = append(out, dw...)
	}
	return out, nil
}

// Bind implements Spec.
func (op LinearsWeightGradOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	var products []cpu.Product
	for i, dw := range out {
		t := cpu.Term{K: in[0].Elements() / op.In, A: in[1+i].Buf, B: in[0].Buf}
		products = append(products, cpu.Product{M: op.Out[i], N: op.In, TransA: true, Terms: []cpu.Term{t}, C: dw.Buf})
	}
	bindProducts(k, in[0], products...)
	return nil
}
