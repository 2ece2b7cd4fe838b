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

// Update is the Spec of one optimizer step over all parameters: decoupled AdamW (arXiv 1711.05101) after clipping by
// the global norm of the gradients. The inputs are the numbers of the step, float64 [10] as Hyper.Write writes them,
// and then weight, grad, m and v of each of the N = len(DecayMask) tensors. The four have the same shape, of any rank;
// all tensors have the same type. The output, float64 [1], is the norm of all gradients, divided by their scale, before
// clipping.
//
//	g = grad/scale*min(1, clip/(norm+1e-6));  m = beta1*m + (1-beta1)*g;  v = beta2*v + (1-beta2)*g²
//	weight -= lr*(m*c1/(sqrt(v*c2)+eps) + decay*weight)
//
// If the norm is not finite, the step writes only the output.
//
// The tensors of Muon are matrices that take a step of Muon instead, see MuonPolynomials. Their v has no shape, and so
// no memory.
//
// With Copies each tensor has a fifth input: a copy of the weight in the half-precision type Copies. The step writes it
// from the new weight. A copy without a shape has no memory, and the step does not write it. The CPU has no kernel for
// Copies.
//
// The op writes to its inputs weight, m, v and copy, so it is no op of a graph: a solver binds it to memory of its own.
// The masks are strings because a Spec is compared and hashed.
type Update struct {
	DecayMask string       // one character for each tensor: '1' for weight decay, '0' for none
	MuonMask  string       // one character for each tensor: '1' for Muon, '0' for AdamW; "" means AdamW for all
	Copies    tensor.Dtype // BFloat16, Float16, or the zero value for no copies
}

// PerTensor returns the number of inputs of each tensor.
func (op Update) PerTensor() int {
	if spec.IsHalf(op.Copies) {
		return 5
	}
	return 4
}

// Tensor holds the inputs of one tensor.
type Tensor[A any] struct{ Weight, Grad, M, V, Copy A } // Copy is the zero value without Copies

// Split splits the inputs of an op: it returns the numbers of the step, and the inputs of each tensor.
func Split[A any](op Update, in []A) (hyper A, tensors []Tensor[A]) {
	hyper, in = in[0], in[1:]
	for range op.DecayMask {
		t := Tensor[A]{Weight: in[0], Grad: in[1], M: in[2], V: in[3]}
		if op.PerTensor() == 5 {
			t.Copy = in[4]
		}
		tensors, in = append(tensors, t), in[op.PerTensor():]
	}
	return hyper, tensors
}

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

// Write puts the numbers into hyper [10], the first input of Update: lr, beta1, beta2, eps, decay, clip, the bias
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

func (Update) Name() string { return "adamw" }

// InsertedBy implements Inserted.
func (Update) InsertedBy() string { return "package optim runs it" }

func (op Update) Infer(in []spec.Operand) ([]spec.Operand, error) {
	n, perTensor := len(op.DecayMask), op.PerTensor()
	if len(in) != 1+perTensor*n || n == 0 {
		return nil, fmt.Errorf("%d inputs, want the numbers of the step and %d for each of %d tensors", len(in), perTensor, n)
	}
	if err := checkMask("decay", op.DecayMask, n); err != nil {
		return nil, err
	}
	if op.MuonMask != "" {
		if err := checkMask("muon", op.MuonMask, n); err != nil {
			return nil, err
		}
	}
	hyper, tensors := Split(op, in)
	if err := spec.WantInputs(in[:1], spec.FloatInput("hyper", 1)); err != nil {
		return nil, err
	}
	if hyper.Dtype != tensor.Float64 || hyper.Shape[0] != HyperLen {
		return nil, fmt.Errorf("hyper is %v, want float64 (%d)", hyper, HyperLen)
	}
	var state []spec.Operand
	var want []spec.InputRule
	var shapes []tensor.Shape
	for i, t := range tensors {
		add := func(name string, o spec.Operand) {
			state, want = append(state, o), append(want, spec.FloatInput(spec.Numbered(name, i), 0).OrMore())
			shapes = append(shapes, t.Weight.Shape)
		}
		add("weight", t.Weight)
		add("grad", t.Grad)
		add("m", t.M)
		if !op.muon(i) {
			add("v", t.V)
		} else if t.Weight.Shape.Dims() != 2 || t.V.Shape != nil {
			return nil, fmt.Errorf("muon: tensor %d is %v with v %v, want a matrix without v", i, t.Weight, t.V)
		}
		if t.Copy.Shape != nil && (t.Copy.Dtype != op.Copies || !t.Copy.Shape.Eq(t.Weight.Shape)) {
			return nil, fmt.Errorf("copy %d is %v, want %v", i, t.Copy, spec.Operand{Dtype: op.Copies, Shape: t.Weight.Shape})
		}
	}
	if err := spec.WantInputs(state, want...); err != nil {
		return nil, err
	}
	for i, w := range want {
		if err := spec.WantShape(w.Name, state[i].Shape, shapes[i]...); err != nil {
			return nil, err
		}
	}
	return []spec.Operand{{Dtype: tensor.Float64, Shape: tensor.Shape{1}}}, nil
}

