// Package adamw holds the kernels of the optimizer's step.
package adamw

import (
	"math"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// Entries returns the entries of the update's ops.
func Entries() []kernels.Entry {
	return kernels.Entries(
		kernels.EntryFor[optimizer.GradNorm]{Storage: ".*>.", Build: gradNorm},
		kernels.EntryFor[optimizer.AdamW]{Storage: ".*>.*", Build: adamW},
		kernels.EntryFor[optimizer.Muon]{Storage: ".*>.*", Build: muon, Products: kernels.Always[optimizer.Muon]},
	)
}

// The structs of adamw.cu.
type (
	// adamWTensor is one tensor.
	adamWTensor struct {
		weight, grad, m, v kernels.Ref
		half               kernels.Ref // copy of the weight in half precision, 0 for none
		n                  int64
		gradType, halfType int32
		decay, _           int32 // decay is 1 for the step's decay, 0 for none
	}
	// adamWRun is a range of elements of one tensor. Squares are summed in the order of the runs.
	adamWRun struct {
		first     int64
		tensor, n int32
	}
	adamWParams struct {
		tensors, runs, updates, hyper, squares, norm kernels.Ref
		count, updateCount                           int64
	}
)

// runLen is the length of a run.
const runLen = 1 << 14

// gradNorm adds hyper [10], gradients -> norm [1] of all gradients.
func gradNorm(b *kernels.Builder, _ optimizer.GradNorm) error {
	hyper, norm := b.In[0], b.Out[0]
	if hyper.Dtype != tensor.Float64 || norm.Dtype != tensor.Float64 {
		return graph.Refuse(graph.ReasonType, "hyper is %v, norm %v, want float64", hyper.Dtype, norm.Dtype)
	}
	var tensors []adamWTensor
	var runs []adamWRun
	for i, g := range b.In[1:] {
		tensors = append(tensors, adamWTensor{grad: g.Ref, n: g.N(), gradType: int32(b.TypeOf(g))})
		runs = append(runs, runsOf(i, g.N())...)
	}
	p := &adamWParams{tensors: b.Array(tensors), runs: b.Array(runs), hyper: hyper.Ref, norm: norm.Ref, count: int64(len(runs))}
	p.squares = b.Work(8 * p.count)
	b.Launch("nsa_adamw_squares_f32", runGrid(runs), kernels.Threads(), 0, p)
	b.Launch("nsa_adamw_norm_f64", kernels.Line(1), kernels.Line(1024), 0, p)
	return nil
}

// adamW adds hyper [10], norm [1], and weight, grad, m, v and an optional copy of each tensor -> m, v and copy. If the norm
// is finite, weights, moments and copies are updated in place.
func adamW(b *kernels.Builder, op optimizer.AdamW) error {
	hyper, norm, inputs := optimizer.SplitAdamW(op, b.In)
	var tensors []adamWTensor
	var runs []adamWRun
	for i, x := range inputs {
		t, err := tensorOf(b, x.Weight, x.Grad, x.Copy, op.Decay[i], x.M, x.V)
		if err != nil {
			return err
		}
		t.v = x.V.Ref
		tensors, runs = append(tensors, t), append(runs, runsOf(i, t.n)...)
	}
	b.Launch("nsa_adamw_update_f32", runGrid(runs), kernels.Threads(), 0, &adamWParams{
		tensors: b.Array(tensors), updates: b.Array(runs), hyper: hyper.Ref, norm: norm.Ref, updateCount: int64(len(runs)),
	})
	return nil
}

// runsOf cuts the n elements of a tensor into runs.
func runsOf(tensor int, n int64) (runs []adamWRun) {
	for first := int64(0); first < n; first += runLen {
		runs = append(runs, adamWRun{first, int32(tensor), int32(min(n-first, runLen))})
	}
	return runs
}

// runGrid is a grid with a block for each run.
func runGrid(runs []adamWRun) kernels.Dim { return kernels.Line(min(int64(len(runs)), math.MaxInt32)) }

// tensorOf describes a tensor with its moments.
func tensorOf(b *kernels.Builder, weight, grad, half kernels.Operand, decay byte, moments ...kernels.Operand) (t adamWTensor, err error) {
	for _, x := range append(moments, weight) {
		if x.Dtype != tensor.Float32 {
			return t, graph.Refuse(graph.ReasonType, "a weight or moment is %v, want float32", x.Dtype)
		}
	}
	t = adamWTensor{weight: weight.Ref, grad: grad.Ref, m: moments[0].Ref, n: weight.N(), gradType: int32(b.TypeOf(grad))}
	if decay == '1' {
		t.decay = 1
	}
	if half.Shape != nil {
		if !spec.IsHalf(half.Dtype) {
			return t, graph.Refuse(graph.ReasonType, "a copy is %v, want half precision", half.Dtype)
		}
		t.half, t.halfType = half.Ref, int32(b.TypeOf(half))
	}
	return t, nil
}
