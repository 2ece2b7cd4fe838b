package optimizer

import (
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// AdamW is the Spec of a step of decoupled AdamW (arXiv 1711.05101) over N = len(Decay) tensors, after clipping by the
// global norm of the gradients: hyper, float64 [10] as Hyper.Write writes it, norm, float64 [1] of GradNorm, and
// weight, grad, m and v of each tensor -> m and v of each tensor. The four have the same shape, of any rank; all tensors
// have the same type.
//
//	g = grad/scale*min(1, clip/(norm+1e-6));  m = beta1*m + (1-beta1)*g;  v = beta2*v + (1-beta2)*g²
//	weight -= lr*(m*c1/(sqrt(v*c2)+eps) + decay*weight)
//
// The op works in place: it writes to its input weight, and its outputs have the memory of its inputs m and v. If the
// norm is not finite, it writes nothing.
//
// With Copies each tensor has a fifth input, and a third output in its memory: a copy of the weight in the
// half-precision type Copies. The CPU has no kernel for Copies.
type AdamW struct {
	Decay  string       // one character for each tensor: '1' for weight decay, '0' for none; a Spec is compared and hashed
	Copies tensor.Dtype // BFloat16, Float16, or the zero value for no copies
}

func (AdamW) Name() string       { return "adamw" }
func (AdamW) InsertedBy() string { return insertedBy }

func (op AdamW) UpdatedInputs() []int { return updatedInputs(len(op.Decay), 4, op.Copies) }

// updatedInputs returns the indices of the weights of n tensors with size inputs each, and a copy if there are copies.
func updatedInputs(n, size int, copies tensor.Dtype) (list []int) {
	if spec.IsHalf(copies) {
		size++
	}
	for i := range n {
		list = append(list, 2+i*size)
	}
	return list
}

func (op AdamW) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return inferUpdate(in, op.Decay, op.Copies, "weight", "grad", "m", "v")
}

// AdamWTensor holds the inputs of one tensor.
type AdamWTensor[A any] struct{ Weight, Grad, M, V, Copy A } // Copy is the zero value without Copies

// SplitAdamW splits the inputs of an op: it returns hyper, norm, and the inputs of each tensor.
func SplitAdamW[A any](op AdamW, in []A) (hyper, norm A, tensors []AdamWTensor[A]) {
	hyper, norm, in = in[0], in[1], in[2:]
	for range op.Decay {
		t := AdamWTensor[A]{Weight: in[0], Grad: in[1], M: in[2], V: in[3]}
		if in = in[4:]; spec.IsHalf(op.Copies) {
			t.Copy, in = in[0], in[1:]
		}
		tensors = append(tensors, t)
	}
	return hyper, norm, tensors
}

func (op AdamW) Bind(k *cpu.Kernel, in, _ []spec.Arg) {
	if op.Copies == spec.Float16 {
		k.Check = spec.NoHalf
		return
	}
	spec.ByType(in[2].Dtype, bindAdamW[float32], bindAdamW[float64])(k, op, in)
}

func (AdamW) TakesBF16(_, _ []spec.Arg) bool { return true }

func bindAdamW[T cpu.Float](k *cpu.Kernel, op AdamW, in []spec.Arg) {
	hyper, norm, tensors := SplitAdamW(op, in)
	for i := range tensors {
		tensors[i].Grad = spec.InType(k, tensors[i].Weight.Dtype, tensors[i].Grad)[0]
	}
	numbers := stepNumbers{hyper.Buf, norm.Buf}
	pieces := piecesOf(len(tensors), func(i int) int { return tensors[i].Weight.Elements() })
	k.Phase(len(pieces), func(i int, _ *cpu.Worker) {
		p := pieces[i]
		h, clip, ok := numbers.read()
		if !ok {
			return
		}
		step := cpu.AdamWStep[T]{
			LR: T(h[hyperLR]), Beta1: T(h[hyperBeta1]), Beta2: T(h[hyperBeta2]), Eps: T(h[hyperEps]),
			Decay: T(h[hyperDecay]), Clip: T(clip), C1: T(h[hyperC1]), C2: T(h[hyperC2]),
		}
		if op.Decay[p.tensor] == '0' {
			step.Decay = 0
		}
		t, piece := tensors[p.tensor], func(x spec.Arg) []T { return cpu.Slice[T](x.Buf)[p.lo:p.hi] }
		cpu.AdamW(piece(t.Weight), piece(t.Grad), piece(t.M), piece(t.V), step)
		roundCopy(t.Copy.Buf, t.Weight.Buf, p.lo, p.hi)
	})
}

// roundCopy sets the elements [lo,hi) of a weight's copy in BFloat16, unless half is nil.
func roundCopy(half, weight *cpu.Buf, lo, hi int) {
	if half != nil {
		cpu.RoundBF16(cpu.Slice[cpu.BFloat16](half)[lo:hi], cpu.Slice[float32](weight)[lo:hi])
	}
}