// checkMask returns an error unless mask has a '0' or a '1' for each of n tensors.
func checkMask(name, mask string, n int) error {
	if len(mask) != n {
		return fmt.Errorf("%s is %q, want '0' or '1' for each of %d tensors", name, mask, n)
	}
	if i := strings.IndexFunc(mask, func(c rune) bool { return c != '0' && c != '1' }); i >= 0 {
		return fmt.Errorf("%s of tensor %d is %q, want '0' or '1'", name, i, mask[i])
	}
	return nil
}

func (op Update) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	if spec.IsHalf(op.Copies) {
		k.Check = spec.NoHalf
		return
	}
	hyper, tensors := Split(op, in)
	spec.ByType(tensors[0].Weight.Dtype, bindAdamW[float32], bindAdamW[float64])(k, op, hyper, tensors, out[0])
}

// muon reports whether tensor i takes a step of Muon.
func (op Update) muon(i int) bool { return op.MuonMask != "" && op.MuonMask[i] == '1' }

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

func bindAdamW[T cpu.Float](k *cpu.Kernel, op Update, hyper spec.Arg, tensors []Tensor[spec.Arg], norm spec.Arg) {
	elements := func(i int) int { return tensors[i].Weight.Elements() }
	pieces := piecesOf(len(op.DecayMask), elements)
	sums := cpu.Work[float64](k, len(pieces))
	k.Phase(len(pieces), func(i int, _ *cpu.Worker) {
		p := pieces[i]
		cpu.Slice[float64](sums)[i] = cpu.SumSquares(cpu.Slice[T](tensors[p.tensor].Grad.Buf)[p.lo:p.hi])
	})
	k.Phase(1, func(int, *cpu.Worker) {
		sum := 0.0
		for _, s := range cpu.Slice[float64](sums) {
			sum += s
		}
		cpu.Slice[float64](norm.Buf)[0] = math.Sqrt(sum) * cpu.Slice[float64](hyper.Buf)[hyperUnscale]
	})
	numbers := stepNumbers{hyper.Buf, norm.Buf}
	adamWPieces := piecesOf(len(op.DecayMask), func(i int) int {
		if op.muon(i) {
			return 0
		}
		return elements(i)
	})
	k.Phase(len(adamWPieces), func(i int, _ *cpu.Worker) {
		p := adamWPieces[i]
		h, clip, ok := numbers.read()
		if !ok {
			return
		}
		step := cpu.AdamWStep[T]{
			LR: T(h[hyperLR]), Beta1: T(h[hyperBeta1]), Beta2: T(h[hyperBeta2]), Eps: T(h[hyperEps]),
			Decay: T(h[hyperDecay]), Clip: T(clip), C1: T(h[hyperC1]), C2: T(h[hyperC2]),
		}
		if op.DecayMask[p.tensor] == '0' {
			step.Decay = 0
		}
		t, piece := tensors[p.tensor], func(x spec.Arg) []T { return cpu.Slice[T](x.Buf)[p.lo:p.hi] }
		cpu.AdamW(piece(t.Weight), piece(t.Grad), piece(t.M), piece(t.V), step)
	})
	bindMuon[T](k, op, numbers, tensors)
}

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
