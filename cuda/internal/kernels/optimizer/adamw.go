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

// Entries returns the entry of the step.
func Entries() []kernels.Entry {
	return kernels.Entries(kernels.EntryFor[optimizer.Update]{
		Types:    kernels.In(kernels.Any("inputs").Repeated()).Out(kernels.Any("norm")),
		Products: muonProducts, Guard: guardUpdate, Launches: update,
	})
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

func guardUpdate(c *kernels.Call, op optimizer.Update) error {
	hyper, inputs := optimizer.Split(op, c.In)
	if norm := c.Out[0]; hyper.Dtype != tensor.Float64 || norm.Dtype != tensor.Float64 {
		return graph.Refuse(graph.ReasonType, "hyper is %v, norm %v, want float64", hyper, norm)
	}
	for i := range op.DecayMask {
		o := inputs[i]
		for _, x := range []kernels.Operand{o.Weight, o.M, o.V} {
			if x.Dtype != tensor.Float32 {
				return graph.Refuse(graph.ReasonType, "a weight or moment is %v, want float32", x)
			}
		}
		if _, err := kernels.TypeOf(o.Grad.Dtype); err != nil {
			return err
		}
		if o.Copy.Shape != nil && !spec.IsHalf(o.Copy.Dtype) {
			return graph.Refuse(graph.ReasonType, "a copy is %v, want half precision", o.Copy)
		}
	}
	return nil
}

// update adds hyper [10], and weight, grad, m, v and an optional copy of each tensor -> norm [1], the norm of all
// gradients. If it is finite, weights, moments and copies are updated in place.
func update(b *kernels.Builder, op optimizer.Update) {
	hyper, inputs := optimizer.Split(op, b.In)
	norm := b.Out[0]
	var tensors []adamWTensor
	var runs, updates []adamWRun // of all tensors, of those without Muon
	for i, decay := range op.DecayMask {
		t := tensorOf(inputs[i])
		t.decay = kernels.Flag(decay == '1')
		tensors = append(tensors, t)
		runs = append(runs, runsOf(i, t.n)...)
		if !takesMuon(op, i) {
			updates = append(updates, runsOf(i, t.n)...)
		}
	}
	p := &adamWParams{
		tensors: b.Array(tensors), runs: b.Array(runs), updates: b.Array(updates), hyper: hyper.Ref, norm: norm.Ref,
		count: int64(len(runs)), updateCount: int64(len(updates)),
	}
	p.squares = b.Work(8 * p.count)
	b.AddLaunch("nsa_adamw_squares_f32", runGrid(runs), kernels.Threads(), 0, p)
	b.AddLaunch("nsa_adamw_norm_f64", kernels.Line(1), kernels.Line(1024), 0, p)
	if len(updates) > 0 {
		b.AddLaunch("nsa_adamw_update_f32", runGrid(updates), kernels.Threads(), 0, p)
	}
	addMuon(b, muonBatches(op, inputs), tensors, p)
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

// tensorOf describes a tensor.
func tensorOf(o optimizer.Tensor[kernels.Operand]) adamWTensor {
	t := adamWTensor{weight: o.Weight.Ref, grad: o.Grad.Ref, m: o.M.Ref, v: o.V.Ref, n: o.Weight.N()}
	t.gradType = int32(o.Grad.Type())
	if o.Copy.Shape != nil {
		t.half, t.halfType = o.Copy.Ref, int32(o.Copy.Type())
	}
	return t
}
