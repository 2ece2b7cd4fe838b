package optimizer

import (
	"fmt"
	"math"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Hyper holds the numbers of one step.
type Hyper struct {
	LR           float64 // learning rate
	Beta1, Beta2 float64 // decay of the first and of the second moment, in [0,1)
	Eps          float64 // added to the root of the second moment
	Decay        float64 // weight decay of the tensors that have it
	Clip         float64 // largest norm of all gradients together; 0 does not clip
	Scale        float64 // factor by which the gradients are too large; 0 means 1
	Step         int     // number of the step, from 1; it determines the bias corrections
	Momentum     float64 // of Muon, in [0,1)
}

// Write puts the numbers into hyper [10], the first input of the ops: lr, beta1, beta2, eps, decay, clip, the bias
// corrections c1 = 1/(1-beta1^step) and c2 = 1/(1-beta2^step), 1/scale, and momentum.
func (h Hyper) Write(hyper []float64) {
	t, unscale := float64(h.Step), 1.0
	if h.Scale != 0 {
		unscale = 1 / h.Scale
	}
	copy(hyper, []float64{
		hyperLR: h.LR, hyperBeta1: h.Beta1, hyperBeta2: h.Beta2, hyperEps: h.Eps, hyperDecay: h.Decay, hyperClip: h.Clip,
		hyperC1: 1 / (1 - math.Pow(h.Beta1, t)), hyperC2: 1 / (1 - math.Pow(h.Beta2, t)), hyperUnscale: unscale,
		hyperMomentum: h.Momentum,
	})
}

// The numbers of a step, in the order in which Hyper.Write writes them. The GPU's kernels read the same order.
const (
	hyperLR = iota
	hyperBeta1
	hyperBeta2
	hyperEps
	hyperDecay
	hyperClip
	hyperC1
	hyperC2
	hyperUnscale
	hyperMomentum
	hyperCount
)

// HyperLen is the number of elements that Hyper.Write writes.
const HyperLen = hyperCount

// stepNumbers are the cells of a step's numbers and of the norm of its gradients.
type stepNumbers struct{ hyper, norm *cpu.Buf }

// read returns the numbers, and the factor that unscales and clips the gradients. ok is false if the norm is not
// finite.
func (s stepNumbers) read() (hyper []float64, clip float64, ok bool) {
	h, n := cpu.Slice[float64](s.hyper), cpu.Slice[float64](s.norm)[0]
	if value.NotFinite(n) {
		return h, 0, false
	}
	if h[hyperClip] > 0 {
		return h, h[hyperUnscale] * min(1, h[hyperClip]/(n+1e-6)), true
	}
	return h, h[hyperUnscale], true
}

// tensorPiece holds the elements [lo,hi) of one tensor.
type tensorPiece struct{ tensor, lo, hi int }

// piecesOf cuts n tensors, with elements(i) elements each, into pieces of at most spec.PieceElements elements.
func piecesOf(n int, elements func(tensor int) int) (pieces []tensorPiece) {
	for i := range n {
		for lo := 0; lo < elements(i); lo += spec.PieceElements {
			pieces = append(pieces, tensorPiece{i, lo, min(elements(i), lo+spec.PieceElements)})
		}
	}
	return pieces
}

// wantScalars checks hyper and norm, the first inputs of an op.
func wantScalars(in []spec.Operand) error {
	for i, want := range []spec.Operand{hyperOperand, normOperand}[:len(in)] {
		if in[i].Dtype != want.Dtype || in[i].Shape.Dims() != 1 || in[i].Shape[0] != want.Shape[0] {
			return fmt.Errorf("%s is %v, want %v", []string{"hyper", "norm"}[i], in[i], want)
		}
	}
	return nil
}

var (
	hyperOperand = spec.Operand{Dtype: tensor.Float64, Shape: tensor.Shape{HyperLen}}
	normOperand  = spec.Operand{Dtype: tensor.Float64, Shape: tensor.Shape{1}}
)

// inferUpdate is the shape rule of AdamW and Muon: hyper, norm, and for each tensor the operands of these names. The
// outputs are those after the gradient.
func inferUpdate(in []spec.Operand, decay string, copies tensor.Dtype, names ...string) (out []spec.Operand,
	err error) {
	n := len(decay)
	if spec.IsHalf(copies) {
		names = append(names, "copy")
	}
	if len(in) != 2+len(names)*n || n == 0 {
		return nil, fmt.Errorf("%d inputs, want hyper, norm and %d for each of %d tensors", len(in), len(names), n)
	}
	if i := strings.IndexFunc(decay, func(c rune) bool { return c != '0' && c != '1' }); i >= 0 {
		return nil, fmt.Errorf("decay of tensor %d is %q, want '0' or '1'", i, decay[i])
	}
	if err := wantScalars(in[:2]); err != nil {
		return nil, err
	}
	var floats []spec.Operand
	var want []spec.InputRule
	for i := range n {
		tensors := in[2+i*len(names):][:len(names)]
		for j, o := range tensors {
			name := spec.Numbered(names[j], i)
			if err := spec.WantShape(name, o.Shape, tensors[0].Shape...); err != nil {
				return nil, err
			}
			if names[j] == "copy" {
				if o.Dtype != copies {
					return nil, fmt.Errorf("%s is %v, want %v", name, o, spec.Operand{Dtype: copies, Shape: o.Shape})
				}
			} else {
				floats, want = append(floats, o), append(want, spec.FloatInput(name, 0).OrMore())
			}
			if j >= 2 {
				out = append(out, o)
			}
		}
	}
	return out, spec.WantInputs(floats, want...)
}
