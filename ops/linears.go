package ops

import (
	"fmt"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// MaxLinears is the largest number of linear layers of a LinearsOp.
const MaxLinears = 12

// Activation is a function that is applied to the output of a linear layer.
type Activation int8

// The activations of LinearsOp.
const (
	ActivationNone Activation = iota
	ActivationSiLU
	ActivationSigmoid
)

// LinearsOp is the Spec of one or several Linear layers that share an input: x, w_0, ..., w_n-1, the biases of the layers that have
// one, in the order of the layers, optionally the weight [in] of an RMSNorm of x, and optionally a table of documents for RoPE ->
// y_0, ..., y_n-1. Each output has the shape and the bits of the single ops: RMSNormOp if there is a norm, LinearOp, and then
// RoPEOp, SiLUOp, SigmoidOp or none. A machine uses it where a plan has these ops one by one. It has no constructor and no
// gradient.
//
// A machine puts an activation or the norm into it only in a plan without derivatives (rules linear-activation and norm-linears of
// package graph), since the op outputs neither a layer's result before its activation nor x after the norm. The gradient of SiLU
// reads that result: LinearSiLUOp, for one layer, outputs it.
type LinearsOp struct {
	Heads   [MaxLinears]int  // of each layer, as in LinearOp
	Bias    [MaxLinears]bool // which layers have a bias
	Rotated [MaxLinears]bool // which outputs RoPE rotates; their heads have the same size
	RoPE    RoPEOp
	Dots    bool // as in LinearOp

	Activation [MaxLinears]Activation // of each layer; ActivationNone for rotated outputs
	Norm       float64                // eps of the RMSNorm of x; 0: no norm
}

func (LinearsOp) Name() string { return "linears" }

func (op LinearsOp) blocks() compressionBlocks { return op.RoPE.blocks() }

func (op LinearsOp) flops(in []Operand) (sum float64) {
	in, _ = splitTable(in, len(in)-1)
	for i := range op.layers(len(in)) {
		sum += LinearOp{}.flops([]Operand{in[0], in[1+i]})
	}
	return sum
}

// layers returns the number of layers of an op with this many inputs, not counting a table of documents.
func (op LinearsOp) layers(inputs int) int {
	for _, b := range op.Bias {
		if b {
			inputs--
		}
	}
	if op.Norm != 0 {
		inputs--
	}
	return inputs - 1
}

// SplitLinears splits the inputs of an op with n layers: it returns x, the w_i, the biases of the layers that have one, and the rest.
// The rest is the weight of the norm, if there is a norm, and a table of documents, if in includes it.
func SplitLinears[A any](op LinearsOp, n int, in []A) (x A, ws, biases, rest []A) {
	end := 1 + n
	for _, b := range op.Bias {
		if b {
			end++
		}
	}
	return in[0], in[1 : 1+n : 1+n], in[1+n : end : end], in[end:]
}

// linearInputs returns the inputs of each of n layers: x, w_i and its bias, if it has one.
func linearInputs[A any](op LinearsOp, n int, in []A) (layers [][]A) {
	x, ws, biases, _ := SplitLinears(op, n, in)
	for i, w := range ws {
		layers = append(layers, []A{x, w})
		if op.Bias[i] {
			layers[i], biases = append(layers[i], biases[0]), biases[1:]
		}
	}
	return layers
}

func (op LinearsOp) Infer(in []Operand) ([]Operand, error) {
	in, table := splitTable(in, len(in)-1)
	n := op.layers(len(in))
	if n < 1 || n > MaxLinears {
		return nil, fmt.Errorf("%d layers, want 1 to %d", n, MaxLinears)
	}
	if slices.Contains(op.Bias[n:], true) || slices.Contains(op.Rotated[n:], true) || anySet(op.Heads[n:]) || anySet(op.Activation[n:]) {
		return nil, fmt.Errorf("%d inputs are those of %d layers, but more have heads %v, biases %v, rotated outputs %v or activations %v",
			len(in), n, op.Heads, op.Bias, op.Rotated, op.Activation)
	}
	for i, a := range op.Activation {
		if a < ActivationNone || a > ActivationSigmoid || a != ActivationNone && op.Rotated[i] {
			return nil, fmt.Errorf("layer %d: activation is %d, want 0 to %d, and 0 for a rotated output", i, a, ActivationSigmoid)
		}
	}
	x, ws, _, gain := SplitLinears(op, n, in)
	if op.Norm != 0 {
		if _, err := (RMSNormOp{op.Norm}).Infer([]Operand{rowsOf(x, ws[0]), gain[0]}); err != nil {
			return nil, fmt.Errorf("norm: %w", err)
		}
	}
	var out []Operand
	for i, layer := range linearInputs(op, n, in) {
		y, err := LinearOp{Heads: op.Heads[i]}.Infer(layer)
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		if ws[i].Shape[1] != ws[0].Shape[1] {
			return nil, fmt.Errorf("w %d has shape %v, want the %d inputs of w 0", i, ws[i].Shape, ws[0].Shape[1])
		}
		out = append(out, y...)
	}
	return out, checkRotated(op.RoPE, op.Rotated, out, table)
}

// checkRotated checks the arrays [B,S,H,D] of list that rope rotates, and the table of documents, if there is one. All these arrays have
// the same D.
func checkRotated(rope RoPEOp, rotated [MaxLinears]bool, list, table []Operand) error {
	dim := 0
	for i, x := range list {
		if !rotated[i] {
			continue
		}
		if _, err := rope.Infer(append([]Operand{x}, table...)); err != nil {
			return fmt.Errorf("layer %d: rope: %w", i, err)
		}
		if d := x.last(); dim == 0 {
			dim = d
		} else if d != dim {
			return fmt.Errorf("layer %d: heads of %d are rotated, those of another layer have %d", i, d, dim)
		}
	}
	return nil
}

// anySet reports whether an element of x is not 0.
func anySet[T ~int | ~int8](x []T) bool {
	return slices.ContainsFunc(x, func(v T) bool { return v != 0 })
}

// rowsOf returns x in the shape [rows,in] for w [out,in], or x itself if that is not possible.
func rowsOf(x, w Operand) Operand {
	if w.Shape.Dims() == 2 && w.Shape[1] > 0 && x.Elements()%w.Shape[1] == 0 {
		x.Shape = tensor.Shape{x.Elements() / w.Shape[1], w.Shape[1]}
	}
	return x
}

func (op LinearsOp) Bind(k *cpu.Kernel, in, out []Arg) {
	in, table := splitTable(in, len(in)-1)
	if op.Norm != 0 {
		x, ws, _, gain := SplitLinears(op, len(out), in)
		x.Operand = rowsOf(x.Operand, ws[0].Operand)
		normed := workLike(k, x)
		RMSNormOp{op.Norm}.Bind(k, []Arg{x, gain[0]}, []Arg{normed})
		in = append([]Arg{normed}, in[1:]...)
	}
	var products []cpu.Product
	for i, layer := range linearInputs(op, len(out), in) {
		p := LinearOp{Dots: op.Dots}.product(layer, out[i])
		if op.Activation[i] == ActivationSiLU {
			p.SiLU = p.C
		}
		products = append(products, p)
	}
	bindProducts(k, in[0], products...)
	for i, y := range out {
		if op.Activation[i] == ActivationSigmoid {
			SigmoidOp{}.Bind(k, []Arg{y}, []Arg{y})
		}
		if op.Rotated[i] {
			op.RoPE.Bind(k, append([]Arg{y}, table...), []Arg{y})
		}
	}
}

// MaxTerms is the largest number of terms of a dy of LinearsGradOp.
const MaxTerms = 3

// LinearsGradOp is the Spec of the gradients of several Linear layers that share an input: x, dy_0, ..., dy_n-1, w_0, ..., w_n-1, and
// optionally a table of documents for RoPE -> dx = dy_0·W_0 + ... + dy_n-1·W_n-1, dw_0, ..., dw_n-1 with dw_i [out_i,in] = dy_iᵀ·x,
// where x and dy_i are taken as [rows,in] and [rows,out_i].
//
// It replaces several ops: a LinearWeightGradOp and a LinearInputGradOp for each layer, the AddOp that sums up the results of the
// latter, and the ops that compute dy_i. These are an AddOp if dy_i has several terms, which are then consecutive inputs, and a
// RoPEOp if dy_i is rotated. Each dw has the bits of the single ops. dx is summed over the layers inside one product, so its last
// bits differ where a layer has more than 512 outputs: then its own product has several parts. The op has no constructor and no gradient.
type LinearsGradOp struct {
	In          int              // size of the input: in of all layers
	WeightsOnly bool             // there are no inputs w_i and no dx
	Terms       [MaxLinears]int  // number of terms of dy_i, 1 to MaxTerms; 0 after the last layer
	Rotated     [MaxLinears]bool // which dy_i RoPE rotates; their heads have the same size
	RoPE        RoPEOp
}

func (LinearsGradOp) Name() string { return "gradient of linears" }

func (op LinearsGradOp) flops(in []Operand) (sum float64) {
	_, dys, _ := SplitLinearsGrad(op, in)
	for _, dy := range dys {
		sum += 2 * float64(op.In) * float64(dy[0].Elements())
	}
	if !op.WeightsOnly {
		sum *= 2
	}
	return sum
}

// SplitLinearsGrad splits inputs that op.Infer has accepted: it returns x, the terms of each dy_i, and the w_i. It ignores a table of
// documents, which follows them.
func SplitLinearsGrad[A any](op LinearsGradOp, in []A) (x A, dys [][]A, ws []A) {
	x, ws = in[0], in[1:]
	for _, n := range op.Terms[:op.layers()] {
		dys, ws = append(dys, ws[:n:n]), ws[n:]
	}
	if op.WeightsOnly {
		return x, dys, nil
	}
	return x, dys, ws[:len(dys):len(dys)]
}

// layers returns the number of layers.
func (op LinearsGradOp) layers() int {
	if n := slices.Index(op.Terms[:], 0); n >= 0 {
		return n
	}
	return MaxLinears
}

func (op LinearsGradOp) blocks() compressionBlocks { return op.RoPE.blocks() }

func (op LinearsGradOp) Infer(in []Operand) ([]Operand, error) {
	in, table := splitTable(in, len(in)-1)
	n := op.layers()
	if n == 0 || anySet(op.Terms[n:]) || slices.Contains(op.Rotated[n:], true) {
		return nil, fmt.Errorf("numbers of terms are %v and rotated dy are %v, want those of 1 to %d layers, from the first on", op.Terms, op.Rotated, MaxLinears)
	}
	want := []inputRule{floatInput("x", 0).orMore()}
	for i, terms := range op.Terms[:n] {
		if terms < 1 || terms > MaxTerms {
			return nil, fmt.Errorf("dy %d has %d terms, want 1 to %d", i, terms, MaxTerms)
		}
		want = append(want, slices.Repeat([]inputRule{floatInput(numbered("dy", i), 0).orMore()}, terms)...)
	}
	for i := range n {
		if !op.WeightsOnly {
			want = append(want, floatInput(numbered("w", i), 2))
		}
	}
	if err := wantInputs(in, want...); err != nil {
		return nil, err
	}
	x, dys, ws := SplitLinearsGrad(op, in)
	if op.In < 1 || x.Elements()%op.In != 0 {
		return nil, fmt.Errorf("x %v is not rows of %d inputs", x.Shape, op.In)
	}
	var out, sums []Operand
	if !op.WeightsOnly {
		out = append(out, x)
	}
	for i, terms := range dys {
		dy := terms[0]
		size := dy.Elements() / (x.Elements() / op.In)
		dw, err := LinearWeightGradOp{size, op.In}.Infer([]Operand{x, dy})
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		for _, t := range terms[1:] {
			if err := wantShape(numbered("a term of dy", i), t.Shape, dy.Shape...); err != nil {
				return nil, err
			}
		}
		if !op.WeightsOnly {
			if err := wantShape(numbered("w", i), ws[i].Shape, size, op.In); err != nil {
				return nil, err
			}
		}
		out, sums = append(out, dw...), append(sums, dy)
	}
	return out, checkRotated(op.RoPE, op.Rotated, sums, table)
}

func (op LinearsGradOp) Bind(k *cpu.Kernel, in, out []Arg) {
	var products []cpu.Product
	x, dys, ws := SplitLinearsGrad(op, in)
	_, table := splitTable(in, len(in)-1)
	dws, dx := out, cpu.Product{M: x.Elements() / op.In, N: op.In}
	if !op.WeightsOnly {
		dx.C, dws = out[0].Buf, out[1:]
	}
	for i, dw := range dws {
		dy := op.bindTerms(k, i, dys[i], table)
		if !op.WeightsOnly {
			dx.Terms = append(dx.Terms, cpu.Term{K: dw.Shape[0], A: dy.Buf, B: ws[i].Buf})
		}
		products = append(products, weightProduct(x, dy, dw))
	}
	if !op.WeightsOnly {
		products = append(products, dx)
	}
	bindProducts(k, x, products...)
}

// bindTerms returns dy_i: its only term, or work memory. It adds to k the phases that sum up and rotate the terms into that memory.
func (op LinearsGradOp) bindTerms(k *cpu.Kernel, i int, terms, table []Arg) Arg {
	if len(terms) == 1 && !op.Rotated[i] {
		return terms[0]
	}
	dy := workLike(k, terms[0])
	if len(terms) > 1 {
		AddOp{}.Bind(k, terms, []Arg{dy})
		terms = []Arg{dy}
	}
	if op.Rotated[i] {
		op.RoPE.Bind(k, append(terms[:1:1], table...), []Arg{dy})
	}
	return dy
}
