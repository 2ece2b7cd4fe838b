// Package optimizer holds the kernels of the optimizer's step.
package optimizer

import (
	"math"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// Entries returns the entries of the ops of a step. GradNorm takes all sizes.
func Entries() []kernels.Entry {
	any := func(fixed ...string) kernels.Types {
		return kernels.In(kernels.Any(fixed...), kernels.Any("tensors").Repeated())
	}
	return kernels.Entries(
		kernels.EntryFor[optimizer.SumSquares]{
			Types: any().Out(kernels.Any("squares")), Guard: guardSumSquares, Launches: sumSquares,
		},
		kernels.EntryFor[optimizer.GradNorm]{
			Types: kernels.In(kernels.Any("hyper", "squares")).Out(kernels.Any("norm")), Launches: gradNorm,
		},
		kernels.EntryFor[optimizer.AdamW]{
			Types: any("hyper", "norm").Out(kernels.Any("moments").Repeated()), Guard: guardAdamW, Launches: adamW,
		},
		kernels.EntryFor[optimizer.Muon]{
			Types: any("hyper", "norm").Out(kernels.Any("moments").Repeated()), Products: muonProducts, Guard: guardMuon,
			Launches: muon,
		},
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
const runLen = spec.PieceElements

func guardAdamW(c *kernels.Call, op optimizer.AdamW) error {
	_, _, tensors := optimizer.SplitAdamW(op, c.In)
	for _, x := range tensors {
		if err := checkTypes(x.Grad, x.Copy, x.Weight, x.M, x.V); err != nil {
			return err
		}
	}
	return nil
}

// checkTypes refuses types that the kernels do not take.
func checkTypes(grad, half kernels.Operand, wide ...kernels.Operand) error {
	for _, x := range wide {
		if x.Dtype != tensor.Float32 {
			return graph.Refuse(graph.ReasonType, "a weight or moment is %v, want float32", x)
		}
	}
	if half.Shape != nil && !spec.IsHalf(half.Dtype) {
		return graph.Refuse(graph.ReasonType, "a copy is %v, want half precision", half)
	}
	_, err := kernels.TypeOf(grad.Dtype)
	return err
}

// adamW adds hyper [10], norm [1], and weight, grad, m, v and an optional copy of each tensor -> m, v and copy. If the norm
// is finite, weights, moments and copies are updated in place.
func adamW(b *kernels.Builder, op optimizer.AdamW) {
	hyper, norm, inputs := optimizer.SplitAdamW(op, b.In)
	var tensors []adamWTensor
	var runs []adamWRun
	for i, x := range inputs {
		t := tensorOf(op.Decay[i], x.Weight, x.Grad, x.M, x.Copy)
		t.v = x.V.Ref
		tensors, runs = append(tensors, t), append(runs, runsOf(i, t.n)...)
	}
	b.AddLaunch("nsa_adamw_update_f32", runGrid(runs), kernels.Threads(), 0, &adamWParams{
		tensors: b.Array(tensors), updates: b.Array(runs), hyper: hyper.Ref, norm: norm.Ref, updateCount: int64(len(runs)),
	})
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

func tensorOf(decay byte, weight, grad, m, half kernels.Operand) adamWTensor {
	t := adamWTensor{
		weight: weight.Ref, grad: grad.Ref, m: m.Ref, n: weight.N(), gradType: int32(grad.Type()),
		decay: kernels.Flag(decay == '1'),
	}
	if half.Shape != nil {
		t.half, t.halfType = half.Ref, int32(half.Type())
	}
	return t
}
