package linear

import (
	"fmt"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// MaxFused is the largest number of linear layers of a Fused.
const MaxFused = 12

// Activation is a function that is applied to the output of a linear layer.
type Activation int8

// The activations of Fused.
const (
	ActivationNone Activation = iota
	ActivationSiLU
	ActivationSigmoid
)

// Fused is the Spec of one or several Linear layers that share an input: x, w_0, ..., w_n-1, the biases of the layers
// that have one, in the order of the layers, optionally the weight [in] of an RMSNorm of x, and optionally a table of
// documents or a start for RoPE -> y_0, ..., y_n-1. Each output has the shape and the bits of the single ops:
// norm.RMSNorm if there is a norm, Linear, and then pointwise.RoPE, pointwise.SiLU, pointwise.Sigmoid or none. A machine
// uses it where a plan has these ops one by one. It has no constructor and no gradient.
//
// A machine puts an activation or the norm into it only in a plan without derivatives (rules linear-activation and
// norm-linears of package graph), since the op outputs neither a layer's result before its activation nor x after the
// norm. The gradient of SiLU reads that result: LinearSiLU, for one layer, outputs it.
type Fused struct {
	Heads   [MaxFused]int  // of each layer, as in Linear
	Bias    [MaxFused]bool // which layers have a bias
	Rotated [MaxFused]bool // which outputs RoPE rotates; their heads have the same size
	RoPE    pointwise.RoPE
	Dots    bool // as in Linear

	Activation [MaxFused]Activation // of each layer; ActivationNone for rotated outputs
	Norm       float64              // eps of the RMSNorm of x; 0: no norm
}

func (Fused) Name() string { return "linears" }

func (op Fused) Blocks() spec.CompressionBlocks { return op.RoPE.Blocks() }

func (op Fused) MaxTokens(in []spec.Operand) int { return op.RoPE.MaxTokens(in) }

func (op Fused) FLOPs(in []spec.Operand) (sum float64) {
	in, _ = spec.SplitTable(in, len(in)-1)
	for i := range op.layers(len(in)) {
		sum += Linear{}.FLOPs([]spec.Operand{in[0], in[1+i]})
	}
	return sum
}

// layers returns the number of layers of an op with this many inputs, not counting a table of documents or a start.
func (op Fused) layers(inputs int) int {
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

// SplitFused splits the inputs of an op with n layers: it returns x, the w_i, the biases of the layers that have one,
// and the rest. The rest is the weight of the norm, if there is a norm, and a table of documents or a start, if in
// includes it.
func SplitFused[A any](op Fused, n int, in []A) (x A, ws, biases, rest []A) {
	end := 1 + n
	for _, b := range op.Bias {
		if b {
			end++
		}
	}
	return in[0], in[1 : 1+n : 1+n], in[1+n : end : end], in[end:]
}

// linearInputs returns the inputs of each of n layers: x, w_i and its bias, if it has one.
func linearInputs[A any](op Fused, n int, in []A) (layers [][]A) {
	x, ws, biases, _ := SplitFused(op, n, in)
	for i, w := range ws {
		layers = append(layers, []A{x, w})
		if op.Bias[i] {
			layers[i], biases = append(layers[i], biases[0]), biases[1:]
		}
	}
	return layers
}

func (op Fused) Infer(in []spec.Operand) ([]spec.Operand, error) {
	in, table := spec.SplitTable(in, len(in)-1)
	n := op.layers(len(in))
	if n < 1 || n > MaxFused {
		return nil, fmt.Errorf("%d layers, want 1 to %d", n, MaxFused)
	}
	if slices.Contains(op.Bias[n:], true) || slices.Contains(op.Rotated[n:], true) || anySet(op.Heads[n:]) ||
		anySet(op.Activation[n:]) {
		return nil, fmt.Errorf("%d inputs are those of %d layers, but more have heads %v, biases %v, rotated outputs %v or activations %v",
			len(in), n, op.Heads, op.Bias, op.Rotated, op.Activation)
	}
	for i, a := range op.Activation {
		if a < ActivationNone || a > ActivationSigmoid || a != ActivationNone && op.Rotated[i] {
			return nil, fmt.Errorf("layer %d: activation is %d, want 0 to %d, and 0 for a rotated output", i, a,
				ActivationSigmoid)
		}
	}
	x, ws, _, gain := SplitFused(op, n, in)
	if op.Norm != 0 {
		if _, err := (norm.RMSNorm{Eps: op.Norm}).Infer([]spec.Operand{rowsOf(x, ws[0]), gain[0]}); err != nil {
			return nil, fmt.Errorf("norm: %w", err)
		}
	}
	var out []spec.Operand
	for i, layer := range linearInputs(op, n, in) {
		y, err := Linear{Heads: op.Heads[i]}.Infer(layer)
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

// checkRotated checks the arrays [B,S,H,D] of list that rope rotates, and the table of documents or the start, if there
// is one. All these arrays have the same D.
func checkRotated(rope pointwise.RoPE, rotated [MaxFused]bool, list, table []spec.Operand) error {
	dim := 0
	for i, x := range list {
		if !rotated[i] {
			continue
		}
		if _, err := rope.Infer(append([]spec.Operand{x}, table...)); err != nil {
			return fmt.Errorf("layer %d: rope: %w", i, err)
		}
		if d := x.Last(); dim == 0 {
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
func rowsOf(x, w spec.Operand) spec.Operand {
	if w.Shape.Dims() == 2 && w.Shape[1] > 0 && x.Elements()%w.Shape[1] == 0 {
		x.Shape = tensor.Shape{x.Elements() / w.Shape[1], w.Shape[1]}
	}
	return x
}

func (op Fused) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	in, table := spec.SplitTable(in, len(in)-1)
	if op.Norm != 0 {
		x, ws, _, gain := SplitFused(op, len(out), in)
		x.Operand = rowsOf(x.Operand, ws[0].Operand)
		normed := spec.WorkLike(k, spec.Arg{Operand: spec.Operand{Dtype: ws[0].Dtype, Shape: x.Shape}})
		spec.BindBF16(k, norm.RMSNorm{Eps: op.Norm}, []spec.Arg{x, gain[0]}, []spec.Arg{normed})
		in = append([]spec.Arg{normed}, in[1:]...)
	}
	var products []cpu.Product
	for i, layer := range linearInputs(op, len(out), in) {
		p := Linear{Dots: op.Dots}.product(layer, out[i])
		if op.Activation[i] == ActivationSiLU {
			p.SiLU = p.C
		}
		products = append(products, p)
	}
	spec.BindProducts(k, in[1], products...)
	for i, y := range out {
		if op.Activation[i] == ActivationSigmoid {
			spec.BindBF16(k, pointwise.Sigmoid{}, []spec.Arg{y}, []spec.Arg{y})
		}
		if op.Rotated[i] {
			spec.BindBF16(k, op.RoPE, append([]spec.Arg{y}, table...), []spec.Arg{y})
		}
	}
}

func (op Fused) TakesBF16(in, out []spec.Arg) bool {
	x, ws, biases, _ := SplitFused(op, len(out), in)
	return (op.Norm != 0 || spec.AllBF16(x)) && spec.AllBF16(ws...) && spec.AllBF16(biases...)
}

// MaxTerms is the largest number of terms of a dy of FusedGrad.
const MaxTerms = 3

// FusedGrad is the Spec of the gradients of several Linear layers that share an input: x, dy_0, ..., dy_n-1, w_0, ...,
// w_n-1, and optionally a table of documents or a start for RoPE -> dx = dy_0·W_0 + ... + dy_n-1·W_n-1, dw_0, ...,
// dw_n-1 with dw_i [out_i,in] = dy_iᵀ·x, where x and dy_i are taken as [rows,in] and [rows,out_i].
//
// It replaces several ops: a WeightGrad and an InputGrad for each layer, the pointwise.Add that sums up the results of
// the latter, and the ops that compute dy_i. These are a pointwise.Add if dy_i has several terms, which are then
// consecutive inputs, and a pointwise.RoPE if dy_i is rotated. Each dw has the bits of the single ops. dx is summed
// over the layers inside one product, so its last bits differ where a layer has more than 512 outputs: then its own
// product has several parts. The op has no constructor and no gradient.
type FusedGrad struct {
	In          int            // size of the input: in of all layers
	WeightsOnly bool           // there are no inputs w_i and no dx
	Terms       [MaxFused]int  // number of terms of dy_i, 1 to MaxTerms; 0 after the last layer
	Rotated     [MaxFused]bool // which dy_i RoPE rotates; their heads have the same size
	RoPE        pointwise.RoPE
}

func (FusedGrad) Name() string { return "gradient of linears" }

func (op FusedGrad) FLOPs(in []spec.Operand) (sum float64) {
	_, dys, _ := SplitFusedGrad(op, in)
	for _, dy := range dys {
		sum += 2 * float64(op.In) * float64(dy[0].Elements())
	}
	if !op.WeightsOnly {
		sum *= 2
	}
	return sum
}

// SplitFusedGrad splits inputs that op.Infer has accepted: it returns x, the terms of each dy_i, and the w_i. It
// ignores a table of documents or a start, which follows them.
func SplitFusedGrad[A any](op FusedGrad, in []A) (x A, dys [][]A, ws []A) {
	x, ws = in[0], in[1:]
	for _, n := range op.Terms[:op.layers()] {
		dys, ws = append(dys, ws[:n:n]), ws[n:]
	}
	if op.WeightsOnly {
		return x, dys, nil
	}
	return x, dys, ws[:len(dys):len(dys)]
}

func (op FusedGrad) layers() int {
	if n := slices.Index(op.Terms[:], 0); n >= 0 {
		return n
	}
	return MaxFused
}

func (op FusedGrad) Blocks() spec.CompressionBlocks { return op.RoPE.Blocks() }

func (op FusedGrad) MaxTokens(in []spec.Operand) int { return op.RoPE.MaxTokens(in) }

func (op FusedGrad) Infer(in []spec.Operand) ([]spec.Operand, error) {
	in, table := spec.SplitTable(in, len(in)-1)
	n := op.layers()
	if n == 0 || anySet(op.Terms[n:]) || slices.Contains(op.Rotated[n:], true) {
		return nil, fmt.Errorf("numbers of terms are %v and rotated dy are %v, want those of 1 to %d layers, from the first on", op.Terms, op.Rotated, MaxFused)
	}
	want := []spec.InputRule{spec.FloatInput("x", 0).OrMore()}
	for i, terms := range op.Terms[:n] {
		if terms < 1 || terms > MaxTerms {
			return nil, fmt.Errorf("dy %d has %d terms, want 1 to %d", i, terms, MaxTerms)
		}
		want = append(want, slices.Repeat([]spec.InputRule{spec.FloatInput(spec.Numbered("dy", i), 0).OrMore()}, terms)...)
	}
	for i := range n {
		if !op.WeightsOnly {
			want = append(want, spec.FloatInput(spec.Numbered("w", i), 2))
		}
	}
	if err := spec.WantInputs(in, want...); err != nil {
		return nil, err
	}
	x, dys, ws := SplitFusedGrad(op, in)
	if op.In < 1 || x.Elements()%op.In != 0 {
		return nil, fmt.Errorf("x %v is not rows of %d inputs", x.Shape, op.In)
	}
	var out, sums []spec.Operand
	if !op.WeightsOnly {
		out = append(out, x)
	}
	for i, terms := range dys {
		dy := terms[0]
		size := dy.Elements() / (x.Elements() / op.In)
		dw, err := WeightGrad{size, op.In}.Infer([]spec.Operand{x, dy})
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		for _, t := range terms[1:] {
			if err := spec.WantShape(spec.Numbered("a term of dy", i), t.Shape, dy.Shape...); err != nil {
				return nil, err
			}
		}
		if !op.WeightsOnly {
			if err := spec.WantShape(spec.Numbered("w", i), ws[i].Shape, size, op.In); err != nil {
				return nil, err
			}
		}
		out, sums = append(out, dw...), append(sums, dy)
	}
	return out, checkRotated(op.RoPE, op.Rotated, sums, table)
}

func (op FusedGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	var products []cpu.Product
	x, dys, ws := SplitFusedGrad(op, in)
	_, table := spec.SplitTable(in, len(in)-1)
	dws, dx := out, cpu.Product{M: x.Elements() / op.In, N: op.In}
	if !op.WeightsOnly {
		dx.C, dx.HalfC, dws = out[0].Buf, out[0].Dtype == spec.BFloat16, out[1:]
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
	spec.BindProducts(k, x, products...)
}

func (op FusedGrad) TakesBF16(in, _ []spec.Arg) bool {
	x, dys, ws := SplitFusedGrad(op, in)
	return spec.AllBF16(x) && spec.AllBF16(slices.Concat(dys...)...) && spec.AllBF16(ws...)
}

// bindTerms returns dy_i: its only term, or work memory. It adds to k the phases that sum up and rotate the terms into
// that memory.
func (op FusedGrad) bindTerms(k *cpu.Kernel, i int, terms, table []spec.Arg) spec.Arg {
	if len(terms) == 1 && !op.Rotated[i] {
		return terms[0]
	}
	dy := spec.WorkLike(k, terms[0])
	if len(terms) > 1 {
		spec.BindBF16(k, pointwise.Add{}, terms, []spec.Arg{dy})
		terms = []spec.Arg{dy}
	}
	if op.Rotated[i] {
		spec.BindBF16(k, op.RoPE, append(terms[:1:1], table...), []spec.Arg{dy})
	}
	return dy
}
